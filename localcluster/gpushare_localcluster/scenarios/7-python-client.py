"""A scenario as a program: whatever the official Kubernetes client can do, it can do here."""

import time
from collections.abc import Callable

from kubernetes import client as k8s

GPU_MEM = "aliyun.com/gpu-mem"
POLICY = "gpushare.io/policy"
DEVICE = "ALIYUN_COM_GPU_MEM_IDX"


def scenario(client: k8s.ApiClient) -> None:
    """A Python program with the official client fills a device to the last unit."""
    core = k8s.CoreV1Api(client)
    amounts = {
        "cpu": "16",
        "memory": "64Gi",
        "pods": "110",
        GPU_MEM: "32",
        "aliyun.com/gpu-count": "2",
    }
    core.create_node(
        k8s.V1Node(
            metadata=k8s.V1ObjectMeta(name="py-node", labels={"gpushare": "true"}),
            status=k8s.V1NodeStatus(capacity=amounts, allocatable=amounts),
        )
    )
    for number, units in enumerate((5, 7, 4), 1):
        core.create_namespaced_pod("default", pod(f"piece-{number}", units))
        # One after another: the free memory of each device decides about the next pod.
        wait_for(lambda name=f"piece-{number}": device_of(core, name) is not None)
    devices = {device_of(core, f"piece-{number}") for number in (1, 2, 3)}
    expect(len(devices) == 1, f"5 + 7 + 4 units fill one device of 16, not {devices}")
    core.delete_namespaced_pod("piece-2", "default")
    core.create_namespaced_pod("default", pod("whole", 16))
    wait_for(lambda: device_of(core, "whole") is not None)
    expect(device_of(core, "whole") not in devices, "only the other device has 16 units free")


def pod(name: str, units: int) -> k8s.V1Pod:
    """A pod that asks for units of device memory."""
    resources = k8s.V1ResourceRequirements(limits={GPU_MEM: str(units)})
    container = k8s.V1Container(
        name="main", image="registry.k8s.io/pause:3.10", resources=resources
    )
    return k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(name=name, annotations={POLICY: "binpack"}),
        spec=k8s.V1PodSpec(containers=[container]),
    )


def device_of(core: k8s.CoreV1Api, name: str) -> str | None:
    """The device a pod was given, None while it has none."""
    index = core.read_namespaced_pod(name, "default")
    return (index.metadata.annotations or {}).get(DEVICE) if index.spec.node_name else None


def expect(true: object, text: str) -> None:
    """End the scenario with a failed expectation unless it is true."""
    if not true:
        raise AssertionError(text)


def wait_for(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        expect(time.monotonic() < deadline, f"not so within {seconds:g} s")
        time.sleep(0.05)
