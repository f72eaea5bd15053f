"""The board: a live copy of all pods, for waits and expectations, with a listener of changes.

Knows the states of pods; knows no scenario. A watch of the API server feeds the board.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpushare.wire.annotations import ALIYUN, strict_number
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.informer import Informer
from gpushare_localcluster.pod_status import asked_units, granted_devices

Json = dict[str, Any]

_LONGEST_REASON = 160
_MOST_REASONS = 3
_OF_CLAIMS = ("no new claims to deallocate", "still not schedulable")
"""Remarks of kube-scheduler before the part about preemption."""
_GATHER_SECONDS = 0.02


@dataclass(frozen=True)
class PodState:
    """A pod as scenarios see it. reason: why the pod is pending, "" for other pods."""

    name: str
    node: str
    devices: tuple[int, ...]
    units: int
    gpu_count: int
    phase: str
    reason: str
    raw: Json

    @property
    def why(self) -> str:
        """The reason without the part about preemption, shortened."""
        text = self.reason.partition(" preemption: ")[0]
        for remark in _OF_CLAIMS:
            text = text.removesuffix(f" {remark},")
        return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."

    @property
    def ended(self) -> bool:
        """Whether the pod has succeeded or failed."""
        return self.phase in ("Succeeded", "Failed")


PodListener = Callable[[PodState | None, PodState | None], None]


def read_state(pod: Json) -> PodState:
    """Return the state of a raw pod."""
    meta: Json = pod["metadata"]
    status: Json = pod.get("status") or {}
    node = str(pod["spec"].get("nodeName") or "")
    annotations = meta.get("annotations") or {}
    count = strict_number(str(annotations.get(ALIYUN.count, "1")))
    waits = [
        condition
        for condition in status.get("conditions") or ()
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False")
    ]
    return PodState(
        name=str(meta["name"]),
        node=node,
        devices=granted_devices(pod) if node else (),
        units=asked_units(pod),
        gpu_count=count or 1,
        phase=str(status.get("phase", "")),
        reason=str(waits[0].get("message", "")) if waits and not node else "",
        raw=pod,
    )


def told_of(pods: Iterable[PodState]) -> str:
    """Return the scheduler's reasons for pending pods as the end of a sentence, "" for none."""
    lines = [f"{pod.name} waits: {pod.why}" for pod in pods if pod.reason]
    more = f"; and {len(lines) - _MOST_REASONS} more wait" if len(lines) > _MOST_REASONS else ""
    return "".join(f"; {text}" for text in lines[:_MOST_REASONS]) + more


class Board:
    """All current pods, by name (in the default namespace) or namespace/name."""

    def __init__(self, api: ApiClient, listener: PodListener) -> None:
        self._listener = listener
        self._changed = threading.Condition()
        self._pods: dict[str, PodState] = {}
        self._informer = Informer(api, "/api/v1/pods", self._on_pod)

    def start(self) -> None:
        """Start the watch."""
        self._informer.start()

    def stop(self) -> None:
        """End the watch."""
        self._informer.stop()

    def pods(self) -> dict[str, PodState]:
        """Return the pods by name."""
        with self._changed:
            return dict(self._pods)

    def wait_until(self, true: Callable[[dict[str, PodState]], bool], timeout: float) -> bool:
        """Wait for the condition; return whether it became true within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                if true(self._pods):
                    return True
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            # Changes come in bursts, and each check reads all pods.
            time.sleep(_GATHER_SECONDS)

    def _on_pod(self, before: Json | None, after: Json | None) -> None:
        old = None if before is None else read_state(before)
        new = None if after is None else read_state(after)
        # The listener comes first, so that output of waiting threads follows its line.
        self._listener(old, new)
        with self._changed:
            if new is not None:
                self._pods[_key(new)] = new
            elif old is not None:
                self._pods.pop(_key(old), None)
            self._changed.notify_all()


def _key(pod: PodState) -> str:
    namespace = pod.raw["metadata"].get("namespace", "default")
    return pod.name if namespace == "default" else f"{namespace}/{pod.name}"
