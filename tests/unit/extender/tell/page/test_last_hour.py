"""The allocated and refused pods of the last hour."""

import pytest

from gpushare.extender.tell.page import last_hour
from gpushare.extender.tell.page.last_hour import LastHour
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender

MEM = "aliyun.com/gpu-mem"


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_pod_counts_once_of_each_kind_and_by_resource() -> None:
    hour = LastHour(Clock())
    for _ in range(3):
        hour.refused(MEM, "a", 8)
        hour.allocated(MEM, "a", 8)
    hour.allocated("other", "b", 5)
    assert hour.figures(MEM) == {
        "allocated": {"pods": 1, "units": 8},
        "refused": {"pods": 1, "units": 8},
    }
    assert hour.figures("other")["allocated"] == {"pods": 1, "units": 5}


def test_what_is_older_than_an_hour_counts_no_more() -> None:
    clock = Clock()
    hour = LastHour(clock)
    hour.allocated(MEM, "a", 8)
    clock.now = 1800
    hour.allocated(MEM, "b", 2)
    clock.now = 3601
    assert hour.figures(MEM)["allocated"] == {"pods": 1, "units": 2}


def test_nothing_older_is_kept_while_nobody_looks() -> None:
    clock = Clock()
    hour = LastHour(clock)
    for number in range(100):
        clock.now = number * 60.0
        hour.allocated(MEM, str(number), 1)
    clock.now = 0.0  # so that no figure is old
    assert hour.figures(MEM)["allocated"] == {"pods": 61, "units": 61}


def test_of_very_many_pods_the_newest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_hour, "_MOST", 3)
    hour = LastHour(Clock())
    for number in range(5):
        hour.refused(MEM, str(number), number)
    assert hour.figures(MEM)["refused"] == {"pods": 3, "units": 2 + 3 + 4}


def test_the_verbs_count_what_they_bind_and_what_fits_nowhere() -> None:
    extender = ScriptedExtender()
    pod = pod_json("web", 10)
    extender.filter(pod)
    assert extender.bind(pod, "big") == ""
    large = pod_json("large", 99)
    # kube-scheduler asks about the nominated node alone, and then about all nodes.
    large["status"]["nominatedNodeName"] = "small"
    extender.filter(large, ["small"])
    assert extender.hour.figures(MEM)["refused"] == {"pods": 0, "units": 0}
    extender.filter(large)
    assert extender.hour.figures(MEM) == {
        "allocated": {"pods": 1, "units": 10},
        "refused": {"pods": 1, "units": 99},
    }
