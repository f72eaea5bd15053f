"""The Binding of a pod: the annotations that name the devices, the body, and the answer.

Knows the JSON of Binding and Status; annotations.py has the names, and reads a placement back.
Tested in `tests/unit/wire/test_annotations.py`, `test_codec.py` and `test_objects.py`.
"""

import json
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpushare.core.model import Allocation, PodRef, Request, Shares
from gpushare.errors import MessageError
from gpushare.wire.annotations import Names, has_own_devices


class _Success(msgspec.Struct, gc=False):
    kind: Literal["Status"]
    status: Literal["Success"]


_SUCCESS = msgspec.json.Decoder(_Success)


def encode(
    allocation: Allocation, request: Request, device_capacity: int, assume_time: str, names: Names
) -> dict[str, str]:
    """Return the annotations that record an allocation, for the Binding of the pod.

    device_capacity: units of the (first) device, which the original writes as DEV. assume_time: in
    nanoseconds since the epoch; the device plug-in serves pods in this order. An empty map is
    written as well, and so are empty uuids: a value that the owner of the pod wrote there would
    outlive the Binding. `placement` reads back exactly `allocation.shares`, `device_uuids` the
    uuids. Nothing reads the percents back: the pod's spec has the numbers, and the devices are
    those of the memory.
    """
    grants = _grants(allocation, request)
    annotations = {
        names.idx: ",".join(str(device) for device, _ in allocation.shares),
        names.dev: str(device_capacity),
        names.pod: str(request.total),
        names.assigned: "false",
        names.assume_time: assume_time,
        names.allocation: json.dumps(grants, separators=(",", ":")),
        names.uuids: ",".join(allocation.uuids) if any(allocation.uuids) else "",
    }
    for of_amount, percent, containers in zip(
        names.percents, request.percents, request.percent_containers, strict=False
    ):
        if percent and of_amount.allocation:
            by_container = _percent_grants(grants, containers)
            annotations[of_amount.allocation] = json.dumps(by_container, separators=(",", ":"))
    return annotations


def _grants(allocation: Allocation, request: Request) -> dict[str, dict[str, int]]:
    """Return container -> device -> units: the containers, in order, fill device after device; each
    has a device of its own if the request is split by container.
    """
    if request.split and has_own_devices(request):
        of_units: dict[int, list[int]] = {}
        for device, units in reversed(allocation.shares):
            of_units.setdefault(units, []).append(device)
        return {
            str(container): {str(of_units[units].pop()): units}
            for container, units in request.containers
        }
    room = [[device, units] for device, units in reversed(allocation.shares)]
    grants: dict[str, dict[str, int]] = {}
    for container, requested_units in request.containers:
        grant = grants[str(container)] = {}
        lacking = requested_units
        while lacking and room:
            device, free = room[-1]
            granted_units = min(lacking, free)
            grant[str(device)] = granted_units
            lacking -= granted_units
            room[-1][1] -= granted_units
            if not room[-1][1]:
                room.pop()
    return grants


def _percent_grants(
    grants: Mapping[str, Mapping[str, int]], containers: Shares
) -> dict[str, dict[str, int]]:
    """Return container -> device -> percent: the percents of a container are where the memory is.

    containers: (container, percent). Parts of a percent are rounded up; that happens on several
    devices only.
    """
    percent_grants = {}
    for container, percent in containers:
        grant = grants.get(str(container), {})
        units = sum(grant.values())
        percent_grants[str(container)] = {
            device: -(-percent * part // units) for device, part in grant.items()
        }
    return percent_grants


def encode_binding(ref: PodRef, node: str, annotations: Mapping[str, str]) -> bytes:
    """Return the body that binds a pod: uid as precondition, annotations merged in by the same
    write.

    The API server sets spec.nodeName and merges metadata.annotations into the pod atomically, and
    refuses (409) if the uid is not the pod's.
    """
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": ref.name,
                "namespace": ref.namespace,
                "uid": ref.uid,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
    )


def check_bound(body: bytes) -> None:
    """Check that the API server has accepted a Binding.

    kube-apiserver answers 201 with a Status of Success (all releases from 1.22 to 1.37). Raises
    MessageError for anything else.
    """
    try:
        _SUCCESS.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # The decoder's text has the whole of a wrong value, and a proxy's page may be large.
        raise MessageError("answer to a Binding: is no Status of Success") from error
