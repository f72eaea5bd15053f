"""Unlikely clusters: no policy fails, and every figure is a number."""

import numpy as np
import pytest

from gpushare.core.mutable_cluster import fits
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.sim.experiments import churn, inflation
from gpushare.sim.options import Parameters
from gpushare.sim.scorers import chosen
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, request_of

LARGE = 141 * 1024


def _node(name: str, *sizes: int) -> TraceNode:
    mixed = sizes if len(set(sizes)) > 1 else ()
    return TraceNode(name, 64_000, 10**6, len(sizes), max(sizes, default=1000), "X", mixed)


def _pod(devices: int, units: int) -> TracePod:
    return TracePod("p", 1000, 1024, devices, units, (), None, None, None)


CLUSTERS = {
    "one node": ([_node("a", 16)], [_pod(1, 1), _pod(1, 16)]),
    "one card of each size, and pods larger than any": (
        [_node("a", 16), _node("b", 24), _node("c", 80)],
        [_pod(1, 5), _pod(1, 80), _pod(2, 5), _pod(1, 200)],
    ),
    "a unit of a GiB beside one of a MiB": (
        [_node("a", 16, 16), _node("b", *[LARGE] * 8)],
        [_pod(1, 1), _pod(1, 16), _pod(1, LARGE), _pod(4, 40_000)],
    ),
    "units without end": (
        [_node("a", 10**9, 10**9), _node("b", 7, 7)],
        [_pod(1, 3), _pod(1, 10**9), _pod(2, 10**8)],
    ),
    "cards that nothing fits": ([_node("a", 2), _node("b", 80)], [_pod(1, 40), _pod(0, 0)]),
    "a node without GPU": ([_node("a", 16), _node("b")], [_pod(1, 3), _pod(0, 0)]),
    "no GPU": ([_node("a"), _node("b")], [_pod(0, 0), _pod(1, 3)]),
    "a node of several cards": (
        [_node("a", 80, 80, 24), _node("b", 16)],
        [_pod(1, 3), _pod(2, 80), _pod(3, 24)],
    ),
}


@pytest.fixture(autouse=True)
def few_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trial end soon: on the odd clusters one stream is like another."""
    monkeypatch.setattr("gpushare.core.trial_streams._MAX_STREAMS", 8)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_lives_with_it(policy: str, name: str) -> None:
    nodes, pods = CLUSTERS[name]
    # Few pods, which are enough: of a pod of one unit on so many units millions would fit.
    cluster = Cluster(
        nodes, Ranking(load_policy(policy, workload_of_trace(nodes, pods, 0.5)), 9, fits)
    )
    for pod in pods * 12:
        scores = cluster.scorer.scores(cluster.view, request_of(pod)).values
        assert not np.isnan(scores).any()
        cluster.place(request_of(pod))
    assert (cluster.allocated > 0) == (name != "no GPU")
    assert cluster.allocated <= cluster.capacity
    assert (cluster.view.free >= 0).all()


@pytest.mark.parametrize("policy", ["shadow-price", "auto"])
@pytest.mark.parametrize("name", ["one node", "a node without GPU", "a node of several cards"])
def test_the_experiments_measure_it(name: str, policy: str) -> None:
    nodes, pods = CLUSTERS[name]
    for workload_mode in ("known", "learned"):
        options = Parameters(workload=workload_mode)
        for experiment in (inflation, churn):
            alloc = experiment(nodes, pods, policy, 42, options)["alloc"]
            assert isinstance(alloc, float)
            assert 0 < alloc <= 100


@pytest.mark.parametrize("turnover", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_trial_on_it_has_figures_or_there_is_none(name: str, turnover: float) -> None:
    nodes, pods = CLUSTERS[name]
    choice = chosen(tuple(nodes), workload_of_trace(nodes, pods, turnover))
    if choice is None:
        assert name in ("no GPU", "cards that nothing fits")
        return
    figures = [*choice.allocated.values(), *choice.refused_percent.values(), choice.error]
    assert all(0 <= value < np.inf for value in figures)
    assert max(choice.allocated.values()) <= 100
    assert choice.lead == pytest.approx(
        choice.allocated[choice.policy] - choice.allocated[choice.second]
    )
