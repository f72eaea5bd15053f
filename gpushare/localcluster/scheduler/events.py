"""What the scheduler tells the user: Events, and the PodScheduled condition of a waiting pod.

Writes both in kube-scheduler's own form (core/v1 events, repeats counted up by a patch; a strategic
merge patch of one condition, only when it says something new). Errors are logged, never raised: a
lost event must not stop scheduling.
"""

import itertools
import logging
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from gpushare.errors import ApiError
from gpushare.localcluster.api.records import timestamp
from gpushare.localcluster.client import MERGE_PATCH, ApiClient
from gpushare.localcluster.scheduler.objects import Json, PodView

log = logging.getLogger(__name__)

_LONGEST_NOTE = 1024
_REMEMBERED = 4096


class EventRecorder:
    """Writes events one after another in a thread of its own, as kube-scheduler's broadcaster."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="events")
        self._seen: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self._numbers = itertools.count(time.time_ns())

    def scheduled(self, pod: PodView, node_name: str) -> None:
        """Say that the pod was bound."""
        self._submit(pod, "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node_name}")

    def failed(self, pod: PodView, message: str) -> None:
        """Say why the pod still waits."""
        self._submit(pod, "Warning", "FailedScheduling", message)

    def preempted(self, victim: PodView, message: str) -> None:
        """Say that the pod was evicted for another."""
        self._submit(victim, "Normal", "Preempted", message)

    def close(self) -> None:
        """Write what is left, then end the thread."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _submit(self, pod: PodView, kind: str, reason: str, message: str) -> None:
        try:
            self._worker.submit(self._write, pod, kind, reason, message[:_LONGEST_NOTE])
        except RuntimeError:
            log.debug("event dropped while stopping pod=%s reason=%s", pod.key, reason)

    def _write(self, pod: PodView, kind: str, reason: str, message: str) -> None:
        try:
            self._create_or_count(pod, kind, reason, message)
        except ApiError as error:
            log.info("event lost pod=%s reason=%s error=%s", pod.key, reason, error)

    def _create_or_count(self, pod: PodView, kind: str, reason: str, message: str) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        now = timestamp()
        key = (pod.uid, reason, message)
        if key in self._seen:
            name, count = self._seen[key]
            self._seen[key] = (name, count + 1)
            change = {"count": count + 1, "lastTimestamp": now, "message": message}
            self._api.patch(f"{path}/{name}", change, MERGE_PATCH)
            return
        name = f"{pod.name}.{next(self._numbers):x}"
        self._api.create(
            path, _event(pod, name=name, kind=kind, reason=reason, message=message, now=now)
        )
        self._seen[key] = (name, 1)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)


def write_condition(api: ApiClient, pod: PodView, reason: str, message: str) -> None:
    """Set PodScheduled=False with the reason, unless the pod says exactly that already."""
    status: Json = pod.raw.get("status") or {}
    conditions = status.get("conditions") or ()
    old: Json = next((c for c in conditions if c.get("type") == "PodScheduled"), {})
    if (old.get("status"), old.get("reason"), old.get("message")) == ("False", reason, message):
        return
    # The transition is from True (or nothing) to False: a new reason alone is none.
    since = old["lastTransitionTime"] if old.get("status") == "False" else timestamp()
    condition = {
        "lastProbeTime": None,
        "lastTransitionTime": since,
        "message": message,
        "reason": reason,
        "status": "False",
        "type": "PodScheduled",
    }
    try:
        api.patch(f"{pod.path}/status", {"status": {"conditions": [condition]}})
    except ApiError as error:
        log.info("condition not written pod=%s error=%s", pod.key, error)


def _event(pod: PodView, *, name: str, kind: str, reason: str, message: str, now: str) -> Json:
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": pod.namespace},
        "involvedObject": {
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "apiVersion": "v1",
            "resourceVersion": pod.resource_version,
        },
        "reason": reason,
        "message": message,
        "source": {"component": pod.scheduler_name},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": kind,
        "eventTime": None,
        "reportingComponent": pod.scheduler_name,
        "reportingInstance": "",
    }
