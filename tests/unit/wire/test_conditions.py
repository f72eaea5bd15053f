"""The condition that kube-scheduler writes is read as reasons by node count."""

import pytest
from msgspec import Raw

from gpushare.wire.conditions import SchedulerView, scheduler_view
from gpushare.wire.objects import Metadata, Pod, PodCondition, PodSpec, PodStatus

NOW = (
    "0/6 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {gpu: yes}, 1"
    ' node(s) were unschedulable, 2 Insufficient GPU Memory in one device, 1 node "new" not found.'
    " no new claims to deallocate, preemption: 0/6 nodes are available: 6 No preemption victims"
    " found for incoming pod."
)
OLD = (
    "0/2 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate, 1 GPU"
    " Memory is not a whole multiple of the GPU count, and no inventory says more."
)


def view_of(message: str | None, status: str = "False") -> SchedulerView:
    condition = PodCondition("PodScheduled", status, "Unschedulable", message)
    return scheduler_view(Pod(Metadata(), PodSpec(), PodStatus(conditions=[condition])))


def test_reasons_of_the_scheduler_and_ours_are_told_apart() -> None:
    view = view_of(NOW)
    assert view.nodes == 6
    assert view.by_scheduler == {
        "Insufficient cpu": 1,
        "node(s) had untolerated taint {gpu: yes}": 1,
        "node(s) were unschedulable": 1,
    }
    assert view.by_extender == {
        "Insufficient GPU Memory in one device": 2,
        'node "new" not found': 1,
    }


def test_reasons_with_commas_are_read_whole() -> None:
    view = view_of(OLD)
    assert list(view.by_scheduler) == ["node(s) had taint {a: b}, that the pod didn't tolerate"]
    assert list(view.by_extender.values()) == [1]
    assert not view.left_none
    assert view_of("0/2 nodes are available: 2 Insufficient cpu.").left_none


@pytest.mark.parametrize(
    "message",
    ["", None, "skip schedule deleting pod", "0/3 nodes are available: .", "0/x nodes are here",
     "0/3 nodes are available: 3", "0/3 nodes are available: many Insufficient cpu."],
)  # fmt: skip
def test_a_text_that_counts_nothing_is_kept_as_it_is(message: str | None) -> None:
    view = view_of(message)
    assert (view.by_scheduler, view.by_extender, view.left_none) == ({}, {}, False)
    assert view.message == (message or "Unschedulable")


@pytest.mark.parametrize(
    ("message", "end"),
    [("word " * 300, "word word ..."), ("x" * 1001, "xx ..."), ("x" * 1000, "xx")],
)
def test_a_long_text_ends_with_a_whole_word(message: str, end: str) -> None:
    text = view_of(message).message or ""
    assert text.endswith(end)
    assert len(text) <= 1004


def test_a_pod_that_nobody_has_looked_at_or_that_is_scheduled_has_no_message() -> None:
    assert scheduler_view(Pod()).message is None
    assert view_of("late", status="True").message is None
    assert scheduler_view(Pod(spec=PodSpec(scheduler_name="mine"))).name == "mine"


def test_scheduling_gates_are_told_by_name() -> None:
    odd_gates = [b'{"name":""}', b"7", b'{"name":5}', b'{"name":"\xff"}', b"1e999"]
    gates = [Raw(gate) for gate in (b'{"name":"kueue.x-k8s.io/admission"}', *odd_gates)]
    view = scheduler_view(Pod(Metadata(), PodSpec(scheduling_gates=gates)))
    assert view.gates == ("kueue.x-k8s.io/admission", *"?????")
    assert scheduler_view(Pod()).gates == ()
