"""Kueue admits a workload once all its pods have devices, and what was promised stays promised."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.core.model import Request
from gpushare.errors import ApiUnavailable
from gpushare.extender.follow.admission_checks import LONGEST_WAIT
from gpushare.wire.pods import claimant
from tests.unit.extender.follow.kueue_world import CHECK, World, refused
from tests.unit.extender.kit import NO_RIGHT, pod_json, read_pod, refusal

CUT = ApiUnavailable("cut", 0)
_AGAIN = "above kubernetes.io/hostname"


def on_host(node: str) -> dict[str, Any]:
    values = {"domainCount": 1, "valuesPerLevel": [{"universal": node}]}
    part = {**values, "podCounts": {"universal": 1}}
    return {"topologyAssignment": {"levels": ["kubernetes.io/hostname"], "slices": [part]}}


def test_a_workload_whose_pods_all_have_devices_is_ready() -> None:
    world = World()
    assert world.judged("job", 12, 2) == "Ready"
    assert world.check["status"]["conditions"][0]["type"] == "Active"
    assert world.under_test.state()["kueue_ready_total"] == 1
    assert world.calls_in() == []


def test_one_that_fits_by_sum_and_on_no_device_blocks_nobody() -> None:
    world = World()
    world.runs("ten-a", 10, "a")
    world.runs("ten-b", 10, "b")
    world.comes("large", 8, priority=9)
    world.comes("small", 6, 2)
    assert world.states("large", "small") == ("Retry", "Ready")
    message = world.message("large")
    assert message.startswith("0 of 1 pods main (8 GiB) have a device now; nodes: 2 Insufficient")
    assert "it would fit on" in message
    assert "ten-a" in message
    assert _AGAIN not in message


def test_names_of_other_namespaces_are_not_told() -> None:
    world = World(["a"])
    world.runs("secret", 10, "a")
    world.comes("large", 8, namespace="other")
    world.round()
    assert "a pod of another namespace" in world.message("large")
    assert "secret" not in world.message("large")


def test_half_a_workload_takes_no_place() -> None:
    world = World()
    world.comes("three", 9, 3, priority=1)
    world.comes("two", 16, 2)
    assert world.states("three", "two") == ("Retry", "Ready")
    message = world.message("three")
    assert message.startswith("0 of 3 pods main (9 GiB) have a device now; nodes: 2 Insufficient")
    assert message.endswith("; 2 pods of other workloads are promised devices")
    world = World()
    world.comes("three", 9, 3)
    world.round()
    assert world.message("three").startswith("2 of 3 pods main (9 GiB) have a device now")


def test_two_workloads_are_not_promised_one_device() -> None:
    world = World(["a"])
    world.comes("first", 12)
    world.comes("second", 12)
    assert world.states("first", "second") == ("Ready", "Retry")


def test_a_promise_counts_until_its_pods_exist_or_it_is_gone() -> None:
    world = World(["a", "b"])
    world.comes("job", 12, 2)
    world.round()
    world.runs("job-0", 12, "a", workload="job")
    assert world.judged("late", 12) == "Retry"
    # The second pod waits for its node: kube-scheduler will place it, so its place counts.
    world.runs("job-1", 12, workload="job")
    assert world.judged("later", 12) == "Retry"
    world.ends("job-1")
    del world.workloads["job"]
    assert world.judged("last", 12) == "Ready"


def test_a_promise_outlives_the_process() -> None:
    world = World(["a"])
    world.comes("job", 12)
    world.round()
    world.start()
    world.shown()
    assert world.judged("late", 12) == "Retry"


def test_a_workload_that_runs_already_is_ready_beside_its_pods() -> None:
    """As where a queue gets the check while its jobs run."""
    world = World(["a", "b"])
    world.runs("job-0", 12, "a", workload="job")
    world.comes("job", 12, 2)
    world.comes("late", 12)
    assert world.states("job", "late") == ("Ready", "Retry")


def test_a_promise_that_is_gone_wakes_who_waits_for_its_place() -> None:
    world = World(["a"])
    world.comes("job", 12)
    world.comes("late", 12)
    world.round()
    world.evict("late")
    world.round()
    del world.workloads["job"]
    world.shown()
    assert world.calls_in() == ["late"]


def test_reasons_do_not_delay_what_fits() -> None:
    world = World(["a"])
    world.comes("large", 20, priority=9)
    world.comes("small", 6)
    assert world.calls_in()[1:] == ["small", "large"]


@pytest.mark.parametrize(
    ("assignment", "node", "spec"),
    [
        ({}, "", {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}),
        (on_host("a"), "b", {"nodeSelector": {"kubernetes.io/hostname": "b"}}),
    ],
    ids=["behind a gate", "on another domain"],
)
def test_some_pods_do_not_stand_for_promised_ones(
    assignment: dict[str, Any], node: str, spec: dict[str, Any]
) -> None:
    world = World(["a", "b"] if node else ["a"])
    assert world.judged("job", 12, assignment=assignment) == "Ready"
    world.runs("job-0", 12, node, workload="job", **spec)
    assert world.judged("late", 12) == "Retry"


def test_each_retry_waits_twice_as_long_up_to_five_minutes() -> None:
    world = World(["a"])
    world.comes("large", 20)
    waits = []
    for _ in range(9):
        world.round()
        (check,) = world.workloads["large"]["status"]["admissionChecks"]
        waits.append(check["requeueAfterSeconds"])
        world.evict("large")
        world.reserve("large")
    assert waits == [5, 10, 20, 40, 80, 160, *[LONGEST_WAIT] * 3]


def test_a_kueue_that_keeps_the_quota_after_a_retry_is_helped() -> None:
    """As Kueue 0.17.0 does for requeueAfterSeconds."""
    world = World(["a"])
    world.comes("large", 20)
    world.round()
    world.keep("large")
    assert world.calls_in() == []
    world.round()
    assert world.calls == ["large"]
    status = world.workloads["large"]["status"]
    assert status["conditions"][-1]["type"] == "Evicted"
    (check,) = status["admissionChecks"]
    assert (check["state"], check["retryCount"]) == ("Pending", 1)
    assert check["message"].startswith("0 of 1 pods main")
    world.round()
    assert world.calls == ["large"]


def test_a_refused_workload_is_tried_again_once_the_books_have_room() -> None:
    world = refused("large")
    assert world.calls_in(2) == []
    world.ends("ten")
    world.round()
    assert world.calls == ["large"]
    assert world.workloads["large"]["status"]["requeueState"] == {"requeueAt": None}
    world.reserve("large")
    assert world.states("large") == ("Ready",)


def test_a_wait_after_a_ready_is_left_to_kueue() -> None:
    """As of pods that were not ready in time."""
    world = refused("large")
    world.ends("ten")
    world.reserve("large")
    assert world.states("large") == ("Ready",)
    world.evict("large")
    assert world.calls_in(2) == []


def test_room_for_one_wakes_one() -> None:
    world = refused("first", "second")
    world.ends("ten")
    assert world.calls_in() == ["first"]


def test_a_node_that_kueue_chose_by_name_is_named_with_the_way_out() -> None:
    world = World(["a", "b"])
    world.runs("ten", 10, "a")
    assert world.judged("job", 12, assignment=on_host("a")) == "Retry"
    assert _AGAIN in world.message("job")


def test_nodes_of_another_flavor_do_not_count() -> None:
    world = World([])
    world.node("other", gpu="t4")
    assert world.judged("job", 12) == "Retry"
    world.flavor = {"metadata": {"name": "unknown"}}
    assert world.judged("of-unknown", 12) == "Pending"


def test_pods_without_devices_are_no_matter_of_this_check() -> None:
    world = World([])
    assert world.judged("cpu", 0, 5) == "Ready"


def test_a_request_that_makes_no_sense_is_never_ready() -> None:
    world = World()
    world.comes("odd", "a lot")  # type: ignore[arg-type]
    assert world.states("odd") == ("Retry",)
    world.evict("odd")
    assert world.calls_in() == []


@pytest.mark.parametrize(("why_not", "synced"), [("another process leads", True), ("", False)])
def test_only_a_leader_with_all_lists_answers(why_not: str, synced: bool) -> None:
    world = World()
    world.why_not, world.synced = why_not, synced
    world.comes("job", 1)
    world.round()
    assert world.calls == []
    assert world.state("job") == "Pending"


@pytest.mark.parametrize("landed", [True, False])
def test_a_verdict_without_an_answer_keeps_its_promise_and_is_sent_again(landed: bool) -> None:
    world = World(["a"])
    world.round()
    world.comes("job", 12)
    world.faults = [(landed, CUT)]
    world.under_test.round()  # the watch is behind
    world.under_test.round()
    assert world.calls[-2:] == ["job", "job"]
    world.under_test.round()
    assert world.calls[-2:] == ["job", "job"]
    assert world.state("job") == "Ready"
    assert world.under_test.state()["kueue_failed_writes_total"] == 1
    assert world.judged("late", 12) == "Retry"


def test_after_a_conflict_the_newer_workload_is_judged() -> None:
    world = World(["a"])
    world.round()
    world.comes("job", 12)
    world.workloads["job"]["metadata"]["resourceVersion"] = "changed"
    world.under_test.round()
    world.under_test.round()
    assert world.state("job") == "Pending"
    assert world.calls[-1:] == ["job"]
    assert world.under_test.state()["kueue_ready_total"] == 0
    world.shown()
    assert world.states("job") == ("Ready",)


def test_a_refused_write_is_no_promise_and_rests() -> None:
    world = World(["a"])
    world.round()
    world.comes("job", 12)
    world.faults = [(False, refusal("denied by a webhook"))]
    world.round()
    assert world.judged("late", 12) == "Ready"
    assert world.state("job") == "Pending"
    world.now += 60
    assert world.states("job") == ("Retry",)


def test_without_the_right_nothing_is_tried_for_a_while() -> None:
    world = World()
    world.round()
    world.comes("job", 1)
    world.comes("other", 1)
    world.faults = [(False, NO_RIGHT)]
    assert world.calls_in(2) == ["job"]


def test_namespaces_take_turns() -> None:
    world = World(["a"])
    world.comes("first", 12)
    for number in range(3):
        world.comes(f"more-{number}", 1)
    world.comes("other", 12, namespace="other")
    # "other" finds no place, and its reason comes last.
    assert world.calls_in()[1:] == ["first", "more-0", "more-1", "more-2", "other"]
    world.comes("tall", 99)
    world.comes("taller", 99)
    world.comes("tall-too", 99, namespace="other")
    assert world.calls_in() == ["tall", "tall-too", "taller"]


def test_who_loses_the_lead_in_a_round_stops_in_it() -> None:
    world = World(["a"])
    world.round()
    for name in ("first", "second"):
        world.comes(name, 12)
    world.loses_lead_after = 1
    assert world.states("first", "second") == ("Ready", "Pending")
    world.why_not = ""
    del world.workloads["first"]
    world.runs("all", 16, "a")
    world.shown()
    assert world.states("second") == ("Retry",)
    world.evict("second")
    world.comes("third", 12)
    world.round()
    world.evict("third")
    world.ends("all")
    for name in ("first", "fourth"):
        world.comes(name, 1)
    world.loses_lead_after = 2
    assert world.calls_in() == ["first", "fourth"]


def test_who_loses_the_lead_sends_no_verdict_again() -> None:
    world = World()
    world.round()
    for name in ("first", "second"):
        world.comes(name, 1)
    world.faults = [(False, CUT)] * 3
    world.round()
    world.loses_lead_after = 1
    assert world.calls_in() == ["first"]


def test_who_loses_the_lead_evicts_nobody() -> None:
    world = World(["a"])
    for name in ("large", "larger"):
        world.comes(name, 20)
    world.round()
    for name in ("large", "larger"):
        world.keep(name)
    world.round()
    world.loses_lead_after = 1
    assert world.calls_in() == ["large"]


def test_a_round_that_takes_long_goes_on_with_newer_books() -> None:
    world = World()
    for name in ("first", "second"):
        world.comes(name, 1)
    world.rest_seconds = 2.0
    assert world.states("first", "second") == ("Ready", "Pending")
    assert world.states("second") == ("Ready",)


@pytest.mark.parametrize("second", [6, 99])
def test_each_round_writes_a_verdict_however_long_it_takes(second: int) -> None:
    world = World(["a"])
    world.comes("first", 99)
    world.comes("second", second)
    world.rest_seconds = 2.0
    assert world.states("first", "second") == ("Retry", "Pending")
    assert world.states("second") == ("Ready" if second == 6 else "Retry",)


def test_reasons_have_a_second_of_their_own() -> None:
    world = World(["a"])
    for name in ("first", "second", "third"):
        world.comes(name, 99)
    world.rest_seconds = 0.4
    world.round()
    assert world.states("first", "second", "third") == ("Retry",) * 3


def test_the_pause_after_a_round_is_nine_times_its_cpu_time() -> None:
    world = World(["a"])
    step = world.under_test.step
    world.comes("large", 99)
    assert step() == 1.0
    world.shown()
    world.evict("large")
    world.runs("ten", 10, "a")
    world.cpu_seconds, world.rests = 0.2, []
    assert step() == pytest.approx(9 * 2 * 0.2)
    assert world.rests == []
    world.cpu_seconds = 60.0
    assert step() == 5.0


def test_a_patch_that_was_refused_rests() -> None:
    world = World(["a"])
    world.faults = [(False, refusal("denied by a webhook"))]
    assert world.calls_in(2) == [CHECK]
    world.now += 60
    world.round()
    world.comes("large", 20)
    world.round()
    world.keep("large")
    world.round()
    world.faults = [(False, refusal("denied by a webhook"))]
    assert world.calls_in(3) == ["large"]
    world.now += 60
    world.round()
    assert world.calls == ["large", "large"]


def test_a_wait_that_a_webhook_keeps_is_ended_later() -> None:
    world = refused("large")
    world.ends("ten")
    world.calls.clear()
    world.faults = [(False, refusal("denied by a webhook"))]
    for _ in range(3):
        world.round()
        world.runs("small", 1, "a")
    assert world.calls == ["large"]
    world.now += 60
    world.node("b")
    world.round()
    assert world.calls == ["large", "large"]


def test_a_reservation_keeps_its_devices_from_workloads() -> None:
    world = World(["a"])
    world.runs("ten", 10, "a")
    world.runs("old", 12)
    holds = world.resources.resources[0].holds
    old = claimant(read_pod(pod_json("old", 12)), Request(12, 1))
    holds.begin_reservation(old, "a", ((0, 12),), world.now + 600, world.now)
    assert world.judged("job", 6) == "Retry"
    assert world.message("job").endswith("in one device; 1 pods that wait for a node have places")
    world.comes("late", 12)
    world.round()
    assert "free now: nothing; it would fit on a once" in world.message("late")
    del world.workloads["late"]
    world.evict("job")
    world.round()
    holds.end_reservation("uid-old")
    assert world.calls_in() == ["job"]


def test_a_pod_of_filter_has_its_place_on_the_node_of_the_offer() -> None:
    """Packing would place the pod beside the one that runs, on the other node."""
    world = World(["a", "b"])
    world.runs("four", 4, "a")
    world.runs("offered", 4)
    held = claimant(read_pod(pod_json("offered", 4)), Request(4, 1))
    world.resources.resources[0].holds.offered(held, "b", world.now)
    world.comes("job", 16)
    world.comes("small", 12, 2)
    assert world.states("job", "small") == ("Retry", "Ready")
    del world.workloads["small"]
    world.now += 60
    assert world.judged("other", 16) == "Ready"


def test_a_hold_of_a_pod_with_a_charge_counts_once() -> None:
    world = World(["a"])
    world.runs("bound", 8, "a")
    bound = claimant(read_pod(pod_json("bound", 8)), Request(8, 1))
    world.resources.resources[0].holds.offered(bound, "a", world.now)
    assert world.judged("job", 8) == "Ready"


def judged_each(world: World, seconds: int, times: int) -> list[str]:
    """Judge a job of 12 again and again, with this time between."""
    states = []
    for _ in range(times):
        states.append(world.judged("job", 12))
        world.now += seconds
    return states


@pytest.mark.parametrize(("workload", "seconds"), [("", 15), ("old", 300)])
def test_a_place_that_kube_scheduler_does_not_use_is_free_again(
    workload: str, seconds: int
) -> None:
    """As of a pod whose volume is never bound."""
    world = World(["a"])
    world.runs("unbound", 12, workload=workload)
    assert judged_each(world, seconds, 4) == ["Retry", "Retry", "Ready", "Ready"]
    # The pod had no place meanwhile, so its time begins anew.
    world.runs("ten", 10, "a")
    judged_each(world, 0, 1)
    world.ends("ten")
    assert judged_each(world, 700, 2) == ["Retry", "Retry"]


def test_one_pod_after_the_other_keeps_no_place() -> None:
    world = World(["a"])
    world.runs("unbound", 12)
    assert judged_each(world, 30, 1) == ["Retry"]
    world.runs("younger", 12)
    assert judged_each(world, 0, 1) == ["Ready"]
    # An admitted pod of the namespace keeps its place.
    world.runs("admitted", 12, workload="old")
    assert judged_each(world, 0, 1) == ["Retry"]
    world.ends("admitted")
    world.ends("unbound")
    assert judged_each(world, 0, 1) == ["Retry"]


def test_a_check_of_another_controller_is_left_alone() -> None:
    world = World()
    world.check["spec"]["controllerName"] = "kueue.x-k8s.io/multikueue"
    world.comes("job", 1)
    world.round()
    assert world.calls == []


def test_a_second_check_of_ours_finds_the_promise_of_the_first() -> None:
    world = World(["a"])
    assert world.judged("job", 12) == "Ready"
    checks = world.workloads["job"]["status"]["admissionChecks"]
    checks.append({"name": "later", "state": "Pending"})
    world.shown()
    (record,) = world.objects.checks.all().values()
    world.objects.checks.replace({CHECK: record, "later": replace(record, name="later")}, ())
    world.under_test.round()
    states = [check["state"] for check in world.workloads["job"]["status"]["admissionChecks"]]
    assert states == ["Ready", "Ready"]


def test_a_failed_condition_is_written_again() -> None:
    world = World()
    world.faults = [(False, CUT)]
    assert world.calls_in(3) == [CHECK, CHECK]
