"""CycleState: values that plug-ins store during one scheduling cycle of one pod.

A value with a method `clone` is copied with the state (preemption works on copies); other values
are shared by the copies and must not be changed.
"""

from collections.abc import Mapping
from typing import Protocol, TypeVar, runtime_checkable

from gpushare_localcluster.scheduler.objects import PodView

_T = TypeVar("_T")


@runtime_checkable
class StateData(Protocol):
    """A value that is copied with the state."""

    def clone(self) -> object:
        """Return an independent copy."""


class CycleState:
    """Values by key, and the results of the extension points so far.

    skip_filter, skip_score: the plug-ins that returned Skip. waits: the plug-ins that delay the
    binding, with the longest wait in seconds. pods_to_activate: other pods, by UID, that a plug-in
    asks to try at once: after this pod's scheduling cycle, and again after its binding cycle.

    Copies share this dict.
    """

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self.pods_to_activate: dict[str, PodView] = {}
        self.skip_filter: frozenset[str] = frozenset()
        self.skip_score: frozenset[str] = frozenset()
        self.waits: Mapping[str, float] = {}

    def write(self, key: str, value: object) -> None:
        """Store a value under a key, replacing the old one."""
        self._values[key] = value

    def read(self, key: str, kind: type[_T]) -> _T:
        """Return the value of this type under a key. Raises KeyError."""
        value = self._values.get(key)
        if not isinstance(value, kind):
            raise KeyError(f"{key}: no {kind.__name__} in the cycle's state")
        return value

    def find(self, key: str, kind: type[_T]) -> _T | None:
        """Return the value of this type under a key, or None."""
        value = self._values.get(key)
        return value if isinstance(value, kind) else None

    def delete(self, key: str) -> None:
        """Remove a key."""
        self._values.pop(key, None)

    def clone(self) -> "CycleState":
        """Return a copy of the state with cloned values."""
        copy = CycleState()
        copy._values = {
            key: value.clone() if isinstance(value, StateData) else value
            for key, value in self._values.items()
        }
        copy.pods_to_activate = self.pods_to_activate
        copy.skip_filter, copy.skip_score = self.skip_filter, self.skip_score
        copy.waits = self.waits
        return copy
