"""Round-robin turns of owners, such as namespaces: no owner waits for all items of another.

Pure, and imports no other module of the package. Tested in `tests/unit/test_turns.py`.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """A round-robin queue: the oldest item of each owner in turn. The caller holds the lock."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of items of all owners."""
        return self._count

    def count(self, owner: str) -> int:
        """Return the number of items of one owner."""
        return len(self._items.get(owner, ()))

    def put(self, owner: str, item: T) -> None:
        """Add an item as the last one of the owner; a new owner comes last."""
        self._items.setdefault(owner, deque()).append(item)
        self._count += 1

    def take(self) -> T:
        """Remove and return the next item. Raises KeyError if there is none."""
        owner, items = self._items.popitem(last=False)
        item = items.popleft()
        self._count -= 1
        if items:
            self._items[owner] = items
        return item

    def longest(self) -> str:
        """Return the owner with most items. Raises ValueError if there is none."""
        return max(self._items, key=lambda owner: len(self._items[owner]))

    def drop_newest(self, owner: str) -> None:
        """Remove the newest item of an owner that has some."""
        items = self._items[owner]
        items.pop()
        self._count -= 1
        if not items:
            del self._items[owner]


def in_turns(items: Iterable[T], owner_of: Callable[[T], str]) -> list[T]:
    """Return the items in round-robin order: the first item of each owner, then the second.

    The items of an owner keep their order; owners are in the order of their first items.
    """
    turns = Turns[T]()
    for item in items:
        turns.put(owner_of(item), item)
    return [turns.take() for _ in range(len(turns))]
