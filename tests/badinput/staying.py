"""Memory that stays: the same large input many times, with different names each time.

Memory kept per input grows with the number of inputs; temporary memory does not. The first round,
where the allocator grows to the size of one input, does not count.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator

from tests.badinput.attempt import PREFIX, Attempt, framed
from tests.badinput.costs import STAYS, resident
from tests.badinput.odd import POD, Json
from tests.badinput.sender import Sender
from tests.badinput.world import BadWorld

LENGTH = 4_000_000
ROUND = 20
"""Inputs per round: 80 MB, so that even a small kept share is found."""

Make = Callable[[BadWorld, int], bytes]
"""The input of that number."""

_FIELDS = ("uid", "name", "namespace", "resourceVersion", "creationTimestamp")


def stays(world: BadWorld, rounds: int = 2) -> tuple[Counter[str], list[str]]:
    """(inputs sent by kind, findings)."""
    body: Counter[str] = Counter()
    findings: list[str] = []
    (worker,) = world.extender.children()
    sender = Sender(world.extender.port, world.probe_port)
    try:
        for kind, make in KINDS.items():
            _round(world, sender, make, 0)
            before = resident(worker)
            for turn in range(1, 1 + rounds):
                _round(world, sender, make, turn)
            body[kind] += (1 + rounds) * ROUND
            grown = (resident(worker) - before) / (rounds * ROUND)
            if grown > STAYS:
                findings.append(f"{kind}: {grown:.1f} MB of each input of {LENGTH:,} bytes stay")
    finally:
        sender.close()
    return body, findings + world.changes()


def _round(world: BadWorld, sender: Sender, make: Make, turn: int) -> None:
    for number in range(turn * ROUND, (turn + 1) * ROUND):
        sender.send(Attempt("large", make(world, number), framed=True))


def _long(number: int) -> str:
    return f"{number}-".ljust(LENGTH, "x")


def _pod(field: str) -> Make:
    def make(world: BadWorld, number: int) -> bytes:
        pod = {**POD, "metadata": {**POD["metadata"], field: _long(number)}}
        return _asked("filter", {"Pod": pod, "NodeNames": list(world.targets.nodes)})

    return make


def _noted(part: str) -> Make:
    def make(world: BadWorld, number: int) -> bytes:
        meta = {**POD["metadata"], "uid": f"uid-{number}", part: {"a": _long(number)}}
        body = {"Pod": {**POD, "metadata": meta}, "NodeNames": list(world.targets.nodes)}
        return _asked("filter", body)

    return make


def _node_name(world: BadWorld, number: int) -> bytes:
    return _asked("filter", {"Pod": POD, "NodeNames": [_long(number)]})


def _bind(field: str) -> Make:
    def make(world: BadWorld, number: int) -> bytes:
        body = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n"}
        return _asked("bind", body | {field: _long(number)})

    return make


def _no_json(world: BadWorld, number: int) -> bytes:
    body = f'{{"Pod":7,"x":"{_long(number)}"}}'.encode()
    return framed(body, f"{PREFIX}/filter")


def _no_route(path: str) -> Make:
    def make(world: BadWorld, number: int) -> bytes:
        return framed(f'{{"x":"{_long(number)}"}}'.encode(), path)

    return make


def _victims(world: BadWorld, number: int) -> bytes:
    return _asked("preempt", {"Pod": POD, "NodeNameToMetaVictims": {_long(number): {"Pods": []}}})


def _asked(verb: str, body: Json) -> bytes:
    return framed(json.dumps(body).encode(), f"{PREFIX}/{verb}")


def _kinds() -> Iterator[tuple[str, Make]]:
    for field in _FIELDS:
        yield f"metadata.{field}", _pod(field)
    for part in ("labels", "annotations"):
        yield f"metadata.{part}", _noted(part)
    for field in ("PodName", "PodNamespace", "PodUID", "Node"):
        yield f"bind {field}", _bind(field)
    yield "a node's name", _node_name
    yield "no pod", _no_json
    yield "victims", _victims
    yield "a path that is not served", _no_route("/nothing")
    yield "a method that is not served", _no_route(f"{PREFIX}/inspect")


KINDS = dict(_kinds())
