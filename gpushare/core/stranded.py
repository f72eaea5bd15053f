"""Stranded memory: memory that is free on a device and too little for the typical request.

Pure arithmetic on units. The typical request is the size that most pods in the ledger, bound or
waiting, ask for on each device; of equally common sizes, the smaller. The measure is simple: a
device counts as a whole or not at all, smaller pods may still use it, and memory that cannot be
used for want of CPU is not counted.
"""

from collections import Counter
from collections.abc import Iterable


def typical_units(sizes: Iterable[int]) -> int:
    """Return the most common of the units asked for on each device, the smaller of equals; 0 for
    none.
    """
    counted = Counter(size for size in sizes if size > 0)
    return min(counted, key=lambda size: (-counted[size], size), default=0)


def stranded_units(free: int, typical: int) -> int:
    """Return the stranded units of a device: all free ones where the typical pod has no room."""
    return free if 0 < free < typical else 0
