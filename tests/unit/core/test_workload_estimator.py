"""When policies are remade and tried, the pods that count, and the influence of a namespace."""

import pytest

from gpushare.core.model import Request
from gpushare.core.workload import PodClass, class_of, workload_of
from gpushare.core.workload_estimator import MAX_NAMESPACES, WINDOW, WorkloadEstimator
from tests.unit.core.clusters import with_share

SMALL, LARGE = PodClass(500, 2, 1), PodClass(8000, 16, 2)
ODD, PLAIN = PodClass(1, 1, 7), PodClass(4000)


def come(learned: WorkloadEstimator, cls: PodClass, pods: int, namespace: str = "team") -> None:
    for _ in range(pods):
        learned.created(namespace, cls)


def share(learned: WorkloadEstimator, cls: PodClass) -> float:
    workload = learned.workload()
    return dict(workload.classes).get(cls, 0) / workload.pods


def test_policies_are_due_for_the_devices_there_are_then_at_50_100_200_and_every_250() -> None:
    learned = WorkloadEstimator(devices={16: 1})
    due = []
    for pod_count in range(1001):
        if learned.is_due():
            due.append(pod_count)
            learned.record_policies(learned.pod_count, learned.sizes)
        learned.created("team", SMALL)
    assert due == [0, 50, 100, 200, 450, 700, 950]


def test_trials_are_due_when_half_as_many_pods_again_have_come_and_every_1000() -> None:
    learned = WorkloadEstimator(devices={16: 4})
    due = []
    for pod_count in range(4001):
        if learned.is_trial_due():
            due.append(pod_count)
            learned.record_trial()
        learned.created("team", SMALL)
    assert due == [50, 100, 150, 225, 337, 505, 757, 1135, 1702, 2553, 3553]


@pytest.mark.parametrize(
    ("devices", "is_due", "is_first_due"),
    [
        ({16: 12}, False, False),
        ({16: 40}, False, True),
        ({16: 7}, False, True),
        ({16: 10, 80: 2}, False, False),
        ({16: 10, 80: 3}, True, True),
        ({80: 10}, True, False),
        ({}, False, True),
    ],
)
def test_a_trial_is_due_too_when_a_fifth_of_the_devices_has_other_sizes(
    devices: dict[int, int], is_due: bool, is_first_due: bool
) -> None:
    learned = WorkloadEstimator(devices={16: 10})
    come(learned, SMALL, 60)
    learned.record_trial()
    learned.devices = devices
    assert (learned.is_trial_due(), learned.is_trial_due(first=True)) == (is_due, is_first_due)


def test_devices_of_a_new_size_make_policies_due_and_fewer_sizes_do_not() -> None:
    learned = WorkloadEstimator(devices={16: 1, 80: 1})
    learned.record_policies(0, learned.sizes)
    learned.devices = {16: 1}
    assert not learned.is_due()
    learned.devices = {16: 1, 40: 1}
    assert learned.is_due()


def test_until_50_pods_have_come_nothing_is_expected() -> None:
    learned = WorkloadEstimator(devices={16: 1})
    come(learned, SMALL, 49)
    assert learned.workload() == workload_of({}, {16})
    come(learned, SMALL, 1)
    assert learned.workload() == workload_of({SMALL: 50}, {16}, evidence=50)


def test_when_other_pods_begin_to_come_policies_are_due_at_once_and_a_trial_soon() -> None:
    learned = WorkloadEstimator(devices={16: 1})
    come(learned, SMALL, 3000)
    learned.record_policies(learned.pod_count, learned.sizes)
    learned.record_trial()
    come(learned, LARGE, 100)
    assert learned.is_due()
    come(learned, LARGE, 64)
    assert learned.is_trial_due()
    assert share(learned, LARGE) > 0.7


def test_one_namespace_counts_pod_by_pod_whatever_it_holds() -> None:
    learned = WorkloadEstimator(devices={16: 1}, held_units={"team": 5})
    come(learned, SMALL, 60)
    come(learned, LARGE, 40)
    come(learned, PLAIN, 20)
    expected = workload_of({SMALL: 60, LARGE: 40, PLAIN: 20}, {16}, evidence=120)
    assert learned.workload() == expected


def test_a_namespace_counts_for_what_it_holds_and_not_for_what_it_creates() -> None:
    learned = WorkloadEstimator(devices={16: 100}, held_units={"team": 1000, "buyer": 7})
    for _ in range(100):
        come(learned, SMALL, 3)
        come(learned, LARGE, 1)
    honest = learned.workload()
    come(learned, ODD, 20_000, "buyer")
    assert share(learned, ODD) < 0.02
    assert 4 * share(learned, LARGE) == pytest.approx(1, abs=0.02)
    assert learned.workload().evidence == pytest.approx(honest.evidence, rel=0.05)


def test_before_anything_is_held_each_namespace_counts_for_one_pod() -> None:
    learned = WorkloadEstimator(devices={16: 100})
    come(learned, SMALL, 50)
    come(learned, LARGE, 5000, "other")
    assert share(learned, SMALL) == pytest.approx(0.5)


def test_pods_without_gpu_count_at_most_as_often_as_pods_with() -> None:
    learned = WorkloadEstimator(devices={16: 100}, held_units={"team": 100})
    come(learned, PLAIN, 5000, "web")
    assert learned.workload() == workload_of({}, {16: 100})
    come(learned, SMALL, 100)
    come(learned, PLAIN, 3000)
    assert share(learned, PLAIN) == pytest.approx(0.5)


def test_how_many_pods_leave_is_weighted_by_namespace_too() -> None:
    learned = WorkloadEstimator(devices={16: 100}, held_units={"team": 1000, "buyer": 2})
    for _ in range(100):
        learned.created("team", SMALL)
        learned.came("team", SMALL, 0.0)
    for at in range(1000):
        learned.created("buyer", SMALL)
        learned.came("buyer", SMALL, at)
        learned.went("buyer", SMALL, None, at + 0.1)
    assert learned.workload().turnover < 0.02


def test_what_runs_at_the_start_is_known_at_once() -> None:
    learned = WorkloadEstimator(devices={16: 100}, held_units={"team": 300, "other": 320})
    running = [("team", SMALL, 0.0)] * 150 + [("other", LARGE, 0.0)] * 10
    learned.adopt(running, 1000.0)
    assert learned.is_due()
    assert learned.is_trial_due()
    assert share(learned, LARGE) == pytest.approx(10 / 160, abs=0.02)


def test_classes_stay_as_long_as_theirs_were_seen_to() -> None:
    learned = WorkloadEstimator(devices={16: 100})
    for at in range(200):
        for cls, life in ((SMALL, 1.0), (LARGE, 3.0)):
            learned.created("team", cls)
            learned.came("team", cls, at)
            learned.went("team", cls, at, at + life)
    workload = learned.workload(300.0)
    (short, _), (long_, _) = workload.classes
    assert (short, long_) == (SMALL, LARGE)
    assert workload.lives[1] / workload.lives[0] == pytest.approx(3, abs=0.2)
    units = [cls.total * count for cls, count in workload.classes]
    mean = sum(
        unit_count * life for unit_count, life in zip(units, workload.lives, strict=True)
    ) / sum(units)
    assert mean == pytest.approx(1)


def test_without_anything_that_left_all_stay_equally_long() -> None:
    learned = WorkloadEstimator(devices={16: 100})
    for _ in range(60):
        learned.created("team", SMALL)
        learned.came("team", SMALL, 0.0)
    assert learned.workload(100.0).lives == ()


def test_beyond_the_most_namespaces_those_that_hold_nothing_are_forgotten() -> None:
    learned = WorkloadEstimator(devices={16: 100}, held_units={"team": 100})
    come(learned, SMALL, 100)
    for at in range(3 * MAX_NAMESPACES):
        come(learned, ODD, 3, f"n-{at}")
    assert share(learned, SMALL) > 0.2
    assert learned.remembered < 100 + 3 * MAX_NAMESPACES


def test_where_more_hold_something_the_others_count_as_one_namespace() -> None:
    names = [f"n-{at}" for at in range(2 * MAX_NAMESPACES)]
    learned = WorkloadEstimator(devices={16: 100}, held_units=dict.fromkeys(names, 2))
    for name in names:
        come(learned, SMALL, 1, name)
        learned.came(name, SMALL, 0.0)
        learned.went(name, SMALL, 0.0, 1.0)
    come(learned, LARGE, 1, names[-1])
    assert share(learned, LARGE) > 0
    assert learned.remembered == 2 * MAX_NAMESPACES + 1


def test_how_many_pods_are_remembered_is_shared_by_the_namespaces() -> None:
    learned = WorkloadEstimator(devices={16: 100})
    come(learned, SMALL, 2 * WINDOW)
    assert learned.remembered == WINDOW
    for name in ("b", "c", "d"):
        come(learned, SMALL, WINDOW, name)
    come(learned, SMALL, 1)
    assert learned.remembered <= 4000 + 2000 + 1334 + 1000


def test_a_percentage_of_memory_counts_as_on_most_cards() -> None:
    learned = WorkloadEstimator(devices={16: 4, 40: 9, 80: 9})
    half = class_of(Request(1, 1, percents=with_share(20, 50)))
    come(learned, half, 60)
    for _ in range(9):
        learned.came("team", half, 0.0)
        learned.went("team", half, 0.0, 1.0)
    (found,) = learned.workload(1.0).classes
    assert found[0] == PodClass(units=40, devices=1, cores=20)
    learned.devices = {16: 1}
    workload = learned.workload(1.0)
    assert workload.classes[0][0].units == 8
    assert workload.lives == (1.0,)


def test_other_percentages_of_memory_begin_a_phase() -> None:
    learned = WorkloadEstimator(devices={16: 1})
    for percent in (25, 75):
        come(learned, class_of(Request(1, 1, percents=with_share(0, percent))), 300)
    assert share(learned, PodClass(units=12, devices=1)) > 0.8
