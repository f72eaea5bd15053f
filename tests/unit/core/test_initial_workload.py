"""The workload that policies begin with."""

import pytest

from gpushare.core.initial_workload import initial_workload
from gpushare.core.workload import Workload


def test_without_devices_nothing_is_expected() -> None:
    assert initial_workload(()) == Workload()


@pytest.mark.parametrize("capacity", [1, 16, 80, 1000])
def test_every_pod_expected_fits_a_device_of_the_capacity(capacity: int) -> None:
    workload = initial_workload([capacity])
    assert workload.capacities == ((capacity, 1),)
    assert all(1 <= cls.units <= capacity for cls, _ in workload.classes if cls.devices)
    assert {cls.devices for cls, _ in workload.classes} == {0, 1, 2, 4, 8}


def test_shares_of_a_device_scale_with_it() -> None:
    shares = {
        capacity: sum(cls.total * count for cls, count in initial_workload([capacity]).classes)
        / capacity
        for capacity in (100, 1000)
    }
    assert shares[100] == pytest.approx(shares[1000], rel=0.01)


def test_for_devices_of_several_sizes_nothing_is_expected() -> None:
    both = initial_workload([16, 80, 16])
    assert both == initial_workload({80: 1, 16: 2}) == Workload((), ((16, 2), (80, 1)))
    assert initial_workload([16, 16]).classes == initial_workload([16]).classes


def test_a_third_of_the_gpu_is_expected_to_go_to_pods_of_several_devices() -> None:
    workload = initial_workload([1000])
    several = sum(cls.total * count for cls, count in workload.classes if cls.devices > 1)
    assert several / workload.gpu == pytest.approx(0.35, abs=0.05)
