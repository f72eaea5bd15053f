"""Pods: defaults, bindings and deletions by the API server."""

import pytest

from tests.contract.apiserver.client import STRATEGIC, Api, ApiReply
from tests.contract.apiserver.conftest import binding, newest, pod


def test_a_new_pod_gets_its_defaults(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/pods", pod()).body
    spec, status = created["spec"], created["status"]
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["priority"] == 0
    assert (status["phase"], status["qosClass"]) == ("Pending", "BestEffort")
    keys = {item["key"] for item in spec["tolerations"]}
    assert keys == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


def test_requests_are_the_limits_where_they_are_missing(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/pods", pod(gpu_mem=3)).body
    resources = created["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"aliyun.com/gpu-mem": "3"}


@pytest.mark.parametrize(
    ("text", "stored"), [(16000, "16k"), ("16000", "16k"), ("1024Mi", "1Gi"), ("2000m", "2")]
)
def test_quantities_are_rewritten(api: Api, namespace: str, text: object, stored: str) -> None:
    created = api.create(f"{namespace}/pods", pod(gpu_mem=text)).body
    limits = created["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"aliyun.com/gpu-mem": stored}


@pytest.mark.parametrize(
    "resources",
    [
        {"requests": {"aliyun.com/gpu-mem": "3"}},
        {"requests": {"aliyun.com/gpu-mem": "2"}, "limits": {"aliyun.com/gpu-mem": "3"}},
        {"limits": {"aliyun.com/gpu-mem": "500m"}},
        {"limits": {"aliyun.com/gpu-mem": "-1"}},
        {"limits": {"gpu-mem": "3"}},
        {"limits": {"aliyun.com/gpu mem": "3"}},
        {"limits": {"requests.aliyun.com/gpu-mem": "3"}},
        {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
        {"limits": {"cpu": "-1"}},
    ],
)
def test_a_container_asks_for_what_there_can_be_and_extended_resources_are_whole(
    api: Api, namespace: str, resources: dict[str, object]
) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = resources
    reply = api.call("POST", f"{namespace}/pods", body)
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")


@pytest.mark.parametrize("amount", ["-4", "1500m"])
def test_a_node_has_whole_devices_and_no_debts(api: Api, node_name: str, amount: str) -> None:
    path, amounts = f"/api/v1/nodes/{node_name}", {"aliyun.com/gpu-mem": amount}
    before = api.get(path)
    reply = api.patch(f"{path}/status", {"status": {"allocatable": amounts}}, STRATEGIC)
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    body = {"metadata": {"name": f"{node_name}-b"}, "status": {"capacity": amounts}}
    assert api.call("POST", "/api/v1/nodes", body).status == 422
    assert api.get(path).body == before.body


def test_the_priority_comes_from_the_class_alone(api: Api, namespace: str) -> None:
    name = namespace.rpartition("/")[2]
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.create(path, {"metadata": {"name": name}, "value": 1000})
    created = api.create(f"{namespace}/pods", pod(priorityClassName=name)).body
    assert created["spec"]["priority"] == 1000
    assert api.call("POST", f"{namespace}/pods", pod("q", priority=7)).status == 403
    unknown = api.call("POST", f"{namespace}/pods", pod("q", priorityClassName="nobody"))
    assert unknown.status == 403


def test_a_priority_of_null_is_none_of_the_clients_own(api: Api, namespace: str) -> None:
    body = pod(priority=None, preemptionPolicy=None, priorityClassName=None)
    spec = api.create(f"{namespace}/pods", body).body["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")


def test_whether_a_pod_may_preempt_is_said_by_its_class_alone(api: Api, namespace: str) -> None:
    name = namespace.rpartition("/")[2]
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    polite = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"}
    api.create(path, polite)
    created = api.create(f"{namespace}/pods", pod(priorityClassName=name)).body
    assert created["spec"]["preemptionPolicy"] == "Never"
    for fields in (
        {"preemptionPolicy": "Never"},
        {"preemptionPolicy": "PreemptLowerPriority", "priorityClassName": name},
    ):
        assert api.call("POST", f"{namespace}/pods", pod("q", **fields)).status == 403


@newest
@pytest.mark.parametrize("field", ["limits", "requests"])
@pytest.mark.parametrize("resource", ["aliyun.com/gpu-mem", "ephemeral-storage"])
def test_a_pod_as_a_whole_asks_for_cpu_and_memory_alone(
    api: Api, namespace: str, field: str, resource: str
) -> None:
    reply = api.call("POST", f"{namespace}/pods", pod(resources={field: {resource: "4"}}))
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    place = f"spec.resources.{field}[{resource}]"
    assert f'{place}: Unsupported value: "{resource}"' in reply.body["message"]
    path = namespace.replace("/api/", "/apis/apps/") + "/deployments"
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": pod(resources={field: {resource: 4}})["spec"],
    }
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    reply = api.call("POST", path, {"metadata": {"name": "d"}, "spec": spec})
    assert f"spec.template.{place}: Unsupported value" in reply.body["message"]


def bind(api: Api, namespace: str, node: str, **metadata: object) -> ApiReply:
    path = f"{namespace}/pods/p/binding"
    return api.call("POST", path, binding("p", node, **metadata))


def test_a_binding_is_one_write_of_node_annotations_and_condition(
    api: Api, namespace: str, node_name: str
) -> None:
    body = pod()
    body["metadata"]["annotations"] = {"kept": "1", "clash": "old"}
    created = api.create(f"{namespace}/pods", body)
    with api.watch(f"{namespace}/pods", resourceVersion=created.version) as stream:
        reply = bind(
            api,
            namespace,
            node_name,
            uid=created.meta["uid"],
            annotations={"clash": "new", "ALIYUN_COM_GPU_MEM_IDX": "0"},
        )
        assert (reply.status, reply.body["kind"], reply.body["status"]) == (
            201,
            "Status",
            "Success",
        )
        event = stream.next()
    bound_pod = api.get(f"{namespace}/pods/p").body
    assert event == {"type": "MODIFIED", "object": bound_pod}
    assert bound_pod["spec"]["nodeName"] == node_name
    assert bound_pod["metadata"]["annotations"] == {
        "kept": "1",
        "clash": "new",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
    }
    (condition,) = bound_pod["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


@newest
def test_a_bound_pod_is_nominated_for_no_node(api: Api, namespace: str, node_name: str) -> None:
    """ClearingNominatedNodeNameAfterBinding, on since 1.35."""
    nominated = {"status": {"nominatedNodeName": node_name}}
    api.create(f"{namespace}/pods", pod())
    assert api.patch(f"{namespace}/pods/p/status", nominated, STRATEGIC).status == 200
    assert bind(api, namespace, node_name).status == 201
    assert "nominatedNodeName" not in api.get(f"{namespace}/pods/p").body["status"]
    assert api.patch(f"{namespace}/pods/p/status", nominated, STRATEGIC).status == 422


def refused(api: Api, namespace: str, reply: ApiReply, version: str) -> bool:
    """Whether a Binding was a conflict and left the pod alone."""
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    return api.get(f"{namespace}/pods/p").version == version


def test_a_binding_for_another_pod_of_that_name_is_a_conflict(
    api: Api, namespace: str, node_name: str
) -> None:
    created = api.create(f"{namespace}/pods", pod())
    reply = bind(api, namespace, node_name, uid="another", annotations={"a": "b"})
    assert "UID in precondition" in reply.body["message"]
    assert refused(api, namespace, reply, created.version)


def test_a_binding_for_an_old_version_is_a_conflict(
    api: Api, namespace: str, node_name: str
) -> None:
    created = api.create(f"{namespace}/pods", pod())
    now = api.patch(f"{namespace}/pods/p", {"metadata": {"labels": {"a": "b"}}})
    reply = bind(api, namespace, node_name, resourceVersion=created.version)
    assert refused(api, namespace, reply, now.version)


def test_a_bound_pod_is_not_bound_again(api: Api, namespace: str, node_name: str) -> None:
    api.create(f"{namespace}/pods", pod())
    assert bind(api, namespace, node_name).status == 201
    version = api.get(f"{namespace}/pods/p").version
    reply = bind(api, namespace, node_name, annotations={"late": "1"})
    assert f'already assigned to node "{node_name}"' in reply.body["message"]
    assert refused(api, namespace, reply, version)


def test_a_terminating_pod_is_not_bound(api: Api, namespace: str, node_name: str) -> None:
    body = pod()
    body["metadata"]["finalizers"] = ["example.com/hold"]
    api.create(f"{namespace}/pods", body)
    api.delete(f"{namespace}/pods/p")
    version = api.get(f"{namespace}/pods/p").version
    reply = bind(api, namespace, node_name)
    assert "is being deleted" in reply.body["message"]
    assert refused(api, namespace, reply, version)


def test_a_gated_pod_is_not_bound_until_its_gate_is_gone(
    api: Api, namespace: str, node_name: str
) -> None:
    created = api.create(f"{namespace}/pods", pod(schedulingGates=[{"name": "example.com/wait"}]))
    assert refused(api, namespace, bind(api, namespace, node_name), created.version)
    assert api.patch(f"{namespace}/pods/p", {"spec": {"schedulingGates": None}}).status == 200
    assert bind(api, namespace, node_name).status == 201


def test_a_binding_of_nothing_is_not_found_and_one_without_node_is_refused(
    api: Api, namespace: str, node_name: str
) -> None:
    assert bind(api, namespace, node_name).status == 404
    api.create(f"{namespace}/pods", pod())
    assert bind(api, namespace, "").status == 500


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"metadata": {}}, 400),
        ({"metadata": {"name": "another"}}, 400),
        ({"metadata": {"name": "p", "namespace": "elsewhere"}}, 400),
        ({"target": {"kind": "Pod", "name": "n"}}, 500),
        pytest.param({"target": {"kind": "Node", "name": "Not_A_Name"}}, 500, marks=newest),
    ],
)
def test_a_binding_that_names_no_pod_of_its_path_or_no_node_is_refused(
    api: Api, namespace: str, change: dict[str, object], status: int
) -> None:
    created = api.create(f"{namespace}/pods", pod())
    reply = api.call("POST", f"{namespace}/pods/p/binding", {**binding("p", "n"), **change})
    assert reply.status == status
    assert api.get(f"{namespace}/pods/p").version == created.version


def test_a_gated_pod_says_that_it_waits_and_has_no_node(
    api: Api, namespace: str, node_name: str
) -> None:
    gates = [{"name": "example.com/wait"}]
    created = api.create(f"{namespace}/pods", pod(schedulingGates=gates)).body
    (condition,) = created["status"]["conditions"]
    text = [condition[field] for field in ("type", "status", "reason")]
    assert text == ["PodScheduled", "False", "SchedulingGated"]
    placement = pod("q", schedulingGates=gates, nodeName=node_name)
    assert api.call("POST", f"{namespace}/pods", placement).status == 422


def test_an_unassigned_pod_goes_at_once(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/pods", pod())
    with api.watch(f"{namespace}/pods", resourceVersion=created.version) as stream:
        assert api.delete(f"{namespace}/pods/p").status == 200
        assert stream.take(2) == [("MODIFIED", "p"), ("DELETED", "p")]
    assert api.get(f"{namespace}/pods/p").status == 404


def test_an_assigned_pod_goes_when_its_kubelet_says_so(
    api: Api, namespace: str, node_name: str
) -> None:
    path = f"{namespace}/pods/p"
    api.create(f"{namespace}/pods", pod())
    bind(api, namespace, node_name)
    start = api.get(path).version
    with api.watch(f"{namespace}/pods", resourceVersion=start) as stream:
        reply = api.delete(path, {"propagationPolicy": "Background"})
        assert (reply.status, reply.body["kind"]) == (200, "Pod")
        assert reply.meta["deletionGracePeriodSeconds"] == 30
        assert api.get(path).meta["deletionTimestamp"] == reply.meta["deletionTimestamp"]
        assert api.delete(path, {"gracePeriodSeconds": 60}).version == reply.version
        shorter = api.delete(path, {"gracePeriodSeconds": 5})
        assert shorter.meta["deletionGracePeriodSeconds"] == 5
        assert api.delete(path, {"gracePeriodSeconds": 0}).status == 200
        assert stream.take(4) == [("MODIFIED", "p")] * 3 + [("DELETED", "p")]
    assert api.get(path).status == 404


def test_another_delete_that_names_no_grace_changes_nothing_even_if_the_pod_has_ended(
    api: Api, namespace: str, node_name: str
) -> None:
    """BeforeDelete of k8s.io/apiserver: "graceful deletion is pending, do nothing"."""
    path = f"{namespace}/pods/p"
    api.create(f"{namespace}/pods", pod())
    bind(api, namespace, node_name)
    marked = api.delete(path, {"gracePeriodSeconds": 60})
    assert api.delete(path).version == marked.version
    ended = api.patch(f"{path}/status", {"status": {"phase": "Failed"}}, STRATEGIC)
    assert api.delete(path).version == ended.version
    assert api.get(path).meta["deletionGracePeriodSeconds"] == 60


def test_a_pod_that_has_ended_goes_at_once(api: Api, namespace: str, node_name: str) -> None:
    api.create(f"{namespace}/pods", pod())
    bind(api, namespace, node_name)
    path = f"{namespace}/pods/p"
    api.patch(f"{path}/status", {"status": {"phase": "Succeeded"}}, STRATEGIC)
    assert api.delete(path).status == 200
    assert api.get(path).status == 404


def test_an_eviction_is_a_deletion(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/pods", pod())
    body = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}}
    assert api.call("POST", f"{namespace}/pods/p/eviction", body).status == 201
    assert api.get(f"{namespace}/pods/p").status == 404


def test_an_eviction_hits_only_the_pod_as_it_was_read(api: Api, namespace: str) -> None:
    old_version = api.create(f"{namespace}/pods", pod("p")).meta
    path = f"{namespace}/pods/p/eviction"
    expected = {"uid": old_version["uid"], "resourceVersion": old_version["resourceVersion"]}
    for change in ({"uid": "another"}, {"resourceVersion": "1"}):
        body = {**EVICTION, "deleteOptions": {"preconditions": expected | change}}
        assert api.call("POST", path, body).status == 409
    body = {**EVICTION, "deleteOptions": {"preconditions": expected}}
    assert api.call("POST", path, body).status == 201


def covered_pod(api: Api, namespace: str, node: str, allowed_count: int) -> str:
    """Path of a running pod with a budget, whose status allows some evictions."""
    body = pod()
    body["metadata"]["labels"] = {"app": "a"}
    api.create(f"{namespace}/pods", body)
    assert bind(api, namespace, node).status == 201
    api.patch(f"{namespace}/pods/p/status", {"status": {"phase": "Running"}}, STRATEGIC)
    path = BUDGETS.format(namespace.rpartition("/")[2])
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    api.create(path, {"metadata": {"name": "b"}, "spec": spec})
    counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    status = {"observedGeneration": 1, "disruptionsAllowed": allowed_count, **counts}
    api.patch(f"{path}/b/status", {"status": status})
    return f"{namespace}/pods/p"


BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
EVICTION = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}}
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def test_an_eviction_that_a_budget_forbids_is_to_be_tried_again(
    api: Api, namespace: str, node_name: str
) -> None:
    path = covered_pod(api, namespace, node_name, allowed_count=0)
    version = api.patch(f"{path}/status", READY, STRATEGIC).version
    reply = api.call("POST", f"{path}/eviction", EVICTION)
    assert (reply.status, reply.body["reason"]) == (429, "TooManyRequests")
    (cause,) = reply.body["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert api.get(path).version == version


def test_an_eviction_that_a_budget_allows_is_counted(
    api: Api, namespace: str, node_name: str
) -> None:
    path = covered_pod(api, namespace, node_name, allowed_count=1)
    api.patch(f"{path}/status", READY, STRATEGIC)
    assert api.call("POST", f"{path}/eviction", EVICTION).status == 201
    assert api.get(path).meta["deletionTimestamp"]
    text = {item["type"]: item.get("reason") for item in api.get(path).body["status"]["conditions"]}
    assert text["DisruptionTarget"] == "EvictionByEvictionAPI"
    budget = api.get(f"{BUDGETS.format(namespace.rpartition('/')[2])}/b").body
    assert budget["status"]["disruptionsAllowed"] == 0
    assert list(budget["status"]["disruptedPods"]) == ["p"]


def test_an_unready_pod_may_go_where_enough_others_are_healthy(
    api: Api, namespace: str, node_name: str
) -> None:
    path = covered_pod(api, namespace, node_name, allowed_count=0)
    assert api.call("POST", f"{path}/eviction", EVICTION).status == 201
    assert api.get(path).meta["deletionTimestamp"]


@pytest.mark.parametrize(
    "change", [{"metadata": {}}, {"metadata": {"name": "q"}}, {"kind": "Pod", "apiVersion": "v1"}]
)
def test_an_eviction_of_another_pod_than_its_path_names_is_refused(
    api: Api, namespace: str, change: dict[str, object]
) -> None:
    api.create(f"{namespace}/pods", pod())
    assert api.call("POST", f"{namespace}/pods/p/eviction", {**EVICTION, **change}).status == 400
    assert api.get(f"{namespace}/pods/p").status == 200


FORBIDDEN = [
    {"nodeName": "elsewhere"},
    {"schedulerName": "another"},
    {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "9"}}}]},
    {"nodeSelector": {"a": "b"}},
    {"tolerations": None},
    {"schedulingGates": [{"name": "new"}]},
]


@pytest.mark.parametrize("change", FORBIDDEN)
def test_the_spec_of_a_pod_stays_as_it_is(
    api: Api, namespace: str, change: dict[str, object]
) -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    created = api.create(f"{namespace}/pods", pod(tolerations=[toleration]))
    reply = api.patch(f"{namespace}/pods/p", {"spec": change}, STRATEGIC)
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    assert api.get(f"{namespace}/pods/p").version == created.version


PERMITTED = [
    {"containers": [{"name": "main", "image": "registry.example/app:2"}]},
    {"activeDeadlineSeconds": 60},
]


@pytest.mark.parametrize("change", PERMITTED)
def test_a_few_fields_of_the_spec_may_change(
    api: Api, namespace: str, change: dict[str, object]
) -> None:
    api.create(f"{namespace}/pods", pod())
    assert api.patch(f"{namespace}/pods/p", {"spec": change}, STRATEGIC).status == 200


def test_tolerations_may_be_added(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/pods", pod()).body
    more = [*created["spec"]["tolerations"], {"key": "gpu", "operator": "Exists"}]
    reply = api.patch(f"{namespace}/pods/p", {"spec": {"tolerations": more}})
    assert (reply.status, reply.body["spec"]["tolerations"]) == (200, more)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": []},
        {"containers": [{"name": "Not A Name", "image": "x"}]},
        {"containers": [{"name": "a"}]},
        {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]},
    ],
)
def test_a_pod_against_the_rules_is_invalid(
    api: Api, namespace: str, spec: dict[str, object]
) -> None:
    reply = api.call("POST", f"{namespace}/pods", {**pod(), "spec": spec})
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
