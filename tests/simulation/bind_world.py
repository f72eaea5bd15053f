"""A small world around Bind and the Ledger; events happen there in any order.

Actors: binds (each with a request to the API server or an answer on the way), one
follower of the watch that may relist, one that settles charges in doubt, a user that deletes pods,
the clock. `moves` are the steps possible now, `do` takes one; a world can be copied and both go on.
Served and delivered are two steps, so the content of an answer may be outdated on arrival.
"""

import copy
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpushare.core.model import PodRef
from gpushare.core.pairing import Pairing
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import Entry, Waiting
from gpushare.core.states.records import CpuOnly
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.verbs.bind.transaction import (
    BindResult,
    BindTransaction,
    ReadPod,
    Step,
    WriteBinding,
)
from gpushare.ledger import BINDING_LIFETIME, Ledger, Overdue
from gpushare.ledger.books import NodeRecord
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode_binding
from gpushare.wire.objects import Pod
from gpushare.wire.pods import observe_pod, request_of
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import RANKINGS, pod_json, read_pod
from tests.unit.extender.pod_store import PodStore

Move = tuple[str, ...]

_FOREVER = float("inf")
_SHARED = (
    *(type(threading.RLock()), itertools.count, Snapshot, frozenset),
    *(Entry, Waiting, CpuOnly, NodeRecord),
)
_LOST = "no answer"


@dataclass
class Actor:
    """A running bind. carried: the answer on the way, with the time when the read was sent."""

    pod: str
    node: str
    bind: BindTransaction | None = None
    step: Step | None = None
    carried: tuple[Any, float] | None = None


@dataclass
class OrderWorld:
    """pods: units by name. nodes: units of each device, by name. binds: (pod, node).

    faults: how many answers may be lost, late or refused. rounds: how often a charge in doubt is
    read. waits: how often the clock may go on until no late write can land any more.
    """

    pods: Mapping[str, int]
    nodes: Mapping[str, Sequence[int]]
    binds: Sequence[tuple[str, str]]
    deletes: Sequence[str] = ()
    recreates: Sequence[str] = ()
    relists: int = 0
    faults: int = 0
    rounds: int = 0
    waits: int = 0
    now: float = 0.0
    watched: int = 0
    list_page: tuple[list[Pod], int] | None = None
    query: tuple[Overdue, Pod | None, float, bool] | None = None
    late: list[bytes] = field(default_factory=list)
    ever_bound: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.settle_in(Ledger(Pairing.OFF))
        for name, capacity in self.nodes.items():
            self.ledger.node_changed(make_node(name, *capacity))
        self.store = PodStore()
        for name, units in self.pods.items():
            self.store.create(pod_json(name, units))
        self.actors = [Actor(pod, node) for pod, node in self.binds]

    def copy(self) -> "OrderWorld":
        """An independent world."""
        twin = copy.copy(self)
        twin.store = PodStore(dict(self.store.pods), list(self.store.log))
        twin.late, twin.ever_bound = list(self.late), set(self.ever_bound)
        twin.settle_in(_copied(self.ledger))
        twin.actors = [replace(actor, bind=twin.moved(actor.bind)) for actor in self.actors]
        return twin

    def settle_in(self, ledger: Ledger) -> None:
        """Let this world have that ledger."""
        self.ledger = ledger
        self.books = ManagedResource(ALIYUN, ledger, RANKINGS, "device-bestfit")
        self.resources = ManagedResources((self.books,))

    def moved(self, bind: BindTransaction | None) -> BindTransaction | None:
        """The same bind in this world."""
        if bind is None or bind.resource_request is None:
            return None
        return replace(
            bind, resources=self.resources, resource_request=(self.books, bind.resource_request[1])
        )

    # -- possible steps ------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        """Every step possible now."""
        moves = [move for index in range(len(self.actors)) for move in self._actor_moves(index)]
        moves += [("late", str(index)) for index in range(len(self.late))]
        if self.list_page is not None:
            moves.append(("listed",))
        elif self.watched < len(self.store.log):
            moves.append(("event",))
        if self.relists and self.list_page is None:
            moves.append(("list",))
        moves += [("delete", name) for name in self.deletes if name in self.store.pods]
        moves += [("ended", name) for name in self._terminating()]
        moves += [("recreate", name) for name in self.recreates if name not in self.store.pods]
        return moves + self._settler_moves()

    def _actor_moves(self, index: int) -> list[Move]:
        actor, name = self.actors[index], str(index)
        moves: list[Move] = []
        if actor.bind is None:
            moves.append(("start", name))
        elif actor.carried is not None:
            moves.append(("deliver", name))
        elif isinstance(actor.step, ReadPod):
            moves += [("serve", name)] + [("fail", name)] * bool(self.faults)
        elif isinstance(actor.step, WriteBinding):
            faults = ("lose", "half", "delay", "refuse", "gate") if self.faults else ()
            moves += [("serve", name), *((fault, name) for fault in faults)]
        return moves

    def _settler_moves(self) -> list[Move]:
        moves: list[Move] = []
        if self.query is not None:
            moves.append(("settle",) if self.query[3] else ("look",))
        elif self.rounds:
            overdue = self.ledger.overdue(self.now)
            moves += [("overdue", str(index)) for index in range(len(overdue))]
        # The API server ends every request within the time a charge in doubt is held.
        if self.waits and not self.late:
            moves.append(("wait",))
        return moves

    def do(self, move: Move) -> None:
        """Take the step."""
        kind, *arguments = move
        getattr(self, f"_do_{kind}")(*arguments)

    def _do_start(self, index: str) -> None:
        actor = self.actors[int(index)]
        document = self.store.pods.get(actor.pod) or pod_json(actor.pod, self.pods[actor.pod])
        ref = PodRef("team", actor.pod, document["metadata"]["uid"])
        books_and_request = (self.books, request_of(read_pod(document), ALIYUN))
        actor.bind = BindTransaction(
            self.resources, ref, actor.node, True, books_and_request, stamp=str(int(index) + 1)
        )
        actor.step = actor.bind.start(self.now, _FOREVER)

    def _do_serve(self, index: str) -> None:
        actor = self.actors[int(index)]
        if isinstance(actor.step, ReadPod):
            actor.carried = (self.store.read(actor.pod), self.now)
            return
        try:
            self._apply(_body(actor))
        except ApiError as error:
            actor.carried = (error, self.now)
        else:
            actor.carried = (None, self.now)

    def _do_fail(self, index: str) -> None:
        self._answer(index, ApiUnavailable(_LOST, 0))

    def _do_lose(self, index: str) -> None:
        self._answer(index, ApiUnavailable(_LOST, 0))

    def _do_half(self, index: str) -> None:
        self._late_apply(_body(self.actors[int(index)]))
        self._answer(index, ApiUnavailable(_LOST, 504))

    def _do_delay(self, index: str) -> None:
        self.late.append(_body(self.actors[int(index)]))
        self._answer(index, ApiUnavailable(_LOST, 0))

    def _do_refuse(self, index: str) -> None:
        self._answer(index, ApiError("an admission webhook says no", 403))

    def _do_gate(self, index: str) -> None:
        # Scheduling gates: the same status as for a pod that is bound already.
        self._answer(index, ApiConflict("pod has non-empty .spec.schedulingGates", 409))

    def _do_deliver(self, index: str) -> None:
        actor = self.actors[int(index)]
        assert actor.bind is not None
        assert actor.carried is not None
        action, sent_at = actor.carried
        actor.carried = None
        if isinstance(actor.step, WriteBinding):
            actor.step = actor.bind.written(action, self.now)
        else:
            actor.step = actor.bind.read(action, sent_at, self.now, _FOREVER)

    def _do_late(self, index: str) -> None:
        self._late_apply(self.late.pop(int(index)))

    def _do_list(self) -> None:
        self.relists -= 1
        self.list_page = ([read_pod(pod) for pod in self.store.pods.values()], len(self.store.log))

    def _do_listed(self) -> None:
        assert self.list_page is not None
        pods, self.watched = self.list_page
        self.list_page = None
        self.ledger.replace_pods([observe_pod(pod, ALIYUN) for pod in pods])

    def _do_event(self) -> None:
        event = self.store.event(self.watched)
        self.watched += 1
        assert event.object is not None
        pod = observe_pod(event.object, ALIYUN)
        if event.kind == "DELETED":
            self.ledger.pod_gone(pod.ref.uid)
        else:
            self.ledger.pod_changed(pod)

    def _do_delete(self, name: str) -> None:
        self.deletes = [pending_name for pending_name in self.deletes if pending_name != name]
        self.store.delete(name)

    def _do_recreate(self, name: str) -> None:
        self.recreates = [pending_name for pending_name in self.recreates if pending_name != name]
        self.store.create(pod_json(name, self.pods[name], uid=f"uid-{name}-again"))

    def _do_ended(self, name: str) -> None:
        self.store.remove(name)

    def _do_overdue(self, index: str) -> None:
        self.rounds -= 1
        self.query = (self.ledger.overdue(self.now)[int(index)], None, self.now, False)

    def _do_look(self) -> None:
        assert self.query is not None
        overdue, _, sent_at, _ = self.query
        pod = self.store.read(overdue.ref.name)
        assert not isinstance(pod, ApiError)
        self.query = (overdue, pod, sent_at, True)

    def _do_settle(self) -> None:
        assert self.query is not None
        overdue, pod_now, sent_at, _ = self.query
        self.query = None
        pod = observe_pod(pod_now, ALIYUN) if pod_now else None
        self.ledger.settle(overdue.ref.uid, overdue.token, pod, sent_at)

    def _do_wait(self) -> None:
        self.waits -= 1
        self.now += BINDING_LIFETIME

    # -- invariants ----------------------------------------------------------------------------

    def check(self) -> None:
        """No device holds more than its capacity, and the books never show less than the held
        units.
        """
        true_units, charged_units = self.truth(), self.charges()
        for name, capacity in self.nodes.items():
            for device, units in enumerate(capacity):
                truly = sum(holding.get((name, device), 0) for holding in true_units.values())
                books = sum(holding.get((name, device), 0) for holding in charged_units.values())
                assert truly <= units, f"{name}/{device}: {truly} of {units} held"
                assert books >= truly, f"{name}/{device}: the books say {books} of {truly}"
        for uid, holding in true_units.items():
            assert charged_units.get(uid) == holding, f"{uid} holds {holding}"
        for actor in self.actors:
            if actor.step == BindResult("", "bound"):
                assert (actor.pod, actor.node) in self.ever_bound

    def truth(self) -> dict[str, dict[tuple[str, int], int]]:
        """uid -> (node, device) -> units, of the pods that have a node, by their annotations."""
        true_units = {}
        for document in self.store.pods.values():
            pod = observe_pod(read_pod(document), ALIYUN)
            if pod.node:
                assert pod.placement is not None
                true_units[pod.ref.uid] = {(pod.node, dev): units for dev, units in pod.placement}
        return true_units

    def charges(self) -> dict[str, dict[tuple[str, int], int]]:
        """The same by the books."""
        return {
            entry.ref.uid: {(entry.node, dev): units for dev, units in entry.placement or ()}
            for node in self.ledger.dump()
            for entry in node.entries
        }

    def come_to_rest(self) -> None:
        """Let everything under way end without further faults, and see that the books are right."""
        self.deletes, self.recreates = (), ()
        self.relists, self.faults, self.rounds, self.waits = 0, 0, 0, 0
        for _ in range(3):
            while moves := [move for move in self.moves() if move[0] != "start"]:
                self.do(moves[0])
                self.check()
            self.now += BINDING_LIFETIME
            self.rounds = len(self.ledger.overdue(self.now))
        assert self.ledger.overdue(self.now) == ()
        self.ledger.check()
        assert self.charges() == self.truth()
        assert self.ledger.counts()["assumed"] == 0

    def key(self) -> tuple[object, ...]:
        """The hashable state that decides the future. Tokens count by owner, not by number."""
        return (
            tuple(map(self._actor_key, self.actors)),
            self._ledger_key(),
            tuple(map(_pod_key, self.store.pods.items())),
            tuple(_pod_key(record) for record in self.store.log[self.watched :]),
            (self.now, self.relists, self.faults, self.rounds, self.waits),
            (*self.deletes, "-", *self.recreates),
            None
            if self.list_page is None
            else (repr(self.list_page[0]), self.list_page[1] - self.watched),
            None if self.query is None else (*map(repr, self.query[1:]), self._live(self.query[0])),
            tuple(self.late),
        )

    def _actor_key(self, actor: Actor) -> tuple[object, ...]:
        bind = actor.bind
        if bind is None:
            return ()
        fresh = bind.token == self.ledger.token(bind.ref.uid)
        return (bind.read_reason, bind.resent, fresh, repr(actor.step), repr(actor.carried))

    def _ledger_key(self) -> tuple[object, ...]:
        def due(now: float) -> frozenset[str]:
            return frozenset(overdue.ref.uid for overdue in self.ledger.overdue(now))

        moments = (-_FOREVER, *(self.now + BINDING_LIFETIME * k for k in range(-2, 2)), _FOREVER)
        entries = [_alike(entry) for node in self.ledger.dump() for entry in node.entries]
        return (*entries, *map(due, moments))

    def _live(self, overdue: Overdue) -> tuple[str, bool]:
        return overdue.ref.uid, overdue.token == self.ledger.token(overdue.ref.uid)

    def _terminating(self) -> list[str]:
        pods = self.store.pods.items()
        return [name for name, pod in pods if "deletionTimestamp" in pod["metadata"]]

    def _answer(self, index: str, error: ApiError) -> None:
        self.faults -= 1
        self.actors[int(index)].carried = (error, self.now)

    def _apply(self, body: bytes) -> None:
        before = len(self.store.log)
        self.store.bind(body)
        for _, pod in self.store.log[before:]:
            self.ever_bound.add((pod["metadata"]["name"], pod["spec"]["nodeName"]))

    def _late_apply(self, body: bytes) -> None:
        try:
            self._apply(body)
        except (ApiConflict, ApiNotFound):
            return


def _copied(ledger: Ledger) -> Ledger:
    """Independent books. Constant values are shared; lock and tokens too, without harm."""
    parts = [*vars(ledger).values(), *vars(vars(ledger)["_store"]).values()]
    dicts = [part for part in parts if isinstance(part, dict)]
    inner = [value for mapping in dicts for value in mapping.values()]
    shared = [mapping for mapping in (*parts, *inner) if isinstance(mapping, _SHARED)]
    return copy.deepcopy(ledger, {id(mapping): mapping for mapping in shared})


def _alike(entry: Entry) -> Entry:
    """Return the charge without fields that do not affect the future: see `key`."""
    if entry.assumption is None:
        return entry
    alike = replace(entry.assumption, token=0, since=0.0, stamps=frozenset())
    return replace(entry, assumption=alike)


def _body(actor: Actor) -> bytes:
    assert isinstance(actor.step, WriteBinding)
    return encode_binding(actor.step.ref, actor.step.node, actor.step.annotations)


def _pod_key(item: tuple[str, dict[str, Any]]) -> tuple[object, ...]:
    kind, pod = item
    metadata = pod["metadata"]
    mark = "deletionTimestamp" in metadata
    return (kind, metadata["uid"], mark, pod["spec"]["nodeName"], repr(metadata["annotations"]))


def explore(start: OrderWorld) -> int:
    """Return the number of states that every order of steps reaches; all of them are checked.

    States that look alike have the same future, so each is gone on from once.
    """
    visited = {start.key()}
    frontier: list[tuple[OrderWorld, tuple[Move, ...]]] = [(start, ())]
    while frontier:
        world, path = frontier.pop()
        moves = world.moves()
        try:
            world.check()
            if not moves:
                world.come_to_rest()
        except AssertionError as error:
            error.add_note(f"after {path}")
            raise
        for move in moves:
            branch = world.copy()
            branch.do(move)
            key = branch.key()
            if key not in visited:
                visited.add(key)
                frontier.append((branch, (*path, move)))
    return len(visited)
