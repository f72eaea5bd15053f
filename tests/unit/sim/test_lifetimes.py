"""Lifetimes drawn from a file: their statistics, and the pods that run at a moment."""

import numpy as np
import pytest

from gpushare.sim.lifetimes import lent, lifetimes_of
from gpushare.trace.nodes_and_pods import TracePod


def _pod(devices: int, units: int, ran: float | None, created: float | None = 0.0) -> TracePod:
    """A pod that was placed two seconds after it was created, or never."""
    start = None if ran is None else 2.0
    return TracePod("p", 100, 10, devices, units, (), created, start, 2.0 + (ran or 0.0))


NONE, SHARE, ONE, FEW, MANY = (0, 0), (1, 300), (1, 1000), (3, 1000), (8, 1000)
TIMES = {NONE: [5.0, 7.0], SHARE: [10.0, 30.0, 200.0], ONE: [50.0], FEW: [9.0], MANY: [900.0]}
PODS = [_pod(*size, ran) for size, times in TIMES.items() for ran in times]


def test_the_mean_of_all_pods_counted_by_their_gpu_is_the_unit() -> None:
    lifetimes = lifetimes_of(PODS, 1000)
    gpu = np.array([pod.devices * pod.units for pod in PODS])
    assert lifetimes.means @ gpu == pytest.approx(gpu.sum())
    # A share ran 80 s in the mean, a whole device 50 s.
    assert lifetimes.means[2] / lifetimes.means[5] == pytest.approx(80 / 50)


def test_a_pod_stays_as_long_as_one_of_its_size_ran_each_as_likely() -> None:
    lifetimes = lifetimes_of(PODS, 1000)
    drawn = lifetimes.drawn(np.full(30_000, 3), np.random.default_rng(1))
    values, counts = np.unique(drawn, return_counts=True)
    assert values / values[0] == pytest.approx([1, 3, 20])
    # The standard deviation of a count is 82.
    assert counts == pytest.approx([10_000] * 3, abs=5 * 82)


def test_pods_are_told_apart_by_size() -> None:
    sizes = [(1, 999), (1, 1000), (2, 500), (4, 1000), (5, 1000), (16, 1000), (0, 0)]
    size = lifetimes_of([*PODS, *(_pod(*asked, None) for asked in sizes)], 1000).size[len(PODS) :]
    known = lifetimes_of(PODS, 1000).size[[2, 5, 6, 6, 7, 7, 0]]
    assert size.tolist() == known.tolist()


def test_those_that_run_at_a_moment_are_those_that_came_and_have_not_gone() -> None:
    lifetimes = lifetimes_of(PODS, 1000)
    rate, rng = 3000.0, np.random.default_rng(2)
    which, left = lifetimes.running_at_start(rate, rng)
    # The slow way: all that have come for as long as the longest lives.
    span = max(times.max() for times in lifetimes.by_size)
    came = rng.integers(len(PODS), size=rng.poisson(rate * span))
    remains = lifetimes.drawn(came, rng) - span * rng.random(len(came))
    there = remains > 0
    for pod in range(len(PODS)):
        one, other = left[which == pod], remains[there & (came == pod)]
        assert len(one) == pytest.approx(len(other), abs=6 * np.sqrt(len(other)) + 6)
        spread = 6 * np.sqrt(2 / len(other)) * other.std()
        assert one.mean() == pytest.approx(other.mean(), abs=spread)
    held = np.array([PODS[pod].devices * PODS[pod].units for pod in which.tolist()]).sum()
    offered = rate * np.mean([pod.devices * pod.units for pod in PODS])
    assert held == pytest.approx(offered, rel=0.1)


def test_the_oldest_come_first() -> None:
    lifetimes = lifetimes_of([_pod(1, 1000, 10.0)], 1000)
    _, left = lifetimes.running_at_start(500.0, np.random.default_rng(3))
    assert (np.diff(left) >= 0).all()
    assert 0 <= left[0] < 0.1
    assert 0.9 < left[-1] <= 1


def test_a_pod_that_never_ran_tells_nothing_and_a_size_unknown_has_all_times() -> None:
    pods = [_pod(1, 1000, 10.0), _pod(1, 1000, None), _pod(8, 1000, None), _pod(1, 500, 30.0)]
    lifetimes = lifetimes_of(pods, 1000)
    assert len(lifetimes.by_size[lifetimes.size[1]]) == 1
    assert lifetimes.means[2] / lifetimes.means[0] == pytest.approx(2)
    with pytest.raises(ValueError, match="no pod has a time of placement"):
        lifetimes_of([_pod(1, 1000, None), _pod(1, 1000, 0.0)], 1000)


def test_pods_without_times_are_lent_those_of_their_size_in_turn() -> None:
    bare = [TracePod("p", 1, 1, *size, (), None, None, None) for size in [SHARE] * 4 + [(2, 500)]]
    timed = lent(bare, [*PODS, _pod(1, 300, None)], 1000)
    ran = [pod.deleted - pod.scheduled for pod in timed if pod.deleted and pod.scheduled]
    assert ran == [10.0, 30.0, 200.0, 10.0, 9.0]
    assert all(pod.created is None for pod in timed)
    assert lent(bare, [_pod(8, 1000, 1.0)], 1000) == bare
