"""Events of the scheduler, and the PodScheduled condition of pending pods.

Writes both in the form of kube-scheduler (core/v1 events; a strategic merge patch of one condition,
only with new content). Errors are logged, never raised: a lost event must not stop scheduling.
"""

import logging
from concurrent.futures import ThreadPoolExecutor

from gpushare.errors import ApiError
from gpushare_localcluster.api.objects import timestamp
from gpushare_localcluster.client import ApiClient, write_event
from gpushare_localcluster.scheduler.objects import Json, PodView

log = logging.getLogger(__name__)

_LONGEST_NOTE = 1024


class EventRecorder:
    """Writes events one after another in its own thread, like kube-scheduler's broadcaster."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="events")

    def scheduled(self, pod: PodView, node_name: str) -> None:
        """Write that the pod was bound."""
        self._submit(pod, "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node_name}")

    def failed(self, pod: PodView, message: str) -> None:
        """Write why the pod is pending."""
        self._submit(pod, "Warning", "FailedScheduling", message)

    def preempted(self, victim: PodView, message: str) -> None:
        """Write that the pod was evicted for another one."""
        self._submit(victim, "Normal", "Preempted", message)

    def close(self) -> None:
        """Finish the running write, then end the thread."""
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
    """Write status.nominatedNodeName of a pod; "" removes the nomination."""
    try:
        api.patch(f"{pod.path}/status", {"status": {"nominatedNodeName": node or None}})
    except ApiError as error:
        log.info("nomination not written pod=%s error=%s", pod.key, error)


def write_condition(api: ApiClient, pod: PodView, reason: str, message: str) -> None:
    """Set PodScheduled=False with the reason, unless the condition is the same already."""
    status: Json = pod.raw.get("status") or {}
    conditions = status.get("conditions") or ()
    old: Json = next((c for c in conditions if c.get("type") == "PodScheduled"), {})
    if (old.get("status"), old.get("reason"), old.get("message")) == ("False", reason, message):
        return
    # Only a change from True (or nothing) to False is a transition, not a new reason.
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
