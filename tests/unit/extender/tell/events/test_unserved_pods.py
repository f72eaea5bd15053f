"""How long pods stay on devices that no device plug-in has served."""

import pytest

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.extender.tell.events.overdue_pods import UnservedPods
from gpushare.wire.annotations import ALIYUN
from tests.unit.core.clusters import node
from tests.unit.extender.kit import NPU, managed_resources

TWO = node("two", 16, 16)


def pod(name: str, on: str = "two", **more: object) -> ObservedPod:
    observed_pod = ObservedPod(PodRef("team", name, name), Request(4, 1), on, ((0, 4),))
    return observed_pod._replace(**more)  # type: ignore[arg-type]  # fields of ObservedPod


def test_the_pod_that_has_waited_longest_counts_until_it_is_served_or_gone() -> None:
    resources = managed_resources(ALIYUN, NPU)
    unserved = UnservedPods(resources)
    first, second = (books.ledger for books in resources)
    assert unserved.longest_seconds(100.0) == 0
    for ledger in (first, second):
        ledger.node_changed(TWO)
    first.pod_changed(pod("a"))
    assert unserved.longest_seconds(110.0) == 0
    second.pod_changed(pod("b"))
    assert unserved.longest_seconds(140.0) == 30
    first.pod_changed(pod("a", assigned=True))
    assert unserved.longest_seconds(150.0) == 10
    second.pod_gone("b")
    assert unserved.longest_seconds(160.0) == 0
    first.pod_changed(pod("c"))
    assert unserved.longest_seconds(170.0) == 0


@pytest.mark.parametrize(
    "other",
    [
        pod("a", assigned=True),
        pod("a", terminating=True),
        pod("a", placement=None),
        pod("a", on="", placement=None),
        pod("a", on="gone"),
        pod("a", on="one"),
        pod("a", on="two", request=Request(), placement=None),
    ],
)
def test_what_no_plug_in_need_mark_does_not_count(other: ObservedPod) -> None:
    resources = managed_resources()
    ledger = resources.resources[0].ledger
    for spec in (TWO, node("one", 16)):
        ledger.node_changed(spec)
    ledger.pod_changed(other)
    unserved = UnservedPods(resources)
    assert [unserved.longest_seconds(now) for now in (0.0, 60.0)] == [0, 0]


def test_on_a_node_of_one_device_it_counts_where_the_plug_in_says_that_it_marks() -> None:
    resources = managed_resources()
    ledger = resources.resources[0].ledger
    ledger.node_changed(node("one", 16, marks_assigned=True))
    ledger.pod_changed(pod("a", on="one"))
    unserved = UnservedPods(resources)
    assert [unserved.longest_seconds(now) for now in (0.0, 60.0)] == [0, 60]
