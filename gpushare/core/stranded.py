"""Stranded memory: memory that is free on a device, but too little for the typical request.

Pure arithmetic on units. The typical request is the size that most pods in the ledger, bound or
waiting, ask for on each device; of equally common sizes the smallest. The measure is simple: a
device counts as a whole or not at all, smaller pods may still use it, and memory that is useless
because CPU is missing does not count.
"""

from collections import Counter
from collections.abc import Iterable


def typical_units(sizes: Iterable[int]) -> int:
    """Return the most common size, of equally common ones the smallest; 0 if there is none."""
    counts = Counter(size for size in sizes if size > 0)
    return min(counts, key=lambda size: (-counts[size], size), default=0)


def stranded_units(free: int, typical: int) -> int:
    """Return the stranded units of a device: all free ones if the typical pod does not fit."""
    return free if 0 < free < typical else 0
