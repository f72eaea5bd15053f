"""Every order there is of a few binds: three of five steps each, and two with relist and crash.

Built on the small world of tests/simulation/bind_world.py. Orders that lead to the same state have
the same future, so the search continues from one of them; the number of orders is counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gpushare.core.decide import filter_nodes
from gpushare.core.model import Request
from gpushare.core.pairing import Pairing
from gpushare.extender.verbs.bind.transaction import WriteBinding
from gpushare.ledger import Ledger
from tests.simulation.bind_world import Move, OrderWorld
from tests.unit.core.clusters import node as make_node

STEPS = 5
"""Steps of a bind: filter, decide and charge, the API server's write, the answer, the watch's
event."""

THREE = OrderWorld(
    pods={"a": 2, "b": 2, "c": 3},
    nodes={"n": (4, 3)},
    binds=[("a", "n"), ("b", "n"), ("c", "n")],
)
"""Room for two of the three on one device, or for all of them: the order decides."""


def count_orders(start: OrderWorld) -> int:
    """How many orders of the binds' steps there are; all are run, and checked after every step."""
    binds = len(start.binds)
    start.watched = len(start.store.log)
    layer = {((0,) * binds, start.key()): (start, 1)}
    for _ in range(binds * STEPS):
        after: dict[tuple[object, ...], tuple[OrderWorld, int]] = {}
        for (places, _), (world, orders) in layer.items():
            for index, place in enumerate(places):
                if place == STEPS:
                    continue
                branch = world.copy()
                _take(branch, index, place)
                branch.check()
                next_places = (*places[:index], place + 1, *places[index + 1 :])
                key = (next_places, branch.key())
                earlier_count = after.get(key)
                after[key] = (branch, orders + (earlier_count[1] if earlier_count else 0))
        layer = after  # type: ignore[assignment]  # keys are pairs of places and a state
    for world, _ in layer.values():
        world.come_to_rest()
    return sum(orders for _, orders in layer.values())


def _take(world: OrderWorld, index: int, place: int) -> None:
    """Take a step of a bind; no effect if the step does not apply."""
    actor = world.actors[index]
    if place == 0:
        request = Request(world.pods[actor.pod], 1)
        verdict = filter_nodes(world.ledger.snapshot(), [actor.node], request)
        assert len(verdict.fit) + len(verdict.failed) == 1
    elif place == 1:
        world.do(("start", str(index)))
    elif place == 2 and isinstance(actor.step, WriteBinding):
        world.do(("serve", str(index)))
    elif place == 3 and actor.carried is not None:
        world.do(("deliver", str(index)))
    elif place == 4 and world.watched < len(world.store.log):
        world.do(("event",))


@dataclass
class CrashWorld(OrderWorld):
    """The same with processes that end: a new process lists first, without any earlier knowledge.

    A request on the way to the API server then is applied, or never is: the next process begins
    when the timeout of any request is over (the fence). synced: the process has listed.
    """

    crashes: int = 0
    synced: bool = True

    def moves(self) -> list[Move]:
        """Every step possible now."""
        if not self.synced:
            return [("listed",)] if self.list_page is not None else [("list",)]
        moves = super().moves()
        if self.crashes:
            flying = [
                str(index)
                for index, actor in enumerate(self.actors)
                if isinstance(actor.step, WriteBinding) and actor.carried is None
            ]
            moves += [("crash", *landing) for landing in _subsets(flying)]
        return moves

    def _do_crash(self, *landing: str) -> None:
        self.crashes -= 1
        for index in landing:
            self.do(("serve", index))
        for body in self.late:
            self._late_apply(body)
        self.late, self.list_page, self.query = [], None, None
        self.actors = [actor for actor in self.actors if actor.bind is None]
        self.settle_in(Ledger(Pairing.OFF))
        for name, capacity in self.nodes.items():
            self.ledger.node_changed(make_node(name, *capacity))
        self.synced = False
        self.relists += 1

    def _do_listed(self) -> None:
        super()._do_listed()
        self.synced = True

    def check(self) -> None:
        """No device holds more than its capacity; a process that has not listed does not count."""
        if self.synced:
            super().check()

    def key(self) -> tuple[object, ...]:
        """The hashable state that decides the future."""
        return (*super().key(), self.crashes, self.synced)


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for chosen in product((False, True), repeat=len(names)):
        yield tuple(name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen)
