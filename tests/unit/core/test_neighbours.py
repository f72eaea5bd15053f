"""The term of neighbours: at most so many other pods on a device, while such a device has room."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.decide import filter_nodes, place, take_best
from gpushare.core.held_snapshot import HeldSnapshotBuilder
from gpushare.core.model import ANY_NEIGHBOURS, FEW_NEIGHBOURS, Charge, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.ranking import Ranking, Scorer
from gpushare.core.snapshot import PODS, UNMETERED
from tests.unit.core.clusters import POLICIES, Cluster, best_node, clusters, node, requests

EVERY_POLICY = pytest.mark.parametrize("policy", sorted(POLICIES))


class Books:
    """Nodes of four devices of 80 units; each pod goes where the scorer ranks it first."""

    def __init__(self, scorer: Scorer, nodes: int = 2) -> None:
        self.arrays, self.scorer = NodeArrays(), scorer
        self.names = [f"n{number}" for number in range(nodes)]
        for name in self.names:
            spec = node(name, 80, 80, 80, 80, cpu=64_000, memory=2**40)
            self.arrays.set_node(spec, ())

    def place(self, *pods: Request) -> list[tuple[str, tuple[int, ...]]]:
        """Place the pods, one after the other; return the node and the devices of each."""
        return [self._place(request) for request in pods]

    def _place(self, request: Request) -> tuple[str, tuple[int, ...]]:
        view = self.arrays.snapshot({})
        name = best_node(view, self.names, request, self.scorer)
        assert name is not None
        chosen = place(view, name, request, self.scorer)
        self.arrays.add(Charge(name, request, chosen.shares))
        return name, chosen.devices

    def counts(self) -> list[int]:
        """The pods of each device, most first."""
        pods = self.arrays.snapshot({}).pods[:, :, PODS]
        return sorted(pods.ravel().tolist(), reverse=True)


@EVERY_POLICY
def test_no_third_pod_goes_to_a_card_while_another_has_fewer(policy: str) -> None:
    books = Books(Ranking(POLICIES[policy], neighbours=1))
    books.place(*[Request(4, 1)] * 16)
    assert books.counts() == [2] * 8
    books.place(*[Request(4, 1)] * 8)
    assert books.counts() == [3] * 8


def test_below_the_limit_the_policy_decides() -> None:
    books = Books(Ranking(POLICIES["binpack"], neighbours=3))
    books.place(*[Request(4, 1)] * 16)
    assert books.counts() == [4] * 4 + [0] * 4


def test_a_pod_that_fits_no_other_card_goes_to_a_full_one() -> None:
    books = Books(Ranking(POLICIES["binpack"], neighbours=1), nodes=1)
    books.place(*[Request(30, 1)] * 8)
    books.place(Request(20, 1))
    assert books.counts() == [3, 2, 2, 2]


@pytest.mark.parametrize(
    ("cluster", "pod", "expected"),
    [
        (ANY_NEIGHBOURS, None, [4] + [0] * 7),
        (ANY_NEIGHBOURS, FEW_NEIGHBOURS, [2, 2] + [0] * 6),
        (1, None, [2, 2] + [0] * 6),
        (1, ANY_NEIGHBOURS, [4] + [0] * 7),
    ],
)
def test_the_limit_of_the_pod_counts_before_that_of_the_cluster(
    cluster: int, pod: int | None, expected: list[int]
) -> None:
    books = Books(Ranking(POLICIES["binpack"], neighbours=cluster))
    books.place(*[Request(4, 1, neighbours=pod)] * 4)
    assert books.counts() == expected


def test_pods_that_ask_for_compute_share_a_card_up_to_its_compute() -> None:
    books = Books(Ranking(POLICIES["binpack"], neighbours=1))
    books.place(*[Request(4, 1, percents=compute(20))] * 5)
    assert books.counts() == [5] + [0] * 7


def test_a_pod_without_compute_counts_as_its_part_of_a_card() -> None:
    """With one neighbour a half: beside 40 % it fits, beside 60 % it does not."""
    for percent, expected in ((40, 0), (60, 1)):
        books = Books(Ranking(POLICIES["binpack"], neighbours=1))
        books.place(Request(4, 1, percents=compute(percent)))
        ((_, devices),) = books.place(Request(4, 1))
        assert devices == (expected,)


def test_a_pod_of_several_devices_takes_those_with_the_fewest_pods() -> None:
    books = Books(Ranking(POLICIES["binpack"], neighbours=1))
    books.place(*[Request(4, 1)] * 2)
    assert books.place(Request(4, 2)) == [("n0", (1, 2))]
    # On n0 one device would have three pods.
    assert books.place(Request(4, 4)) == [("n1", (0, 1, 2, 3))]


@given(cluster=clusters(), request=requests(), limit=st.integers(1, 3))
def test_the_term_refuses_nothing(cluster: Cluster, request: Request, limit: int) -> None:
    view = cluster.snapshot()
    fitting = filter_nodes(view, cluster.names, request).fit
    for policy in POLICIES.values():
        ranking = Ranking(policy, neighbours=limit)
        values = ranking.scores(view, request).values
        assert {*np.flatnonzero(values > -np.inf).tolist()} == {view.row[name] for name in fitting}
        for name in fitting:
            assert len(place(view, name, request, ranking).devices) == request.devices


def test_pods_with_holds_are_counted_too() -> None:
    books = Books(Ranking(POLICIES["binpack"], neighbours=1))
    builder = HeldSnapshotBuilder(books.arrays.snapshot({}))
    for request in (Request(4, 1), Request(4, 1, percents=compute(20)), Request(4, 1)):
        take_best(builder, 0, request, books.scorer)
    held = builder.build()
    assert held.pods[0].tolist() == [[2, 1], [1, 1], [0, 0], [0, 0]]
    builder = HeldSnapshotBuilder(books.arrays.snapshot({}), held)
    builder.give(0, ((0, 4),), Request(4, 1))
    assert builder.pods[0, 0].tolist() == [1, 0]
    builder.reset(0)
    assert not builder.pods.any()


def test_a_pod_with_unknown_devices_counts_on_each_device() -> None:
    books = Books(Ranking(POLICIES["binpack"]), nodes=1)
    charge = Charge("n0", Request(4, 1, percents=compute(20)), None)
    books.arrays.add(charge)
    assert books.counts() == [1] * 4
    assert not books.arrays.snapshot({}).pods[:, :, UNMETERED].any()
    books.arrays.add(charge, -1)
    assert books.counts() == [0] * 4
