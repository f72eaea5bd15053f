"""CycleState: what plug-ins write down in one scheduling cycle of one pod, for themselves.

A value that has a method `clone` is copied when the state is cloned (preemption tries things on
copies); any other value is shared by the copies, so it must not be changed after it was written.
"""

from collections.abc import Mapping
from typing import Protocol, TypeVar, runtime_checkable

from gpushare_localcluster.scheduler.objects import PodView

_T = TypeVar("_T")


@runtime_checkable
class StateData(Protocol):
    """A value that must be copied with its state."""

    def clone(self) -> object:
        """Return a copy that can be changed without changing this one."""


class CycleState:
    """Values by key, and how the pod fared at the points that have run.

    skip_filter, skip_score: the plug-ins that have nothing to do with this pod. waits: the plug-ins
    that have its binding wait, with the longest wait in seconds. pods_to_activate: other pods, by
    UID, that a plug-in wants tried at once: when this pod's scheduling cycle has succeeded, and
    again when its binding cycle has. Copies share it.
    """

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self.pods_to_activate: dict[str, PodView] = {}
        self.skip_filter: frozenset[str] = frozenset()
        self.skip_score: frozenset[str] = frozenset()
        self.waits: Mapping[str, float] = {}

    def write(self, key: str, value: object) -> None:
        """Keep a value under a key, in the place of what was there."""
        self._values[key] = value

    def read(self, key: str, kind: type[_T]) -> _T:
        """Return the value of this type under a key. Raises KeyError where there is none."""
        value = self._values.get(key)
        if not isinstance(value, kind):
            raise KeyError(f"{key}: no {kind.__name__} in the cycle's state")
        return value

    def find(self, key: str, kind: type[_T]) -> _T | None:
        """Return the value of this type under a key, or None."""
        value = self._values.get(key)
        return value if isinstance(value, kind) else None

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._values.pop(key, None)

    def clone(self) -> "CycleState":
        """Return a copy: its values can be replaced, and those that can be copied changed."""
        copy = CycleState()
        copy._values = {
            key: value.clone() if isinstance(value, StateData) else value
            for key, value in self._values.items()
        }
        copy.pods_to_activate = self.pods_to_activate
        copy.skip_filter, copy.skip_score = self.skip_filter, self.skip_score
        copy.waits = self.waits
        return copy
