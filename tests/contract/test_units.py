"""A unit is a unit of counting, so its name changes no decision.

A cluster that counts in MiB instead of GiB has 1024 times as many units of everything, and a policy
decides as before. Nor is a unit on one card worth another than on the next: see the clusters of
unequal cards in tests/unit/sim/test_clusters.py.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare.core.mutable_cluster import Placement, fits
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.sim.experiments import filling
from gpushare.sim.scorers import chosen
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, request_of
from tests.bench.clusters import drawn

_NODES, _PODS = 12, 60


def _decided(
    policy: str, nodes: Sequence[TraceNode], pods: Sequence[TracePod], order: Sequence[int]
) -> list[tuple[int, tuple[int, ...]] | None]:
    """The node of each pod; after half of the arrivals every third pod leaves."""
    workload = workload_of_trace(nodes, pods, turnover=0.5)
    cluster = Cluster(nodes, Ranking(load_policy(policy, workload), fits=fits))
    placements: list[Placement | None] = []
    for number, index in enumerate(order):
        placements.append(cluster.place(request_of(pods[index])))
        if number == len(order) // 2:
            for placement in placements[::3]:
                if placement is not None:
                    cluster.release(placement)
    return [None if one is None else (one.row, one.devices) for one in placements]


@pytest.mark.parametrize("policy", policy_names())
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 999),
    factor=st.one_of(st.just(1024), st.integers(2, 3000)),
)
@example(seed=16, factor=651)  # a share of these cards, as a float, is below a whole number
def test_as_many_units_again_of_everything_change_no_decision(
    policy: str, seed: int, factor: int
) -> None:
    cluster = drawn(seed)
    nodes, pods = cluster.nodes[-_NODES:], cluster.pods
    capacity = sum(node.devices * node.capacity for node in nodes)
    order = filling(pods, capacity, seed)[:_PODS]
    finer = [replace(node, capacity=node.capacity * factor) for node in nodes]
    requests = [replace(pod, units=pod.units * factor) for pod in pods]
    assert _decided(policy, nodes, pods, order) == _decided(policy, finer, requests, order)


@pytest.mark.parametrize("turnover", [0.0, 1.0])
def test_nor_do_they_change_what_auto_is(turnover: float) -> None:
    cluster = drawn(9001)
    nodes, pods = cluster.nodes[-3:], cluster.pods
    finer = [replace(node, capacity=node.capacity * 1024) for node in nodes]
    requests = [replace(pod, units=pod.units * 1024) for pod in pods]
    choice = chosen(tuple(nodes), workload_of_trace(nodes, pods, turnover))
    assert choice is not None
    assert chosen(tuple(finer), workload_of_trace(finer, requests, turnover)) == choice
