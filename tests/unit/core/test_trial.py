"""A trial finds the policy that allocates most, within bounds, without side effects."""

import pickle

import numpy as np
import pytest

from gpushare.core.model import NodeSpec, Reason, Request
from gpushare.core.policy import load_policy
from gpushare.core.trial import CANDIDATES, FALLBACK_POLICY, Trial, run_trial
from gpushare.core.trial_streams import MAX_PODS, streams
from gpushare.core.workload import PodClass, Workload, workload_of
from gpushare.errors import SettingsError
from tests.unit.core.clusters import Cluster
from tests.unit.core.clusters import node as make_node

NODES = tuple(make_node(f"n-{index}", 16, 16, cpu=32000, memory=2**37) for index in range(6))
TENS_AND_SIXES = {PodClass(1000, 10, 1, (), 2**30): 50, PodClass(1000, 6, 1, (), 2**30): 50}


def workload(turnover: float = 0.0) -> Workload:
    return workload_of(TENS_AND_SIXES, {16: 12}, turnover)


@pytest.mark.parametrize("turnover", [0.0, 0.5, 1.0])
def test_pods_that_complete_a_device_have_it_won_by_who_packs(turnover: float) -> None:
    trial = run_trial(
        Cluster(NODES).snapshot(), workload(turnover), ("spread", "device-bestfit"), 1
    )
    assert trial is not None
    assert trial.winner() == "device-bestfit"
    lead, error = trial.lead("device-bestfit", "spread")
    assert lead > 2 * error > 0
    for values in trial.allocated.values():
        assert all(0 < value <= 100 for value in values)
    assert all(value >= 0 for values in trial.refused_percent.values() for value in values)


def test_the_same_seed_gives_the_same_trial_and_another_one_another() -> None:
    snapshot = Cluster(NODES).snapshot()
    first, again, third = (
        run_trial(snapshot, workload(0.5), CANDIDATES, seed) for seed in (1, 1, 2)
    )
    assert first == again != third


def test_the_books_are_as_before() -> None:
    snapshot = Cluster(NODES, {"n-0": (4, 0)}).snapshot()
    before = pickle.dumps([snapshot.used, snapshot.free, snapshot.cpu_free, snapshot.gpu_pods])
    run_trial(snapshot, workload(0.5), CANDIDATES, 1)
    after = [snapshot.used, snapshot.free, snapshot.cpu_free, snapshot.gpu_pods]
    assert pickle.dumps(after) == before


def test_where_pods_stay_they_come_on_top_of_what_is_taken() -> None:
    full = Cluster(NODES, {node.name: (16, 16) for node in NODES}).snapshot()
    trial = run_trial(full, workload(), CANDIDATES, 1)
    assert trial is not None
    assert {value for values in trial.allocated.values() for value in values} == {100.0}
    assert trial.winner("binpack") == "binpack"


@pytest.mark.parametrize(
    "nodes",
    [
        (),
        (make_node("none"),),
        (make_node("closed", 16, closed=Reason.UNEVEN),),
        (make_node("ill", 16, unhealthy=[0]),),
        (make_node("small", 4),),
    ],
    ids=["no node", "no device", "closed", "unhealthy", "too small for any pod"],
)
@pytest.mark.parametrize("turnover", [0.0, 1.0])
def test_where_nothing_can_be_allocated_there_is_no_trial(
    nodes: tuple[NodeSpec, ...], turnover: float
) -> None:
    assert run_trial(Cluster(nodes).snapshot(), workload(turnover), CANDIDATES, 1) is None


@pytest.mark.parametrize("counts", [{}, {PodClass(cpu=1000): 60}], ids=["no pods", "without GPU"])
def test_without_pods_that_ask_for_gpu_there_is_no_trial(counts: dict[PodClass, int]) -> None:
    assert run_trial(Cluster(NODES).snapshot(), workload_of(counts, (16,)), CANDIDATES, 1) is None


def test_a_closed_device_has_no_room_and_a_node_of_unknown_cpu_is() -> None:
    nodes = (make_node("half", 16, 16, unhealthy=[1]), make_node("shut", 16, closed=Reason.UNEVEN))
    (stream, *_) = streams(Cluster(nodes).snapshot(), workload(), np.random.default_rng(1))
    assert stream.capacity == 16
    assert run_trial(Cluster(nodes).snapshot(), workload(1.0), CANDIDATES, 1) is not None


def test_of_a_large_cluster_a_part_is_tried_with_nodes_of_each_group() -> None:
    nodes = [make_node(f"n-{index}", *([16] * 8), cpu=99000, memory=2**40) for index in range(600)]
    nodes.append(make_node("large", 80, cpu=99000, memory=2**40))
    counts = {**TENS_AND_SIXES, PodClass(1000, 80, 1): 1}
    for turnover in (0.0, 1.0):
        large_workload = workload_of(counts, {16: 4800, 80: 1}, turnover)
        drawn = list(
            streams(Cluster(tuple(nodes)).snapshot(), large_workload, np.random.default_rng(1))
        )
        assert 4 <= len(drawn) <= 48
        assert all("large" in stream.begin.names for stream in drawn)
        pods = sum(stream.capacity for stream in drawn) / 8.8 * (1 + 4 * turnover)
        assert pods < 1.1 * MAX_PODS


@pytest.mark.parametrize("turnover", [0.0, 1.0])
def test_where_millions_of_pods_fit_one_node_there_is_no_trial(turnover: float) -> None:
    """A MiB as the unit of cards of 141 GiB, and pods of one unit: hours of placing."""
    nodes = (make_node("large", *[141 * 1024] * 8, cpu=99000, memory=2**40),)
    small_pods = workload_of({PodClass(0, 1, 1): 50}, {141 * 1024: 8}, turnover)
    assert list(streams(Cluster(nodes).snapshot(), small_pods, np.random.default_rng(1))) == []
    assert run_trial(Cluster(nodes).snapshot(), small_pods, CANDIDATES, 1) is None


def test_a_policy_that_does_not_exist_is_told_by_its_name() -> None:
    with pytest.raises(SettingsError, match="nosuch"):
        run_trial(Cluster(NODES).snapshot(), workload(), ("nosuch",), 1)


def test_the_winner_must_lead_by_more_than_its_error_to_take_over() -> None:
    clear = Trial({"a": [50.0, 52.0, 51.0], "b": [53.0, 54.0, 54.0]}, {})
    assert (clear.winner(), clear.winner("a"), clear.winner("b")) == ("b", "b", "b")
    doubtful = Trial({"a": [50.0, 60.0, 40.0], "b": [53.0, 54.0, 54.0]}, {})
    assert (doubtful.winner(), doubtful.winner("a"), doubtful.winner("b")) == ("b", "a", "b")
    assert doubtful.winner("no candidate any more") == "b"
    assert Trial({"a": [50.0, 50.0], "b": [50.0, 50.0]}, {}).winner() == "a"


def test_it_is_clear_which_is_best_where_none_leads_or_one_leads_beyond_doubt() -> None:
    assert Trial({"a": [50.0, 52.0, 51.0], "b": [53.0, 54.0, 54.0]}, {}).is_clear(0)
    assert Trial({"a": [50.0, 60.0, 40.0], "b": [50.0, 60.0, 40.0]}, {}).is_clear(0)
    assert Trial({"a": [50.0, 60.0, 40.0], "b": [50.1, 60.1, 40.0]}, {}).is_clear(0)
    assert not Trial({"a": [50.0, 60.0, 40.0], "b": [53.0, 54.0, 54.0]}, {}).is_clear(0)


def test_a_trial_ends_where_no_clear_lead_can_come_any_more() -> None:
    """By 1 (1.15) points. After all streams the error is 1.15 times the root of the share done."""
    doubtful = Trial({"a": [50.0, 60.0, 40.0], "b": [51.0, 63.0, 39.0]}, {})
    assert doubtful.lead("b", "a") == pytest.approx((1, 1.1547), abs=1e-4)
    # 1 + 1.15 * 0.77 > 2 * 1.15 * 0.63, and 1 + 1.15 * 0.55 < 2 * 1.15 * 0.84
    assert not doubtful.is_clear(0.4)
    assert doubtful.is_clear(0.7)


def test_the_last_stream_is_told_to_be_the_last() -> None:
    drawn = list(streams(Cluster(NODES).snapshot(), workload(), np.random.default_rng(1)))
    assert [stream.progress for stream in drawn] == [
        (at + 1) / len(drawn) for at in range(len(drawn))
    ]


def test_it_is_not_clear_while_the_lead_may_be_chance_and_what_ranks_would_stay() -> None:
    """By 0.14 (0.15) points: the other one would stay, and may be worse."""
    doubtful = Trial({FALLBACK_POLICY: [50.0, 50.0], "binpack": [50.29, 49.99]}, {})
    assert not doubtful.is_clear(0)
    assert doubtful.winner(FALLBACK_POLICY, 1.0) == FALLBACK_POLICY


def test_the_first_choice_leaves_the_safe_policy_for_a_clear_lead_alone() -> None:
    none = {FALLBACK_POLICY: [0.0], "binpack": [0.0]}
    doubtful = Trial({FALLBACK_POLICY: [50.0, 60.0, 40.0], "binpack": [53.0, 54.0, 54.0]}, none)
    first = doubtful.choice(None, 100.0)
    assert (first.policy, first.second, first.since) == (FALLBACK_POLICY, "binpack", 100.0)
    assert first.lead < 0
    # More than one error and less than two.
    likely = Trial({FALLBACK_POLICY: [50.0, 54.0, 51.0], "binpack": [53.0, 54.0, 54.0]}, none)
    assert likely.choice(None, 100.0).policy == FALLBACK_POLICY
    clear = Trial({FALLBACK_POLICY: [50.0, 52.0, 51.0], "binpack": [53.0, 54.0, 54.0]}, none)
    assert clear.choice(None, 100.0).policy == "binpack"


def test_without_the_safe_policy_the_best_is_the_first_choice() -> None:
    values = {"fgd": [50.0, 60.0, 40.0], "binpack": [53.0, 54.0, 54.0]}
    assert Trial(values, {"fgd": [0.0], "binpack": [0.0]}).choice(None, 1.0).policy == "binpack"


def test_a_choice_says_since_when_and_by_what_lead() -> None:
    refused_percent = {"a": [1.0, 3.0], "b": [0.0, 0.0], "c": [9.0, 9.0]}
    first = Trial({"a": [50.0, 52.0], "b": [49.0, 50.0], "c": [10.0, 10.0]}, refused_percent)
    choice = first.choice(None, 100.0)
    assert (choice.policy, choice.second, choice.since) == ("a", "b", 100.0)
    assert (choice.lead, choice.error) == pytest.approx((1.5, 0.5))
    assert choice.allocated == {"a": 51.0, "b": 49.5, "c": 10.0}
    assert choice.refused_percent == {"a": 2.0, "b": 0.0, "c": 9.0}
    doubtful = Trial({"a": [50.0, 50.0], "b": [49.0, 52.0]}, {"a": [0.0], "b": [0.0]})
    next_choice = doubtful.choice(choice, 200.0)
    assert (next_choice.policy, next_choice.since, next_choice.lead) == ("a", 100.0, -0.5)
    alone = Trial({"b": [49.0, 52.0]}, {"b": [0.0]}).choice(next_choice, 300.0)
    assert (alone.policy, alone.since, alone.second, alone.lead) == ("b", 300.0, "", 0.0)


def test_before_any_trial_auto_judges_as_the_safe_policy() -> None:
    snapshot, rows = Cluster(NODES, {"n-1": (6, 0)}).snapshot(), np.arange(len(NODES))
    request = Request(10, 1, 1000, 2**30)
    one, two = (load_policy(name, workload()) for name in ("auto", FALLBACK_POLICY))
    assert (one.score(snapshot, rows, request) == two.score(snapshot, rows, request)).all()
