"""The manifests of the device plug-in: valid for Kubernetes, with the least rights, and with
policies that restrict the account to its own node.
"""

import shutil
from copy import deepcopy
from typing import Any

import pytest

from gpushare import __version__
from gpushare.device_plugin.container import VOLUME_MOUNTS
from gpushare.device_plugin.handover import CDI_FOLDERS
from gpushare.device_plugin.options import read_options
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_list import DEVICE_LIST
from tests.contract.admission import Call, refusals
from tests.contract.manifests import check_schema, container, one, rendered, rights

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to render with"),
]

Json = dict[str, Any]

FOLDER = "../device-plugin"
ACCOUNT = {"kind": "ServiceAccount", "name": "gpushare-device-plugin", "namespace": "kube-system"}
USER = "system:serviceaccount:kube-system:gpushare-device-plugin"
ON_NODE = {"authentication.kubernetes.io/node-name": ["gpu-1"]}


def pod_spec() -> Json:
    return dict(one(FOLDER, "DaemonSet", "gpushare")["spec"]["template"]["spec"])


def test_every_document_fits_the_schema_of_kubernetes() -> None:
    for document in rendered(FOLDER):
        check_schema(document)


def test_the_rights_are_these_and_no_other() -> None:
    assert set(rights(FOLDER, ACCOUNT)) == {
        ("", "", "nodes", "get", ""),
        ("", "", "nodes", "patch", ""),
        ("", "", "nodes/status", "patch", ""),
        ("", "", "pods", "get", ""),
        ("", "", "pods", "list", ""),
        ("", "", "pods", "watch", ""),
        ("", "", "pods", "patch", ""),
        ("", "events.k8s.io", "events", "create", ""),
        ("", "events.k8s.io", "events", "patch", ""),
    }


def test_the_pod_is_this_version_with_options_that_make_sense() -> None:
    part = container({"spec": pod_spec()}, "gpushare")
    assert part["image"] == f"gpushare:{__version__}"
    verb, *flags = part["args"]
    assert verb == "device-plugin"
    options = read_options(flags, {"NODE_NAME": "gpu-1"})
    assert options.node_name == "gpu-1"
    assert [port["containerPort"] for port in part["ports"]] == [options.health_port]
    mounted = {item["mountPath"] for item in part["volumeMounts"]}
    assert str(options.device_plugin_dir) in mounted
    assert str(options.pod_resources_socket.parent) in mounted
    assert options.pods_api_socket is not None
    assert str(options.pods_api_socket.parent) in mounted


def test_the_pod_has_of_its_node_the_kubelets_sockets_and_reads_cdi_files() -> None:
    spec = pod_spec()
    context = container({"spec": spec}, "gpushare")["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    paths = [item["hostPath"]["path"] for item in spec["volumes"] if "hostPath" in item]
    kubelet = "/var/lib/kubelet"
    assert paths == [
        *(f"{kubelet}/{name}" for name in ("device-plugins", "pod-resources", "pods-api")),
        "/dev/null",
        "/var/run/cdi",
    ]
    text = [
        mount["name"]
        for mount in container({"spec": spec}, "gpushare")["volumeMounts"]
        if not mount.get("readOnly")
    ]
    assert text == ["device-plugins", "tmp"]


def test_the_pod_asks_for_all_gpus_in_each_way_that_nvidias_runtime_may_take() -> None:
    part = container({"spec": pod_spec()}, "gpushare")
    variables = {item["name"]: item.get("value") for item in part["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    mounts = {mount["name"]: mount["mountPath"] for mount in part["volumeMounts"]}
    assert mounts["all-gpus"] == f"{VOLUME_MOUNTS}/all"
    folders = {mount["mountPath"].removeprefix("/") for mount in part["volumeMounts"]}
    assert folders & set(CDI_FOLDERS) == {"var/run/cdi"}


def test_the_new_one_serves_before_the_old_one_ends() -> None:
    strategy = one(FOLDER, "DaemonSet", "gpushare")["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    # Two plug-ins on a node must not need the same host port.
    ports = container({"spec": pod_spec()}, "gpushare")["ports"]
    assert not any("hostPort" in port for port in ports)


# -- own node -------------------------------------------------------------------------------------


def a_pod(node: str = "gpu-1") -> Json:
    return {
        "metadata": {
            "name": "a",
            "labels": {"app": "a"},
            "annotations": {ALIYUN.idx: "0", ALIYUN.assigned: "false", "own": "x"},
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}]},
        "status": {"phase": "Pending"},
    }


def a_node(name: str = "gpu-1") -> Json:
    amounts = {"cpu": "8", ALIYUN.resource: "64"}
    return {
        "metadata": {"name": name, "labels": {"zone": "a"}, "annotations": {"own": "x"}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def changed(body: Json, *path: str, value: object = "new") -> Json:
    """The object with another value at the path."""
    new = deepcopy(body)
    place = new
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    return new


def judged(before: Json, after: Json, resource: str, **more: Any) -> list[str]:
    call = {"user": USER, "extra": ON_NODE} | more
    return refusals(FOLDER, Call("UPDATE", after, before, resource=resource, **call))


@pytest.mark.parametrize("extra", [ON_NODE, {}])
def test_the_plugin_may_write_what_it_writes(extra: Json) -> None:
    pod, node = a_pod(), a_node()
    mark = changed(pod, "metadata", "annotations", ALIYUN.assigned, value="true")
    assert judged(pod, mark, "pods", extra=extra) == []
    neighbours = changed(pod, "metadata", "annotations", ALIYUN.given, value='{"GPU-b":4}')
    assert judged(pod, neighbours, "pods", extra=extra) == []
    bare = changed(pod, "metadata", "annotations", value={})
    first = changed(bare, "metadata", "annotations", ALIYUN.assigned, value="true")
    assert judged(bare, first, "pods", extra=extra) == []
    text = changed(node, "metadata", "annotations", ALIYUN.inventory, value="{}")
    text = changed(text, "metadata", "labels", "gpushare", value="true")
    assert judged(node, text, "nodes", extra=extra) == []
    count = changed(node, "status", "capacity", ALIYUN.count, value="4")
    count = changed(count, "status", "allocatable", ALIYUN.count, value="4")
    assert judged(node, count, "nodes/status", extra=extra) == []


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "annotations", ALIYUN.idx),
        ("metadata", "annotations", "own"),
        ("metadata", "annotations", "another"),
        ("metadata", "labels", "app"),
        ("metadata", "labels", "gpushare"),
        ("metadata", "finalizers"),
        ("metadata", "ownerReferences"),
        ("spec", "nodeName"),
        ("spec", "containers"),
        ("status", "phase"),
    ],
)
def test_it_may_change_nothing_else_of_a_pod(path: tuple[str, ...]) -> None:
    pod = a_pod()
    value: object = ["x"] if path[-1] in ("finalizers", "ownerReferences", "containers") else "x2"
    for resource in ("pods", "pods/status", "pods/resize"):
        (reason,) = judged(pod, changed(pod, *path, value=value), resource)
        assert reason.startswith("the device plug-in ")


def test_it_may_take_nothing_away_either() -> None:
    pod, node = a_pod(), a_node()
    assert judged(pod, changed(pod, "metadata", "labels", value={}), "pods")
    assert judged(pod, changed(pod, "metadata", "annotations", value={}), "pods")
    assert judged(node, changed(node, "metadata", "labels", value={}), "nodes")
    assert judged(node, changed(node, "status", "capacity", value={}), "nodes/status")


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "annotations", "own"),
        ("metadata", "annotations", ALIYUN.assigned),
        ("metadata", "labels", "zone"),
        ("metadata", "labels", "other"),
        ("spec", "unschedulable"),
        ("status", "capacity", "cpu"),
        ("status", "allocatable", ALIYUN.resource),
        ("status", "allocatable", "other"),
    ],
)
def test_it_may_change_nothing_else_of_its_node(path: tuple[str, ...]) -> None:
    node = a_node()
    for resource in ("nodes", "nodes/status"):
        assert judged(node, changed(node, *path), resource)


def test_it_may_tell_on_its_node_how_devices_are_handed_over() -> None:
    node = a_node()
    text = changed(node, "metadata", "annotations", DEVICE_LIST, value="{}")
    assert judged(node, text, "nodes") == []
    pod = a_pod()
    assert judged(pod, changed(pod, "metadata", "annotations", DEVICE_LIST, value="{}"), "pods")


def test_it_may_not_touch_another_node_or_its_pods() -> None:
    pod, node = a_pod("gpu-2"), a_node("gpu-2")
    mark = changed(pod, "metadata", "annotations", ALIYUN.assigned, value="true")
    (reason,) = judged(pod, mark, "pods")
    assert "its own node" in reason
    (reason,) = judged(node, changed(node, "metadata", "labels", "gpushare", value="true"), "nodes")
    assert "its own node" in reason


def test_others_are_not_held_to_that() -> None:
    pod = a_pod()
    assert judged(pod, changed(pod, "metadata", "labels", "app"), "pods", user="tenant") == []


def test_it_may_delete_failed_pods_of_its_own_node_alone() -> None:
    failed = changed(a_pod(), "status", "phase", value="Failed")
    for pod, extra, allowed_count in (
        (failed, ON_NODE, True),
        (failed, {}, True),
        (a_pod(), ON_NODE, False),
        (changed(failed, "spec", "nodeName", value="gpu-2"), ON_NODE, False),
        (changed(failed, "spec", value={}), ON_NODE, False),
    ):
        output = refusals(FOLDER, Call("DELETE", None, pod, user=USER, extra=extra))
        assert (output == []) == allowed_count
    assert refusals(FOLDER, Call("DELETE", None, a_pod(), user="tenant")) == []


# -- variables ------------------------------------------------------------------------------------


def asking(*names: str, kind: str = "containers", asks: bool = True) -> Json:
    limits = {"limits": {ALIYUN.resource: "1"}} if asks else {}
    main = {"name": "c", "resources": limits}
    env = [{"name": name, "value": "x"} for name in names]
    spec: Json = {"containers": [main]}
    if kind == "containers":
        spec["containers"].append({"name": "d", "env": env})
    else:
        spec[kind] = [{"name": "d", "env": env}]
    return {"metadata": {}, "spec": spec}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_GPU_MEMORY_LIMIT",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_MPS_PIPE_DIRECTORY",
        "LD_PRELOAD",
        "ALIYUN_COM_GPU_MEM_CONTAINER",
    ],
)
def test_a_pod_that_asks_for_gpu_memory_may_not_set_what_we_set(kind: str, name: str) -> None:
    (reason,) = refusals(FOLDER, Call("CREATE", asking("PATH", name, kind=kind)))
    assert "sets a variable that the device plug-in sets" in reason
    assert refusals(FOLDER, Call("CREATE", asking(name, kind=kind, asks=False))) == []
    debug = asking(name, kind="ephemeralContainers")
    resource = "pods/ephemeralcontainers"
    assert len(refusals(FOLDER, Call("UPDATE", debug, asking(), resource=resource))) == 1


def test_other_variables_pass() -> None:
    names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "LD_LIBRARY_PATH")
    assert refusals(FOLDER, Call("CREATE", asking(*names))) == []
    assert refusals(FOLDER, Call("CREATE", asking())) == []
