"""Pods that wait at Permit: assumed on a node, reserved, and not bound yet.

Plug-ins get waiting pods by `handle.waiting_pods` and allow or reject them. A pod is allowed after
every waiting plug-in has allowed it; the first rejection or time-out ends the wait.
"""

import threading
import time
from collections.abc import Iterator, Mapping

from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Status
from gpushare_localcluster.scheduler.objects import PodView

LONGEST_WAIT = 15 * 60.0
"""Upper bound on the wait of a plug-in, in seconds."""


class WaitingPod:
    """One waiting pod. waits: seconds until the time-out, by plug-in."""

    def __init__(self, pod: PodView, node_name: str, waits: Mapping[str, float]) -> None:
        self.pod = pod
        self.node_name = node_name
        self._changed = threading.Condition()
        self._pending = {name: min(longest, LONGEST_WAIT) for name, longest in waits.items()}
        self._answer: Status | None = None

    def allow(self, plugin: str) -> None:
        """Allow the binding on behalf of the plug-in."""
        with self._changed:
            self._pending.pop(plugin, None)
            if not self._pending:
                self._end(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """Reject the binding on behalf of the plug-in."""
        with self._changed:
            self._end(Status(Code.UNSCHEDULABLE, (message,), plugin))

    def wait(self) -> Status:
        """Wait for the result, and return it."""
        begun = time.monotonic()
        with self._changed:
            while self._answer is None:
                plugin, longest = min(self._pending.items(), key=lambda item: item[1])
                remaining = begun + longest - time.monotonic()
                if remaining <= 0:
                    text = f"rejected due to timeout after waiting {longest:g}s at plugin {plugin}"
                    self._end(Status(Code.UNSCHEDULABLE, (text,), plugin))
                else:
                    self._changed.wait(remaining)
            return self._answer

    def _end(self, answer: Status) -> None:
        if self._answer is None:
            self._answer = answer
            self._changed.notify_all()


class WaitingPods:
    """All waiting pods, by UID."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, WaitingPod] = {}

    def add(self, pod: WaitingPod) -> None:
        """Add a waiting pod."""
        with self._lock:
            self._pods[pod.pod.uid] = pod

    def remove(self, uid: str) -> None:
        """Remove a pod after its wait."""
        with self._lock:
            self._pods.pop(uid, None)

    def get(self, uid: str) -> WaitingPod | None:
        """Return the waiting pod of that UID, or None."""
        with self._lock:
            return self._pods.get(uid)

    def __iter__(self) -> Iterator[WaitingPod]:
        """Iterate over the current waiting pods."""
        with self._lock:
            return iter(tuple(self._pods.values()))
