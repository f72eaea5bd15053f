"""Conditions of pods for the controllers: active, ready, available; the order of deletion."""

import math
from contextlib import suppress
from typing import Any

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import deleting, seconds_of, seconds_since


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
    """Return the seconds until a pod is available: 0 for an available pod, infinite for an unready
    one.
    """
    if not ready(pod):
        return math.inf
    min_ready_seconds = owner["spec"].get("minReadySeconds") or 0
    since = condition(pod, "Ready").get("lastTransitionTime")
    return (
        max(0.0, min_ready_seconds - seconds_since(since)) if min_ready_seconds and since else 0.0
    )


def counted(pods: list[Json], owner: Json) -> tuple[int, int, float | None]:
    """Return how many pods are ready, how many available, and the seconds until the next one is."""
    waits = [wait_until_available(pod, owner) for pod in pods]
    later = [wait for wait in waits if 0 < wait < math.inf]
    available = sum(1 for wait in waits if wait == 0)
    return sum(map(ready, pods)), available, min(later, default=None)


def first_to_go(pod: Json) -> tuple[Any, ...]:
    """Return the sort key for deletion: unassigned, pending, unready and cheap pods, then the
    newest.
    """
    costs = pod["metadata"].get("annotations") or {}
    cost = costs.get("controller.kubernetes.io/pod-deletion-cost", "0")
    age = -seconds_of(pod["metadata"]["creationTimestamp"])
    return bool(pod["spec"].get("nodeName")), phase(pod) == "Running", ready(pod), _int(cost), age


def _int(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    return 0
