"""Stranded memory: what is free on a device and yet too little for what pods usually ask for.

Pure arithmetic on units. "Usually" is the size that most pods in the books ask for on each device,
bound or waiting; of sizes equally common, the smaller. It is a simple measure and says so: a device
counts as a whole or not at all, smaller pods may still use it, and memory that cannot be used for
want of CPU is not counted.
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
