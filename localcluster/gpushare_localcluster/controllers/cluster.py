"""The API server for the controllers: lists, adoption, writes, events; and conditions of pods.

Every reconcile lists objects anew, so that no stale cache makes a controller create an object
twice. Facts: k8s.io/kubernetes pkg/controller (controller_utils.go, controller_ref_manager.go).
"""

import hashlib
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.wire.label_selectors import selects
from gpushare_localcluster.api.objects import timestamp
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json, write_event

ROOTS = {
    "Deployment": "/apis/apps/v1",
    "Job": "/apis/batch/v1",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1",
    "Lease": "/apis/coordination.k8s.io/v1",
    "Node": "/api/v1",
    "Pod": "/api/v1",
    "ReplicaSet": "/apis/apps/v1",
    "ResourceClaim": "/apis/resource.k8s.io/v1",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1",
    "StatefulSet": "/apis/apps/v1",
}
"""The kinds of the controllers, and the paths of their API versions."""

RETRY = 1.0
"""Seconds until a refused or failed pod is created again."""

_SAFE = str.maketrans("0123456789abcdef", "456789bcdfghjklm")


class Cluster:
    """Reads and writes of the controllers through the API server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def items(self, kind: str, namespace: str = "") -> list[Json]:
        """Return the objects of a kind, in all namespaces for ""."""
        items: list[Json] = self._api.get(path(kind, namespace)).get("items") or []
        return [{**item, "kind": kind} for item in items]

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """Return one object, None for a deleted one."""
        with suppress(ApiNotFound):
            return {**self._api.get(path(kind, namespace, name)), "kind": kind}
        return None

    def claimed(
        self, owner: Json, kind: str, fits: Callable[[Json], bool] = lambda _: True
    ) -> list[Json]:
        """Return the owner's objects of a kind, oldest first.

        An object that `fits`, matches the selector and has no controller is adopted; an owned
        object that no longer matches is released.
        """
        meta = owner["metadata"]
        selector = owner["spec"].get("selector") or {}
        claimed_items = []
        for item in self.items(kind, meta["namespace"]):
            controller = controller_of(item)
            chosen = selects(selector, item["metadata"].get("labels") or {})
            if controller and controller["uid"] == meta["uid"]:
                if chosen:
                    claimed_items.append(item)
                else:
                    self.disown(item, meta["uid"])
            elif chosen and not controller and not deleting(item) and fits(item):
                references = [*(item["metadata"].get("ownerReferences") or ()), reference(owner)]
                claimed_items.append(
                    self.patch(item, {"metadata": {"ownerReferences": references}})
                )
        return sorted(
            claimed_items, key=lambda item: (item["metadata"]["creationTimestamp"], name(item))
        )

    def owned(self, owner: Json, kind: str) -> list[Json]:
        """Return the objects of a kind that the owner controls, with any labels."""
        meta = owner["metadata"]
        return [
            item
            for item in self.items(kind, meta["namespace"])
            if (controller_of(item) or {}).get("uid") == meta["uid"]
        ]

    def create(self, kind: str, owner: Json, body: Json) -> Json:
        """Return the new object of an owner."""
        meta = {**body["metadata"], "ownerReferences": [reference(owner)]}
        created = self._api.create(
            path(kind, owner["metadata"]["namespace"]), {**body, "metadata": meta}
        )
        return {**created, "kind": kind}

    def create_pod(self, owner: Json, template: Json, **meta: object) -> bool:
        """Create a pod from a template; after a refusal, write an event and return False."""
        template_meta = template.get("metadata") or {}
        fields = {"labels", "annotations"} & template_meta.keys()
        merged: Json = {field: template_meta[field] for field in fields}
        for field, value in meta.items():
            merged[field] = {**merged.get(field, {}), **value} if isinstance(value, dict) else value
        merged.setdefault("generateName", f"{name(owner)}-")
        try:
            pod = self.create("Pod", owner, {"metadata": merged, "spec": template["spec"]})
        except ApiError as error:
            self.tell(owner, "FailedCreate", f"Error creating: {error}", kind="Warning")
            return False
        self.tell(owner, "SuccessfulCreate", f"Created pod: {name(pod)}")
        return True

    def delete(self, item: Json, policy: str = "Background") -> None:
        """Delete this object, but no new one of the same name."""
        meta = item["metadata"]
        item_path = path(item["kind"], meta.get("namespace", ""), meta["name"])
        with suppress(ApiNotFound, ApiConflict):
            self._api.delete(item_path, uid=meta["uid"], propagation=policy)

    def delete_pod(self, owner: Json, pod: Json) -> None:
        """Delete a pod and write an event."""
        self.delete(pod)
        self.tell(owner, "SuccessfulDelete", f"Deleted pod: {name(pod)}")

    def patch(self, item: Json, change: Json, below: str = "") -> Json:
        """Return the object after a merge patch; a new object of the same name is not patched."""
        meta = item["metadata"]
        change = {**change, "metadata": {**change.get("metadata", {}), "uid": meta["uid"]}}
        item_path = path(item["kind"], meta.get("namespace", ""), meta["name"]) + below
        return {**self._api.patch(item_path, change, MERGE_PATCH), "kind": item["kind"]}

    def disown(self, item: Json, uid: str) -> None:
        """Remove the references to one owner."""
        references = item["metadata"].get("ownerReferences") or ()
        remaining = [reference for reference in references if reference["uid"] != uid]
        self.patch(item, {"metadata": {"ownerReferences": remaining or None}})

    def set_status(self, item: Json, status: Json) -> None:
        """Write the status if it differs; None removes a field."""
        before = item.get("status") or {}
        if item["kind"] != "Job":
            status = {**status, "observedGeneration": item["metadata"]["generation"]}
        if any(before.get(field) != value for field, value in status.items()):
            self.patch(item, {"status": status}, "/status")

    def tell(self, about: Json, reason: str, message: str, *, kind: str = "Normal") -> None:
        """Write an event about an object, or increase the count of an equal one."""
        about = {**about, "apiVersion": _api_version(about["kind"])}
        component = f"{about['kind'].lower()}-controller"
        write_event(self._api, about, reason, message, kind=kind, component=component)


def path(kind: str, namespace: str = "", name: str = "") -> str:
    """Return the path of an object or a list of them."""
    home = f"/namespaces/{namespace}" if namespace else ""
    return f"{ROOTS.get(kind, '/api/v1')}{home}/{kind.lower()}s/{name}".rstrip("/")


def _api_version(kind: str) -> str:
    return ROOTS[kind].split("/", 2)[2]


def name(item: Json) -> str:
    """Return the name of an object."""
    return str(item["metadata"]["name"])


def deleting(item: Json) -> bool:
    """Return whether the object is marked for deletion."""
    return bool(item["metadata"].get("deletionTimestamp"))


def reference(owner: Json) -> Json:
    """Return the owner reference of a controller."""
    meta = owner["metadata"]
    return {
        "apiVersion": _api_version(owner["kind"]),
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(item: Json) -> Json | None:
    """Return the reference to the object's controller."""
    references: list[Json] = item["metadata"].get("ownerReferences") or []
    return next((reference for reference in references if reference.get("controller")), None)


def hashed(value: object) -> str:
    """Return a short hash of a pod template or the like, fit for names."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return digest[:10].translate(_SAFE)


def share(limit: int | str | None, of: int, *, up: bool) -> int:
    """Return a number that is given as such or as a percentage."""
    if not isinstance(limit, str):
        return limit or 0
    part = float(limit.rstrip("%")) * of / 100
    return math.ceil(part) if up else math.floor(part)


def seconds_of(moment: str) -> float:
    """Return a time of an object in seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()


def seconds_since(moment: str) -> float:
    """Return the seconds since a time of an object."""
    return datetime.now(UTC).timestamp() - seconds_of(moment)


def with_condition(
    conditions: list[Json], kind: str, status: str, reason: str, message: str
) -> list[Json]:
    """Return the conditions with one set; the times of an unchanged condition stay."""
    now = timestamp()
    new = {"type": kind, "status": status, "reason": reason, "message": message}
    old = next((condition for condition in conditions if condition["type"] == kind), {})
    if all(old.get(field) == value for field, value in new.items()):
        return conditions
    transition_time = old.get("lastTransitionTime", now) if old.get("status") == status else now
    new |= {"lastUpdateTime": now, "lastTransitionTime": transition_time}
    return [*(condition for condition in conditions if condition["type"] != kind), new]


def phase(pod: Json) -> str:
    """Return the phase of a pod."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def active(pod: Json) -> bool:
    """Return whether a pod is active: neither ended nor terminating."""
    return phase(pod) not in ("Succeeded", "Failed") and not deleting(pod)


def condition(item: Json, kind: str) -> Json:
    """Return a condition of an object, {} for a missing one."""
    conditions: list[Json] = (item.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == kind), {})


def ready(pod: Json) -> bool:
    """Return whether a pod is ready."""
    return condition(pod, "Ready").get("status") == "True"


def wait_until_available(pod: Json, owner: Json) -> float:
    """Return the seconds until a pod is available: 0 if it is, infinite if it is not ready."""
    if not ready(pod):
        return math.inf
    min_ready_seconds = owner["spec"].get("minReadySeconds") or 0
    since = condition(pod, "Ready").get("lastTransitionTime")
    if not min_ready_seconds or not since:
        return 0.0
    return max(0.0, min_ready_seconds - seconds_since(since))


def counted(pods: list[Json], owner: Json) -> tuple[int, int, float | None]:
    """Return how many pods are ready, how many available, and the seconds until the next one is."""
    waits = [wait_until_available(pod, owner) for pod in pods]
    later = [wait for wait in waits if 0 < wait < math.inf]
    available = sum(1 for wait in waits if wait == 0)
    return sum(map(ready, pods)), available, min(later, default=None)


def first_to_go(pod: Json) -> tuple[Any, ...]:
    """Return the sort key for deletion: unassigned, pending, unready, cheap, then new pods."""
    costs = pod["metadata"].get("annotations") or {}
    cost_text = costs.get("controller.kubernetes.io/pod-deletion-cost", "0")
    cost = int(cost_text) if re.fullmatch("[+-]?[0-9]{1,10}", cost_text) else 0
    age = -seconds_of(pod["metadata"]["creationTimestamp"])
    return bool(pod["spec"].get("nodeName")), phase(pod) == "Running", ready(pod), cost, age
