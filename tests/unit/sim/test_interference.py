"""Pods on one device slow each other down, by the sum of their utilization."""

import numpy as np
import pytest

from gpushare.core.mutable_cluster import ranking
from gpushare.core.policies.binpack import Binpack
from gpushare.sim.engine import Cluster
from gpushare.sim.experiments import churn
from gpushare.sim.flow import Arrivals, Flow, Record
from gpushare.sim.interference import Interference, speed
from gpushare.sim.options import SERVICES, TRAINING, Parameters
from gpushare.sim.report import legend, measures_of
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, request_of

ONE = [TraceNode("n", 8000, 8192, 1, 10, "T4")]
FOUR = [TraceNode("n", 64_000, 65_536, 4, 10, "T4")]


def _pod(units: int, utilization: int | None = None) -> TracePod:
    return TracePod("p", 100, 10, 1, units, (), None, None, None, utilization=utilization)


def _run(
    stretches: bool, *pods: tuple[float, float, int], wait: bool = False, ended: bool = True
) -> Record:
    """Run pods of half a device: time, lifetime, utilization. ended: whether all pods end."""
    times, lifetimes, utilizations = zip(*pods, strict=True)
    stream = Arrivals(
        kinds=(request_of(_pod(5)),) * len(pods),
        times=np.array(times),
        kind_indices=np.arange(len(pods)),
        lifetimes=np.array(lifetimes),
        utilizations=utilizations,
    )
    cluster = Cluster(ONE, ranking(Binpack(), 1))
    interference = Interference(stretches=stretches)
    flow = Flow(cluster, 0.0, 100.0, wait=wait, interference=interference)
    record = flow.run(stream)
    assert (cluster.allocated == 0) == ended
    return record


@pytest.mark.parametrize(
    ("utilization", "expected"),
    [(0, 1), (100, 1), (137, 0.84), (187, 0.70), (149.5, 0.795), (374, 0.35)],
)
def test_the_speed_follows_the_measured_pairs(utilization: float, expected: float) -> None:
    assert speed(utilization) == pytest.approx(expected)


def test_pods_that_fill_a_device_together_are_not_slowed_down() -> None:
    record = _run(True, (0.0, 10.0, 50), (0.0, 10.0, 50))
    assert (record["slowdown"], record["completion"]) == (1, {"share": 10})


def test_training_takes_longer_until_the_neighbour_ends() -> None:
    record = _run(True, (0.0, 7.0, 93), (0.0, 10.0, 94))
    # At 0.7 of full speed the first takes 10; the second has 3 left by then.
    assert record["completion"] == {"share": pytest.approx((10 + 13) / 2)}
    assert record["slowdown"] == pytest.approx((10 / 7 + 1.3) / 2)


def test_services_are_slowed_down_and_stay_as_long_as_ever() -> None:
    record = _run(False, (0.0, 7.0, 93), (0.0, 14.0, 94))
    assert record["completion"] == {"share": pytest.approx((7 + 14) / 2)}
    assert record["slowdown"] == pytest.approx((1 / 0.7 + 14 / (0.7 * 7 + 7)) / 2)


def test_a_pod_that_waits_begins_with_its_own_utilization_when_a_slowed_one_ends() -> None:
    record = _run(True, (0.0, 7.0, 93), (0.0, 7.0, 94), (1.0, 2.0, 10), wait=True)
    assert record["completion"] == {"share": pytest.approx((10 + 10 + 11) / 3)}


def test_a_pod_that_has_not_ended_counts_with_the_time_so_far() -> None:
    record = _run(True, (0.0, 700.0, 93), (0.0, 700.0, 94), ended=False)
    assert record["completion"] == {"share": 100}
    assert record["slowdown"] == pytest.approx(1 / 0.7)


def test_few_neighbours_shorten_training_where_cards_are_idle() -> None:
    pods = [_pod(2, 60)]
    options = Parameters(load=0.3, interference=TRAINING, workload="known")
    packed = churn(FOUR, pods, "device-bestfit", 1, options)
    alone = churn(
        FOUR,
        pods,
        "device-bestfit",
        1,
        Parameters(load=0.3, interference=TRAINING, workload="known", neighbours=1),
    )
    assert packed["slowdown"] > 1.3
    assert alone["slowdown"] < packed["slowdown"] - 0.2
    assert (alone["interference"], alone["neighbours"]) == (TRAINING, 1)
    heads = [measure.head for measure in measures_of([packed])]
    assert {"SLOWDOWN", "DONE share"} <= {*heads}
    assert len(legend(measures_of([packed]), 40, 4)) == len(heads)


def test_services_leave_at_the_same_times_with_and_without_interference() -> None:
    pods = [_pod(2, 60), _pod(5, 20)]
    with_ = churn(FOUR, pods, "binpack", 1, Parameters(interference=SERVICES))
    assert with_["alloc"] == churn(FOUR, pods, "binpack", 1)["alloc"]
