"""What every policy must keep to, whoever wrote it: found by entry point, like the extender does.

Ranking relies on it: a score is remembered until its row or the shape of any node changes, so it
may depend on nothing else.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.decide import feasible, filter_nodes, place, score_nodes
from gpushare.core.model import Request
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot
from tests.unit.core.clusters import WORKLOAD, Cluster, clusters, has_room, node, requests

every_policy = pytest.mark.parametrize(
    "policy",
    [load_policy(name, workload) for name in policy_names() for workload in (WORKLOAD, None)],
    ids=[f"{name}-{told}" for name in policy_names() for told in ("told", "untold")],
)
few = settings(max_examples=30)

BY_ROW = tuple(name for name in policy_names() if name not in {"auto", "fgd", "shadow-price"})
"""Policies that look at nothing but the row. The others weigh a unit by the largest device of the
cluster, and shadow-price minds which nodes large pods can have.
"""


def _rows(view: Snapshot) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    return np.arange(len(view.names))


@every_policy
@few
@given(cluster=clusters(pins=False), request=requests())
def test_a_score_is_a_finite_number_for_each_device_of_each_row_asked(
    policy: Policy, cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    rows = _rows(view)
    values = policy.score(view, rows, request)
    assert values.dtype == np.float64
    assert values.shape == (len(rows), view.capacity.shape[1])
    enough = feasible(view, rows, request)
    assert np.isfinite(values[enough]).all()
    assert policy.score(view, rows[:0], request).shape == (0, view.capacity.shape[1])


@every_policy
@few
@given(cluster=clusters(pins=False), request=requests())
def test_a_score_does_not_depend_on_what_runs_on_other_nodes(
    policy: Policy, cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    together = policy.score(view, _rows(view), request)
    fits = feasible(view, _rows(view), request)
    for index, spec in enumerate(cluster.nodes):
        alone = Cluster(cluster.nodes, {spec.name: cluster.used[spec.name]}).snapshot()
        own = policy.score(alone, np.array([index]), request)[0]
        asked_alone = policy.score(view, np.array([index]), request)[0]
        mask = fits[index]
        # Where the request does not fit a policy may say anything.
        if mask.sum() >= request.devices:
            assert np.array_equal(own[mask], together[index][mask])
            assert np.array_equal(asked_alone[mask], own[mask])


@pytest.mark.parametrize(
    "policy", [load_policy(name, WORKLOAD) for name in BY_ROW], ids=list(BY_ROW)
)
@few
@given(cluster=clusters(pins=False), request=requests())
def test_the_others_score_a_node_as_if_it_were_the_only_one(
    policy: Policy, cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    together = policy.score(view, _rows(view), request)
    for index, spec in enumerate(cluster.nodes):
        alone = Cluster((spec,), {spec.name: cluster.used[spec.name]}).snapshot()
        width = alone.capacity.shape[1]
        own = policy.score(alone, _rows(alone), request)[0]
        mask = feasible(alone, _rows(alone), request)[0]
        if mask.sum() >= request.devices:
            assert np.array_equal(own[mask], together[index, :width][mask])


@every_policy
@few
@given(cluster=clusters(pins=False), request=requests(), data=st.data())
def test_a_score_does_not_depend_on_the_order_of_rows(
    policy: Policy, cluster: Cluster, request: Request, data: st.DataObject
) -> None:
    view = cluster.snapshot()
    order = np.array(data.draw(st.permutations(range(len(view.names)))), dtype=np.intp)
    shuffled = policy.score(view, order, request)
    straight = policy.score(view, _rows(view), request)
    mask = feasible(view, _rows(view), request)
    mask &= mask.sum(axis=1, keepdims=True) >= request.devices
    assert np.array_equal(np.where(mask, straight, 0)[order], np.where(mask[order], shuffled, 0))


@every_policy
@few
@given(cluster=clusters(pins=False), request=requests())
def test_asking_changes_nothing_and_the_answer_stays_the_same(
    policy: Policy, cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    rows = _rows(view)
    first = policy.score(view, rows, request).copy()
    policy.score(view, rows, Request(1, 1))
    assert np.array_equal(policy.score(view, rows, request), first, equal_nan=True)
    assert np.array_equal(rows, _rows(view))


@every_policy
def test_equal_kinds_score_alike_whatever_else_differs(policy: Policy) -> None:
    view = Cluster((node("a", 16, 8, cpu=4000, memory=2**34),), {"a": (3, 1)}).snapshot()
    one = Request(4, 1, cpu=10, memory=10)
    other = Request(4, 1, cpu=10, memory=10, containers=((0, 1), (1, 3)), policy="x")
    assert np.array_equal(
        policy.score(view, _rows(view), one), policy.score(view, _rows(view), other)
    )


@every_policy
@few
@given(cluster=clusters(), request=requests())
def test_the_winner_of_prioritize_can_be_bound(
    policy: Policy, cluster: Cluster, request: Request
) -> None:
    view = cluster.snapshot()
    fit = filter_nodes(view, cluster.names, request).fit
    winners = score_nodes(view, fit, request, Ranking(policy)).get(10, [])
    assert len(winners) == bool(fit)
    for name in winners:
        assert has_room(view, place(view, name, request, Ranking(policy)))
