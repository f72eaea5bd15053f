"""The values that the watch shows of some objects, for readers in other threads.

Tested in `tests/unit/extender/follow/test_scale_down_guard.py`.
"""

from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Shown(Generic[T]):
    """A value for each object, by the key of the object. One thread writes; any thread may read."""

    def __init__(self) -> None:
        self._shown: dict[str, T] = {}

    def replace(self, values: Mapping[str, T], keep: Collection[str]) -> None:
        """Set the values of a whole list; the values of the keys in `keep` stay."""
        before = {key: value for key, value in self._shown.items() if key in keep}
        self._shown = before | dict(values)

    def put(self, key: str, value: T | None) -> None:
        """Set the value of one object; None removes the value."""
        if value is None:
            self._shown.pop(key, None)
        else:
            self._shown[key] = value

    def all(self) -> Mapping[str, T]:
        """Return a copy of all values."""
        return dict(self._shown)
