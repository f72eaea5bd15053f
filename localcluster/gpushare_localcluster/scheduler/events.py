"""What the scheduler tells the user: Events, and the PodScheduled condition of a waiting pod.

Writes both in kube-scheduler's own form (core/v1 events; a strategic merge patch of one condition,
only when it says something new). Errors are logged, never raised: a lost event must not stop
scheduling.
"""

import logging
from concurrent.futures import ThreadPoolExecutor

from gpushare.errors import ApiError
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.event_writer import write_event
from gpushare_localcluster.scheduler.objects import Json, PodView

log = logging.getLogger(__name__)

_LONGEST_NOTE = 1024


class EventRecorder:
    """Writes events one after another in a thread of its own, as kube-scheduler's broadcaster."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="events")

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
        about = {"kind": "Pod", "apiVersion": "v1", "metadata": pod.raw["metadata"]}
        try:
            write_event(self._api, about, reason, message, kind=kind, component=pod.scheduler_name)
        except ApiError as error:
            log.info("event lost pod=%s reason=%s error=%s", pod.key, reason, error)


def write_nomination(api: ApiClient, pod: PodView, node: str) -> None:
    """Say by status.nominatedNodeName where a pod waits to be bound; "": it does not any more."""
    try:
        api.patch(f"{pod.path}/status", {"status": {"nominatedNodeName": node or None}})
    except ApiError as error:
        log.info("nomination not written pod=%s error=%s", pod.key, error)


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
