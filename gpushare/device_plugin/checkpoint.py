"""The kubelet's own record of which container has which device ids, and what it was told for them.

Pure. A private format of the kubelet (k8s.io/kubernetes pkg/kubelet/cm/devicemanager/checkpoint),
which has been the same since 1.20: JSON, answers of Allocate in it as the bytes of their message.
Unlike its API, it has the pods' uids and plain init containers.

Tested in `tests/unit/device_plugin/test_start_check.py`.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare.errors import MessageError

FILE = "kubelet_internal_checkpoint"
"""Its name in the folder of device plug-ins."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A container of a pod, its ids, and the ContainerAllocateResponse that it was given."""

    uid: str
    container: str
    ids: frozenset[str]
    response: bytes


def entries(text: bytes, resource: str) -> tuple[CheckpointEntry, ...]:
    """Return the entries of a resource. Raises MessageError if the text is no checkpoint."""
    try:
        document: Any = json.loads(text)
        listed = document["Data"]["PodDeviceEntries"] or ()
        return tuple(_entries(listed, resource))
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise MessageError(f"{FILE}: {type(error).__name__}: {error}") from error


def _entries(listed: Any, resource: str) -> Iterator[CheckpointEntry]:  # noqa: ANN401 -- parsed JSON
    for item in listed:
        if item["ResourceName"] != resource:
            continue
        ids = item["DeviceIDs"] or {}
        # By NUMA node; a list alone before 1.20.
        groups = ids.values() if isinstance(ids, dict) else (ids,)
        yield CheckpointEntry(
            str(item["PodUID"]),
            str(item["ContainerName"]),
            frozenset(str(device) for group in groups for device in group),
            base64.b64decode(item.get("AllocResp") or ""),
        )
