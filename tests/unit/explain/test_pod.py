"""Explanations of pods in every state: lines and documents."""

import json
from typing import Any

import pytest

from gpushare.core.model import Allocation, NodeSpec, Reason, Request
from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.pairing import Pairing
from gpushare.core.selectors import Taint
from gpushare.errors import MessageError
from gpushare.explain.document import document as document_of
from gpushare.explain.pod import PodExplanation, explain_pod
from gpushare.explain.text import amount, lines, sentence
from gpushare.extender.managed_resources import ManagedResource
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import APART, NOT_UUIDS, SPLIT, USE_MODELS
from gpushare.wire.pods import observe_pod, pod_ref
from tests.support.documents import check
from tests.unit.core.clusters import node, state_of
from tests.unit.extender.kit import NPU, managed_resource, pod_json, read_pod

FITS_NOT = "0/{} nodes are available: {}. preemption: 0/1 nodes are available: 1 No preemption."


def document(pod: PodExplanation) -> dict[str, Any]:
    """The document, which its schema describes."""
    answer = document_of(pod)
    check(answer)
    return answer


def placed(name: str, units: int, place: str, idx: str, **annotations: str) -> dict[str, Any]:
    """Return a bound pod with a device in its annotations."""
    return pod_json(name, units, node=place, annotations={ALIYUN.idx: idx, **annotations})


def said_by_scheduler(pod: dict[str, Any], message: str) -> dict[str, Any]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return pod | {"status": {"phase": "Pending", "conditions": [condition]}}


def filled(
    *nodes: NodeSpec, pods: tuple[dict[str, Any], ...] = (), pairing: Pairing = Pairing.OFF
) -> ManagedResource:
    resource = managed_resource(pairing=pairing)
    for spec in nodes:
        resource.ledger.node_changed(spec)
    resource.filters = OwnFilters(NodeStates(map(state_of, nodes)), resource.ledger.taken)
    for pod in pods:
        resource.ledger.pod_changed(observe_pod(read_pod(pod), ALIYUN))
    return resource


def told(pod: dict[str, Any], resource: ManagedResource, **more: Any) -> list[str]:
    return lines(explain_pod(read_pod(pod), [resource], "GiB", **more))


HALVES = (placed("half-1", 10, "gpu-a", "0"), placed("half-2", 10, "gpu-a", "1"))


def test_the_pods_of_the_workload_that_keep_a_pod_out_are_told() -> None:
    owner = {"kind": "ReplicaSet", "name": "web-5d", "uid": "u-1", "controller": True}
    pods = [
        placed("web-1", 2, "gpu-a", "0", **{APART: "required"}),
        placed("web-2", 2, "gpu-a", "1", **{APART: "required"}),
        pod_json("web-3", 2, annotations={APART: "required"}),
    ]
    for pod in pods:
        pod["metadata"]["ownerReferences"] = [owner]
    resource = filled(node("gpu-a", 16, 16), node("gpu-b", 1), pods=tuple(pods[:2]))
    text = "pods of replicaset team/web-5d are already on devices 0, 1 of gpu-a"
    rows = told(pods[2], resource)
    assert f"Apart:      {text}, and the pod stays apart from these" in rows
    answer = explain_pod(read_pod(pods[2]), [resource], "GiB")
    assert answer.explanation is not None
    assert answer.explanation.reasons[Reason.APART] == 1
    assert text in sentence(answer.explanation, "GiB")
    written = document(answer)["explanation"]["closedByFellows"]
    assert written == {"gpu-a": [0, 1]}


def test_a_pending_pod_is_explained_in_five_lines() -> None:
    resource = filled(node("gpu-a", 16, 16), node("cpu"), pods=HALVES)
    message = FITS_NOT.format(3, "1 Insufficient GPU Memory in one device, 2 Insufficient cpu")
    assert told(said_by_scheduler(pod_json("late", 8), message), resource) == [
        "Pod:        team/late is pending and asks for 8 GiB on one device (aliyun.com/gpu-mem)",
        "Free now:   at most 6 GiB on gpu-a device 0",
        "Nodes:      0 of 2 have room on their devices: 1 no shared GPU, 1 Insufficient GPU Memory"
        " in one device",
        "Would fit:  on gpu-a once team/half-1 (10 GiB) ends",
        "Scheduler:  default-scheduler removed 2 of 3 nodes (2 Insufficient cpu) itself, and asked"
        " gpushare about the others",
    ]


@pytest.mark.parametrize(
    ("units", "count", "spec", "line"),
    [
        (20, 1, node("a", 16), "even on an empty node it could only fit with at most 16 GiB on one"
         " device"),
        (20, 1, node("a", 16, 16), "even on an empty node it could only fit with at most 16 GiB on"
         " one device or with 10 GiB on each of 2 devices: a gpu-count of 2, as an annotation of"
         " the pod"),
        (20, 2, node("a", 16, 16, 24), "even on an empty node it could only fit with at most 16 GiB"
         " on each of 2 devices or on at most one device of 20 GiB"),
        (8, 3, node("a", 8, 8), "even on an empty node it could only fit on at most 2 devices of"
         " 8 GiB"),
        (9, 3, node("a", 8, 8), "even on an empty node it could only fit with at most 8 GiB on one"
         " device"),
        (8, 1, node("a"), "no node that the pod may use shares a device"),
    ],
)  # fmt: skip
def test_what_never_fits_is_told_with_the_requests_that_could(
    units: int, count: int, spec: NodeSpec, line: str
) -> None:
    pod = pod_json("late", units * count, annotations={ALIYUN.count: str(count)})
    assert f"Never fits: {line}" in told(pod, filled(spec))


THIRTY_TEN = pod_json("late", 40, annotations={SPLIT: "10+30"})


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (node("a", 24, 24, 4), "24 + 10 GiB on 2 devices or with 20 GiB on each of 2 devices: a"
         " gpu-count of 2, as an annotation of the pod in place of its split"),
        (node("a", 20, 9), "20 + 9 GiB on 2 devices"),
        (node("a", 80), "80 GiB on one device or with 40 GiB on one device: a gpu-count of 1, as an"
         " annotation of the pod in place of its split"),
    ],
)  # fmt: skip
def test_what_of_a_split_pods_parts_could_fit_is_told(spec: NodeSpec, line: str) -> None:
    text = f"Never fits: even on an empty node it could only fit with at most {line}"
    assert text in told(THIRTY_TEN, filled(spec))


def test_what_is_free_for_each_part_of_a_split_pod_is_told() -> None:
    pods = (placed("x", 5, "a", "1"), placed("y", 20, "b", "0"), placed("z", 20, "b", "1"))
    books = filled(node("a", 40, 12), node("b", 40, 40), pods=pods)
    free = "Free now:   at most 40 GiB on a device 0, and 30 + 7 GiB on 2 devices of one node"
    assert free in told(THIRTY_TEN, books)
    text = document(explain_pod(read_pod(THIRTY_TEN), [books], "GiB"))["explanation"]
    assert (text["partsNow"], text["mostParts"]) == ([30, 7], [30, 10])
    assert (text["fitsNow"], text["devicesWithMemory"]) == (20, 3)
    (line,) = [line for line in told(THIRTY_TEN, books) if line.startswith("Would fit")]
    assert line == "Would fit:  on a once team/x (5 GiB) ends"
    one = filled(node("a", 40, 12), pods=(placed("x", 12, "a", "1"),))
    none = "Free now:   at most 40 GiB on a device 0; no node has 2 devices with memory free"
    assert none in told(THIRTY_TEN, one)
    even = document(explain_pod(read_pod(pod_json("late", 48)), [books], "GiB"))["explanation"]
    assert (even["partsNow"], even["mostParts"]) == (None, None)


CORES, MODELS = ALIYUN.cores, ("A100-SXM4-80GB", "Tesla-T4")


def sharing(name: str, units: int, cores: int, place: str = "", idx: str = "") -> dict[str, Any]:
    """A pod that asks for compute too, bound to a device or not."""
    annotations = {ALIYUN.idx: idx} if idx else {}
    return pod_json(name, units, node=place, annotations=annotations, limits={CORES: cores})


@pytest.mark.parametrize(
    ("asks", "reason", "compute", "help_"),
    [
        (sharing("late", 4, 50), "Insufficient GPU Cores in one device",
         "2 devices have 4 GiB free, none of them also 50 % of its cores (at most 40 %)",
         "team/half-1 (10 GiB with 60 % of cores) ends"),
        (sharing("late", 6, 20), "Insufficient GPU Memory and Cores in one device",
         "1 device has 6 GiB free, not also 20 % of its cores (at most 10 %)",
         "team/half-1 (10 GiB with 60 % of cores) ends"),
        (sharing("late", 1, 100), "Insufficient GPU Cores in one device",
         "2 devices have 1 GiB free and all of them are in use",
         "team/half-1 (10 GiB with 60 % of cores) ends"),
    ],
)  # fmt: skip
def test_compute_that_keeps_a_pod_out_is_told_beside_memory(
    asks: dict[str, Any], reason: str, compute: str, help_: str
) -> None:
    pods = (sharing("half-1", 10, 60, "a", "0"), sharing("half-2", 4, 90, "a", "1"))
    resource = filled(node("a", 14, 12), pods=pods)
    told_lines = told(asks, resource)
    assert f"Compute:    {compute}" in told_lines
    (nodes,) = [line for line in told_lines if line.startswith("Nodes")]
    assert nodes.endswith(reason)
    (would,) = [line for line in told_lines if line.startswith("Would fit")]
    assert help_ in would
    answer = explain_pod(read_pod(asks), [resource], "GiB").explanation
    assert answer is not None
    assert f", but {compute}; it would fit on a once" in sentence(answer, "GiB")


def test_a_pod_without_compute_is_told_that_all_of_it_is_given() -> None:
    resource = filled(node("a", 16), pods=(sharing("alone", 2, 100, "a", "0"),))
    assert "Compute:    1 device has 4 GiB free, and all of its cores are given" in told(
        pod_json("late", 4), resource
    )
    free = filled(node("a", 16), pods=(sharing("half", 2, 40, "a", "0"),))
    assert not [line for line in told(pod_json("late", 15), free) if line.startswith("Compute")]


def test_over_several_devices_it_is_told_of_the_node() -> None:
    pods = (sharing("one", 2, 60, "a", "0"), sharing("two", 2, 60, "a", "1"))
    asks = sharing("late", 8, 100)
    asks["metadata"]["annotations"][ALIYUN.count] = "2"
    resource = filled(node("a", 16, 16), pods=pods)
    compute = "no node has 2 devices with the memory and also 50 % of its cores free"
    assert f"Compute:    {compute}" in told(asks, resource)


@pytest.mark.parametrize(
    ("asks", "head"),
    [
        (sharing("late", 4, 30), "asks for 4 GiB on one device, with 30 % of its cores"),
        (sharing("late", 4, 100), "asks for 4 GiB on one device that nobody else uses"),
        (pod_json("late", 40, annotations={SPLIT: "10+30"}),
         "asks for 30 + 10 GiB, each on a device of its own"),
        (pod_json("late", 4, annotations={USE_MODELS: "A100,H100", NOT_UUIDS: "GPU-x"}),
         "asks for 4 GiB on one device, on cards with a100 or h100 in the model's name, other than"
         " GPU-x"),
    ],
)  # fmt: skip
def test_what_a_pod_asks_for_is_told_with_its_wishes(asks: dict[str, Any], head: str) -> None:
    (first, *_) = told(asks, filled(node("a", 16)))
    assert first == f"Pod:        team/late is pending and {head} (aliyun.com/gpu-mem)"


def test_wished_cards_that_nobody_has_are_told_with_the_models_that_there_are() -> None:
    asks = pod_json("late", 4, annotations={USE_MODELS: "H100"})
    assert (
        "Never fits: no device is one with h100 in the model's name; there are models"
        " A100-SXM4-80GB and Tesla-T4" in told(asks, filled(node("a", 16, 16, models=MODELS)))
    )
    text = pod_json("late", 4, annotations={USE_MODELS: "T4"})
    assert "Fits now:   on a" in told(text, filled(node("a", 16, 16, models=MODELS)))[3]


def test_each_way_to_make_room_is_told() -> None:
    resource = filled(
        node("a", 16, 16, unhealthy=[1], cpu=2000, memory=0),
        pods=(placed("x", 10, "a", "0"), pod_json("host", node="a", limits={"cpu": 1})),
    )
    asks = pod_json("late", 8, limits={"cpu": 2})
    (line,) = [line for line in told(asks, resource) if line.startswith("Would fit")]
    assert line == (
        "Would fit:  on a once team/x (10 GiB) ends (but the node would still have too little cpu);"
        " or on a once closed device 1 returns (but the node would still have too little cpu)"
    )


def of_deployment(pod: dict[str, Any], revision: str) -> dict[str, Any]:
    pod["metadata"]["labels"] = {"pod-template-hash": revision}
    return pod


@pytest.mark.parametrize(
    ("name", "revision", "waits_for_itself"),
    [
        ("web-7f9-abcde", "7f9", True),
        ("web-5c8-fghij", "5c8", False),  # another pod of the old revision
        ("shop-7f9-abcde", "7f9", False),
        ("web-7f9-abcde", "", False),
    ],
)
def test_a_rolling_update_that_waits_for_its_own_old_pod_is_told(
    name: str, revision: str, waits_for_itself: bool
) -> None:
    old = of_deployment(placed("web-5c8-zzzzz", 10, "gpu-a", "0"), "5c8")
    resource = filled(node("gpu-a", 16), pods=(old,))
    new = of_deployment(pod_json(name, 8), revision)
    rows = [line for line in told(new, resource) if line.startswith("Rollout:")]
    text = "Rollout:    team/web-5c8-zzzzz is an old pod of the same Deployment web, which may keep"
    assert [row.startswith(text) for row in rows] == [True] * waits_for_itself
    answer = document(explain_pod(read_pod(new), [resource], "GiB"))
    assert bool(answer["rollout"]) == waits_for_itself
    if waits_for_itself:
        assert answer["rollout"]["oldPods"][0]["name"] == "web-5c8-zzzzz"


def test_an_equal_pod_that_is_not_served_yet_is_named() -> None:
    resource = filled(node("a", 16, 16), pods=(placed("x", 10, "a", "0"),), pairing=Pairing.ON)
    answer = explain_pod(read_pod(pod_json("late", 10)), [resource], "GiB")
    assert answer.explanation is not None
    assert answer.explanation.reasons == {Reason.WAITS_FOR_PLUGIN: 1}
    assert "Would fit:  on a once team/x has been given the device by the device plug-in" in lines(
        answer
    )


def test_room_that_is_there_is_said_and_who_else_may_hold_the_pod_back() -> None:
    resource = filled(node("a", 16))
    assert told(pod_json("late", 8), resource)[3:] == [
        "Fits now:   on a",
        "Scheduler:  no scheduler has looked at it yet: does one run with the name"
        " 'default-scheduler'?",
    ]
    refused_before = said_by_scheduler(
        pod_json("late", 8), FITS_NOT.format(1, "1 Insufficient GPU Memory in one device")
    )
    assert told(refused_before, resource)[3:] == [
        "Fits now:   on a; kube-scheduler tries a pod that it has refused again within 5 minutes",
        "Scheduler:  default-scheduler has asked gpushare",
    ]
    by_ports = said_by_scheduler(
        pod_json("late", 8), FITS_NOT.format(1, "1 node(s) didn't have free ports")
    )
    assert told(by_ports, resource)[3] == (
        "Fits now:   on a, as nodes and devices are now; kube-scheduler refused it before, or for"
        " what they do not show: ports, volumes, affinity to pods"
    )


@pytest.mark.parametrize(
    ("message", "more", "line"),
    [
        (FITS_NOT.format(1, "1 Insufficient cpu"), {}, "default-scheduler removed 1 of 1 nodes"
         " (1 Insufficient cpu) itself, and did not ask gpushare"),
        ("running PreBind plugin: no", {}, "default-scheduler has not asked gpushare: running"
         " PreBind plugin: no"),
        ("running PreBind plugin: no", {"was_called": True}, "default-scheduler has asked"
         " gpushare"),
        ("", {"served": False}, "kube-scheduler's file has no profile 'default-scheduler': nobody"
         " schedules this pod"),
    ],
)  # fmt: skip
def test_who_was_asked_is_told(message: str, more: dict[str, bool], line: str) -> None:
    pod = said_by_scheduler(pod_json("late", 8), message)
    assert told(pod, filled(node("a", 16)), **more)[-1] == f"Scheduler:  {line}"


def test_a_pod_with_gates_waits_for_nobody() -> None:
    pod = pod_json("late", 8)
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}, {"name": "quota"}]
    assert told(pod, filled(node("a", 16)))[-1] == (
        "Scheduler:  scheduling gates hold the pod back: kueue.x-k8s.io/admission and quota; no"
        " scheduler looks at it until they are removed"
    )
    pod["spec"]["schedulingGates"] = ["odd", {}]
    assert "hold the pod back: ? and ?; no" in told(pod, filled(node("a", 16)))[-1]


def test_a_bound_pod_is_told_with_the_scores_of_now() -> None:
    resource = filled(node("gpu-a", 16, 16), node("gpu-b", 16), pods=HALVES)
    first, score, devices, line = told(HALVES[0], resource)
    assert (
        first
        == "Pod:        team/half-1 is bound to gpu-a: 10 GiB on device 0 (aliyun.com/gpu-mem)"
    )
    assert score.startswith("Node:       score ")
    assert score.endswith("; nodes with room: 2")
    assert devices.startswith("Devices:    0 has 16 GiB free, value -")
    assert devices.endswith("; 1 has 6 GiB free, too little; the policy would take 0")
    assert line == (
        "Judged:     by policy device-bestfit, as the books are now without this pod; those of the"
        " time of its bind are gone"
    )


def test_what_a_pod_says_itself_of_its_cards_is_told_while_it_waits_and_while_it_runs() -> None:
    resource = filled(node("gpu-a", 16, 16), pods=HALVES)
    for pod in (pod_json("late", 8), placed("half-1", 10, "gpu-a", "0")):
        assert not any(item.startswith("Mistake:") for item in told(pod, resource))
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        pod["spec"]["containers"][0]["env"] = env
        (line,) = [item for item in told(pod, resource) if item.startswith("Mistake:")]
        assert "sets NVIDIA_VISIBLE_DEVICES itself, which wins over" in line
        assert document(explain_pod(read_pod(pod), [resource], "GiB"))["mistake"] in line


def test_a_pod_that_another_bound_is_told_so() -> None:
    lost = pod_json("lost", 4, node="gpu-a")
    resource = filled(node("gpu-a", 16), pods=(lost,))
    (line,) = told(lost, resource)
    assert "its devices are not known, so its memory counts on every device of the node" in line
    (line,) = told(pod_json("new", 4, node="elsewhere"), resource)
    assert "team/new is bound to elsewhere and asks for 4 GiB on one device" in line
    assert "without gpushare" in line
    is_gone = placed("gone", 4, "no-more", "0")
    first, note = told(is_gone, filled(node("gpu-a", 16), pods=(is_gone,)))
    assert first.endswith("is bound to no-more: 4 GiB on device 0 (aliyun.com/gpu-mem)")
    assert note == "Note:       node 'no-more' shares no aliyun.com/gpu-mem now"


def test_the_worst_node_that_fits_scores_0_and_still_fits() -> None:
    pods = (placed("x", 10, "gpu-1", "0"), placed("on2", 3, "gpu-2", "0"))
    resource = filled(node("gpu-1", 16, 16), node("gpu-2", 16, 16), pods=pods)
    _, score, *_ = told(pods[1], resource)
    assert score == "Node:       score 0 of 10 (gpu-1 has 10); nodes with room: 2"


def test_reasons_of_one_node_are_not_nodes() -> None:
    message = FITS_NOT.format(4, "3 Insufficient cpu, 2 Insufficient memory, 1 Too many pods")
    line = told(said_by_scheduler(pod_json("late", 8), message), filled(node("a", 16)))[-1]
    assert "removed 4 of 4 nodes (3 Insufficient cpu, 2 Insufficient memory, 1 Too many" in line


def test_what_has_to_become_of_a_node_is_told() -> None:
    resource = filled(node("gpu-1", 16), node("gpu-2", 16))
    states = [state_of(node("gpu-1", 16), cordoned=True)]
    states.append(state_of(node("gpu-2", 16), taints=(Taint("own", "", "NoSchedule"),)))
    resource.filters = OwnFilters(NodeStates(states), resource.ledger.taken)
    lines_ = told(pod_json("late", 8), resource)
    assert lines_[2:4] == [
        "Nodes:      0 of 0 have room on their devices; kube-scheduler itself leaves out 2 more:"
        " 1 cordoned, 1 untolerated taint own",
        "Would fit:  on gpu-1 once it is uncordoned",
    ]
    resource.ledger.pod_changed(observe_pod(read_pod(placed("x", 10, "gpu-1", "0")), ALIYUN))
    resource.filters = OwnFilters(NodeStates(states[:1]), resource.ledger.taken)
    resource.ledger.node_gone("gpu-2")
    line = told(pod_json("late", 8), resource)[3]
    assert line == "Would fit:  on gpu-1 once team/x (10 GiB) ends and it is uncordoned"


def test_a_pod_with_gates_would_fit_once_they_are_gone() -> None:
    pod = pod_json("late", 8)
    pod["spec"]["schedulingGates"] = [{"name": "quota"}]
    line = told(pod, filled(node("a", 16)))[3]
    assert line == "Would fit:  on a once its scheduling gates are removed"


def test_a_policy_that_fails_leaves_the_place_untold() -> None:
    pod = placed("x", 4, "a", "0", **{ALIYUN.policy: "broken"})
    first, note = told(pod, filled(node("a", 16), pods=(pod,)))
    assert "device 0" in first
    assert note.startswith("Note:       the policy broken cannot judge its place: MessageError: ")


def test_a_bind_that_is_under_way_and_a_pod_that_has_ended_are_told() -> None:
    resource = filled(node("a", 16))
    pod = pod_json("x", 4)
    resource.ledger.assume(
        pod_ref(read_pod(pod)), Request(4, 1), Allocation("a", ((0, 4),)), now=1.0
    )
    line, *_ = told(pod, resource)
    assert line.endswith("team/x is being bound to a and asks for 4 GiB on one device"
                         " (aliyun.com/gpu-mem)")  # fmt: skip
    (line,) = told(pod_json("y", 4, node="a", phase="Succeeded"), resource)
    assert line == "Pod:        team/y has ended and holds nothing"


def test_a_request_that_makes_no_sense_is_told_in_the_words_of_filter() -> None:
    uneven = pod_json("late", 7, annotations={ALIYUN.count: "2"})
    (line,) = told(uneven, filled(node("a", 16)))
    assert "7 cannot be split evenly over 2 devices" in line
    both = pod_json("late", 4, limits={NPU.resource: 4})
    text = explain_pod(read_pod(both), [managed_resource(), managed_resource(NPU)], "GiB")
    assert (text.state, text.detail) == (
        "refused",
        "aliyun.com/gpu-mem, example.com/npu-mem: a pod may ask for one of them alone",
    )


def test_a_pod_of_no_resource_is_an_error() -> None:
    with pytest.raises(MessageError, match=r"asks for no aliyun\.com/gpu-mem, example\.com/npu"):
        explain_pod(read_pod(pod_json("plain")), [managed_resource(), managed_resource(NPU)], "GiB")


def test_the_document_has_every_key_in_every_state() -> None:
    resource = filled(node("gpu-a", 16, 16), pods=HALVES)
    pods = (pod_json("late", 8), HALVES[0], pod_json("late", 7, annotations={ALIYUN.count: "2"}))
    answer = [document(explain_pod(read_pod(pod), [resource], "GiB")) for pod in pods]
    assert [device["state"] for device in answer] == ["pending", "bound", "refused"]
    assert len({tuple(device) for device in answer}) == 1
    pending, bound_pod, _ = json.loads(json.dumps(answer))
    assert pending["request"] == {
        "units": 8,
        "devices": 1,
        "split": None,
        "cores": None,
        "share": None,
        "cards": None,
        "policy": None,
        "models": [],
    }
    assert pending["explanation"]["largestFree"] == {"node": "gpu-a", "device": 0, "free": 6}
    (remedy,) = pending["explanation"]["remedies"]
    assert (remedy["node"], remedy["opens"], remedy["serves"]) == ("gpu-a", [], [])
    assert remedy["ends"][0]["devices"] == [{"index": 0, "allocated": 10}]
    assert bound_pod["devices"] == [{"index": 0, "allocated": 10}]
    assert bound_pod["judgement"]["asOf"] == "now"
    assert [device["index"] for device in bound_pod["judgement"]["devices"]] == [0, 1]


def test_the_document_has_the_charge_of_a_pod_that_asks_by_percentage() -> None:
    share = placed("share", 1, "gpu-a", "1")
    limits = share["spec"]["containers"][0]["resources"]["limits"]
    limits["aliyun.com/gpu-mem.percentage"] = "50"
    resource = filled(node("gpu-a", 16, 16), pods=(placed("x", 16, "gpu-a", "0"), share))
    answer = document(explain_pod(read_pod(pod_json("late", 12)), [resource], "GiB"))
    ((end,),) = (remedy["ends"] for remedy in answer["explanation"]["remedies"])
    assert (end["name"], end["allocated"]) == ("share", 8)
    assert end["devices"] == [{"index": 1, "allocated": 8}]


@pytest.mark.parametrize(("unit", "text"), [("GiB", "8 GiB"), ("256MiB", "8 x 256MiB")])
def test_amounts_are_in_the_unit_of_the_cluster(unit: str, text: str) -> None:
    assert amount(8, unit) == text


def test_an_events_text_names_no_pod_of_another_namespace() -> None:
    resource = filled(node("gpu-a", 16, 16), pods=HALVES)
    answer = explain_pod(read_pod(pod_json("x", 8)), [resource], "GiB").explanation
    assert answer is not None
    assert "once team/half-1 (10 GiB) ends" in sentence(answer, "GiB", "team")
    assert "once team/half-1 (10 GiB) ends" in sentence(answer, "GiB")
    text = sentence(answer, "GiB", "another")
    assert "once a pod of another namespace (10 GiB) ends" in text
    assert "half" not in text
    assert "team" not in text


def test_what_is_free_on_the_wanted_cards_is_told_beside_the_rest() -> None:
    resource = filled(
        node("a", 32), node("b", 16, models=("Tesla-T4",)), pods=(placed("x", 12, "b", "0"),)
    )
    late = pod_json("late", 8, annotations={"gpushare.io/use-models": "t4"})
    free = "Free now:   at most 32 GiB on a device 0, and 4 GiB on the cards that it wants"
    assert free in told(late, resource)
    assert "Free now:   at most 32 GiB on a device 0" in told(pod_json("late", 8), resource)
