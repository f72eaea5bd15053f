"""Preemption in the small scheduler: the same victims and texts as in kube-scheduler."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpushare.wire.budgets import DisruptionBudget
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.extender import Candidate
from gpushare_localcluster.scheduler.framework import Code, CycleState, Status
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.resources import NodeResourcesFit
from gpushare_localcluster.scheduler.preemption import (
    DefaultPreemption,
    NoPreemption,
    Preemption,
    best,
)
from gpushare_localcluster.scheduler.runtime import Framework

GPU = "example.com/gpu-mem"


def pod(name: str, units: int = 0, priority: int = 0, started: str = "", **more: Any) -> PodView:
    resources = {"requests": {GPU: str(units)}}
    meta = {"name": name, "uid": name, "namespace": "ns", "labels": more.pop("labels", {})}
    status = {"startTime": started or None, **more.pop("status", {})}
    spec = {"priority": priority, "containers": [{"resources": resources}], **more}
    return read_pod({"metadata": {**meta, **more.pop("meta", {})}, "spec": spec, "status": status})


def node(name: str, units: int, *pods: PodView) -> NodeInfo:
    amounts = {GPU: str(units), "pods": "10"}
    info = NodeInfo(read_node({"metadata": {"name": name}, "status": {"allocatable": amounts}}))
    for item in pods:
        info = info.with_pod(item)
    return info


def choose(
    new_pod: PodView,
    *nodes: NodeInfo,
    budgets: Sequence[DisruptionBudget] = (),
    code: Code = Code.UNSCHEDULABLE,
    empty_candidates: bool = True,
) -> Candidate:
    preemption = Preemption((), lambda: budgets, empty_candidates=empty_candidates)
    framework = Framework((NodeResourcesFit(),))
    statuses = {item.name: Status(code, ("full",)) for item in nodes}
    return preemption.choose(framework, CycleState(), new_pod, Snapshot(nodes), statuses)


def names(candidate: Candidate) -> list[str]:
    return [victim.name for victim in candidate.pods]


def test_no_more_pods_go_than_have_to_and_the_more_important_stay() -> None:
    full = node("n1", 16, pod("a", 4, 1), pod("b", 4, 3), pod("c", 4, 2), pod("d", 4, 9))
    assert names(choose(pod("p", 8, 5), full)) == ["c", "a"]
    assert names(choose(pod("p", 4, 5), full)) == ["a"]


def test_of_equals_the_one_that_started_last_goes() -> None:
    full = node("n1", 8, pod("old", 4, started="2026-01-01"), pod("new", 4, started="2026-01-02"))
    assert names(choose(pod("p", 4, 5), full)) == ["new"]


def test_pods_under_a_budget_come_back_first() -> None:
    full = node("n1", 8, pod("kept", 4, labels={"app": "db"}), pod("b", 4, 3))
    budget = DisruptionBudget("ns", {"matchLabels": {"app": "db"}})
    assert names(choose(pod("p", 4, 5), full, budgets=[budget])) == ["b"]
    both = choose(pod("p", 8, 5), full, budgets=[budget])
    assert (names(both), both.violations) == (["b", "kept"], 1)
    allowed_count = DisruptionBudget("ns", {"matchLabels": {"app": "db"}}, 1)
    assert choose(pod("p", 8, 5), full, budgets=[allowed_count]).violations == 0


def test_the_best_node_is_the_one_missed_least() -> None:
    low, high = node("n1", 8, pod("a", 8, 2)), node("n2", 8, pod("b", 8, 1))
    assert choose(pod("p", 8, 5), low, high).node == "n2"
    one = node("n3", 8, pod("c", 8, 1))
    two = node("n4", 8, pod("d", 4, 1), pod("e", 4, 1))
    assert choose(pod("p", 8, 5), two, one).node == "n3"


def test_the_first_victim_counts_as_the_highest() -> None:
    wrong = Candidate("wrong", (pod("a", 1, 1), pod("b", 1, 9)))
    right = Candidate("right", (pod("c", 1, 2),))
    assert best([right, wrong]).node == "wrong"
    assert best([Candidate("n", right.pods, 1), wrong]).node == "wrong"
    late = Candidate("late", (pod("d", 1, 2, "2026-01-02"),))
    early = Candidate("early", (pod("e", 1, 2, "2026-01-01"),))
    assert best([early, late]).node == "late"


@pytest.mark.parametrize(
    ("new_pod", "full", "code", "text"),
    [
        (
            pod("p", 8, 5),
            node("n1", 8, pod("a", 8, 5)),
            Code.UNSCHEDULABLE,
            "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        ),
        (
            pod("p", 8, 5),
            node("n1", 8, pod("a", 8)),
            Code.UNRESOLVABLE,
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        ),
        (
            pod("p", 8, 5),
            node("n1", 8, pod("a", 4), pod("b", 4, 9)),
            Code.UNSCHEDULABLE,
            f"0/1 nodes are available: 1 Insufficient {GPU}.",
        ),
        (
            pod("p", 8, 5, preemptionPolicy="Never"),
            node("n1", 8, pod("a", 8)),
            Code.UNSCHEDULABLE,
            "not eligible due to preemptionPolicy=Never.",
        ),
    ],
)
def test_nobody_goes_for_a_reason(new_pod: PodView, full: NodeInfo, code: Code, text: str) -> None:
    with pytest.raises(NoPreemption) as raised:
        choose(new_pod, full, code=code)
    assert str(raised.value) == text


def test_a_node_nobody_has_to_leave_is_an_error_before_1_38_and_no_candidate_since() -> None:
    blocked_by_an_extender = node("n1", 16, pod("a", 4))
    with pytest.raises(NoPreemption, match='expected at least one victim pod on node "n1"'):
        choose(pod("p", 8, 5), blocked_by_an_extender, empty_candidates=False)
    with pytest.raises(NoPreemption, match="No preemption victims found"):
        choose(pod("p", 8, 5), blocked_by_an_extender)


def test_while_victims_end_on_the_nominated_node_nobody_else_goes() -> None:
    ends = {
        "conditions": [{"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}],
    }
    raw = pod("a", 8, status=ends).raw
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ending = node("n1", 8, read_pod(raw))
    second = node("n2", 8, pod("b", 8))
    new_pod = pod("p", 8, 5, status={"nominatedNodeName": "n1"})
    with pytest.raises(NoPreemption, match="a terminating pod on the nominated node"):
        choose(new_pod, ending, second)
    assert choose(pod("p", 8, 5), second).node == "n2"


def test_the_plug_in_says_where_it_made_room() -> None:
    handle = Handle(
        snapshot=Snapshot((node("n1", 8, pod("a", 8, 1)),)),
        profiles={"default-scheduler": Framework((NodeResourcesFit(),))},
    )
    statuses = {"n1": Status(Code.UNSCHEDULABLE, ("full",))}
    status = DefaultPreemption({}, handle).post_filter(CycleState(), pod("p", 8, 5), statuses)
    assert status == Status(
        Code.SUCCESS,
        ("preemption: found a potential placement for pod on node n1, preempting 1 victims",),
    )
