"""What the watch shows of some objects, for others to look at.

Tested in `tests/unit/extender/follow/test_scale_down_guard.py`.
"""

from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Shown(Generic[T]):
    """A value for each object, by its key. One thread changes them, any may read: what is kept is
    replaced whole, or by item.
    """

    def __init__(self) -> None:
        self._shown: dict[str, T] = {}

    def replace(self, shown: Mapping[str, T], keep: Collection[str]) -> None:
        """Take over those of a whole list; objects to keep stay as they were."""
        before = {key: value for key, value in self._shown.items() if key in keep}
        self._shown = before | dict(shown)

    def put(self, key: str, value: T | None) -> None:
        """Take over that of one object; None: it has none, or is gone."""
        if value is None:
            self._shown.pop(key, None)
        else:
            self._shown[key] = value

    def all(self) -> Mapping[str, T]:
        """Return all at this moment."""
        return dict(self._shown)
