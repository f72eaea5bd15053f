"""The devices of a bound pod, by its annotations: for logs, reports and expectations.

Reads the annotations of the extender. A malformed annotation is no grant.
"""

import json
from typing import Any

from gpushare.errors import QuantityError, WireError
from gpushare.wire.annotations import ALIYUN, placement, strict_number
from gpushare.wire.objects import PODS
from gpushare.wire.pods import request_of
from gpushare.wire.quantity import to_units

Json = dict[str, Any]


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
    """Return the units of device memory in one container's limits, 0 for a missing or malformed
    limit.
    """
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
