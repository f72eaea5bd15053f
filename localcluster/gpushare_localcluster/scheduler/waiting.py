"""Pods that Permit keeps waiting: assumed on their node, reserved, and not bound yet.

Plug-ins find them by `handle.waiting` and allow or reject them. A pod is allowed when every plug-in
that asked to wait has allowed it; the first rejection, or the first time-out, ends its wait.
"""

import threading
import time
from collections.abc import Iterator, Mapping

from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Status
from gpushare_localcluster.scheduler.objects import PodView

LONGEST_WAIT = 15 * 60.0
"""Seconds; a plug-in that asks for more gets this."""


class WaitingPod:
    """One pod that waits. `waits`: seconds, by plug-in, until its wait ends by itself."""

    def __init__(self, pod: PodView, node_name: str, waits: Mapping[str, float]) -> None:
        self.pod = pod
        self.node_name = node_name
        self._changed = threading.Condition()
        self._pending = {name: min(longest, LONGEST_WAIT) for name, longest in waits.items()}
        self._answer: Status | None = None

    @property
    def pending_plugins(self) -> list[str]:
        """The plug-ins that have not allowed it yet."""
        with self._changed:
            return list(self._pending)

    def allow(self, plugin: str) -> None:
        """Say that the plug-in has nothing against the binding any more."""
        with self._changed:
            self._pending.pop(plugin, None)
            if not self._pending:
                self._end(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """Say that the pod must not be bound now."""
        with self._changed:
            self._end(Status(Code.UNSCHEDULABLE, (message,), plugin))

    def wait(self) -> Status:
        """Wait for the answer, and return it."""
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
    """All pods that wait, by UID."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, WaitingPod] = {}

    def add(self, pod: WaitingPod) -> None:
        """Have a pod wait."""
        with self._lock:
            self._pods[pod.pod.uid] = pod

    def remove(self, uid: str) -> None:
        """Forget a pod whose wait has ended."""
        with self._lock:
            self._pods.pop(uid, None)

    def get(self, uid: str) -> WaitingPod | None:
        """Return the waiting pod of that UID, or None."""
        with self._lock:
            return self._pods.get(uid)

    def __iter__(self) -> Iterator[WaitingPod]:
        """Iterate over the pods that wait now."""
        with self._lock:
            return iter(tuple(self._pods.values()))
