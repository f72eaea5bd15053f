"""StatefulSets and plain ReplicaSets through kubectl."""

import pytest

from tests.contract.apiserver.client import Api, Json
from tests.contract.kubectl import Kubectl, Server
from tests.contract.workloads.conftest import Pods
from tests.contract.workloads.manifests import changed, workload
from tests.e2e.processes import until

pytestmark = pytest.mark.kubectl

DB = workload("StatefulSet", "db", replicas=3)


def events(server: Server, version: str, last: str) -> list[tuple[str, str]]:
    """The changes of pods since a version, (ADDED or DELETED, name), up to `last`."""
    path = f"/api/v1/namespaces/{server.namespace}/pods"
    changes = []
    with server.api.watch(path, resourceVersion=version, timeoutSeconds=8) as stream:
        while (event := stream.next())["type"] + " " + event["object"]["metadata"]["name"] != last:
            if event["type"] in ("ADDED", "DELETED"):
                changes.append((event["type"], event["object"]["metadata"]["name"]))
    return [*changes, (event["type"], event["object"]["metadata"]["name"])]


def version(server: Server) -> str:
    return server.api.get(f"/api/v1/namespaces/{server.namespace}/pods").version


def rolled_out(kubectl: Kubectl, kind: str) -> None:
    kubectl("rollout", "status", kind, "--timeout=50s")


def test_numbered_pods_come_one_after_the_other(kubectl: Kubectl, server: Server) -> None:
    start = version(server)
    kubectl("apply", "-f", "-", stdin=DB)
    rolled_out(kubectl, "sts/db")
    output = kubectl("describe", "sts", "db")
    assert "3 desired | 3 total" in output
    assert kubectl("get", "sts", "--no-headers").split()[:2] == ["db", "3/3"]
    path = f"/api/v1/namespaces/{server.namespace}/pods"
    ready: list[str] = []
    with server.api.watch(path, resourceVersion=start, timeoutSeconds=8) as stream:
        while len(ready) < 3:
            event = stream.next()
            name = event["object"]["metadata"]["name"]
            if event["type"] == "ADDED":
                assert ready == [f"db-{number}" for number in range(int(name[-1]))]
            conditions = event["object"]["status"].get("conditions") or ()
            if (
                name not in ready
                and {"Ready": "True"}.items()
                <= {item["type"]: item["status"] for item in conditions}.items()
            ):
                ready.append(name)
    pod = server.api.get(f"{path}/db-1").body
    assert pod["spec"]["hostname"] == "db-1"
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"


def test_numbered_pods_go_from_the_highest(kubectl: Kubectl, server: Server, pods: Pods) -> None:
    kubectl("apply", "-f", "-", stdin=DB)
    rolled_out(kubectl, "sts/db")
    start = version(server)
    kubectl("scale", "sts/db", "--replicas=1")
    assert events(server, start, "DELETED db-1") == [("DELETED", "db-2"), ("DELETED", "db-1")]
    assert pods.names() == ["db-0"]


def test_numbered_pods_are_replaced_from_the_highest(
    kubectl: Kubectl, server: Server, pods: Pods
) -> None:
    kubectl("apply", "-f", "-", stdin=DB)
    rolled_out(kubectl, "sts/db")
    start = version(server)
    kubectl("set", "image", "sts/db", "main=app:2")
    order = [(kind, f"db-{number}") for number in (2, 1, 0) for kind in ("DELETED", "ADDED")]
    assert events(server, start, "ADDED db-0") == order
    rolled_out(kubectl, "sts/db")
    assert pods.images() == ["app:2"] * 3
    kubectl("rollout", "restart", "sts/db")
    rolled_out(kubectl, "sts/db")


def test_parallel_pods_do_not_wait_for_each_other(kubectl: Kubectl, pods: Pods) -> None:
    manifest = workload("StatefulSet", "db", replicas=3, podManagementPolicy="Parallel")
    limits = {"limits": {"aliyun.com/gpu-mem": "64"}}
    container = {"name": "main", "image": "app:1", "resources": limits}
    change: Json = {"spec": {"template": {"spec": {"containers": [container]}}}}
    kubectl("apply", "-f", "-", stdin=changed(manifest, change))
    pods.become(lambda items: len(items) == 3, "there are three that find no room")


def test_a_replaced_number_keeps_its_name(kubectl: Kubectl, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=DB)
    rolled_out(kubectl, "sts/db")
    uid = server.pod("db-1")["uid"]
    kubectl("delete", "pod", "db-1")
    path = f"/api/v1/namespaces/{server.namespace}/pods/db-1"

    def is_another() -> bool:
        items = server.api.get(path)
        return items.status == 200 and items.meta["uid"] != uid

    until(is_another, "there is another")


def test_a_pod_without_a_number_is_not_taken_for_one(
    kubectl: Kubectl, server: Server, pods: Pods
) -> None:
    kubectl("run", "stray", "--image=app:1", "--labels=app=db")
    kubectl("apply", "-f", "-", stdin=DB)
    rolled_out(kubectl, "sts/db")
    assert pods.names() == ["db-0", "db-1", "db-2", "stray"]
    assert "ownerReferences" not in server.pod("stray")


def test_a_replica_set_of_its_own_has_its_pods(kubectl: Kubectl, pods: Pods) -> None:
    kubectl("apply", "-f", "-", stdin=workload("ReplicaSet", "bare", replicas=2))
    pods.become(lambda items: len(items) == 2, "there are two")
    kubectl("scale", "rs/bare", "--replicas=3")
    pods.become(lambda items: len(items) == 3, "there are three")
    kubectl("delete", "rs", "bare")
    pods.gone()


def test_what_a_pod_template_may_not_say_is_told_by_an_event(
    kubectl: Kubectl, server: Server
) -> None:
    """A priority class that there is not is seen only when a pod is made."""
    change: Json = {"spec": {"template": {"spec": {"priorityClassName": "nowhere"}}}}
    manifest = changed(workload("ReplicaSet", "bare", replicas=1), change)
    kubectl("apply", "-f", "-", stdin=manifest)
    path = f"/apis/apps/v1/namespaces/{server.namespace}/replicasets/bare"

    def conditions(api: Api) -> list[Json]:
        items: list[Json] = api.get(path).body["status"].get("conditions") or []
        return items

    until(lambda: bool(conditions(server.api)), "it says so")
    (text,) = conditions(server.api)
    assert (text["type"], text["status"], text["reason"]) == (
        "ReplicaFailure",
        "True",
        "FailedCreate",
    )
    assert "no PriorityClass with name nowhere was found" in kubectl("describe", "rs", "bare")
