"""A cluster that is changed in place is the one that would be made anew."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import charged_units
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import (
    MutableCluster,
    OwnPolicyScorer,
    Placement,
    fits,
    ranking,
)
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import PODS, Floats, Rows, Snapshot
from gpushare.core.trial_streams import mutable
from tests.unit.core.clusters import POLICIES, Cluster, node, requests

SMALL = Cluster(
    (
        node("a", 8, 8, cpu=4500, memory=2**34, models=("A", "A")),
        node("b", 8, 8, 8, cpu=9000, memory=2**33),
        node("c", 4, 8),
    )
)
"""Nodes that run out of CPU, memory or devices."""

CLUSTER = Cluster((node("a", 8, 8, 8), node("b", 8, 8), node("c", 4, 8, unhealthy=[0])))


@given(
    asked=st.lists(requests(2), max_size=12),
    leave=st.lists(st.integers(0, 9), max_size=8),
    policy=st.sampled_from(("binpack", "device-bestfit", "fgd", "shadow-price")),
)
def test_whoever_comes_and_goes_the_sums_are_those_of_the_pods_that_are_there(
    asked: list[Request], leave: list[int], policy: str
) -> None:
    books = CLUSTER.snapshot()
    view = mutable(books, np.arange(3), empty=True)
    cluster = MutableCluster(view, ranking(POLICIES[policy], 3))
    present: list[Placement] = []
    for number, request in enumerate(asked):
        placement = cluster.place(request)
        if placement is not None:
            present.append(placement)
        if number < len(leave) and present:
            cluster.release(present.pop(leave[number] % len(present)))
        used, cores = np.zeros_like(view.used), np.zeros_like(view.cores_used)
        pods = np.zeros_like(view.pods)
        for row, shares, entry in present:
            for device, units in shares:
                capacity = int(view.capacity[row, device])
                used[row, device] += charged_units(units, entry.percents, capacity)
                cores[row, device] += entry.cores
                pods[row, device] += (1, not entry.cores)
        assert view.used.tolist() == used.tolist()
        assert view.cores_used.tolist() == cores.tolist()
        assert view.pods.tolist() == pods.tolist()
        assert view.cores_free.tolist() == np.where(view.open, 100 - cores, 0).tolist()
        free = np.where(cores >= 100, 0, view.capacity - used)
        assert view.free.tolist() == free.tolist()
        assert view.cores_free.tolist() == np.where(view.open, 100 - cores, 0).tolist()
        assert (used <= view.capacity).all()
        assert (cores <= 100).all()
        for row, shares, element in present:
            if element.alone:
                assert all(pods[row, device, PODS] == 1 for device, _ in shares)


class Counting:
    """A policy of devices that counts the scored rows."""

    ignores_host = True

    def __init__(self) -> None:
        self.rows = 0

    def shapes_key(self, snapshot: Snapshot) -> tuple[()]:
        return ()

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        self.rows += len(rows)
        return -snapshot.free[rows].astype(float)


@given(
    wanted=st.lists(requests(2) | st.builds(Request, cpu=st.just(3000)), min_size=1, max_size=12),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_scores_are_those_of_a_ranking_that_judges_cpu_and_memory_by_row(
    wanted: list[Request], policy: str
) -> None:
    view = mutable(SMALL.snapshot(), np.arange(3), empty=True)
    cluster = MutableCluster(view, ranking(POLICIES[policy], 3))
    for request in wanted:
        expected = Ranking(POLICIES[policy], fits=fits).scores(view, request)
        scores = cluster.scorer.scores(view, request)
        assert scores.values.tolist() == expected.values.tolist()
        for row in np.flatnonzero(scores.values > -np.inf).tolist():
            assert scores.device(row) == expected.device(row)
        cluster.place(request)


def test_pods_that_differ_in_cpu_and_memory_alone_share_scores() -> None:
    policy = Counting()
    view = mutable(SMALL.snapshot(), np.arange(3), empty=True)
    cluster = MutableCluster(view, ranking(policy, 3))
    places = [cluster.place(Request(2, 1, cpu=cpu)) for cpu in (1000, 2000, 1501, 8000, 1)]
    # On the tightest device first; a has too little CPU for the fourth pod.
    assert [place.row for place in places if place is not None] == [2, 2, 0, 1, 0]
    assert policy.rows == 3 + 4


@given(
    wanted=st.lists(requests(2), min_size=1, max_size=6),
    policies=st.lists(st.sampled_from(("", "unknown", "binpack", "fgd")), min_size=6, max_size=6),
)
def test_each_pod_is_ranked_by_the_policy_that_it_names(
    wanted: list[Request], policies: list[str]
) -> None:
    view = mutable(SMALL.snapshot(), np.arange(3), empty=True)
    scorer = OwnPolicyScorer(load_policy("shadow-price"), 3)
    cluster = MutableCluster(view, scorer)
    for request, name in zip(wanted, policies, strict=False):
        named = replace(request, policy=name)
        ranks = ranking(load_policy(name if name in POLICIES else "shadow-price"), 3)
        expected, scores = ranks.scores(view, request), scorer.scores(view, named)
        assert scores.values.tolist() == expected.values.tolist()
        assert scorer.best_device(view, 1, named) == ranks.best_device(view, 1, request)
        cluster.place(named)


def test_a_named_policy_that_fails_gives_way_to_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[Request]()

    class Failing:
        def score(self, _snapshot: Snapshot, _rows: Rows, request: Request) -> Floats:
            calls.append(request)
            raise RuntimeError("a mistake")

    monkeypatch.setattr("gpushare.core.mutable_cluster.load_policy", lambda _name: Failing())
    view = mutable(SMALL.snapshot(), np.arange(3), empty=True)
    named, plain = Request(2, 1, policy="failing"), Request(2, 1)
    default = load_policy("binpack")
    scorer, expected = OwnPolicyScorer(default, 3), ranking(default, 3)
    for _ in range(2):
        values = scorer.scores(view, named).values.tolist()
        assert values == expected.scores(view, plain).values.tolist()
    assert len(calls) == 1


def test_a_scorer_goes_with_its_last_user() -> None:
    view = mutable(SMALL.snapshot(), np.arange(3), empty=True)
    scorer = OwnPolicyScorer(load_policy("binpack"), 3)
    scorer.scores(view, Request(2, 1, policy="fgd"))
    former_scorer = weakref.ref(scorer)
    del scorer
    # Whole garbage collections are an hour apart, and its cached scores are large.
    assert former_scorer() is None
