"""Objects of resource.k8s.io/v1 for the tests, as an API server of 1.37 answers with them."""

import json
from typing import Any

from gpushare.wire.dra.objects import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)

Json = dict[str, Any]
GIB = 2**30
DRIVER, CLASS = "gpu.example.com", "gpushare.io"


def device(number: int, gib: int = 80, **changes: object) -> Json:
    """A shared card that its driver calls by its number; its uuid has another one."""
    policy = {"default": f"{gib}Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    return {
        "name": f"gpu-{number}",
        "attributes": {
            "uuid": {"string": f"GPU-{100 + number}"},
            "productName": {"string": "NVIDIA A100"},
            "architecture": {"string": "Ampere"},
            "minor": {"int": number},
        },
        "capacity": {"memory": {"value": f"{gib}Gi", "requestPolicy": policy}},
        "allowMultipleAllocations": True,
        **changes,
    }


def stepped(number: int, gib: int, step: int, **bounds: str) -> Json:
    """A card that is dealt out in steps of so many GiB."""
    by_step = {"min": f"{step}Gi", "step": f"{step}Gi", **bounds}
    policy = {"default": f"{step}Gi", "validRange": by_step}
    return device(number, capacity={"memory": {"value": f"{gib}Gi", "requestPolicy": policy}})


def slice_of(*devices: Json, node: str = "n1", **pool: object) -> ResourceSlice:
    whole = {"name": node, "generation": 1, "resourceSliceCount": 1, **pool}
    spec = {"driver": DRIVER, "nodeName": node, "pool": whole, "devices": list(devices)}
    body = {"metadata": {"name": node, "uid": f"uid-{node}", "generation": 1}, "spec": spec}
    return RESOURCE_SLICES.decode(json.dumps(body).encode())


def exactly(memory: object = "10Gi", **changes: object) -> Json:
    return {
        "deviceClassName": CLASS,
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": {"requests": {"memory": memory}},
        **changes,
    }


def claim(
    request: Json | None = None,
    *,
    devices: Json | None = None,
    meta: Json | None = None,
    status: Json | None = None,
) -> ResourceClaim:
    """A claim of one request; devices: more of spec.devices."""
    requests = [{"name": "gpu", "exactly": request if request is not None else exactly()}]
    body = {
        "metadata": {
            "name": "c",
            "namespace": "default",
            "uid": "uid-1",
            "resourceVersion": "7",
            **(meta or {}),
        },
        "spec": {"devices": {"requests": requests, **(devices or {})}},
        "status": status or {},
    }
    return RESOURCE_CLAIMS.decode(json.dumps(body).encode())


def device_class(*config: Json) -> DeviceClass:
    spec = {"selectors": [{"cel": {"expression": "false"}}], "config": list(config)}
    body = {"metadata": {"name": CLASS}, "spec": spec}
    return DEVICE_CLASSES.decode(json.dumps(body).encode())
