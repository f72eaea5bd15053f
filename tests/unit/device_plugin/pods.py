"""Pods and cards of a test, said shortly."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

from gpushare.core.model import Allocation, PodRef
from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.cards import DetectedGpu, NodeCards, make_cards
from gpushare.device_plugin.node_pod import GpuContainer, NodePod, node_pod
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare.wire.objects import PODS, Pod
from gpushare.wire.pods import request_of

Json = dict[str, Any]

_numbers = itertools.count()


def cards(*units: int) -> NodeCards:
    """Healthy cards of so many GiB each."""
    result = [DetectedGpu(f"GPU-{index}", index, item * 1024) for index, item in enumerate(units)]
    return make_cards(result, "GiB", 0)


def placed(
    *gpu_containers: GpuContainer, uuids: dict[int, str] | None = None, **more: Any
) -> NodePod:
    """A pod with these containers."""
    number = next(_numbers)
    ref = PodRef("default", f"pod-{number}", f"uid-{number}")
    total = sum(gpu_container.units for gpu_container in gpu_containers if not gpu_container.init)
    return NodePod(ref, gpu_containers, total, uuids, **more)


def gpu_container(
    units: int, device: int = 0, name: str = "", *, init: bool = False
) -> GpuContainer:
    """A container with all units on one device."""
    return GpuContainer(name or f"c{next(_numbers)}", units, init, ((device, units),))


def pod_json(
    *units: int,
    devices: Sequence[int] = (0,),
    uuids: Sequence[str] = (),
    inits: Sequence[int] = (),
    sidecars: Sequence[int] = (),
    annotations: dict[str, str] | None = None,
    cores: Sequence[int] = (),
) -> Json:
    """A bound pod with the annotations of its Binding; `annotations` are added to them.

    cores: percent of compute of its containers; none if there are none.
    """

    def container(name: str, amount: int, percent: int = 0) -> Json:
        limits = {ALIYUN.resource: str(amount)}
        if percent:
            limits[ALIYUN.cores] = str(percent)
        return {"name": name, "resources": {"limits": limits}}

    before = [container(f"i{n}", amount) for n, amount in enumerate(inits)]
    before += [
        {**container(f"s{n}", amount), "restartPolicy": "Always"}
        for n, amount in enumerate(sidecars)
    ]
    number = next(_numbers)
    body: Json = {
        "metadata": {
            "namespace": "default",
            "name": f"pod-{number}",
            "uid": f"uid-{number}",
            "annotations": {ALIYUN.count: str(len(devices))} if len(devices) > 1 else {},
        },
        "spec": {
            "nodeName": "node",
            "initContainers": before,
            "containers": [
                container(f"c{n}", amount, cores[n] if cores else 0)
                for n, amount in enumerate(units)
            ],
        },
        "status": {"phase": "Pending"},
    }
    request = request_of(decoded(body), ALIYUN)
    if request.total:
        item = request.total // len(devices)
        shares = tuple((device, item) for device in devices)
        given = Allocation("node", shares, tuple(uuids))
        body["metadata"]["annotations"] |= encode(given, request, 16, "1", ALIYUN)
    body["metadata"]["annotations"] |= annotations or {}
    return body


def told(devices: str = "", **envs: str) -> bytes:
    """The kubelet's record of the answer for a container: visible devices, other variables."""
    envs |= {"NVIDIA_VISIBLE_DEVICES": devices} if devices else {}
    return pb.ContainerAllocateResponse(envs=envs).SerializeToString()


def decoded(body: Json) -> Pod:
    return PODS.decode(json.dumps(body).encode())


def read(body: Json) -> NodePod:
    """The pod in the device plug-in's form."""
    return node_pod(decoded(body), ALIYUN)
