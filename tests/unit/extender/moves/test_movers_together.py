"""Several who move pods: an extender that dies and its successor, and a person beside them.

The person's is the real `gpushare defrag --apply`; while it sleeps, and at times between its calls,
the cluster goes on.
"""

import itertools
import json
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cli import defrag, defrag_apply
from gpushare.wire.moves import SETTLES
from tests.unit.extender.moves.world import AFTER, EPOCH, Json, World, node_of_two


class Died(BaseException):
    """The process is killed."""


class Mortal(World):
    """The extender dies at one of its calls, before or after the call is carried out."""

    def __init__(self, fatal: int, *, carried_out: bool) -> None:
        self.fatal, self.carried_out, self.calls = fatal, carried_out, 0
        super().__init__()
        self.slow = 3

    def request(self, method: str, path: str, **more: Any) -> bytes:
        self.calls += 1
        if self.calls != self.fatal:
            return super().request(method, path, **more)
        if self.carried_out:
            super().request(method, path, **more)
        raise Died


@pytest.mark.parametrize("carried_out", [False, True])
def test_one_that_dies_at_any_call_is_followed_by_one_that_moves_nobody_twice(
    *, carried_out: bool
) -> None:
    bound_pod = 0
    for fatal in itertools.count(1):
        world = Mortal(fatal, carried_out=carried_out)
        world.tick()
        try:
            world.tick(AFTER)
            world.until_idle(25)
        except Died:
            world.start()
            waits, before = world.under_way(), len(world.evictions)
            world.until_idle(10)
            assert not waits or len(world.evictions) == before
            world.tick(SETTLES)
            world.until_idle(25)
        moves = [name for _, name in world.evictions]
        assert moves in (["mover-0"], ["mover-0", "mover-1"])
        if not world.is_bound():  # the moved pod has gone back: nobody kept its hole
            assert len(moves) == 1
            assert [world.node_of(pod) for pod in world.heirs()] == ["a"]
        bound_pod += world.is_bound()
        assert world.holds() == []
        if world.calls < fatal:
            break
    assert fatal > 30
    assert bound_pod > fatal * 3 / 4


class Person:
    """The calls of `gpushare defrag --apply` to kubectl; between calls time may pass."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self.evictions = 0

    def namespace(self) -> str:
        return "team"

    def get(self, path: str) -> Json:
        document: Json = json.loads(self.request("GET", path))
        return document

    def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, **_: object
    ) -> bytes:
        if self._rng.random() < 0.3:
            self._world.tick()
        if path == "/api/v1/nodes":
            return self._world.listed("Node", list(map(node_of_two, self._world.nodes)))
        if path.endswith("/configmaps"):
            return self._world.listed("ConfigMap", [])
        return self._world.request(method, path, query=query)

    def create(self, path: str, body: Json) -> None:
        self._send("POST", path, body)

    def replace(self, path: str, body: Json) -> None:
        self._send("PUT", path, body)

    def _send(self, method: str, path: str, body: Json) -> None:
        if self._rng.random() < 0.3:
            self._world.tick()
        self._world.request(method, path, body=json.dumps(body).encode())
        self.evictions += path.endswith("/eviction")


def _beside_a_person(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Tell a story of both; return how many pods the person has moved, and how many the mover."""
    rng = random.Random(seed)
    world = World()
    world.nodes += ["c", "d"]
    world.start()
    for node, device in itertools.product("cd", range(2)):
        owner = f"set-{node}{device}" if rng.random() < 0.7 else ""
        world.runs(f"more-{node}{device}", rng.randint(4, 10), node, device, owner=owner)
    world.slow = rng.choice([0, 2, 20])
    person = Person(world, rng)
    clock = SimpleNamespace(
        time=lambda: EPOCH + world.now,
        monotonic=lambda: world.now,
        sleep=lambda seconds: world.until_idle(int(seconds)),
    )
    monkeypatch.setattr(defrag, "connection", lambda *_: person)
    monkeypatch.setattr(defrag, "time", clock)
    monkeypatch.setattr(defrag_apply, "time", clock)
    world.until_idle(int(AFTER) - 2 + rng.randint(0, 6))
    policy = rng.choice(["device-bestfit", "binpack", "spread"])
    code = defrag.main(
        ["--for", "pod", "team/late", "--apply", "--yes", "--policy", policy, "--wait", "60"]
    )
    world.until_idle(60)
    world.tick(SETTLES)
    world.until_idle(60)
    moves = person.evictions, len(world.evictions) - person.evictions
    print(f"seed {seed}: exit code {code}, moves {moves}, stops {world.stops()}")
    assert all(world.node_of(pod) for pod in world.heirs()), "a moved pod runs again"
    assert world.holds() == []
    return moves


def test_a_person_and_the_extender_never_evict_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = [_beside_a_person(seed, monkeypatch) for seed in range(40)]
    assert any(all(moves) for moves in result), "in one both move something"
    assert max(map(sum, result)) <= 4
