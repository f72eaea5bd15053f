"""What the kubelet reports of a pod: the status of each phase of its life, and its logs.

Pure: documents in, documents out; times are RFC 3339 texts handed in.
"""

from collections.abc import Mapping
from typing import Any

from gpushare.localcluster.grants import container_units, granted_devices

Json = dict[str, Any]


def pod_name(item: Json) -> str:
    """Return `namespace/name`, or the name alone of what has no namespace."""
    meta = item["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


def container_log(pod: Json, container: Json, told: Mapping[str, str]) -> str:
    """Return what a container prints when it starts: which devices it was given.

    told: the variables of its device plug-in, where there is one.
    """
    node, units = pod["spec"].get("nodeName"), container_units(container)
    lines = [f"container {container['name']} of pod {pod_name(pod)} started on node {node}"]
    devices = ",".join(str(index) for index in granted_devices(pod))
    lines += [f"{name}={value}" for name, value in sorted(told.items())]
    if units and devices and not told:
        lines.append(f"NVIDIA_VISIBLE_DEVICES={devices}")
    if units and devices:
        lines.append(f"{units} units of device memory on device {devices}")
    else:
        lines.append("no device was given to this container")
    return "\n".join(lines) + "\n"


def running_status(pod: Json, address: str, now: str) -> Json:
    """Return the status of a pod whose containers have all started at `now`."""
    return {
        "phase": "Running",
        "startTime": now,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": _conditions(now, ready="True"),
        "containerStatuses": [
            _container_status(item, {"running": {"startedAt": now}}, running=True)
            for item in pod["spec"].get("containers") or ()
        ],
    }


def succeeded_status(pod: Json, started: str, now: str) -> Json:
    """Return the status of a pod whose containers have all ended well at `now`."""
    state = {
        "terminated": {
            "exitCode": 0,
            "reason": "Completed",
            "startedAt": started,
            "finishedAt": now,
        }
    }
    return {
        "phase": "Succeeded",
        "conditions": _conditions(now, ready="False", reason="PodCompleted"),
        "containerStatuses": [
            _container_status(item, state, running=False)
            for item in pod["spec"].get("containers") or ()
        ],
    }


def failed_status(reason: str, message: str, now: str) -> Json:
    """Return the status of a pod that its node refused."""
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


def _container_status(container: Json, state: Json, *, running: bool) -> Json:
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
