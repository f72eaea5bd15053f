"""Work on pods beside the kubelet's questions: marks, a check for wrong devices, clearing.

Marks served pods ASSIGNED, and reports pods with wrong devices every 30 s. With an option, deletes
pods that the kubelet failed because the device plug-in was not there.

Knows the API server's calls. One more annotation is written: units on devices of no Binding, which
the extender then charges as well. The assume time, which the original writes again, stays as the
Binding has it: the time tells one Binding from another.

Tested in `tests/unit/device_plugin/test_marker.py` and `test_rejected_pods.py`.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from gpushare.daemon.loop import Loop
from gpushare.device_plugin.allocator import Allocator
from gpushare.device_plugin.identity import CheckpointEntry
from gpushare.device_plugin.node_pod import NodePod
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.server import SAYS
from gpushare.device_plugin.start_check import StartCheck, WrongDevices
from gpushare.errors import ApiError, ApiUnreachable, GpuShareError
from gpushare.kube.api import Api, merge_patch
from gpushare.logline import Line
from gpushare.wire.given_annotation import write_given
from gpushare.wire.pods import pod_path

log = logging.getLogger("gpushare.pods")

_TIMEOUT = 5.0
_REJECTED = "UnexpectedAdmissionError"
_RETRY = 2.0
_LONGEST_RETRY = 60.0
_FIRST_LOOK = 2.0
"""Seconds until the first look, and until the next one while the pods are not known."""
_ANOTHER = frozenset({404, 409, 422})
"""Statuses that mean that the pod is gone: a uid that is not the object's is 422, or 409."""


@dataclass(eq=False)
class Marker(Loop):
    """The thread. tell: called once for each container with wrong devices. clear: called with all
    pods before each look. look_too: called with the kubelet's record at each look; raises
    GpuShareError.
    """

    api: Api
    pods: Pods
    allocator: Allocator
    check: StartCheck
    _: KW_ONLY
    tell: Callable[[WrongDevices], None]
    clear: Callable[[Iterable[NodePod]], None] = lambda pods: None
    look_too: Callable[[Sequence[CheckpointEntry]], None] = lambda record: None
    interval: float = 30.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        super().__init__("marks", self.step, _RETRY, log=log, failed="pods not looked at")
        self._reported: set[tuple[str, str]] = set()
        self._marked: set[str] = set()
        self._look_at = self.clock() + _FIRST_LOOK
        self._mark_at = 0.0
        self._failures = 0
        self.wrong_containers = 0
        """Containers on record with other devices than those of the Binding."""

    def step(self) -> float:
        """Do the due steps; return the seconds to the next step, if no pod is served before.

        While marks fail, the pauses grow, however many pods are served meanwhile.
        """
        now = self.clock()
        if now >= self._look_at:
            is_synced = self.pods.listed
            self._look_at = now + (self.interval if is_synced else _FIRST_LOOK)
            if is_synced:
                self.look()
        if now >= self._mark_at:
            self._failures = self._failures + 1 if self.mark_all() else 0
            pause = _RETRY * 2 ** min(self._failures - 1, 8) if self._failures else 0.0
            self._mark_at = now + min(_LONGEST_RETRY, pause)
        due = min(self._look_at, self._mark_at) if self._failures else self._look_at
        return max(0.0, due - now)

    def look(self) -> None:
        """Compare the answers to containers with the Bindings of the pods."""
        pods = self.pods.now()[0].values()
        self.clear(pods)
        alive = {pod.ref.uid for pod in pods}
        self.allocator.forget(alive)
        self._marked &= alive
        try:
            record = self.check.record()
            wrongs = [wrong for entry in record if (wrong := self.check.wrong(entry))]
            self.look_too(record)
        except GpuShareError as error:
            log.warning(Line("not compared what containers have", error=error))
            return
        self.allocator.learn(entry for entry in record if entry.uid in alive)
        self.wrong_containers = len(wrongs)
        wrong_containers = {(wrong.pod.ref.uid, wrong.container) for wrong in wrongs}
        for wrong in wrongs:
            if (wrong.pod.ref.uid, wrong.container) not in self._reported:
                log.error(Line("wrong device", found=wrong))
                self.tell(wrong)
        self._reported = wrong_containers
        for pod, units_by_uuid in _beside(wrongs):
            try:
                self._annotate(pod, write_given(units_by_uuid, self.pods.names))
            except ApiError as error:
                log.warning(Line("not told what it was given", pod=pod.ref, error=error))
                if isinstance(error, ApiUnreachable):
                    break  # nor would the others be

    def mark_all(self) -> bool:
        """Mark all pods that are due; return whether one could not be marked now."""
        failed = False
        for pod in self.pods.now()[0].values():
            is_done = pod.ended or pod.assigned or pod.ref.uid in self._marked
            if is_done or not pod.gpu_containers or not self.allocator.complete(pod):
                continue
            try:
                self._annotate(pod, {self.pods.names.assigned: "true"})
                self._marked.add(pod.ref.uid)
            except ApiError as error:
                if error.refusal in _ANOTHER:
                    self._marked.add(pod.ref.uid)
                    continue
                failed = True
                log.warning(Line("pod not marked", pod=pod.ref, error=error))
                if isinstance(error, ApiUnreachable):
                    break  # nor would the others be
        return failed

    def _annotate(self, pod: NodePod, annotations: Mapping[str, str]) -> None:
        """Write annotations. Raises ApiError."""
        change = {"metadata": {"uid": pod.ref.uid, "annotations": annotations}}
        merge_patch(self.api, pod_path(pod.ref), json.dumps(change).encode(), _TIMEOUT)


def _beside(wrongs: Sequence[WrongDevices]) -> Iterator[tuple[NodePod, Mapping[str, int]]]:
    """Yield each pod with an outdated annotation, with the units by uuid to annotate."""
    held_units: dict[str, Counter[str]] = {}
    pods = {wrong.pod.ref.uid: wrong.pod for wrong in wrongs}
    for wrong in wrongs:
        held_units.setdefault(wrong.pod.ref.uid, Counter()).update(wrong.units_by_uuid)
    for uid, pod in pods.items():
        annotated = Counter(dict(pod.extra_devices))
        # A container takes over the units of an init container.
        current_units = Counter(
            {card: min(units, pod.total or units) for card, units in held_units[uid].items()}
        )
        if current_units | annotated != annotated:
            yield pod, current_units | annotated  # of each the larger number


@dataclass(slots=True, eq=False)
class RejectedPods:
    """Deletes pods that the kubelet failed because the device plug-in was not there.

    resource: the kubelet's message names the resource without a plug-in; a pod that another device
    plug-in failed stays. Only with an option, so that nobody has to clean up after a reboot.
    Deletes only pods of a controller, which has created new pods; never a pod that this plug-in
    refused: the status of that pod has the reason. Each pod that has ended is read once.
    """

    api: Api
    resource: str
    _checked_uids: set[str] = field(default_factory=set)

    def clear(self, pods: Iterable[NodePod]) -> None:
        """Delete the rejected pods. A failed request is tried again next time."""
        ended = {pod.ref.uid: pod for pod in pods if pod.ended and pod.gpu_containers}
        self._checked_uids &= ended.keys()
        for uid, pod in ended.items():
            if uid not in self._checked_uids:
                try:
                    self._look(pod)
                    self._checked_uids.add(uid)
                except (ApiError, ValueError) as error:
                    log.warning(Line("rejected pod not looked at", pod=pod.ref, error=error))
                    if isinstance(error, ApiUnreachable):
                        break  # nor would the others be

    def _look(self, pod: NodePod) -> None:
        """Delete the pod if the uid is the same, a controller owns the pod, and the pod failed
        without a plug-in.
        """
        path = pod_path(pod.ref)
        document: Any = json.loads(self.api.request("GET", path, timeout=_TIMEOUT))
        if not isinstance(document, dict):
            return
        metadata, status = document.get("metadata") or {}, document.get("status") or {}
        owners, message = metadata.get("ownerReferences") or (), str(status.get("message"))
        if (
            metadata.get("uid") == pod.ref.uid
            and status.get("phase") == "Failed"
            and status.get("reason") == _REJECTED
            and self.resource in message
            and SAYS not in message
            and any(owner.get("controller") for owner in owners)
        ):
            preconditions = {"uid": pod.ref.uid}
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
            self.api.request("DELETE", path, body=json.dumps(options).encode(), timeout=_TIMEOUT)
            log.info(Line("deleted, as no device plug-in was there for it", pod=pod.ref))
