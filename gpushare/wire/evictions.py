"""The eviction of one pod, and which pod its controller makes in its stead.

Tested in `tests/unit/cli/test_defrag_apply.py` and `tests/unit/extender/moves/test_mover.py`.
"""

from typing import Any

from gpushare.core.model import PodRef
from gpushare.wire.objects import Metadata, Owner, Pod
from gpushare.wire.pods import controller_of


def pod_path(ref: PodRef) -> str:
    """Return the path of a pod; `/eviction` after it takes an eviction."""
    return f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"


def eviction(ref: PodRef, version: str) -> dict[str, Any]:
    """Return the object that evicts this pod as it was read, in that version, and no other one."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "deleteOptions": {"preconditions": {"uid": ref.uid, "resourceVersion": version}},
    }


def may_succeed(pod: Pod, owner: Owner, name: str) -> bool:
    """Return whether the owner may have made the pod in the stead of its pod of that name."""
    if owner.kind == "StatefulSet" and (pod.metadata or Metadata()).name != name:
        return False
    return (controller_of(pod) or Owner()).uid == owner.uid
