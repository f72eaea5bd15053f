"""first-fit chooses nodes like kube-scheduler, and the first devices there that fit."""

from collections.abc import Callable
from random import Random
from statistics import fmean

import numpy as np
import pytest

from gpushare.core.model import Request
from gpushare.sim.engine import Cluster
from gpushare.sim.experiments import churn, inflation
from gpushare.sim.flow import Record
from gpushare.sim.scorers import FirstFitScorer, node_scores
from gpushare.trace.nodes_and_pods import MIB, TraceNode, TracePod, request_of
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import CycleState
from gpushare_localcluster.scheduler.objects import read_node, read_pod
from gpushare_localcluster.scheduler.plugins.resources import (
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
)
from tests.bench.first_fit import FirstFitJob, FirstFitOutcome, table
from tests.unit.sim.test_engine import NODES, PODS

TWO = TraceNode("a", 64_000, 2**18, 2, 80, "card", (80, 24))


def _small(units: int, devices: int = 1) -> Request:
    return Request(units, devices, cpu=1000, memory=1024 * MIB)


def test_small_claims_take_the_first_card_and_the_large_one_waits() -> None:
    cluster = Cluster([TWO], FirstFitScorer(1))
    first, second, third = map(cluster.place, map(_small, (10, 10, 80)))
    assert first is not None
    assert second is not None
    assert first.devices == second.devices == (0,)
    assert third is None


def test_several_devices_are_the_first_that_fit() -> None:
    node = TraceNode("a", 64_000, 2**18, 4, 80, "card")
    cluster = Cluster([node], FirstFitScorer(1))
    cluster.put(0, ((0, 75),), _small(75))
    for units, devices in ((10, (1, 2)), (5, (0, 1)), (66, (2, 3)), (66, None)):
        placement = cluster.place(_small(units, 2))
        assert (placement.devices if placement else None) == devices


def test_the_emptier_node_is_chosen_however_full_its_cards_are() -> None:
    nodes = [TraceNode(name, 64_000, 2**18, 1, 80, "card") for name in "ab"]
    for seed in range(5):
        cluster = Cluster(nodes, FirstFitScorer(seed))
        cluster.put(0, ((0, 70),), Request(70, 1, cpu=1000, memory=4096 * MIB))
        cluster.put(1, (), Request(0, 0, cpu=8000, memory=32768 * MIB))
        placement = cluster.place(_small(10))
        assert placement is not None
        assert placement.row == 0


def test_packed_the_fuller_node_is_chosen() -> None:
    nodes = [TraceNode(name, 64_000, 2**18, 1, 80, "card") for name in "ab"]
    cluster = Cluster(nodes, FirstFitScorer(1, packs=True))
    cluster.put(1, (), Request(0, 0, cpu=8000, memory=32768 * MIB))
    placement = cluster.place(_small(10))
    assert placement is not None
    assert placement.row == 1


def test_equal_nodes_are_taken_by_chance() -> None:
    nodes = [TraceNode(name, 64_000, 2**18, 1, 80, "card") for name in "abc"]
    placements = [Cluster(nodes, FirstFitScorer(seed)).place(_small(10)) for seed in range(30)]
    assert {one.row for one in placements if one} == {0, 1, 2}


@pytest.mark.parametrize("packs", [False, True])
def test_nodes_are_scored_as_by_the_scheduler_of_the_local_cluster(packs: bool) -> None:
    cluster, chance = Cluster(NODES, FirstFitScorer(1)), Random(2)
    for pod in chance.choices(PODS, k=25):
        cluster.place(request_of(pod))
    view = cluster.view
    strategy = {"type": "MostAllocated" if packs else "LeastAllocated"}
    fit = NodeResourcesFit({"scoringStrategy": strategy})
    balance = NodeResourcesBalancedAllocation()
    distinct_scores = set()
    for cpu, memory in ((3000, 5000 * MIB), (500, 4096 * MIB), (4000, 0), (0, 900 * MIB)):
        request = Request(1, 1, cpu=cpu, memory=memory)
        scores = node_scores(view, np.arange(len(NODES)), request, packs=packs)
        new_pod = read_pod(_pod(cpu, memory))
        for row, node in enumerate(NODES):
            free = int(view.cpu_free[row]), int(view.memory_free[row])
            raw = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi", "pods": "110"}
            info = NodeInfo(read_node({"metadata": {"name": "n"}, "status": {"allocatable": raw}}))
            if free[0] < node.cpu:
                used = node.cpu - free[0], node.memory * MIB - free[1]
                info = info.with_pod(read_pod(_pod(*used)))
            state = CycleState()
            score = fit.score(state, new_pod, info) + balance.score(state, new_pod, info)
            if free[0] >= cpu and free[1] >= memory:
                assert scores[row] == score
                distinct_scores.add(score)
    assert len(distinct_scores) > 5


@pytest.mark.parametrize("experiment", [inflation, churn])
def test_it_allocates_less_than_a_policy_that_looks_at_cards(
    experiment: Callable[..., Record],
) -> None:
    nodes = [TraceNode(f"n{at}", 64_000, 2**18, 2, 80, "card") for at in range(4)]
    sizes = [10, 10, 20, 80] * 10
    pods = [
        TracePod(f"p{at}", 1000, 2048, 1, units, (), None, None, None)
        for at, units in enumerate(sizes)
    ]
    means = {
        policy: fmean(
            float(str(experiment(nodes, pods, policy, seed)["alloc"])) for seed in range(5)
        )
        for policy in ("first-fit", "device-bestfit")
    }
    assert means["first-fit"] < means["device-bestfit"] - 3


def test_the_bench_shows_differences_by_seed_of_a_list_and_by_cluster_of_a_family() -> None:
    values = {"first-fit": [60.0, 62.0], "auto": [61.0, 65.0]}
    second_values = {"first-fit": [70.0, 70.0], "auto": [74.0, 76.0]}
    family = [
        FirstFitOutcome(FirstFitJob("churn", "equal", cluster, ("auto",), (42, 43)), cluster_values)
        for cluster, cluster_values in ((1, values), (2, second_values))
    ]
    openb = FirstFitOutcome(FirstFitJob("churn", "default", None, ("auto",), (42, 43)), values)
    lines = [line.split() for line in table([openb, *family]).splitlines()[1:]]
    assert lines[0] == ["churn", "default", "1", "2", "61.00", "+2.00", "(1.00)"]
    assert lines[1] == ["churn", "equal", "2", "2", "65.50", "+3.50", "(1.50)"]


def _pod(cpu: int, memory: int) -> dict[str, object]:
    requests = {"cpu": f"{cpu}m", "memory": str(memory)}
    nonzero = {name: amount for name, amount in requests.items() if amount.strip("0m")}
    container = {"name": "c", "image": "x", "resources": {"requests": nonzero}}
    return {"metadata": {"uid": "u", "name": "p"}, "spec": {"containers": [container]}}
