"""What is read of the API server for moves: only of pods whose owners consent, never all of them.

Tested in `tests/unit/extender/moves/test_mover.py`.
"""

from collections.abc import Mapping
from typing import TypeVar

from gpushare.core.model import PodRef
from gpushare.errors import ApiNotFound
from gpushare.explain.defrag import LABEL, ListedRules
from gpushare.extender.moves.steps import Heir
from gpushare.kube.api import Calls, pages
from gpushare.wire.budgets import read_budget
from gpushare.wire.codec import Codec
from gpushare.wire.moves import may_succeed, pod_path
from gpushare.wire.objects import BUDGETS, NAMESPACES, OWNED_PODS, Metadata, OwnedPod, Owner
from gpushare.wire.pods import controller_of, has_ended

TIMEOUT = 10.0
_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
_OF_ONE_OWNER = ("statefulset.kubernetes.io/pod-name", "pod-template-hash")
"""Labels by which controllers tell their pods apart: they keep a list short."""

_T = TypeVar("_T")


class MoveReads:
    """Reads of one API server. Each may raise ApiError, and MessageError for an unreadable page."""

    def __init__(self, api: Calls) -> None:
        self._api = api

    def rules(self, now: float) -> ListedRules:
        """Return which pods may be moved. now: seconds since the epoch."""
        namespaces: dict[str, Mapping[str, str]] = {}
        for namespace in self._all("/api/v1/namespaces", NAMESPACES):
            metadata = namespace.metadata or Metadata()
            namespaces[metadata.name or ""] = metadata.labels or {}
        budgets = [
            read_budget(
                (budget.metadata and budget.metadata.namespace) or "", budget.spec, budget.status
            )
            for budget in self._all("/apis/policy/v1/poddisruptionbudgets", BUDGETS)
        ]
        pods = self._pods("/api/v1/pods", f"{LABEL}=true")
        for name, labels in namespaces.items():
            if labels.get(LABEL) == "true":
                pods |= self._pods(f"/api/v1/namespaces/{name}/pods", "")
        return ListedRules(pods, namespaces, budgets, now)

    def pod(self, ref: PodRef) -> OwnedPod | None:
        """Return the pod; None if it is gone, or another one has its name."""
        try:
            body = self._api.request("GET", pod_path(ref), timeout=TIMEOUT)
        except ApiNotFound:
            return None
        pod = OWNED_PODS.decode_answer(body, ref.namespace, ref.name)
        return pod if (pod.metadata and pod.metadata.uid) == ref.uid else None

    def of_owner(self, pod: OwnedPod) -> dict[str, OwnedPod]:
        """Return the pods of its namespace that its controller may have made, by uid."""
        metadata = pod.metadata or Metadata()
        labels = metadata.labels or {}
        key = next((key for key in _OF_ONE_OWNER if key in labels), "")
        path = f"/api/v1/namespaces/{metadata.namespace}/pods"
        return self._pods(path, f"{key}={labels[key]}" if key else "")

    def _pods(self, path: str, labels: str) -> dict[str, OwnedPod]:
        query = {"fieldSelector": _NOT_ENDED} | ({"labelSelector": labels} if labels else {})
        pods = self._all(path, OWNED_PODS, query)
        return {(pod.metadata and pod.metadata.uid) or "": pod for pod in pods}

    def _all(self, path: str, codec: Codec[_T], query: Mapping[str, str] | None = None) -> list[_T]:
        decoded = pages(self._api, path, codec.decode_list, query, timeout=TIMEOUT)
        return [item for page in decoded for item in page.items]


def is_going(pod: OwnedPod | None) -> bool:
    """Return whether the pod is gone, has ended, or is being deleted."""
    if pod is None or has_ended(pod):
        return True
    return bool(pod.metadata and pod.metadata.deletion_timestamp)


def node_of(pod: OwnedPod) -> str:
    """Return its node, or ""."""
    return (pod.spec and pod.spec.node_name) or ""


def heir_of(old: OwnedPod, before: frozenset[str], pods: Mapping[str, OwnedPod]) -> Heir | None:
    """Return the pod that has come in place of the old one, the one with a node first.

    before: the uids that were there before the old one was evicted.
    """
    owner, name = controller_of(old) or Owner(), (old.metadata and old.metadata.name) or ""
    heirs: list[Heir] = []
    for uid, pod in pods.items():
        metadata = pod.metadata or Metadata()
        if uid in before or is_going(pod) or not may_succeed(pod, owner, name):
            continue
        running = (pod.status and pod.status.phase) == "Running"
        heirs.append(Heir(f"{metadata.namespace}/{metadata.name}", node_of(pod), running))
    return max(heirs, key=lambda heir: (heir.running, bool(heir.node)), default=None)
