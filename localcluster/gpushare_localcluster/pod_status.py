"""What the kubelet and reports say of a pod: its devices by annotations, its status, its logs.

Pure: documents in, documents out; times are RFC 3339 texts. A malformed annotation is no grant.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpushare.errors import QuantityError, WireError
from gpushare.wire.annotations import ALIYUN, placement, strict_number
from gpushare.wire.objects import PODS
from gpushare.wire.pods import request_of
from gpushare.wire.quantity import to_units

Json = dict[str, Any]


class AdmissionError(Exception):
    """The pod fails with UnexpectedAdmissionError."""


def granted(pod: Json) -> dict[int, int]:
    """Return the units of the pod by device index."""
    annotations = pod["metadata"].get("annotations") or {}
    try:
        request = request_of(PODS.decode(json.dumps(pod).encode()), ALIYUN)
    except WireError:
        return {}
    return dict(placement(annotations, request, ALIYUN) or ())


def granted_devices(pod: Json) -> tuple[int, ...]:
    """Return the device indices of the IDX annotation, () for a missing or malformed one."""
    text = str((pod["metadata"].get("annotations") or {}).get(ALIYUN.idx, ""))
    indices = [strict_number(part) for part in text.split(",")] if text else []
    valid = [index for index in indices if index is not None]
    return tuple(valid) if len(valid) == len(indices) else ()


def asked_units(pod: Json) -> int:
    """Return the units of device memory in the limits of all containers."""
    return sum(container_units(item) for item in pod["spec"].get("containers") or ())


def container_units(container: Json) -> int:
    """Return the units of device memory in one container's limits, 0 for no valid limit."""
    limits = (container.get("resources") or {}).get("limits") or {}
    try:
        return to_units(limits.get(ALIYUN.resource, "0"))
    except QuantityError:
        return 0


def containers(pod: Json) -> list[Json]:
    """Return the containers in the order of admission."""
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def is_plain_init(pod: Json, container: Json) -> bool:
    """Return whether the container is an init container and no sidecar."""
    inits = pod["spec"].get("initContainers") or ()
    return container in inits and container.get("restartPolicy") != "Always"


def pod_name(item: Json) -> str:
    """Return `namespace/name`, or the name of a cluster-wide object."""
    meta = item["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


def container_log(pod: Json, container: Json, variables: Mapping[str, str]) -> str:
    """Return the first log lines of a container, with the devices it was given.

    variables: those of the device plug-in, {} for none.

    As in a kubelet, a variable of the pod wins.
    """
    node, units = pod["spec"].get("nodeName"), container_units(container)
    lines = [f"container {container['name']} of pod {pod_name(pod)} started on node {node}"]
    devices = ",".join(str(index) for index in granted_devices(pod))
    if units and devices and not variables:
        variables = {"NVIDIA_VISIBLE_DEVICES": devices}
    for name, value in sorted(variables.items()):
        variable = next((item for item in container.get("env") or () if item["name"] == name), None)
        if variable is None:
            lines.append(f"{name}={value}")
        else:
            lines.append(
                f"{name}={variable.get('value', '')}  # set by the pod: it wins over {value}"
            )
    if units and devices:
        lines.append(f"{units} units of device memory on device {devices}")
    elif pod["spec"].get("resourceClaims"):
        lines.append("what its claims give is told by a DRA driver, and none runs here")
    else:
        lines.append("no device was given to this container")
    return "\n".join(lines) + "\n"


def running_status(pod: Json, address: str, now: str) -> Json:
    """Return the status of a pod with all containers started at `now`."""
    return {
        "phase": "Running",
        "startTime": now,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": _conditions(now, ready="True"),
        **_container_statuses(pod, {"running": {"startedAt": now}}, now, now),
    }


def succeeded_status(pod: Json, started: str, now: str) -> Json:
    """Return the status of a pod with all containers succeeded at `now`."""
    return {
        "phase": "Succeeded",
        "conditions": _conditions(now, ready="False", reason="PodCompleted"),
        **_container_statuses(pod, _ended(started, now), started, now),
    }


def failed_status(reason: str, message: str, now: str) -> Json:
    """Return the status of a pod that was refused by its node."""
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": now}


def _conditions(now: str, *, ready: str, reason: str | None = None) -> list[Json]:
    more = {} if reason is None else {"reason": reason}
    statuses = {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": ready,
        "ContainersReady": ready,
    }
    return [
        {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": now, **more}
        for kind, status in statuses.items()
    ]


def _container_statuses(pod: Json, state: Json, started: str, now: str) -> Json:
    """Return the statuses of containers; `state` is that of all but ended init containers."""
    states = [
        (item, _ended(started, now) if is_plain_init(pod, item) else state)
        for item in containers(pod)
    ]
    first = len(pod["spec"].get("initContainers") or ())
    statuses = [_container_status(*pair) for pair in states]
    fields = {"containerStatuses": statuses[first:]}
    return {**fields, "initContainerStatuses": statuses[:first]} if first else fields


def _ended(started: str, now: str) -> Json:
    state = {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": now}
    return {"terminated": state}


def _container_status(container: Json, state: Json) -> Json:
    running = "running" in state
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": running,
        "started": running,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }
