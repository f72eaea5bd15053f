"""How many pods a group needs at once.

The gate at bind (`extender/verbs/bind/gate.py`) and filter ask `GroupSizes` by the key of the
group (`Group.key` of `gpushare/wire/pods.py`).
"""

from typing import Protocol

from gpushare.wire.pods import Group


class GroupSizes(Protocol):
    """The sizes that objects of the API server give to groups. Any thread may ask."""

    def size_of(self, group_key: str) -> int | None:
        """Return how many pods of the group must start together.

        0: the group's object says that its pods do not start together, whatever its pods say. None:
        no object is known, and the labels and annotations of the pods decide.
        """


class NoObjects:
    """The sizes where no object is read: the labels and annotations of the pods decide."""

    def size_of(self, group_key: str) -> int | None:
        """Return None."""
        del group_key
        return None


def gang_size(group: Group, sizes: GroupSizes) -> int:
    """Return how many pods of the group must start together; 0 if that is not known."""
    size = sizes.size_of(group.key) if group.key else 0
    return group.size if size is None else size
