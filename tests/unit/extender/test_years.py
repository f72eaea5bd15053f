"""Years of a cluster with nodes and pods that never have a name twice: kept state does not grow.

An autoscaler's nodes have a new name each time, and so have pods. State that is kept by name must
go with the name, or be bounded by count; here all such bounds are small.
"""

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from types import MethodType
from typing import Any

import numpy as np
import pytest

from gpushare.core.claims.model import ClassRecord
from gpushare.core.node_names import NodeNames
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.claims.ranker import ClaimRanker
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.filter import FilterOptions
from gpushare.extender.verbs.recipients import Recipients
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.selectors import Selectors
from gpushare.wire.objects import NODES, PODS
from tests.support.claim_values import (
    DRIVER,
    GIB,
    allocated,
    device,
    holding,
    open_claim,
    pod_with,
    slice_of,
)
from tests.support.scripted_api import ScriptedApi
from tests.unit.extender.kit import node_json, pod_json
from tests.unit.extender.scripted_extender import Heard

Json = dict[str, Any]

BOUNDS = {
    "gpushare.core.spare_arrays.MOST": 1,
    "gpushare.extender.verbs.tickets.MAX_TICKETS": 20,
    "gpushare.extender.verbs.tickets._MAX_NODES": 20,
    "gpushare.extender.verbs.holds._MAX_CHANGED": 20,
    "gpushare.extender.verbs.holds._MAX_TURNED_AWAY": 20,
    "gpushare.extender.verbs.holds._MAX_KEPT_OUT": 20,
    "gpushare.wire.extender.MAX_KNOWN": 40,
    "gpushare.extender.claims.ranker._MAX_KINDS": 4,
    "gpushare.extender.verbs.group_room._MAX_GROUPS": 20,
    "gpushare.extender.tell.events.messages._MAX_PODS": 20,
}
THERE = 8
"""Nodes at a time."""
ROUNDS = 60


class Cluster:
    """A process's books, watches and verbs, and a cluster of short-lived objects.

    Each round some seconds pass, a node comes and the oldest goes; a pod is bound, one of a group
    waits, and one fits nowhere; a claim has a card of the new node.
    """

    def __init__(self) -> None:
        self.api = ScriptedApi()
        ranking = Ranking(load_policy("shadow-price"))
        self.managed = ManagedResource(
            ALIYUN, Ledger(Pairing.AUTO), {"shadow-price": ranking}, "shadow-price"
        )
        self.resources = ManagedResources((self.managed,))
        self.service = Service(
            self.resources,
            Binder(
                self.api,
                self.resources,
                lambda: float("inf"),
                self.api.clock,
                lambda: int(self.api.now * 1e9),
            ),
            not_ready=str,
            filter_options=FilterOptions(best_only=True),
            bind_slots=BindSlots(8),
            recipients=Recipients(
                event_messages=EventMessages(Heard(), self.resources, "GiB", self.api.clock)
            ),
            clock=self.api.clock,
            wall=self.api.clock,
        )
        self.pods = PodEventHandler(self.resources, clock=self.api.clock)
        self.node_handler = NodeEventHandler(self.resources, "GiB")
        self.claims = ClaimBooks(DRIVER, GIB, published=self.managed.ledger.lend)
        self.ranker = ClaimRanker(
            self.claims,
            ManagedResource(ALIYUN, self.claims.ledger, {"shadow-price": ranking}, "shadow-price"),
            Selectors(lambda: 0.0),
            is_ready=lambda: True,
            clock=self.api.clock,
        )
        self.nodes: deque[str] = deque()
        self.numbers = count()

    def round(self) -> None:
        """Let a round pass."""
        number = next(self.numbers)
        self.api.now += 90
        self._node("ADDED", name := f"node-{number}")
        self.nodes.append(name)
        self._pod(pod_json(f"bound-{number}", 4), bound=True)
        grouped = pod_json(f"grouped-{number}", 4)
        grouped["metadata"]["labels"] = {
            "scheduling.x-k8s.io/pod-group": f"group-{number}",
            "pod-group.scheduling.sigs.k8s.io/min-available": "2",
        }
        self._pod(grouped)
        self._pod(pod_json(f"large-{number}", 20))
        assert self.managed.ledger.taken(name) is not None
        if len(self.nodes) > THERE:
            self._node("DELETED", self.nodes.popleft())
        self.claims.replace_classes([ClassRecord("gpu")])
        self.claims.replace_slices(
            slice_of(node, device("gpu", 40, node=node)) for node in self.nodes
        )
        self.claims.claim_changed(open_claim(number, number + 1))
        self.ranker.rank(pod_with(number, uid=name), NodeNames(self.nodes))
        self.claims.claim_changed(allocated(number, holding(name, "gpu", 10)))
        self.claims.claim_gone(f"claim-uid-{number}")
        self.api.calls.clear()

    def _node(self, kind: str, name: str) -> None:
        node = node_json(name, 32, 2) | {"kind": "Node", "apiVersion": "v1"}
        self.node_handler.apply(NODES.decode_event(_body({"type": kind, "object": node})))

    def _pod(self, pod: Json, *, bound: bool = False) -> None:
        meta = pod["metadata"]
        self._watch("ADDED", pod)
        body_result = _body({"Pod": pod, "NodeNames": list(self.nodes)})
        names = json.loads(self.service.filter(body_result))["NodeNames"]
        self.service.prioritize(body_result)
        if bound:
            ref = {"PodName": meta["name"], "PodNamespace": "team", "PodUID": meta["uid"]}
            answer = self.service.bind(_body(ref | {"Node": names[0]}))
            assert json.loads(answer) == {"Error": ""}
            pod["spec"]["nodeName"] = names[0]
            self._watch("MODIFIED", pod)
        self._watch("DELETED", pod)

    def _watch(self, kind: str, pod: Json) -> None:
        self.pods.apply(PODS.decode_event(_body({"type": kind, "object": pod})))


def _body(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def parts_of(value: Any) -> Iterator[Any]:
    """The parts of a value that may grow."""
    if isinstance(value, Mapping):
        yield from (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield value.__self__
    elif type(value).__module__.startswith("gpushare"):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()
        slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
        yield from (getattr(value, name) for name in slots if hasattr(value, name))


def values_of(*roots: Any) -> list[Any]:
    """Return the values that the roots are made of, each once."""
    known_items: dict[int, Any] = {}
    waiting_pods = list(roots)
    while waiting_pods:
        value = waiting_pods.pop()
        if id(value) not in known_items and not isinstance(value, int):
            known_items[id(value)] = value
            waiting_pods += parts_of(value)
    return [*known_items.values()]


def size_of(values: Iterable[Any]) -> int:
    """Return the number of values; an array counts as its elements."""
    return sum(value.size if isinstance(value, np.ndarray) else 1 for value in values)


def test_what_is_kept_does_not_grow_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in BOUNDS.items():
        monkeypatch.setattr(name, entry)
    cluster, sizes = Cluster(), []
    for _ in range(3):
        for _ in range(ROUNDS):
            cluster.round()
        parts = (cluster.service, cluster.pods, cluster.node_handler, cluster.claims)
        values = values_of(*parts, cluster.ranker)
        sizes.append(size_of(values))
    # With the machine's clock a slow run would report more pods, and keep other names.
    machine_clocks = (time.monotonic, time.time, time.time_ns)
    assert not any(value is clock for value in values for clock in machine_clocks)
    # The name of each node whose cards were a driver's, and no more: it stays closed to pods by
    # annotation, whoever comes back by that name.
    assert [size - sizes[0] for size in sizes] == [0, ROUNDS, 2 * ROUNDS]
