"""When policies are made anew, and for which pods."""

from gpushare.core.workload import PodClass, workload_of
from gpushare.core.workload_estimator import WorkloadEstimator

SMALL = PodClass(cpu=500, units=2, devices=1)


def test_policies_are_due_for_the_devices_there_are_then_at_50_100_200_and_every_250() -> None:
    learned = WorkloadEstimator(devices={16: 1})
    due = []
    for seen in range(1001):
        if learned.is_due():
            due.append(seen)
            learned.made(learned.arrivals.seen, learned.sizes)
        learned.arrivals.observe(SMALL)
    assert due == [0, 50, 100, 200, 450, 700, 950]


def test_devices_of_a_new_size_make_policies_due_and_fewer_sizes_do_not() -> None:
    learned = WorkloadEstimator(devices={16: 1, 80: 1})
    learned.made(0, learned.sizes)
    learned.devices = {16: 1}
    assert not learned.is_due()
    learned.devices = {16: 1, 40: 1}
    assert learned.is_due()


def test_until_50_pods_have_come_nothing_is_expected() -> None:
    learned = WorkloadEstimator(devices={16: 1})
    for _ in range(49):
        learned.arrivals.observe(SMALL)
    assert learned.workload() == workload_of({}, {16})
    learned.arrivals.observe(SMALL)
    assert learned.workload() == workload_of({SMALL: 50}, {16})
