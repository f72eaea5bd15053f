"""The contract of every policy, found by entry point, as in the extender.

Ranking relies on it: a score is remembered until its row or the shape of any node changes, so it
may depend on nothing else.
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.decide import BEST, filter_nodes, place, score_nodes
from gpushare.core.model import PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot, has_room
from gpushare.ledger import Ledger
from tests.unit.core.clusters import (
    COMPUTE,
    WORKLOAD,
    Cluster,
    clusters,
    fits_allocation,
    node,
    requests,
)


@cache
def every() -> dict[str, Policy]:
    """All policies.

    To make an example takes longer than to ask all of them about it, so that each is for all.
    """
    text = {"told": WORKLOAD, "told of compute": COMPUTE, "untold": None}
    return {
        f"{name}, {kind}": load_policy(name, workload)
        for name in policy_names()
        for kind, workload in text.items()
    }


few = settings(max_examples=40)

BY_ROW = tuple(name for name in policy_names() if name not in {"auto", "fgd", "shadow-price"})
"""Policies that look at nothing but the row. The others weigh a unit by the largest device of the
cluster, and shadow-price minds which nodes large pods can have.
"""


def _rows(view: Snapshot) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    return np.arange(len(view.names))


@few
@given(cluster=clusters(pins=False), request=requests())
def test_a_score_is_a_finite_number_for_each_device_of_each_row_asked(
    cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    rows, width = _rows(view), view.capacity.shape[1]
    enough = has_room(view, rows, request, pairing=True)
    for name, policy in every().items():
        values = policy.score(view, rows, request)
        assert values.dtype == np.float64, name
        assert values.shape == (len(rows), width), name
        assert np.isfinite(values[enough]).all(), name
        assert policy.score(view, rows[:0], request).shape == (0, width), name


@few
@given(cluster=clusters(pins=False), request=requests())
def test_a_score_does_not_depend_on_what_runs_on_other_nodes(
    cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    fits = has_room(view, _rows(view), request, pairing=True)
    together = {name: policy.score(view, _rows(view), request) for name, policy in every().items()}
    for index, spec in enumerate(cluster.nodes):
        used, cores = cluster.used[spec.name], cluster.cores_used(spec.name)
        alone = Cluster(cluster.nodes, {spec.name: used}, cores={spec.name: cores}).snapshot()
        mask = fits[index]
        # Where the request does not fit a policy may say anything.
        if mask.sum() < request.devices:
            continue
        for name, policy in every().items():
            alone_scores = policy.score(alone, np.array([index]), request)[0]
            asked_alone = policy.score(view, np.array([index]), request)[0]
            assert np.array_equal(alone_scores[mask], together[name][index][mask]), name
            assert np.array_equal(asked_alone[mask], alone_scores[mask]), name


@few
@given(cluster=clusters(pins=False), request=requests())
def test_the_others_score_a_node_as_if_it_were_the_only_one(
    cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    by_row = {name: every()[f"{name}, told"] for name in BY_ROW}
    together = {name: policy.score(view, _rows(view), request) for name, policy in by_row.items()}
    for index, spec in enumerate(cluster.nodes):
        used, cores = cluster.used[spec.name], cluster.cores_used(spec.name)
        alone = Cluster((spec,), {spec.name: used}, cores={spec.name: cores}).snapshot()
        width = alone.capacity.shape[1]
        mask = has_room(alone, _rows(alone), request, pairing=True)[0]
        if mask.sum() < request.devices:
            continue
        for name, policy in by_row.items():
            alone_scores = policy.score(alone, _rows(alone), request)[0]
            assert np.array_equal(alone_scores[mask], together[name][index, :width][mask]), name


@few
@given(cluster=clusters(pins=False), request=requests(), data=st.data())
def test_a_score_does_not_depend_on_the_order_of_rows(
    cluster: Cluster, request: Request, data: st.DataObject
) -> None:
    view = cluster.snapshot()
    order = np.array(data.draw(st.permutations(range(len(view.names)))), dtype=np.intp)
    mask = has_room(view, _rows(view), request, pairing=True)
    mask &= mask.sum(axis=1, keepdims=True) >= request.devices
    for name, policy in every().items():
        shuffled = np.where(mask[order], policy.score(view, order, request), 0)
        straight = np.where(mask, policy.score(view, _rows(view), request), 0)
        assert np.array_equal(straight[order], shuffled), name


@few
@given(cluster=clusters(pins=False), request=requests())
def test_asking_changes_nothing_and_the_answer_stays_the_same(
    cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    rows = _rows(view)
    for name, policy in every().items():
        first = policy.score(view, rows, request).copy()
        policy.score(view, rows, Request(1, 1))
        assert np.array_equal(policy.score(view, rows, request), first, equal_nan=True), name
        assert np.array_equal(rows, _rows(view)), name


def test_equal_kinds_score_alike_whatever_else_differs() -> None:
    view = Cluster((node("a", 16, 8, cpu=4000, memory=2**34),), {"a": (3, 1)}).snapshot()
    one = Request(4, 1, cpu=10, memory=10)
    second = Request(4, 1, cpu=10, memory=10, containers=((0, 1), (1, 3)), policy="x")
    for name, policy in every().items():
        scores = policy.score(view, _rows(view), one)
        assert np.array_equal(scores, policy.score(view, _rows(view), second)), name


@few
@given(cluster=clusters(), request=requests())
def test_the_winner_of_prioritize_can_be_bound(cluster: Cluster, request: Request) -> None:
    view = cluster.snapshot()
    fit = filter_nodes(view, cluster.names, request).fit
    for name, policy in every().items():
        winners = score_nodes(view, fit, request, Ranking(policy)).get(10, [])
        assert len(winners) == bool(fit), name
        for winner in winners:
            assert fits_allocation(view, place(view, winner, request, Ranking(policy))), name


@pytest.mark.parametrize(
    ("policy", "whole"),
    [("binpack", 15), ("device-bestfit", 15), ("shadow-price", 15), ("fgd", 15), ("spread", 0)],
)
def test_what_one_who_chooses_a_policy_leaves_for_whole_cards_is_as_documented(
    policy: str, whole: int
) -> None:
    ledger, ranking = Ledger(Pairing.OFF), Ranking(load_policy(policy))
    names = [f"n{number}" for number in range(4)]
    for name in names:
        ledger.node_changed(node(name, 16, 16, 16, 16, cpu=64_000, memory=2**38))

    def put(uid: str, units: int) -> bool:
        request, collected = Request(units, 1, containers=((0, units),)), ledger.snapshot()
        fit = filter_nodes(collected, names, request).fit
        if fit:
            best = score_nodes(collected, fit, request, ranking)[BEST][0]
            allocation = place(collected, best, request, ranking)
            ledger.assume(PodRef("team", uid, uid), request, allocation, 0.0, stamp=uid)
        return bool(fit)

    assert all(put(f"small-{number}", 1) for number in range(16))
    assert sum(put(f"whole-{number}", 16) for number in range(16)) == whole
