"""Events for users: of binds, of pods that fit nowhere, of devices and of changed annotations."""

import pytest

from gpushare.core.model import Allocation, ObservedPod, PodRef, Reason, Request
from gpushare.core.selectors import Demands
from gpushare.errors import ApiError
from gpushare.explain.pod import NodeAsk
from gpushare.extender.tell.events.messages import NO_FIT_EVERY, EventMessages, NoFitLimiter
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import managed_resources, pod_json
from tests.unit.extender.scripted_extender import Heard, ScriptedExtender

REF = PodRef("team", "web", "uid-web")


@pytest.fixture
def extender() -> ScriptedExtender:
    return ScriptedExtender()


def test_after_a_bind_the_pod_says_its_node_and_devices(extender: ScriptedExtender) -> None:
    extender.filter(pod_json("web", 4))
    assert extender.bind(pod_json("web", 4), "small") == ""
    assert extender.heard.events == [
        ("Pod web", "GPUShareAllocated", "node small: 4 GiB on device 0")
    ]


def test_a_pod_without_gpu_is_told_nothing_of(extender: ScriptedExtender) -> None:
    extender.filter(pod_json("web"))
    extender.bind(pod_json("web"), "small")
    assert extender.heard.events == []


def test_a_bind_that_fails_says_why(extender: ScriptedExtender) -> None:
    extender.filter(pod_json("web", 4))
    extender.api.answers = [ApiError("quota", 403)]
    extender.bind(pod_json("web", 4), "small")
    ((about, reason, note),) = extender.heard.events
    assert (about, reason) == ("Pod web", "GPUShareBindFailed")
    assert "quota" in note
    assert "node small" in note


def test_a_pod_that_fits_nowhere_says_so_once_while_the_reasons_are_the_same(
    extender: ScriptedExtender,
) -> None:
    for _ in range(3):
        extender.filter(pod_json("web", 99), ["big", "small", "nowhere"])
    ((about, reason, note),) = extender.heard.events
    assert (about, reason) == ("Pod web", "GPUShareNoFit")
    assert note.startswith("0 of 3 nodes take the pod: 2 GPU Memory")
    assert ", 1 node not found; " in note
    assert note.endswith(
        "; it can never fit: even on an empty node it could only fit with at most 16 GiB on one"
        " device"
    )
    assert extender.rejected["node not found"] == 3


def test_a_full_node_that_kube_scheduler_leaves_out_may_take_the_pod_later(
    extender: ScriptedExtender,
) -> None:
    """kube-scheduler calls about the nodes with enough units in sum: here not about `big`."""
    for name in ("job-1", "job-2"):
        extender.filter(pod_json(name, 16), ["big"])
        assert extender.bind(pod_json(name, 16), "big") == ""
    extender.heard.events.clear()
    extender.filter(pod_json("web", 12), ["small", "tiny"])
    ((_, _, note),) = extender.heard.events
    assert note.startswith("0 of 2 nodes take the pod: 2 GPU Memory request is larger")
    assert "never" not in note
    assert note.endswith("; it would fit on big once team/job-1 (16 GiB) ends")


def test_a_node_with_room_that_kube_scheduler_leaves_out_is_no_reason_to_say_never(
    extender: ScriptedExtender,
) -> None:
    extender.filter(pod_json("web", 12), ["small", "tiny"])
    ((_, _, note),) = extender.heard.events
    assert "never" not in note


def test_a_pod_that_its_nominated_node_refuses_may_fit_elsewhere_and_is_no_news(
    extender: ScriptedExtender,
) -> None:
    pod = pod_json("web", 10)
    pod["status"]["nominatedNodeName"] = "small"
    extender.filter(pod, ["small"])
    assert extender.filter(pod)["NodeNames"] == ["big"]
    assert extender.heard.events == []
    extender.filter(pod, ["small", "tiny"])
    assert [event[1] for event in extender.heard.events] == ["GPUShareNoFit"]


def test_a_pod_that_fits_somewhere_is_no_news(extender: ScriptedExtender) -> None:
    extender.filter(pod_json("web", 10))
    assert extender.heard.events == []
    assert sum(extender.rejected.values()) == 2


def test_devices_that_close_and_open_are_told_of_their_node() -> None:
    heard, resources = Heard(), managed_resources()
    ledger = resources.resources[0].ledger
    notices = EventMessages(heard, resources, "GiB")
    ledger.node_changed(make_node("a", 16, 16, unhealthy=[1]))
    ledger.node_changed(make_node("b", 16, 16))
    notices.tick(is_ready=True)
    assert heard.events == [], "what was so before we looked is no change"
    ledger.set_unhealthy("a", frozenset({0}))
    notices.tick(is_ready=True)
    notices.tick(is_ready=True)
    ledger.set_unhealthy("a", frozenset())
    notices.tick(is_ready=True)
    assert [event[:2] for event in heard.events] == [
        ("Node a", "GPUShareDeviceUnhealthy"),
        ("Node a", "GPUShareDeviceHealthy"),
    ]
    assert "device 0" in heard.events[0][2]


def test_a_card_that_two_nodes_claim_is_told_of_both_once() -> None:
    heard, resources = Heard(), managed_resources()
    ledger = resources.resources[0].ledger
    notices = EventMessages(heard, resources, "GiB")
    ledger.node_changed(make_node("a", 16, 16, uuids=("GPU-1", "GPU-2")))
    ledger.node_changed(make_node("b", 16, uuids=("GPU-3",)))
    notices.tick(is_ready=True)
    assert heard.events == []
    ledger.node_changed(make_node("b", 16, 16, uuids=("GPU-3", "GPU-2")))
    notices.tick(is_ready=True)
    ledger.node_changed(make_node("c", 16))
    notices.tick(is_ready=True)
    assert [event[:2] for event in heard.events] == [
        ("Node a", "GPUShareCardContested"),
        ("Node b", "GPUShareCardContested"),
    ]
    assert "GPU-2 (also on b)" in heard.events[0][2]
    assert "GPU-2 (also on a)" in heard.events[1][2]
    many = [f"GPU-{number}" for number in range(10, 20)]
    ledger.node_changed(make_node("a", *[16] * 10, uuids=tuple(many)))
    ledger.node_changed(make_node("b", *[16] * 10, uuids=tuple(many)))
    notices.tick(is_ready=True)
    assert all("and 7 more" in event[2] for event in heard.events[2:])


@pytest.mark.parametrize("closed", [None, Reason.BROKEN_INVENTORY])
def test_a_broken_device_does_not_open_again_when_its_node_goes_or_is_closed(
    closed: Reason | None,
) -> None:
    heard, resources = Heard(), managed_resources()
    ledger = resources.resources[0].ledger
    notices = EventMessages(heard, resources, "GiB")
    ledger.node_changed(make_node("a", 16, 16, unhealthy=[1]))
    notices.tick(is_ready=True)
    if closed is None:
        ledger.node_gone("a")
    else:
        ledger.node_changed(make_node("a", closed=closed))
    notices.tick(is_ready=True)
    assert heard.events == []


def test_who_does_not_lead_tells_nothing() -> None:
    heard, resources = Heard(), managed_resources()
    ledger = resources.resources[0].ledger
    notices = EventMessages(heard, resources, "GiB")
    ledger.node_changed(make_node("a", 16))
    notices.tick(is_ready=True)
    ledger.set_unhealthy("a", frozenset({0}))
    notices.tick(is_ready=False)
    notices.tick(is_ready=True)
    assert heard.events == []


@pytest.mark.parametrize(
    "changes",
    [{}, {"gated": False}, {"served": False}, {"demands": Demands(gated=True)}],
    ids=["refused", "new", "of another scheduler", "with gates"],
)
def test_a_pod_that_kube_scheduler_refuses_alone_is_told_once_what_would_help(
    changes: dict[str, object],
) -> None:
    heard, resources, now = Heard(), managed_resources(), 0.0
    ledger = resources.resources[0].ledger
    ledger.node_changed(make_node("a", 16))
    holder = PodRef("other", "holder", "uid-holder")
    ledger.pod_changed(ObservedPod(holder, Request(16, 1), "a", ((0, 16),)))
    pod = ObservedPod(REF, Request(8, 1), gated=True)
    ledger.pod_changed(pod._replace(**changes))  # type: ignore[arg-type]  # fields by name
    notices = EventMessages(heard, resources, "GiB", lambda: now)
    for _ in range(40):
        notices.tick(is_ready=False)
        notices.tick(is_ready=True)
        now += 20.0
    note = (
        "kube-scheduler finds no node for the pod; free now: nothing; it would fit on a once a pod"
        " of another namespace (16 GiB) ends"
    )
    assert heard.events == ([] if changes else [("Pod web", "GPUShareNoFit", note)])


def test_many_refused_pods_of_one_namespace_hold_up_none_of_another() -> None:
    heard, resources, now = Heard(), managed_resources(), 0.0
    notices = EventMessages(heard, resources, "GiB", lambda: now)
    for number in range(20):
        namespace = f"team-{number % 4}" if number % 5 else "large"
        ref = PodRef(namespace, f"pod-{number}", f"uid-{number}")
        pod = ObservedPod(ref, Request(8, 1), gated=True, created=number + 1.0)
        resources.resources[0].ledger.pod_changed(pod)
    told: list[list[str]] = []
    for _ in range(4):
        notices.tick(is_ready=True)
        told.append([about for about, _, _ in heard.events[sum(len(pods) for pods in told) :]])
        now += 10.0
    assert [len(pods) for pods in told] == [3, 3, 3, 3]
    # In two looks each of the five namespaces has had its turn.
    assert {*told[0], *told[1]} >= {f"Pod pod-{number}" for number in (0, 1, 2, 3, 4)}


def test_annotations_edited_after_the_bind_are_told_of_the_pod() -> None:
    heard, resources = Heard(), managed_resources()
    ledger = resources.resources[0].ledger
    notices = EventMessages(heard, resources, "GiB")
    ledger.node_changed(make_node("a", 16, 16))
    ledger.pod_changed(ObservedPod(REF, Request(4, 1), "a", ((0, 4),)))
    ledger.pod_changed(ObservedPod(REF, Request(4, 1), "a", ((1, 4),)))
    notices.tick(is_ready=True)
    notices.tick(is_ready=True)
    ((about, reason, note),) = heard.events
    assert (about, reason) == ("Pod web", "GPUShareAllocationMismatch")
    assert "changed after it was bound" in note


def test_a_pod_bound_by_another_is_told_with_its_node() -> None:
    heard, resources = Heard(), managed_resources()
    ledger = resources.resources[0].ledger
    for name in ("a", "b"):
        ledger.node_changed(make_node(name, 16))
    ledger.assume(REF, Request(4, 1), Allocation("a", ((0, 4),)), 0.0)
    ledger.pod_changed(ObservedPod(REF, Request(4, 1), "b"))
    EventMessages(heard, resources, "GiB").tick(is_ready=True)
    ((_, reason, note),) = heard.events
    assert reason == "GPUShareAllocationMismatch"
    assert "node b past this extender" in note


def test_a_binding_that_was_confirmed_and_is_not_there_is_told() -> None:
    heard, resources = Heard(), managed_resources()
    ledger = resources.resources[0].ledger
    ledger.node_changed(make_node("a", 16))
    ledger.assume(REF, Request(4, 1), Allocation("a", ((0, 4),)), 0.0)
    ledger.landed(REF.uid, 0.0)
    ledger.settle(REF.uid, ledger.token(REF.uid), ObservedPod(REF, Request(4, 1)), 20.0)
    EventMessages(heard, resources, "GiB").tick(is_ready=True)
    ((_, reason, note),) = heard.events
    assert reason == "GPUShareAllocationMismatch"
    assert "bound to node a, and now shows it without a node" in note


def test_alarms_nobody_takes_are_bounded() -> None:
    ledger = Ledger()
    ledger.node_changed(make_node("a", 16, 16))
    ledger.pod_changed(ObservedPod(REF, Request(4, 1), "a", ((0, 4),)))
    for _ in range(1000):
        ledger.pod_changed(ObservedPod(REF, Request(4, 1), "a", ((1, 4),)))
    assert len(ledger.take_alarms()) == 256
    assert ledger.take_alarms() == ()
    assert ledger.counts()["placement_edited"] == 1000


def test_a_pod_is_told_that_a_node_was_asked_for_or_why_not() -> None:
    heard = Heard()
    messages = EventMessages(heard, managed_resources(), "GiB")
    messages.node_asked(REF, NodeAsk(1.0))
    messages.node_asked(REF, NodeAsk(why_not="it was refused: quota"))
    request = "no device has room for it: a placeholder asks autoscalers for a node"
    refusals = "no node was asked for: it was refused: quota"
    assert heard.events == [
        ("Pod web", "GPUShareNodeAsked", request),
        ("Pod web", "GPUShareNodeNotAsked", refusals),
    ]


def test_no_fit_is_news_when_its_reasons_change_and_not_too_soon() -> None:
    news = NoFitLimiter()
    full, frozenset_result = frozenset({"full"}), frozenset({"closed"})
    assert news.allows("team", "a", full, 0.0)
    assert not news.allows("team", "a", full, NO_FIT_EVERY * 10)
    assert news.allows("team", "b", frozenset_result, 1.0)
    assert not news.allows("team", "b", full, 2.0)
    assert news.allows("team", "b", full, NO_FIT_EVERY + 1)


def test_of_many_pods_that_fit_nowhere_only_a_few_are_told() -> None:
    news = NoFitLimiter()
    total = sum(news.allows("team", str(pod), frozenset({"full"}), 0.0) for pod in range(1000))
    assert total == 10


def test_a_pod_not_told_for_want_of_room_is_told_later() -> None:
    news = NoFitLimiter()
    for pod in range(11):
        news.allows("team", str(pod), frozenset({"full"}), 0.0)
    assert news.allows("team", "10", frozenset({"full"}), 60.0)
    del news.reported["10"]
    assert news.allows("team", "10", frozenset({"full"}), 120.0)


def test_pods_of_one_namespace_do_not_keep_those_of_another_from_being_told() -> None:
    news, full = NoFitLimiter(), frozenset({"full"})
    for second in range(600):
        for pod in range(1000):
            news.allows("greedy", f"{pod}", frozenset({f"{second}"}), float(second))
    # The greedy namespace has just used the events since the last time.
    assert news.allows("quiet", "a", full, 599.5)
