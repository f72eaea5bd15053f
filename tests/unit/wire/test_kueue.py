"""Workloads of Kueue are read with their topology, and a status is patched as a whole."""

import json
from typing import Any

import pytest

from gpushare.core.model import Apart
from gpushare.errors import MessageError
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.codec import Codec
from gpushare.wire.device_request import APART
from gpushare.wire.kueue import (
    ADMISSION_CHECKS,
    CONTROLLER,
    RESOURCE_FLAVORS,
    WORKLOADS,
    AdmittedPod,
    WorkloadRecord,
    active_patch,
    admitted_pod,
    is_pending,
    read_check,
    read_flavor,
    read_workload,
    release_patch,
    requeue_patch,
    verdict_patch,
    with_flavors,
)
from gpushare.wire.objects import PODS

NPU = Names.for_resource("example.com/npu-mem")


def decoded(codec: Codec[Any], document: dict[str, Any]) -> Any:
    return codec.decode(json.dumps(document).encode())


def template(units: int = 8, resource: str = ALIYUN.resource, **spec: Any) -> dict[str, Any]:
    limits = {resource: str(units)} if units else {}
    return {"spec": {"containers": [{"resources": {"limits": limits}}], **spec}}


def workload(
    *pod_sets: dict[str, Any], reserved: str = "True", evicted: str = "False", **status: Any
) -> dict[str, Any]:
    conditions = [
        {"type": "QuotaReserved", "status": reserved},
        {"type": "Evicted", "status": evicted},
    ]
    return {
        "metadata": {
            "name": "job-a",
            "namespace": "team",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2027-01-15T08:00:00Z",
        },
        "spec": {"podSets": list(pod_sets), "priority": 5},
        "status": {
            "conditions": conditions,
            "admissionChecks": [{"name": "gpus", "state": "Pending", "message": ""}],
            **status,
        },
    }


def read(document: dict[str, Any]) -> WorkloadRecord:
    record = read_workload(decoded(WORKLOADS, document), [ALIYUN, NPU])
    assert record is not None
    return record


def assigned(name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"podSetAssignments": [{"name": name, "flavors": {ALIYUN.resource: "a10"}, **fields}]}


def test_the_pods_of_a_workload_with_quota_are_those_that_ask_for_devices() -> None:
    workload_json = workload(
        {"name": "main", "count": 3, "template": template(8)},
        {"name": "cpu", "count": 9, "template": template(0)},
        {"name": "npu", "count": 1, "template": template(4, NPU.resource)},
        {"name": "none"},
        admission=assigned(count=2),
    )
    record = read(workload_json)
    assert [(pods.pod_set, pods.resource, pods.count) for pods in record.pods] == [
        ("main", ALIYUN.resource, 2),
        ("npu", NPU.resource, 1),
    ]
    assert record.pods[0].request.units == 8
    assert record.pods[0].flavors == ("a10",)
    assert (record.key, record.version, record.priority) == ("team/job-a", "7", 5)
    assert record.created > 0
    assert not record.on_hosts


def test_the_pods_of_a_workload_stay_apart_from_each_other() -> None:
    apart = template() | {"metadata": {"annotations": {APART: "required"}}}
    workload_json = workload({"name": "main", "count": 3, "template": apart}, admission=assigned())
    (pods,) = read(workload_json).pods
    assert pods.request.apart == Apart("workload /job-a u", required=True)


def test_pods_that_need_nothing_any_more_do_not_count() -> None:
    domains = {
        "levels": ["rack"],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [{"individual": {"roots": ["a", "b"]}}],
                "podCounts": {"universal": 2},
            }
        ],
    }
    workload_json = workload(
        {"name": "main", "count": 4, "template": template()},
        admission=assigned(topologyAssignment=domains),
        reclaimablePods=[{"name": "main", "count": 3}],
    )
    (pods,) = read(workload_json).pods
    assert (pods.count, pods.demands.node_selector) == (1, (("rack", "b"),))


def test_each_domain_of_a_topology_has_its_pods_and_labels() -> None:
    topology = {
        "levels": ["zone", "kubernetes.io/hostname"],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [
                    {"universal": "z"},
                    {"individual": {"prefix": "gpu-", "suffix": "-x", "roots": ["1", "2"]}},
                ],
                "podCounts": {"individual": [3, 1]},
            }
        ],
    }
    document = workload(
        {"name": "main", "count": 4, "template": template(nodeSelector={"disk": "ssd"})},
        admission=assigned(topologyAssignment=topology),
    )
    record = read(document)
    assert [(pods.count, dict(pods.demands.node_selector)) for pods in record.pods] == [
        (3, {"disk": "ssd", "zone": "z", "kubernetes.io/hostname": "gpu-1-x"}),
        (1, {"disk": "ssd", "zone": "z", "kubernetes.io/hostname": "gpu-2-x"}),
    ]
    assert record.on_hosts


@pytest.mark.parametrize(
    "part",
    [
        {"domainCount": 2, "valuesPerLevel": [{"individual": {"roots": ["a"]}}]},
        {"domainCount": 1, "valuesPerLevel": [{"universal": "a"}]},
        {"domainCount": 1, "valuesPerLevel": [], "podCounts": {"universal": 1}},
        {"domainCount": 1, "valuesPerLevel": [{}], "podCounts": {"universal": 1}},
    ],
)
def test_a_topology_whose_lists_do_not_match_is_a_mistake(part: dict[str, Any]) -> None:
    document = workload(
        {"name": "main", "count": 4, "template": template()},
        admission=assigned(topologyAssignment={"levels": ["rack"], "slices": [part]}),
    )
    record = read(document)
    assert record.pods == ()
    assert record.mistake.startswith("topologyAssignment")


@pytest.mark.parametrize(("count", "mistake"), [(9_999, ""), (10_000, "10001 pods ask for dev")])
def test_more_pods_than_a_group_may_have_are_a_mistake(count: int, mistake: str) -> None:
    pod_sets = [
        {"name": name, "count": number, "template": template(units)}
        for name, number, units in (("main", count, 1), ("other", 1, 1), ("cpu", 10**9, 0))
    ]
    record = read(workload(*pod_sets, admission=assigned(count=count)))
    assert record.mistake[:22] == mistake
    assert bool(record.pods) is not bool(mistake)


def test_a_request_that_makes_no_sense_is_a_mistake() -> None:
    record = read(workload({"name": "main", "count": 1, "template": template("a lot")}))  # type: ignore[arg-type]
    assert ALIYUN.resource in record.mistake


def test_a_workload_that_is_not_ours_to_judge_is_left_out() -> None:
    done = workload()
    done["status"]["conditions"].append({"type": "Finished", "status": "True"})
    assert read_workload(decoded(WORKLOADS, done), [ALIYUN]) is None
    unchecked = workload(admissionChecks=[])
    assert read_workload(decoded(WORKLOADS, unchecked), [ALIYUN]) is None
    assert (
        read_workload(
            decoded(WORKLOADS, {"metadata": {"name": "a", "namespace": "b", "uid": "u"}}), []
        )
        is None
    )
    with pytest.raises(MessageError):
        read_workload(decoded(WORKLOADS, {}), [])


@pytest.mark.parametrize(("reserved", "evicted"), [("False", "False"), ("True", "True")])
def test_a_workload_without_quota_has_no_pods(reserved: str, evicted: str) -> None:
    document = workload(
        {"name": "main", "count": 1, "template": template()},
        reserved=reserved,
        evicted=evicted,
        requeueState={"requeueAt": "2027-01-15T08:00:00Z"},
    )
    record = read(document)
    assert (record.is_reserved, record.waits, record.pods) == (False, True, ())


def test_a_flavor_adds_labels_and_tolerations() -> None:
    flavor = {
        "metadata": {"name": "a10"},
        "spec": {
            "nodeLabels": {"gpu": "a10"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
    }
    own = template(nodeSelector={"disk": "ssd"}, tolerations=[{"key": "own"}])
    record = read(workload({"name": "main", "count": 1, "template": own}, admission=assigned()))
    pods = with_flavors(record.pods[0], {"a10": read_flavor(decoded(RESOURCE_FLAVORS, flavor))})
    assert pods.demands.node_selector == (("disk", "ssd"), ("gpu", "a10"))
    assert [toleration.key for toleration in pods.demands.tolerations] == ["own", "gpu"]
    with pytest.raises(KeyError):
        with_flavors(record.pods[0], {})
    assert read_flavor(decoded(RESOURCE_FLAVORS, {})).labels == ()


def test_a_verdict_changes_the_pending_check_of_ours_alone() -> None:
    checks: list[dict[str, Any]] = [
        {"name": "other", "state": "Pending"},
        {"name": "gpus", "state": "Pending", "retryCount": 2},
        {"name": "gpus-2", "state": "Ready"},
    ]
    record = read(workload(admissionChecks=checks))
    names = {"gpus", "gpus-2"}
    patch = json.loads(verdict_patch(record, names, {"state": "Ready"}, "now"))
    assert patch["metadata"] == {"resourceVersion": "7"}
    changed = {**checks[1], "state": "Ready", "lastTransitionTime": "now"}
    assert patch["status"]["admissionChecks"] == [checks[0], changed, checks[2]]
    assert [is_pending(check, names) for check in record.checks] == [False, True, False]
    assert record.check(names) == checks[1]
    assert record.check(()) is None
    released = json.loads(release_patch(record, "now"))["status"]
    assert [check["state"] for check in released["admissionChecks"]] == ["Pending"] * 3
    assert [check["retryCount"] for check in released["admissionChecks"]] == [0, 2, 0]
    evicted = {condition["type"]: condition["status"] for condition in released["conditions"]}
    assert evicted == {"QuotaReserved": "True", "Evicted": "True"}
    assert json.loads(requeue_patch(record))["status"] == {"requeueState": {"requeueAt": None}}


def test_a_check_of_ours_is_active_unless_it_has_parameters() -> None:
    document: dict[str, Any] = {
        "metadata": {"name": "gpus", "resourceVersion": "3"},
        "spec": {"controllerName": CONTROLLER},
        "status": {"conditions": [{"type": "Other", "status": "True"}]},
    }

    def patch() -> list[dict[str, Any]] | None:
        record = read_check(decoded(ADMISSION_CHECKS, document))
        assert record is not None
        body = active_patch(record, "now")
        return None if body is None else json.loads(body)["status"]["conditions"]

    conditions = patch()
    assert conditions is not None
    assert [(one["type"], one["status"]) for one in conditions] == [
        ("Other", "True"),
        ("Active", "True"),
    ]
    document["status"]["conditions"] = conditions
    assert patch() is None
    document["spec"]["parameters"] = {"name": "x"}
    conditions = patch()
    assert conditions is not None
    assert conditions[1]["status"] == "False"
    assert read_check(decoded(ADMISSION_CHECKS, {"metadata": {"name": "b"}})) is None


def test_a_pod_of_an_admitted_workload_counts_once_schedulers_may_bind_it() -> None:
    pod: dict[str, Any] = {
        "metadata": {
            "namespace": "team",
            "annotations": {"kueue.x-k8s.io/workload": "job-a"},
            "labels": {"kueue.x-k8s.io/podset": "main"},
        },
        "spec": {"nodeSelector": {"rack": "a"}},
    }
    shown = AdmittedPod("team/job-a", "main", frozenset({("rack", "a")}))
    assert admitted_pod(decoded(PODS, pod)) == shown
    for change in (
        {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}},
        {"status": {"phase": "Succeeded"}},
        {"metadata": {"namespace": "team"}},
        {"metadata": pod["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ):
        assert admitted_pod(decoded(PODS, pod | change)) is None
