"""A real kubectl against the local API server and, by `make e2e`, against a real one."""

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from tests.contract.apiserver.client import Api
from tests.contract.apiserver.conftest import SERVER
from tests.contract.kubectl import Kubectl, Server
from tests.e2e import versions
from tests.e2e.binaries import needed
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.processes import until

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH"),
]

_numbers = itertools.count(1)

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: trainer
  labels: {app: trainer}
spec:
  containers:
  - name: main
    image: registry.example/app:1
    resources:
      limits:
        aliyun.com/gpu-mem: "3"
"""


only_ours = pytest.mark.skipif(
    SERVER != "localcluster", reason="a real API server leaves it to parts that are not here"
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A real API server for all tests here."""
    real = Plane(tmp_path_factory.mktemp("plane"), needed("etcd"), needed("kube-apiserver"))
    try:
        real.start()
        yield real
    finally:
        real.stop()


@pytest.fixture(params=[SERVER])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    kubectl = Path(shutil.which("kubectl") or "")
    if request.param == "kube-apiserver":
        real: Plane = request.getfixturevalue("plane")
        versions.record(real.version(), kubectl=kubectl)
        yield from _real(real)
        return
    local = ApiServer(Store())
    local.start()
    yield Server(Api(local.url), local.kubeconfig(), "default", local)
    local.stop()


def _real(plane: Plane) -> Iterator[Server]:
    """The shared server with a new namespace, and without the nodes of the test before."""
    api = plane.api()
    name = f"kubectl-{next(_numbers)}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield Server(api, plane.kubeconfig(ADMIN).read_text(), name, None)
    plane.objects().clear()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
def kubectl(server: Server, home: Path) -> Kubectl:
    return Kubectl(server, home)


def add_node(kubectl: Kubectl, name: str = "gpu-1") -> None:
    resources = {"cpu": 8, "memory": "64Gi", "pods": 110, "aliyun.com/gpu-mem": 16}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(node))


def test_apply_creates_then_changes_then_leaves_alone(kubectl: Kubectl) -> None:
    assert "pod/trainer created" in kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert "pod/trainer unchanged" in kubectl("apply", "-f", "-", stdin=MANIFEST)
    updated = MANIFEST.replace("{app: trainer}", "{app: other, tier: x}")
    assert "pod/trainer configured" in kubectl("apply", "-f", "-", stdin=updated)
    labels = kubectl("get", "pod", "trainer", "-o", "jsonpath={.metadata.labels}")
    assert json.loads(labels) == {"app": "other", "tier": "x"}
    assert "pod/trainer configured" in kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert "tier" not in kubectl("get", "pod", "trainer", "-o", "jsonpath={.metadata.labels}")


def test_create_says_what_is_wrong(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    assert "already exists" in kubectl("create", "-f", "-", stdin=MANIFEST, code=1)
    bad = MANIFEST.replace('"3"', "500m").replace("trainer", "broken")
    assert "must be an integer" in kubectl("create", "-f", "-", stdin=bad, code=1)


def test_get_shows_pods_and_nodes(kubectl: Kubectl, server: Server) -> None:
    add_node(kubectl)
    kubectl("create", "-f", "-", stdin=MANIFEST)
    server.run_pod()
    header, row = kubectl("get", "pods", "-o", "wide").splitlines()
    assert header.split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["trainer", "1/1", "Running", "0"]
    assert row.split()[5:7] == ["10.0.0.7", "gpu-1"]
    assert "Ready" in kubectl("get", "nodes")
    assert "Active" in kubectl("get", "ns", "default")
    assert "trainer" in kubectl("get", "po", "-A", "-l", "app=trainer")
    assert "No resources found" in kubectl("get", "po", "-l", "app!=trainer")
    assert "trainer" in kubectl("get", "po", "--field-selector", "spec.nodeName=gpu-1")
    assert "trainer" in kubectl("get", "po", "--sort-by", ".metadata.name")
    assert json.loads(kubectl("get", "pod", "trainer", "-o", "json"))["kind"] == "Pod"
    assert "nodeName: gpu-1" in kubectl("get", "pod", "trainer", "-o", "yaml")
    assert "NotFound" in kubectl("get", "pod", "nobody", code=1)


def test_get_watch_follows_a_pod(kubectl: Kubectl, server: Server) -> None:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    process = kubectl.start("get", "pods", "-w")
    overdue = threading.Timer(30, process.kill)
    overdue.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split()[0] == "NAME"
        assert process.stdout.readline().split()[2] == "Pending"
        server.run_pod()
        lines = [process.stdout.readline().split()[2] for _ in range(2)]
        assert lines == ["Pending", "Running"]
        kubectl("delete", "pod", "trainer", "--wait=false")
        assert process.stdout.readline().split()[2] == "Terminating"
    finally:
        overdue.cancel()
        process.kill()
        process.communicate()


def test_describe_tells_of_pod_node_and_events(kubectl: Kubectl, server: Server) -> None:
    add_node(kubectl)
    kubectl("create", "-f", "-", stdin=MANIFEST)
    uid = server.run_pod()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "trainer.1", "namespace": server.namespace},
        "involvedObject": {
            "kind": "Pod",
            "namespace": server.namespace,
            "name": "trainer",
            "uid": uid,
        },
        "reason": "Scheduled",
        "message": "placed on gpu-1, device 0",
        "type": "Normal",
        "source": {"component": "gpushare"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    kubectl("create", "-f", "-", stdin=json.dumps(event))
    pod = kubectl("describe", "pod", "trainer")
    assert "aliyun.com/gpu-mem:  3" in pod
    assert "placed on gpu-1, device 0" in pod
    node = kubectl("describe", "node", "gpu-1")
    assert "trainer" in node
    assert "aliyun.com/gpu-mem" in node
    assert "placed on gpu-1, device 0" in kubectl("get", "events")
    assert "Pod/trainer" in kubectl("events")


def test_annotate_label_and_patch_in_three_ways(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    kubectl("annotate", "pod", "trainer", "gpushare.io/policy=spread")
    kubectl("label", "pod", "trainer", "tier=x", "app-")
    kubectl("patch", "pod", "trainer", "--type=merge", "-p", '{"metadata":{"labels":{"m":"1"}}}')
    operation = '[{"op":"add","path":"/metadata/labels/j","value":"1"}]'
    kubectl("patch", "pod", "trainer", "--type=json", "-p", operation)
    image = '{"spec":{"containers":[{"name":"main","image":"registry.example/app:2"}]}}'
    kubectl("patch", "pod", "trainer", "-p", image)
    pod = json.loads(kubectl("get", "pod", "trainer", "-o", "json"))
    assert pod["metadata"]["labels"] == {"tier": "x", "m": "1", "j": "1"}
    assert pod["metadata"]["annotations"]["gpushare.io/policy"] == "spread"
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example/app:2"
    assert container["resources"]["limits"] == {"aliyun.com/gpu-mem": "3"}
    forbidden = '{"spec":{"nodeName":"elsewhere"}}'
    assert "Forbidden" in kubectl("patch", "pod", "trainer", "-p", forbidden, code=1)


def test_delete_waits_until_the_pod_is_gone(kubectl: Kubectl, server: Server) -> None:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    assert "deleted" in kubectl("delete", "pod", "trainer")
    kubectl("create", "-f", "-", stdin=MANIFEST)
    server.run_pod()
    process = kubectl.start("delete", "pod", "trainer", "--now")
    overdue = threading.Timer(30, process.kill)
    overdue.start()
    try:
        until(lambda: "deletionTimestamp" in server.pod(), "it is marked")
        assert server.pod()["deletionGracePeriodSeconds"] == 1
        server.end_pod()
        assert process.wait(20) == 0
    finally:
        overdue.cancel()
        process.kill()
        process.communicate()
    assert "No resources found" in kubectl("get", "pods")


def test_force_deletes_at_once(kubectl: Kubectl, server: Server) -> None:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    server.run_pod()
    kubectl("delete", "pod", "trainer", "--force", "--grace-period=0")
    assert "NotFound" in kubectl("get", "pod", "trainer", code=1)


@only_ours
def test_logs_are_read_and_followed(kubectl: Kubectl, server: Server) -> None:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    uid = server.run_pod()
    assert server.local
    server.local.logs.write(uid, "main", "sees GPU 0\nready\n", datetime(2026, 1, 1, tzinfo=UTC))
    assert kubectl("logs", "trainer") == "sees GPU 0\nready\n"
    assert kubectl("logs", "trainer", "--tail=1") == "ready\n"
    process = kubectl.start("logs", "-f", "trainer")
    overdue = threading.Timer(30, process.kill)
    overdue.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "sees GPU 0\n"
        server.end_pod()
        assert process.stdout.read() == "ready\n"
        assert process.wait() == 0
    finally:
        overdue.cancel()
        process.kill()
        process.communicate()


def test_cordon_and_uncordon(kubectl: Kubectl) -> None:
    add_node(kubectl)
    kubectl("cordon", "gpu-1")
    assert "SchedulingDisabled" in kubectl("get", "node", "gpu-1")
    kubectl("uncordon", "gpu-1")
    assert "SchedulingDisabled" not in kubectl("get", "node", "gpu-1")
    kubectl("taint", "node", "gpu-1", "gpu=yes:NoSchedule")
    assert "NoSchedule" in kubectl("describe", "node", "gpu-1")


def test_drain_evicts_pods_and_cordons(kubectl: Kubectl, server: Server) -> None:
    add_node(kubectl)
    kubectl("create", "-f", "-", stdin=MANIFEST)
    server.run_pod()
    output = kubectl("drain", "gpu-1", "--force", "--grace-period=0", "--timeout=20s")
    assert "node/gpu-1 drained" in output
    assert "NotFound" in kubectl("get", "pod", "trainer", code=1)
    assert "SchedulingDisabled" in kubectl("get", "node", "gpu-1")


def test_generators_create_what_they_name(kubectl: Kubectl) -> None:
    """The kubectl of today sends these as protobuf."""
    kubectl("create", "configmap", "closed", "--from-literal=gpus=0,2")
    assert kubectl("get", "configmap", "closed", "-o", "jsonpath={.data}") == '{"gpus":"0,2"}'
    kubectl("create", "pdb", "budget", "--selector=a=b", "--min-available=50%")
    assert kubectl("get", "pdb", "budget", "-o", "jsonpath={.spec.minAvailable}") == "50%"
    kubectl("create", "secret", "generic", "hidden", "--from-literal=a=b")
    assert kubectl("get", "secret", "hidden", "-o", "jsonpath={.data}") == '{"a":"Yg=="}'
    kubectl("create", "serviceaccount", "robot")
    assert kubectl("get", "sa", "robot", "-o", "name") == "serviceaccount/robot\n"
    assert kubectl("auth", "can-i", "list", "pods") == "yes\n"


def test_wait_sees_a_condition_come(kubectl: Kubectl, server: Server) -> None:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    process = kubectl.start("wait", "pod/trainer", "--for=condition=Ready", "--timeout=20s")
    server.run_pod()
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "pod/trainer condition met\n")


def test_what_the_server_serves_is_listed(kubectl: Kubectl) -> None:
    lines = kubectl("api-resources", "--no-headers").splitlines()
    assert any(line.split()[:3] == ["pods", "po", "v1"] for line in lines)
    assert any("leases" in line and "coordination.k8s.io/v1" in line for line in lines)
    assert "Server Version" in kubectl("version")


CONFIG = {"name": "c", "namespace": "team"}


@only_ours
def test_a_namespace_comes_and_goes(kubectl: Kubectl) -> None:
    for kind, meta in (("Namespace", {"name": "team"}), ("ConfigMap", CONFIG)):
        body = {"apiVersion": "v1", "kind": kind, "metadata": meta}
        kubectl("create", "-f", "-", stdin=json.dumps(body))
    assert "0" in kubectl("get", "cm", "-n", "team", "--no-headers").split()
    kubectl("delete", "namespace", "team")
    assert "not found" in kubectl("get", "ns", "team", code=1)
