"""Requests of pods follow Kubernetes' arithmetic, and a pod with a node is never lost."""

import json
import re
from typing import Any

import msgspec
import pytest

from gpushare.core.amounts import by_name
from gpushare.core.model import (
    ANY_NEIGHBOURS,
    FEW_NEIGHBOURS,
    HOST_BOUND,
    MAX_UNITS,
    PodRef,
    Request,
)
from gpushare.errors import AnnotationError, MessageError, QuantityError, WireError
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.device_request import APART, LIMITS_LABEL, MEMORY_LIMIT, NEIGHBOURS, SPLIT
from gpushare.wire.objects import PODS, Pod, PodSpec
from gpushare.wire.pods import MAX_LABELS, most_seconds, observe_pod, pod_ref, request_of

GPU = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
CORES = "aliyun.com/gpu-core.percentage"


def container(gpu: Any = None, *, sidecar: bool = False, **requests: Any) -> dict[str, Any]:
    limits = {} if gpu is None else {GPU: gpu}
    request: dict[str, Any] = {"resources": {"limits": limits, "requests": limits | requests}}
    return request | ({"restartPolicy": "Always"} if sidecar else {})


def shared(memory: Any, cores: Any) -> dict[str, Any]:
    """A container that asks for device memory and for cores; None: no cores."""
    limits = {
        name: amount for name, amount in ((GPU, memory), (CORES, cores)) if amount is not None
    }
    return {"resources": {"limits": limits, "requests": limits}}


def pod(*containers: Any, init: Any = (), **fields: Any) -> Pod:
    annotations = fields.pop("annotations", None)
    labels = fields.pop("labels", None)
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations}
    metadata |= {"labels": labels, "creationTimestamp": fields.pop("created", None)}
    status = {"phase": fields.pop("phase", "Pending")}
    spec = {"containers": list(containers), "initContainers": list(init), **fields}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def total(*containers: Any, init: Any = ()) -> int:
    return request_of(pod(*containers, init=init), ALIYUN).total


def asked(units: int) -> tuple[tuple[str, int], ...]:
    return ((ALIYUN.resource, units),)


def test_limits_of_containers_are_summed() -> None:
    request = request_of(pod(container("2"), container(), container("3")), ALIYUN)
    assert request == Request(units=5, devices=1, containers=((0, 2), (2, 3)), resources=asked(5))


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ([2, 3], [], 5),
        ([2, 3], [4], 5),
        ([2, 3], [9], 9),
        ([2, 3], [9, 4], 9),
        ([0], [4], 4),
        ([], [4], 4),
    ],
)
def test_init_containers_count_as_a_peak(
    containers: list[int], init: list[int], expected: int
) -> None:
    assert total(*map(container, containers), init=map(container, init)) == expected


def test_sidecars_are_added_and_run_beside_later_init_containers() -> None:
    side = container(2, sidecar=True)
    assert total(container(3), init=[side]) == 5
    assert total(container(1), init=[side, container(4)]) == 6
    assert total(container(1), init=[container(4), side]) == 4
    assert total(container(1), init=[side, container(1), side]) == 5


def test_a_pod_has_the_size_of_each_container_and_those_it_is_compared_by() -> None:
    init = [container(3), container(2, sidecar=True), container(), container(7)]
    result = pod(container(1), container(), container(5), init=init)
    request = request_of(result, ALIYUN)
    assert (request.total, request.containers, request.inits) == (9, ((0, 1), (2, 5)), (3, 2, 7))
    assert request.sizes == {9, 1, 5, 1 + 5, 3, 2, 7}
    odd = pod(container(8), init=init, nodeName="n", annotations={COUNT: "x"})
    assert observe_pod(odd, ALIYUN).request.sizes == {10, 8, 3, 2, 7}
    assert request_of(pod(init=[container(4)]), ALIYUN).sizes == {4}


def test_requests_stand_in_where_limits_are_missing() -> None:
    only_requests = {"resources": {"requests": {GPU: "4"}}}
    assert total(only_requests) == 4
    assert total({"resources": {"limits": {GPU: "2"}, "requests": {GPU: "4"}}}) == 2
    assert total({"resources": None}, {}) == 0


def test_cpu_and_memory_are_requests_with_overhead() -> None:
    request = pod(
        container(cpu="250m", memory="1Gi"),
        {"resources": {"limits": {"cpu": 1}}},
        init=[container(cpu="2", memory="1Mi"), container(sidecar=True, cpu="500m")],
        overhead={"cpu": "10m", "memory": "1Ki"},
    )
    assert request_of(request, ALIYUN) == Request(cpu=2010, memory=2**30 + 2**10)


def test_pod_level_resources_replace_the_sum() -> None:
    request = pod(container(cpu="250m", memory="1Gi"), resources={"requests": {"cpu": "2"}})
    assert request_of(request, ALIYUN) == Request(cpu=2000, memory=2**30)


@pytest.mark.parametrize(
    ("path", "units", "devices"),
    [
        ({"annotations": {COUNT: "2"}}, 4, 2),
        ({"labels": {COUNT: "4"}}, 2, 4),
        ({"annotations": {COUNT: "2"}, "labels": {COUNT: "x"}}, 4, 2),
        ({"annotations": {COUNT: "1"}}, 8, 1),
        ({"labels": {}}, 8, 1),
    ],
)
def test_a_count_splits_the_total_evenly(path: Any, units: int, devices: int) -> None:
    request = request_of(pod(container("5"), container("3"), **path), ALIYUN)
    assert (request.units, request.devices, request.total) == (units, devices, 8)


def test_a_total_that_does_not_divide_is_refused_with_the_numbers() -> None:
    request = pod(container("7"), annotations={COUNT: "2"})
    expected = (
        r"^aliyun.com/gpu-mem: 7 cannot be split evenly over 2 devices \(aliyun.com/gpu-count\):"
        " write 6 or 8, or another count$"
    )
    with pytest.raises(MessageError, match=expected):
        request_of(request, ALIYUN)


@pytest.mark.parametrize("count", ["0", "-1", "65", "two", "", "1.0", " 2", "\u0662", "9" * 11])
def test_a_count_that_is_none_is_refused(count: str) -> None:
    with pytest.raises(AnnotationError, match="gpu-count"):
        request_of(pod(container("8"), annotations={COUNT: count}), ALIYUN)


@pytest.mark.parametrize(
    ("containers", "devices", "cores"),
    [
        ([(4, 30)], 1, 30),
        ([(4, 100)], 1, 100),
        ([(4, 30), (2, None), (1, 20)], 1, 50),
        ([(4, 60)], 2, 30),
        ([(4, 200)], 2, 100),
        ([(2, 20), (4, 40)], 2, 30),
        ([(4, "0")], 1, 0),
    ],
)
def test_cores_are_percent_of_each_device(containers: Any, devices: int, cores: int) -> None:
    result = pod(*(shared(*amount) for amount in containers), annotations={COUNT: str(devices)})
    request = request_of(result, ALIYUN)
    assert (request.devices, request.cores) == (devices, cores)
    percent = [(index, int(amount[1] or 0)) for index, amount in enumerate(containers)]
    expected = tuple(one for one in percent if one[1])
    assert request.percent_containers[:1] == ((expected,) if expected else ())


def test_a_percentage_of_memory_is_read_beside_the_units() -> None:
    containers = [
        {"resources": {"limits": {GPU: units, ALIYUN.share: percent}}}
        for units, percent in ((1, 25), (2, 50))
    ]
    request = request_of(pod(*containers, annotations={COUNT: "3"}), ALIYUN)
    assert by_name(request.percents) == {"share": 25}
    with pytest.raises(MessageError, match=r"write aliyun\.com/gpu-mem: 1 beside it"):
        request_of(pod({"resources": {"limits": {ALIYUN.share: 25}}}), ALIYUN)
    with pytest.raises(MessageError, match="101 are asked of one device, which has 100"):
        request_of(pod({"resources": {"limits": {GPU: 1, ALIYUN.share: 101}}}), ALIYUN)


def test_cores_of_init_containers_count_as_a_peak() -> None:
    assert request_of(pod(shared(2, 10), init=[shared(1, 40)]), ALIYUN).cores == 40
    asks = request_of(pod(shared(2, 10), init=[shared(1, 40)]), ALIYUN)
    assert asks.percent_containers[0] == ((0, 10),)


@pytest.mark.parametrize(
    ("containers", "devices", "says"),
    [
        ([(4, 150)], 1, "150 are asked of one device, which has 100 (percent): write 100 or less"),
        ([(4, 150)], 1, "or ask for 2 devices (aliyun.com/gpu-count)"),
        ([(None, 30)], 1, "cores are asked for without aliyun.com/gpu-mem in the same container"),
        ([(4, None), (None, 30)], 1, "cores are asked for without aliyun.com/gpu-mem"),
        ([(4, 25)], 2, "25 cannot be split evenly over 2 devices"),
        ([(2, 40), (4, 20)], 2, "needs cores in proportion to its aliyun.com/gpu-mem"),
    ],
)
def test_cores_that_no_device_can_give_are_refused(
    containers: Any, devices: int, says: str
) -> None:
    request = pod(*(shared(*amount) for amount in containers), annotations={COUNT: str(devices)})
    with pytest.raises(MessageError) as error:
        request_of(request, ALIYUN)
    assert says in str(error.value)
    assert str(error.value).startswith(f"{CORES}: ")


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("cores", "init", "says"),
    [
        (40, shared(8, 40) | SIDECAR, ""),
        (40, shared(8, 80) | SIDECAR, "needs cores in proportion"),
        (40, shared(8, None) | SIDECAR, "needs cores in proportion"),
        (None, shared(8, 80) | SIDECAR, "needs cores in proportion"),
        (40, shared(None, 40) | SIDECAR, "cores are asked for without aliyun.com/gpu-mem in the"),
        (40, shared(4, 20), ""),
        (40, shared(8, 20), ""),
        (40, shared(4, 40), "needs cores in proportion"),
    ],
)
def test_over_several_devices_no_init_container_has_more_compute_than_memory(
    cores: int | None, init: Any, says: str
) -> None:
    request = pod(shared(8, cores), init=[init], annotations={COUNT: "2"})
    if not says:
        assert request_of(request, ALIYUN).devices == 2
        return
    with pytest.raises(MessageError, match=says):
        request_of(request, ALIYUN)


def test_where_each_container_has_a_device_no_init_container_has_more_compute() -> None:
    containers, annotations = (shared(10, 30), shared(30, 30)), {SPLIT: "containers"}
    assert request_of(pod(*containers, init=[shared(10, 30)], annotations=annotations), ALIYUN)
    with pytest.raises(MessageError, match="can have compute where each"):
        request_of(pod(*containers, init=[shared(10, 40)], annotations=annotations), ALIYUN)


@pytest.mark.parametrize("cores", ["0.5", "-1", "half", "5Gi"])
def test_cores_without_sense_name_the_resource(cores: str) -> None:
    with pytest.raises(QuantityError) as error:
        request_of(pod(shared(4, cores)), ALIYUN)
    assert str(error.value).startswith(f"{CORES}: ")


def test_a_bound_pod_counts_with_the_cores_of_a_whole_device_at_most() -> None:
    observed = observe_pod(pod(shared(4, 150), nodeName="n"), ALIYUN)
    assert (observed.request.units, observed.request.devices, observed.request.cores) == (4, 1, 100)
    observed = observe_pod(pod(shared(None, 30), nodeName="n"), ALIYUN)
    assert (observed.request.devices, observed.request.cores) == (0, 0)


def test_a_bound_pod_whose_cores_nobody_can_count_keeps_its_memory_and_may_have_all_cores() -> None:
    observed = observe_pod(pod(shared(4, "5Gi"), nodeName="n"), ALIYUN)
    assert (observed.request.units, observed.request.devices, observed.request.cores) == (4, 1, 100)


@pytest.mark.parametrize(
    ("containers", "split", "units", "parts"),
    [
        ([(40, None)], "10+30", 30, (30, 10)),
        ([(40, None)], " 30 + 10", 30, (30, 10)),
        ([(10, None), (30, None)], "containers", 30, (30, 10)),
        ([(10, 30), (30, 30)], "containers", 30, (30, 10)),
        ([(20, None)], "10+10", 10, ()),
        ([(20, None), (20, None)], "containers", 20, ()),
        ([(20, None)], "20", 20, ()),
    ],
)
def test_memory_can_be_split_unevenly(
    containers: Any, split: str, units: int, parts: tuple[int, ...]
) -> None:
    result = pod(*(shared(*amount) for amount in containers), annotations={SPLIT: split})
    request = request_of(result, ALIYUN)
    assert (request.units, request.split) == (units, parts)
    assert request.total == sum(memory for memory, _ in containers)
    assert request.devices == (len(parts) or request.total // units)
    percent = [cores or 0 for _, cores in containers]
    assert request.cores == sum(percent) // request.devices


@pytest.mark.parametrize(
    ("containers", "annotations", "says"),
    [
        ([(40, None)], {SPLIT: "10+20"}, "10+20 is 30 in all, and the pod asks for 40"),
        ([(40, None)], {SPLIT: "10+"}, "neither 'containers' nor units"),
        ([(40, None)], {SPLIT: "0+40"}, "neither 'containers' nor units"),
        ([(40, None)], {SPLIT: "-10+50"}, "neither 'containers' nor units"),
        ([(40, None)], {SPLIT: ""}, "neither 'containers' nor units"),
        ([(80, None)], {SPLIT: "+".join("1" * 80)}, "of 1 to 64 devices"),
        ([(40, None)], {SPLIT: "10+30", COUNT: "3"}, "2 parts, and aliyun.com/gpu-count says '3'"),
        ([(10, 20), (30, 60)], {SPLIT: "containers"}, "can have compute where each"),
        ([(10, 40), (30, None)], {SPLIT: "containers"}, "can have compute where each"),
        ([(40, 60)], {SPLIT: "10+30"}, "can have compute where each"),
        ([(20, 40), (20, 40)], {SPLIT: "10+30"}, "can have compute where each"),
    ],
)
def test_splits_that_make_no_sense_are_refused(
    containers: Any, annotations: dict[str, str], says: str
) -> None:
    request = pod(*(shared(*amount) for amount in containers), annotations=annotations)
    with pytest.raises(WireError) as error:
        request_of(request, ALIYUN)
    assert says in str(error.value)


def test_a_split_leaves_no_room_for_an_init_container_that_needs_more() -> None:
    request = pod(container("4"), init=[container("6")], annotations={SPLIT: "2+4"})
    with pytest.raises(MessageError, match="an init container needs more"):
        request_of(request, ALIYUN)
    assert request_of(
        pod(container("6"), init=[container("4")], annotations={SPLIT: "2+4"}), ALIYUN
    )


def test_a_pod_without_gpu_asks_for_cpu_and_memory_only() -> None:
    request = pod(container("0", cpu="1"), annotations={COUNT: "x", ALIYUN.policy: "!"})
    assert request_of(request, ALIYUN) == Request(cpu=1000)
    assert request_of(Pod(), ALIYUN) == Request()


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [({}, None), ({NEIGHBOURS: "few"}, FEW_NEIGHBOURS), ({NEIGHBOURS: "any"}, ANY_NEIGHBOURS)],
)
def test_a_pod_may_want_few_neighbours(annotations: dict[str, str], expected: int | None) -> None:
    request = request_of(pod(container("1"), annotations=annotations), ALIYUN)
    assert request.neighbours == expected
    assert request.kind[-1] == expected
    with pytest.raises(AnnotationError, match="'1' is neither 'few' nor 'any'"):
        request_of(pod(container("1"), annotations={NEIGHBOURS: "1"}), ALIYUN)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("nodes", "write podAntiAffinity with the topologyKey kubernetes.io/hostname"),
        ("", "'' is neither 'required' nor 'preferred'"),
        ("true", "'true' is neither 'required' nor 'preferred'"),
    ],
)
def test_another_value_of_apart_is_refused_with_what_to_write(value: str, text: str) -> None:
    with pytest.raises(AnnotationError, match=text):
        request_of(pod(container("1"), annotations={APART: value}), ALIYUN)


@pytest.mark.parametrize(("limit", "expected"), [("8", 8), ("9", 9), ("7", 0)])
def test_a_pod_may_use_more_than_it_asks_for_where_nodes_hold_it_to_a_limit(
    limit: str, expected: int
) -> None:
    body = pod(
        *(container(3), container(4)),
        annotations={MEMORY_LIMIT: limit},
        nodeSelector={LIMITS_LABEL: "true"},
    )
    request = request_of(body, ALIYUN)
    assert (request.total, request.memory_limit) == (7, expected)


@pytest.mark.parametrize(
    ("limit", "selector", "share", "text"),
    [
        ("8Gi", "true", None, "'8Gi' is not a number of units"),
        ("6", "true", None, "6 is less than the 7 aliyun.com/gpu-mem that the pod asks for"),
        ("8", "false", None, 'write gpushare.io/memory-limits: "true" into the nodeSelector'),
        ("8", None, None, 'write gpushare.io/memory-limits: "true" into the nodeSelector'),
        ("8", "true", 25, "a percentage of the memory of a card has no limit in units"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_what_to_write(
    limit: str, selector: str | None, share: int | None, text: str
) -> None:
    body = container(7)
    if share is not None:
        body["resources"]["limits"][ALIYUN.share] = share
    labels = {} if selector is None else {"nodeSelector": {LIMITS_LABEL: selector}}
    with pytest.raises(AnnotationError, match=re.escape(text)):
        request_of(pod(body, annotations={MEMORY_LIMIT: limit}, **labels), ALIYUN)


def test_a_limit_leaves_compute_alone() -> None:
    body = pod(shared(4, 30), annotations={MEMORY_LIMIT: "8"}, nodeSelector={LIMITS_LABEL: "true"})
    request = request_of(body, ALIYUN)
    assert (request.cores, request.memory_limit) == (30, 8)


def test_the_policy_wished_for_is_carried_along() -> None:
    request = pod(container("1"), annotations={ALIYUN.policy: "binpack"})
    assert request_of(request, ALIYUN).policy == "binpack"
    with pytest.raises(AnnotationError, match=r"gpushare\.io/policy"):
        request_of(pod(container("1"), annotations={ALIYUN.policy: "a b"}), ALIYUN)


@pytest.mark.parametrize("gpu", ["1.5", "x", "-1", MAX_UNITS + 1, "500m"])
def test_a_quantity_without_sense_names_the_resource(gpu: Any) -> None:
    with pytest.raises(QuantityError, match="gpu-mem: "):
        request_of(pod(container(gpu)), ALIYUN)


def test_a_total_beyond_every_limit_is_refused() -> None:
    with pytest.raises(QuantityError, match="total"):
        request_of(pod(container(MAX_UNITS), container(1)), ALIYUN)


def test_another_resource_works_without_a_change() -> None:
    names = Names.for_resource("example.com/npu-mem")
    request = pod(
        {"resources": {"limits": {"example.com/npu-mem": "16k"}}},
        annotations={"example.com/npu-count": "2", names.idx: "0,1"},
        nodeName="n",
    )
    assert observe_pod(request, names).placement == ((0, 8000), (1, 8000))
    assert request_of(request, ALIYUN).devices == 0


def test_what_pods_of_a_controller_have_alike_is_kept_once() -> None:
    """Else thousands of replicas would keep as many copies of wishes and labels: 50 KB each, at the
    worst.
    """
    wishes, labels = {"gpushare.io/not-models": "T4,P4"}, {"app": "web", "tier": "back"}
    replicas = [
        pod(container("4", cpu="2"), annotations=wishes, labels=labels, nodeName="n")
        for _ in range(2)
    ]
    one, second = (observe_pod(replica, ALIYUN) for replica in replicas)
    assert one.request is second.request
    assert one.request.cards.not_models == ("p4", "t4")
    assert one.labels is second.labels
    assert one.labels == (("app", "web"), ("tier", "back"))


def test_a_bound_pod_is_observed_with_its_placement() -> None:
    request = pod(
        container("4"),
        annotations={ALIYUN.idx: "2", ALIYUN.assigned: "true"},
        nodeName="node-a",
        phase="Running",
        created="2026-11-21T09:54:22Z",
    )
    observed = observe_pod(request, ALIYUN)
    assert observed.ref == PodRef("ns", "p", "u")
    assert (observed.node, observed.placement) == ("node-a", ((2, 4),))
    assert (observed.assigned, observed.ended) == (True, False)
    assert observed.created == 1795254862.0


def test_annotations_on_a_pod_without_node_are_no_placement() -> None:
    observed = observe_pod(pod(container("4"), annotations={ALIYUN.idx: "2"}), ALIYUN)
    assert (observed.node, observed.placement) == ("", None)


@pytest.mark.parametrize(
    ("phase", "ended"), [("Succeeded", True), ("Failed", True), ("Running", False)]
)
def test_terminal_phases_end_a_pod(phase: str, *, ended: bool) -> None:
    assert observe_pod(pod(container("4"), phase=phase, nodeName="n"), ALIYUN).ended is ended


@pytest.mark.parametrize("created", [None, "", "yesterday", "2026-11-21T09:54:22"])
def test_a_time_that_cannot_be_read_is_0(created: str | None) -> None:
    assert observe_pod(pod(container("4"), created=created), ALIYUN).created == 0


@pytest.mark.parametrize(
    "annotations", [{COUNT: "3"}, {COUNT: "x"}, {ALIYUN.policy: "no such!"}, {NEIGHBOURS: "1"}]
)
def test_a_pod_with_a_node_keeps_its_charge_whatever_users_write(annotations: Any) -> None:
    request = pod(
        container("8", cpu="1"), annotations=annotations | {ALIYUN.idx: "1"}, nodeName="n"
    )
    observed = observe_pod(request, ALIYUN)
    assert observed.request == Request(8, 1, 1000, 0, ((0, 8),), resources=asked(8))
    assert observed.placement == ((1, 8),)


@pytest.mark.parametrize(("wish", "required"), [("required", True), ("nodes", None)])
def test_a_pod_with_a_node_stays_apart_though_another_annotation_makes_no_sense(
    wish: str, required: bool | None
) -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "gang"}
    request = pod(
        container("8"), annotations={COUNT: "x", APART: wish}, labels=labels, nodeName="n"
    )
    apart = observe_pod(request, ALIYUN).request.apart
    assert (apart and apart.required) is required


@pytest.mark.parametrize("asks", [{"cpu": "10P"}, {"memory": "9Ei"}])
def test_a_pod_with_a_node_keeps_its_charge_though_nobody_can_count_its_cpu_or_memory(
    asks: dict[str, Any],
) -> None:
    request = pod(container("8", **asks), annotations={ALIYUN.idx: "1"}, nodeName="n")
    observed = observe_pod(request, ALIYUN)
    assert observed.request == Request(8, 1, containers=((0, 8),), resources=asked(8))
    assert observed.placement == ((1, 8),)


def test_a_pod_without_node_that_makes_no_sense_is_an_error() -> None:
    with pytest.raises(MessageError):
        observe_pod(pod(container("7"), annotations={COUNT: "2"}), ALIYUN)
    for odd in (container("x"), container(cpu="10P")):
        with pytest.raises(WireError):
            observe_pod(pod(odd, nodeName="n"), ALIYUN)


@pytest.mark.parametrize("missing", ["name", "namespace", "uid"])
def test_a_pod_without_identity_is_an_error(missing: str) -> None:
    fields = {"name": "p", "namespace": "ns", "uid": "u"} | {missing: ""}
    with pytest.raises(MessageError, match="metadata"):
        pod_ref(msgspec.convert({"metadata": fields}, Pod))
    with pytest.raises(MessageError, match="metadata"):
        pod_ref(Pod())


@pytest.mark.parametrize("cpu", ["9e15", "9223372036854775", "5e15"])
def test_cpu_that_adds_up_to_more_than_can_be_counted_is_refused(cpu: str) -> None:
    for error in (
        pod(container("2", cpu=cpu), container(cpu=cpu)),
        pod(container("2", cpu=cpu), overhead={"cpu": cpu}),
    ):
        with pytest.raises(QuantityError, match="cpu: the pod's total is larger than 9223372036"):
            request_of(error, ALIYUN)


def test_cpu_and_memory_beyond_any_node_are_as_much_as_is_counted() -> None:
    request = request_of(pod(container("2", cpu="9e15", memory="8e18")), ALIYUN)
    assert (request.cpu, request.memory) == (HOST_BOUND, HOST_BOUND)


def test_a_bound_pod_whose_cpu_cannot_be_added_up_keeps_its_device_memory() -> None:
    bound_pod = pod(container("2", cpu="9e15"), container(cpu="9e15"), nodeName="n")
    assert observe_pod(bound_pod, ALIYUN).request == Request(
        2, 1, containers=((0, 2),), resources=asked(2)
    )


def test_of_many_labels_the_first_are_kept_and_an_assume_time_that_is_none_is_cut() -> None:
    labels = {f"k{at:05}": "v" * 60 for at in range(1000)}
    body = {
        "metadata": {
            "name": "a",
            "namespace": "b",
            "uid": "c",
            "labels": labels,
            "annotations": {ALIYUN.assume_time: "9" * 1000},
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"resources": {"limits": {ALIYUN.resource: "1"}}}],
        },
    }
    observed = observe_pod(PODS.decode(json.dumps(body).encode()), ALIYUN)
    assert observed.labels == tuple(sorted(labels.items()))[: MAX_LABELS // (160 + 66)]
    assert len(observed.stamp) == 32


@pytest.mark.parametrize(
    ("deletion", "started", "deadline", "ends_by"),
    [
        (None, "2026-01-01T00:00:00Z", None, 0.0),
        (None, "2026-01-01T00:00:00Z", 3600, 1_767_225_600.0 + 3600 + 40),
        (None, None, 3600, 0.0),
        ("2026-01-01T00:10:00Z", "2026-01-01T00:00:00Z", 3600, 1_767_225_600.0 + 600),
    ],
)
def test_a_pod_must_be_gone_by_its_deletion_or_its_deadline_and_grace(
    deletion: str | None, started: str | None, deadline: int | None, ends_by: float
) -> None:
    document = {
        "metadata": {"name": "a", "namespace": "b", "uid": "c", "deletionTimestamp": deletion},
        "spec": {
            "nodeName": "n",
            "activeDeadlineSeconds": deadline,
            "terminationGracePeriodSeconds": 40,
            "containers": [{"resources": {"limits": {ALIYUN.resource: "4"}}}],
        },
        "status": {"startTime": started},
    }
    pod = PODS.decode(json.dumps(document).encode())
    assert observe_pod(pod, ALIYUN).ends_by == ends_by


def test_a_negative_grace_makes_no_pod_end_before_its_deadline() -> None:
    spec = PodSpec(active_deadline_seconds=3600, termination_grace_period_seconds=-3599)
    assert most_seconds(spec) == 3600
