"""The shadow's books are the real ones, with the pods where the shadow policy puts them."""

import random

import numpy as np
import pytest

from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.mutable_cluster import ranking
from gpushare.sim.engine import Cluster
from gpushare.trace.nodes_and_pods import TraceNode
from tests.unit.core.clusters import POLICIES
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.shadow.traffic import Traffic

GIB = 2**30
NODES = tuple(
    TraceNode(
        f"n{number}", 16_000, 64 * 1024, 1 + number % 4, (8, 16)[number % 2], f"M{number % 2}"
    )
    for number in range(8)
)


def _spec(node: TraceNode) -> NodeSpec:
    return make_node(
        node.name,
        *node.sizes,
        cpu=node.cpu,
        memory=node.memory * 2**20,
        models=(node.model,) * node.devices,
    )


def _request(rng: random.Random) -> Request:
    devices = rng.choice((1, 1, 1, 2))
    return Request(rng.choice((1, 2, 3, 5, 8)), devices, cpu=rng.choice((0, 500, 4000)), memory=GIB)


@pytest.mark.parametrize("real", ["binpack", "spread"])
@pytest.mark.parametrize("policy", ["binpack", "spread", "device-bestfit", "fgd", "shadow-price"])
def test_its_books_are_those_of_the_simulator_fed_the_pods_that_were_bound(
    policy: str, real: str
) -> None:
    traffic = Traffic([_spec(node) for node in NODES], real, policy)
    engine = Cluster(NODES, ranking(POLICIES[policy], len(NODES)))
    placements, present, rng = {}, [], random.Random(7)
    for number in range(300):
        uid, request = f"p{number}", _request(rng)
        among = np.isin(engine.view.names, traffic.named(request))
        if traffic.come(uid, request) is not None:
            present.append(uid)
            placements[uid] = engine.place(request, among)
        if present and rng.random() < 0.35:
            leaver = present.pop(rng.randrange(len(present)))
            traffic.go(leaver)
            traffic.shadow.work()
            if (placement := placements.pop(leaver)) is not None:
                engine.release(placement)
        if number % 50 == 25:
            traffic.now += 61.0  # the real nodes are taken over again, which changes nothing
        view = engine.view
        assert traffic.used() == dict(zip(view.names, view.used.tolist(), strict=True))
    displayed = traffic.books.snapshot
    assert displayed.names == view.names
    for values in ("free", "cpu_free", "memory_free", "gpu_pods", "cores_used"):
        assert (getattr(displayed, values) == getattr(view, values)).all(), values
    assert traffic.books.refused == {uid for uid in present if placements[uid] is None}
    assert sum(traffic.counts.pods.values()) > 0


def test_equal_policies_keep_equal_books_and_never_differ() -> None:
    traffic = Traffic([_spec(node) for node in NODES], "fgd", "fgd")
    rng, present = random.Random(3), []
    for number in range(200):
        if traffic.come(f"p{number}", _request(rng)):
            present.append(f"p{number}")
        if number % 3 == 2 and present:
            traffic.go(present.pop(rng.randrange(len(present))))
            traffic.shadow.work()
        assert traffic.used() == traffic.really_used()
    request = traffic.counts.choices
    assert request["same"] > 100
    assert request["node"] == request["device"] == 0
    assert traffic.counts.pods["real"] == traffic.counts.pods["shadow"] == 0


def test_a_node_that_goes_takes_the_pods_along_that_are_on_it_here() -> None:
    traffic = Traffic(
        [make_node("a", 8), make_node("b", 8), make_node("c", 8)], "binpack", "spread"
    )
    for uid in ("one", "two", "three"):
        assert traffic.come(uid, Request(2, 1))
    assert traffic.used() == {"a": [2], "b": [2], "c": [2]}
    assert traffic.really_used() == {"a": [6], "b": [0], "c": [0]}
    traffic.ledger.node_gone("b")
    traffic.shadow.work()
    # Its pod really runs on `a`, so here it goes to the better one of the nodes that are left.
    assert sorted(traffic.used().items()) == [("a", [4]), ("c", [2])]
    assert traffic.counts.inexact["node_changed"] == 1
    traffic.ledger.node_changed(make_node("d", 8, 8))
    traffic.shadow.work()
    assert traffic.used()["d"] == [0, 0]
    assert traffic.come("four", Request(3, 1))
    assert sum(map(sum, traffic.used().values())) == 9
    for uid in ("one", "two", "three", "four"):
        traffic.go(uid)
    traffic.shadow.work()
    assert not any(map(sum, traffic.used().values()))


def test_a_pod_whose_node_is_gone_in_both_books_holds_nothing_until_it_goes() -> None:
    traffic = Traffic([make_node("a", 8), make_node("b", 8)], "spread", "spread")
    for uid in ("one", "two"):
        assert traffic.come(uid, Request(2, 1))
    traffic.ledger.node_gone("b")
    traffic.shadow.work()
    assert traffic.used() == traffic.really_used() == {"a": [2]}
    traffic.ledger.node_changed(make_node("b", 8))
    traffic.shadow.work()
    assert traffic.used() == traffic.really_used() == {"a": [2], "b": [2]}
    traffic.ledger.node_gone("b")
    traffic.shadow.work()
    traffic.go("two")
    traffic.shadow.work()
    traffic.ledger.node_changed(make_node("b", 8))
    traffic.now += 1.5
    traffic.shadow.work()
    assert traffic.used() == traffic.really_used() == {"a": [2], "b": [0]}


def test_a_pod_whose_devices_are_not_known_any_more_counts_as_in_the_real_books() -> None:
    traffic = Traffic([make_node("a", 8, 8), make_node("b", 8, 8)], "binpack", "spread")
    for uid in ("one", "two"):
        assert traffic.come(uid, Request(2, 1))
    assert traffic.used() == {"a": [2, 0], "b": [2, 0]}
    # An audit has found that it is more than what is charged.
    traffic.ledger.correct(ObservedPod(PodRef("team", "two", "two"), Request(3, 1), "a"))
    assert traffic.really_used() == {"a": [5, 3], "b": [0, 0]}
    traffic.now += 61.0
    traffic.shadow.work()
    assert traffic.used() == {"a": [5, 3], "b": [0, 0]}
    assert traffic.counts.inexact["unplaced"] == 1
    traffic.go("two")
    traffic.now += 1.5
    traffic.shadow.work()
    assert traffic.used() == traffic.really_used() == {"a": [2, 0], "b": [0, 0]}


def test_nodes_that_come_between_filter_and_bind_change_no_pod_s_nodes() -> None:
    traffic = Traffic([make_node(name, 8) for name in ("b", "d", "e")], "binpack", "spread")
    request = Request(2, 1)
    allocation = traffic.ask("one", request, ["d", "e"])
    assert allocation is not None
    traffic.shadow.work()
    traffic.ledger.node_changed(make_node("a", 8))
    traffic.ledger.node_changed(make_node("c", 8))
    traffic.ledger.node_gone("b")
    traffic.shadow.work()
    traffic.bind("one", request, allocation)
    traffic.shadow.work()
    assert traffic.used() == {"a": [0], "c": [0], "d": [2], "e": [0]}
    # And one that comes before filter is among the nodes that it is asked about.
    traffic.ledger.node_changed(make_node("f", 80))
    traffic.come("large", Request(60, 1))
    assert traffic.used()["f"] == [60]
    assert not any(traffic.counts.inexact.values())


def test_a_closed_device_gets_no_room_when_its_pod_leaves() -> None:
    traffic = Traffic([make_node("a", 8)])
    traffic.come("one", Request(4, 1))
    traffic.ledger.set_unhealthy("a", frozenset([0]))
    traffic.shadow.work()
    traffic.go("one")
    traffic.shadow.work()
    assert traffic.books.snapshot.free.tolist() == [[0]]
    traffic.ledger.set_unhealthy("a", frozenset())
    traffic.shadow.work()
    assert traffic.books.snapshot.free.tolist() == [[8]]


def test_pods_without_gpu_and_pods_of_unknown_devices_are_where_they_really_are() -> None:
    traffic = Traffic([make_node("a", 8, 8, cpu=4000)])
    plain = ObservedPod(PodRef("team", "plain", "plain"), Request(cpu=3000), "a")
    traffic.ledger.pod_changed(plain)
    lost = ObservedPod(PodRef("team", "lost", "lost"), Request(3, 1), "a")
    traffic.shadow.moved(traffic.managed, lost, "lost", traffic.ledger.pod_changed(lost))
    traffic.shadow.work()
    assert traffic.books.snapshot.cpu_free.tolist() == [1000]
    traffic.now += 1.5
    traffic.shadow.work()
    assert traffic.used() == {"a": [3, 3]}
    assert traffic.counts.inexact == {"not_asked": 1, "node_changed": 0, "unplaced": 0}
    traffic.go("lost")
    traffic.ledger.pod_gone("plain")
    traffic.now += 1.5
    traffic.shadow.work()
    traffic.shadow.work()
    assert traffic.used() == {"a": [0, 0]}
    assert traffic.books.snapshot.cpu_free.tolist() == [4000]


def test_a_pod_that_is_bound_past_us_to_a_node_that_comes_later_is_there_then() -> None:
    traffic = Traffic([make_node("a", 8)], shadow="binpack")
    pod = ObservedPod(PodRef("team", "p", "p"), Request(3, 1), "b", placement=((0, 3),))
    traffic.shadow.moved(traffic.managed, pod, "p", traffic.ledger.pod_changed(pod))
    traffic.shadow.work()
    assert traffic.used() == {"a": [0]}
    traffic.ledger.node_changed(make_node("b", 8))
    traffic.shadow.work()
    assert traffic.used() == traffic.really_used() == {"a": [0], "b": [3]}
    traffic.go("p")
    traffic.shadow.work()
    assert traffic.used() == {"a": [0], "b": [0]}


def test_a_pod_that_is_bound_past_us_is_where_it_really_is() -> None:
    traffic = Traffic([make_node("a", 8), make_node("b", 8)], shadow="binpack")
    traffic.bind("one", Request(4, 1), Allocation("b", ((0, 4),)))
    traffic.shadow.work()
    assert traffic.used() == {"a": [0], "b": [4]}
    assert traffic.counts.inexact["not_asked"] == 1
