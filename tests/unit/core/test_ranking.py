"""A ranking is a cache: its scores equal fresh scores of the policy."""

from collections.abc import Hashable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core import ranking as module
from gpushare.core.decide import place, score_nodes
from gpushare.core.model import Charge, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.policies.shadow_price.policy import ShadowPrice
from gpushare.core.policy import KeyedByShapes, Policy, load_policy
from gpushare.core.ranking import Ranking, Scores
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import PodClass, workload_of
from gpushare.errors import RequestRefused
from tests.unit.core.clusters import POLICIES, best_node, node, requests

NAMES = ("a", "b", "c", "d")

changes = st.one_of(
    st.builds(
        lambda name, capacity, sick, cpu, model: (
            "node",
            name,
            node(
                name,
                *capacity,
                unhealthy=sick,
                cpu=cpu,
                memory=cpu and cpu << 21,
                models=(model,) * len(capacity),
            ),
        ),
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 8), max_size=4),
        st.sets(st.integers(0, 3), max_size=1),
        st.sampled_from([None, 4000, 64_000]),
        st.sampled_from(["A100", "T4"]),
    ),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.none()),
    st.builds(
        lambda name, device, units: (
            "charge",
            name,
            Charge(name, Request(units, 1), ((device, units),)),
        ),
        st.sampled_from(NAMES),
        st.integers(0, 4),
        st.integers(1, 4),
    ),
    st.tuples(st.just("ask"), st.just(""), requests()),
)


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    steps=st.lists(changes, max_size=40),
    kinds=st.integers(1, 3),
    neighbours=st.integers(0, 2),
)
def test_dropping_the_memo_changes_no_answer(
    policy: str, steps: list[tuple[str, str, object]], kinds: int, neighbours: int
) -> None:
    tally = NodeArrays()
    ranking = Ranking(POLICIES[policy], kinds, neighbours=neighbours)
    views = [tally.snapshot({})]
    for change, name, value in steps:
        _apply(tally, change, name, value)
        if isinstance(value, Request):
            views.append(tally.snapshot({}))
            # The view before the last may still be in somebody's hands.
            for view in (views[-1], views[-2], views[-1]):
                fresh = Ranking(POLICIES[policy], neighbours=neighbours)
                ranking_, anew = ranking.scores(view, value), fresh.scores(view, value)
                assert np.array_equal(ranking_.values, anew.values)
                assert [ranking_.device(row) for row in _fitting(anew)] == [
                    anew.device(row) for row in _fitting(anew)
                ]
                assert score_nodes(view, NAMES, value, ranking) == score_nodes(
                    view, NAMES, value, fresh
                )


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    steps=st.lists(changes, max_size=40),
    neighbours=st.integers(0, 2),
)
def test_what_is_kept_of_a_row_places_a_pod_on_the_device_that_scoring_it_anew_would(
    policy: str, steps: list[tuple[str, str, object]], neighbours: int
) -> None:
    tally, ranking = NodeArrays(), Ranking(POLICIES[policy], 2, neighbours=neighbours)
    pod_request: list[Request] = []
    for change, name, value in steps:
        _apply(tally, change, name, value)
        if isinstance(value, Request):
            pod_request.append(value)
            ranking.scores(tally.snapshot({}), value)
        view = tally.snapshot({})
        for request in pod_request[-2:]:
            if request.devices:
                device, anew = (
                    [_placed(view, node, request, judge) for node in NAMES]
                    for judge in (ranking, Ranking(POLICIES[policy], neighbours=neighbours))
                )
                assert device == anew


def _placed(view: Snapshot, node: str, request: Request, ranking: Ranking) -> object:
    """The devices, or the error's text."""
    try:
        return place(view, node, request, ranking).devices
    except RequestRefused as error:
        return str(error)


def test_a_row_that_has_not_changed_is_not_scored_again_to_place_a_pod_there() -> None:
    policy, tally, request = Counting(POLICIES["shadow-price"]), NodeArrays(), Request(2, 1)
    ranking = Ranking(policy)
    for name in ("a", "b"):
        tally.set_node(node(name, 8, 8), ())
    ranking.scores(tally.snapshot({}), request)
    policy.asked.clear()
    tally.add(Charge("b", request, ((1, 2),)))
    place(tally.snapshot({}), "a", request, ranking)
    assert policy.asked == []
    place(tally.snapshot({}), "b", request, ranking)
    assert policy.asked == [["b"]]


def _fitting(scores: Scores) -> list[int]:
    """The rows that the request fits."""
    return list(np.flatnonzero(scores.values > -np.inf).tolist())


def _apply(tally: NodeArrays, change: str, name: str, value: object) -> None:
    if change == "node":
        tally.set_node(value, ())  # type: ignore[arg-type]  # a NodeSpec goes with "node"
    elif change == "charge":
        tally.add(value)  # type: ignore[arg-type]  # a Charge goes with "charge"
    elif change == "remove" and name in tally.row:
        tally.remove_node(name)


class Counting:
    """A policy that records its calls."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.ignores_host = False
        self.asked: list[list[str]] = []

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        self.asked.append([snapshot.names[row] for row in rows])
        return self.policy.score(snapshot, rows, request)


def test_only_rows_that_changed_are_scored_again() -> None:
    tally, policy = NodeArrays(), Counting(POLICIES["binpack"])
    ranking = Ranking(policy)
    for name in NAMES:
        tally.set_node(node(name, 16), ())
    request = Request(4, 1)
    best_node(tally.snapshot({}), NAMES, request, ranking)
    best_node(tally.snapshot({}), NAMES, request, ranking)
    tally.add(Charge("c", request, ((0, 4),)))
    assert best_node(tally.snapshot({}), NAMES, request, ranking) == "c"
    assert policy.asked == [list(NAMES), ["c"]]


def test_all_rows_are_scored_again_when_a_node_changes_its_shape_in_place() -> None:
    tally, policy = NodeArrays(), Counting(POLICIES["binpack"])
    for name in NAMES:
        tally.set_node(node(name, 16), ())
    request, ranking = Request(4, 1), Ranking(policy)
    best_node(tally.snapshot({}), NAMES, request, ranking)
    tally.set_node(node("b", 16, 16), ())
    best_node(tally.snapshot({}), NAMES, request, ranking)
    assert policy.asked == [list(NAMES), list(NAMES)]


class Keyed(Counting):
    """A policy that names its inputs from other nodes."""

    def shapes_key(self, snapshot: Snapshot) -> Hashable:
        policy = self.policy
        assert isinstance(policy, KeyedByShapes)
        return policy.shapes_key(snapshot)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"auto"}))
def test_a_node_that_comes_goes_or_changes_costs_its_own_row(name: str) -> None:
    tally, policy = NodeArrays(), Keyed(POLICIES[name])
    specs = [node(scored_rows, 8, 8, cpu=64_000, memory=2**40) for scored_rows in NAMES * 8]
    for number, spec in enumerate(specs):
        tally.set_node(replace(spec, name=f"{spec.name}{number:02}"), ())
    request, ranking = Request(4, 1, 1000), Ranking(policy)
    ranking.scores(tally.snapshot({}), request)
    policy.asked.clear()
    tally.set_node(replace(specs[0], name="new"), ())
    tally.set_node(replace(specs[1], name="b01", healthy=(False, True)), ())
    tally.set_node(replace(specs[2], name="c02", cpu=32_000), ())
    tally.remove_node("d03")
    view = tally.snapshot({})
    expected, anew = (
        scored_rows.scores(view, request)
        for scored_rows in (ranking, Ranking(Counting(POLICIES[name])))
    )
    assert np.array_equal(expected.values, anew.values)
    (rows,) = policy.asked
    assert {"b01", "c02", "new"} <= {*rows} <= {"", "b01", "c02", "new"}
    # The cache is of the new layout now.
    assert ranking.best_device(view, view.row["a00"], request) is not None


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("capacities", [(), (4, 8)])
def test_a_larger_card_that_comes_is_minded_on_all_rows(
    name: str, capacities: tuple[int, ...]
) -> None:
    classes = {
        PodClass(cpu=1000, units=3, devices=1): 30,
        PodClass(cpu=4000, units=4, devices=2): 10,
        PodClass(cpu=8000, units=8, devices=4): 10,
    }
    workload = workload_of(classes, capacities=capacities, turnover=1.0)
    policy, tally, request = load_policy(name, workload), NodeArrays(), Request(3, 1, 1000)
    for rows in NAMES:
        tally.set_node(node(rows, 4, 4, 4, 4, cpu=16_000, memory=2**36), ())
    tally.add(Charge("a", Request(2, 1, 1000), ((0, 2),)))
    ranking = Ranking(policy)
    ranking.scores(tally.snapshot({}), request)
    for number in range(12):
        tally.set_node(node(f"large-{number}", *[8] * 4, cpu=64_000, memory=2**38), ())
        view = tally.snapshot({})
        expected, anew = (rows.scores(view, request) for rows in (ranking, Ranking(policy)))
        assert np.array_equal(expected.by_state, anew.by_state)


def test_pods_that_differ_in_cpu_alone_share_scores_where_the_policy_reads_none() -> None:
    for name, upper_bound in (("binpack", 1), ("fgd", 3)):
        tally, policy = NodeArrays(), Counting(POLICIES[name])
        policy.ignores_host = getattr(POLICIES[name], "ignores_host", False)
        tally.set_node(node("a", 8, 8, cpu=64_000, memory=2**40), ())
        ranking, view = Ranking(policy), tally.snapshot({})
        for cpu in (1000, 2000, 3000, 1000):
            ranking.scores(view, Request(4, 1, cpu))
        assert len(policy.asked) == upper_bound


def test_more_kinds_are_kept_where_there_are_fewer_nodes() -> None:
    tally, policy = NodeArrays(), Counting(POLICIES["fgd"])
    tally.set_node(node("a", 8, 8, cpu=64_000, memory=2**40), ())
    ranking, view = Ranking(policy), tally.snapshot({})
    for _ in range(2):
        for cpu in range(200):
            ranking.scores(view, Request(4, 1, cpu))
    assert len(policy.asked) == 200


def test_what_is_remembered_of_shadow_price_minds_which_nodes_large_pods_can_have() -> None:
    large = PodClass(cpu=1000, units=16, devices=4)
    policy = ShadowPrice(workload_of({large: 1, PodClass(cpu=1000, units=4, devices=1): 9}))
    tally, request = NodeArrays(), Request(4, 1, 1000)
    for name in NAMES:
        tally.set_node(node(name, 16, 16, 16, 16, cpu=9000, memory=2**34), ())
    tally.add(Charge("a", request, ((0, 4),)))
    ranking = Ranking(policy)
    before = ranking.scores(tally.snapshot({}), request).values
    tally.set_node(node("d", 16, cpu=9000, memory=2**34), ())
    view = tally.snapshot({})
    assert np.array_equal(
        ranking.scores(view, request).values, Ranking(policy).scores(view, request).values
    )
    assert ranking.scores(view, request).values[0] != before[0]


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    capacities=st.lists(st.lists(st.integers(0, 8), max_size=3), max_size=6),
    request=requests(),
    step=st.integers(1, 3),
)
def test_judging_in_steps_or_ahead_of_time_changes_no_answer(
    policy: str, capacities: list[list[int]], request: Request, step: int
) -> None:
    tally, pauses = NodeArrays(), []
    for number, capacity in enumerate(capacities):
        tally.set_node(node(f"n{number}", *capacity), ())
    view = tally.snapshot({})
    whole = Ranking(POLICIES[policy]).scores(view, request)
    prepared = Ranking(POLICIES[policy])
    with mock.patch.object(module, "_STEP", step):
        prepared.prepare(view, request, lambda: pauses.append(1))
    assert len(pauses) == max(-(-len(capacities) // step), 1)
    with mock.patch.object(prepared, "_score", side_effect=AssertionError("known already")):
        scores = prepared.scores(view, request)
    assert np.array_equal(scores.by_state, whole.by_state)
    assert np.array_equal(scores.devices, whole.devices)


def test_only_so_many_kinds_are_remembered_and_the_one_asked_longest_ago_goes() -> None:
    tally, policy = NodeArrays(), Counting(POLICIES["binpack"])
    tally.set_node(node("a", 16), ())
    view, ranking = tally.snapshot({}), Ranking(policy, kinds=2)
    for units in (1, 2, 3):
        ranking.scores(view, Request(units, 1))
    for units in (2, 3, 1):
        ranking.scores(view, Request(units, 1))
    assert len(policy.asked) == 4


def test_an_older_view_neither_gets_nor_spoils_what_is_remembered() -> None:
    tally, policy = NodeArrays(), Counting(POLICIES["binpack"])
    tally.set_node(node("a", 16), ())
    old, request, ranking = tally.snapshot({}), Request(4, 1), Ranking(policy)
    tally.add(Charge("a", request, ((0, 4),)))
    new = tally.snapshot({})
    assert ranking.scores(new, request).values[0] > ranking.scores(old, request).values[0]
    ranking.scores(new, request)
    assert len(policy.asked) == 2


class _ByTheLargest:
    """Prefers the last device where the cluster has a card of more than 16, else the first."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        order = np.arange(snapshot.capacity.shape[1], dtype=float)
        large = snapshot.capacity.max() > 16
        return np.broadcast_to(order if large else -order, (len(rows), len(order)))


def test_the_best_device_of_a_row_is_not_told_of_other_nodes_than_were_scored() -> None:
    arrays, request, ranking = NodeArrays(), Request(4, 1), Ranking(_ByTheLargest())
    arrays.set_node(node("a", 16, 16), ())
    first = arrays.snapshot({})
    ranking.scores(first, request)
    assert ranking.best_device(first, first.row["a"], request) == 0
    arrays.set_node(node("b", 80), ())
    later = arrays.snapshot({})
    assert place(later, "a", request, ranking).devices == (1,)
    # Nor of charges that came later, nor of an older snapshot.
    ranking.scores(later, request)
    arrays.add(Charge("a", Request(14, 1), ((1, 14),)))
    full = arrays.snapshot({})
    assert ranking.best_device(full, full.row["a"], request) is None
    ranking.scores(full, request)
    assert ranking.best_device(later, later.row["a"], request) is None
