"""The experiments measure as documented, with the same pods for every policy of a seed."""

from dataclasses import replace

import numpy as np
import pytest

from gpushare.core.mutable_cluster import fits
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.ranking import Ranking
from gpushare.sim.engine import Cluster
from gpushare.sim.experiments import churn, inflation, node_order, replay
from gpushare.sim.flow import Arrivals, Flow
from gpushare.sim.options import Parameters
from gpushare.sim.report import allocated_at, measures_of
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, request_of
from tests.unit.sim.test_engine import NODES, PODS

ONE = [TraceNode("n", 8000, 8192, 1, 10, "T4")]


def _pod(units: int, created: float | None = None, deleted: float | None = None) -> TracePod:
    return TracePod("p", 100, 10, 1, units, (), created, None, deleted)


@pytest.mark.parametrize("policy", ["random", "fgd", "shadow-price"])
def test_inflation_fills_the_cluster_and_is_the_same_again(policy: str) -> None:
    record = inflation(NODES, PODS, policy, 42)
    assert record == inflation(NODES, PODS, policy, 42)
    allocated = record["allocated"]
    assert isinstance(allocated, dict)
    assert allocated["130"] > 70
    assert list(allocated.values()) == sorted(allocated.values())
    assert max(map(int, allocated)) in {129, 130}


def test_all_policies_of_a_seed_meet_the_same_pods() -> None:
    one, two = (inflation(NODES, PODS, policy, 43) for policy in ("fgd", "random"))
    assert one["pods"] == two["pods"]
    assert node_order(NODES, 43) == node_order(NODES, 43) != node_order(NODES, 44)


def test_churn_holds_and_refuses_as_much_as_is_offered() -> None:
    record = churn(NODES, PODS, "device-bestfit", 1, Parameters(load=0.4, life=30, warmup=5))
    assert record["alloc"] == pytest.approx(40, abs=8)
    over = churn(NODES, PODS, "device-bestfit", 1, Parameters(load=3.0))
    assert float(str(over["blocked_gpu"])) > 40


def test_the_headline_of_a_cluster_that_fills_is_what_is_allocated_at_the_load() -> None:
    record = inflation(NODES, PODS, "fgd", 42, Parameters(load=1.1))
    assert record["alloc"] == allocated_at(110).of(record)


def test_replay_lives_the_trace_again_and_faster() -> None:
    pods = [_pod(5, 0.0, 10.0), _pod(5, 4.0, 6.0), _pod(10, 5.0, 7.0), _pod(5, 8.0, None)]
    record = replay(ONE, pods, "binpack", 0)
    # 0-4 s: 5 of 10 units; 4-6 s: 10; 6-8 s: 5; the third fits nowhere.
    assert record["alloc"] == pytest.approx(100 * (4 * 5 + 2 * 10 + 2 * 5) / 80)
    assert record["blocked_pods"] == pytest.approx(100 / 4)
    faster = replay(ONE, pods, "binpack", 0, Parameters(speed=2))
    assert float(str(faster["alloc"])) > float(str(record["alloc"]))
    with pytest.raises(ValueError, match="time of creation"):
        replay(ONE, [_pod(5)], "binpack", 0)


def test_memory_beside_compute_that_is_all_given_is_stranded() -> None:
    pods = [replace(_pod(4, 0.0, 6.0), cores=60), replace(_pod(3, 2.0, 4.0), cores=40)]
    record = replay(ONE, [*pods, _pod(1, 8.0)], "binpack", 0)
    # 2-4 s: 3 of 10 units are left, and nothing of the compute.
    assert record["compute_stranded"] == pytest.approx(100 * 2 * 3 / (8 * 10))
    assert "compute_stranded" not in replay(ONE, [_pod(5, 0.0), _pod(5, 1.0)], "binpack", 0)


def test_what_is_stranded_while_a_cluster_fills_is_told_by_load() -> None:
    pods = [replace(_pod(5), cores=100)]
    record = inflation(ONE, pods, "binpack", 1)
    assert record["compute_stranded"] == {"50": 50.0, "100": 50.0}
    (stranded,) = (one for one in measures_of([record]) if one.key == "compute_stranded")
    assert stranded.of(record) == 50
    assert stranded.of({**record, "compute_stranded": {"50": 50.0}}) == 50
    assert "compute_stranded" not in inflation(ONE, [_pod(5)], "binpack", 1)


def test_pods_that_come_when_a_replay_begins_are_offered() -> None:
    pods = [_pod(10, 3.0, 9.0), _pod(10, 3.0, 9.0), _pod(1, 9.0, None)]
    record = replay(ONE, pods, "binpack", 0)
    assert record["blocked_pods"] == pytest.approx(100 / 3)
    assert record["blocked_gpu"] == pytest.approx(100 * 10 / 21)
    waited = replay(ONE, pods, "binpack", 0, Parameters(wait=True))
    assert waited["wait_mean"] == {"1": pytest.approx((0 + 6) / 2)}


def test_who_waits_is_placed_first_come_first_served_as_soon_as_there_is_room() -> None:
    kinds = tuple(request_of(_pod(units)) for units in (10, 6, 3))
    cluster = Cluster(ONE, Ranking(DeviceBestFit(), 9, fits))
    # A whole device from 0 to 4; then come 6, 6 and 3 units: the first and the third fit together.
    times, which, lifetimes = [0.0, 1.0, 2.0, 3.0], [0, 1, 1, 2], [4.0, 5.0, 1.0, 1.0]
    stream = Arrivals(kinds, np.array(times), np.array(which), np.array(lifetimes))
    record = Flow(cluster, 0.0, 20.0, wait=True).run(stream)
    assert record["wait_mean"] == {"1": 0, "share": pytest.approx((3 + 7 + 1) / 3)}
    assert record["waiting"] == pytest.approx((3 + 7 + 1) / 20)
