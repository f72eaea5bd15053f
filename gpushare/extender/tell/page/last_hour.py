"""The pods allocated and refused in the last hour, each pod once, with its memory.

Knows no ledger and no HTTP, and nothing from before the start of this process.
"""

import threading
import time
from collections.abc import Callable, Mapping

_HOUR = 3600.0
_MOST = 100_000
"""Pods that are remembered of each kind; of more, the newest."""

_Pods = dict[tuple[str, str], tuple[float, int]]
"""By resource and uid: when, and units; the oldest first."""


class LastHour:
    """Pods that were bound, and pods that filter found no room for, within an hour.

    A pod that was refused first and bound later counts as both. Any thread may call. clock: seconds
    since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._allocated: _Pods = {}
        self._refused: _Pods = {}
        self.since = clock()
        """When this process began to count."""

    def allocated(self, resource: str, uid: str, units: int) -> None:
        """Count a pod that was bound."""
        self._note(self._allocated, (resource, uid), units)

    def refused(self, resource: str, uid: str, units: int) -> None:
        """Count a pod that fitted on no node; a pod counts once."""
        self._note(self._refused, (resource, uid), units)

    def figures(self, resource: str) -> Mapping[str, Mapping[str, int]]:
        """Return pods and units, allocated and refused, of that resource."""
        with self._lock:
            kinds = {"allocated": self._allocated, "refused": self._refused}
            for pods in kinds.values():
                _forget_old(pods, self._clock())
            units_of = {
                kind: [units for (of, _), (_, units) in pods.items() if of == resource]
                for kind, pods in kinds.items()
            }
        return {kind: {"pods": len(all_), "units": sum(all_)} for kind, all_ in units_of.items()}

    def _note(self, pods: _Pods, pod: tuple[str, str], units: int) -> None:
        with self._lock:
            now = self._clock()
            # Nobody may look at the page for days.
            _forget_old(pods, now)
            pods.setdefault(pod, (now, units))
            if len(pods) > _MOST:
                del pods[next(iter(pods))]


def _forget_old(pods: _Pods, now: float) -> None:
    while pods and next(iter(pods.values()))[0] < now - _HOUR:
        del pods[next(iter(pods))]
