"""The sizes of cards that count in figures of the whole cluster.

The inventory of a node must count for that node alone, and may say anything: a card of 2**31
units, or 64 sizes that nobody has. So scales, tables and prices are made for the sizes that several
nodes have, and for few of them. A node with another size is judged for itself, by simpler rules; it
is never refused for it.
"""

from collections.abc import Mapping

import numpy as np

from gpushare.core.snapshot import Ints

MOST_SIZES = 8
"""Sizes that count. The tables of a policy grow with their number: eight take a second or so."""

FARTHEST = 8
"""How many times as large as the median node's card a size may be that only one node has."""


def common_sizes(capacity: Ints) -> Mapping[int, int]:
    """Return the sizes that count, each with the number of its cards.

    capacity: int64 (N, D), units by node and device, 0 where there is none. These are the sizes of
    at least two nodes, those of most nodes first. If more than half of the nodes have a size of
    their own, as in a small cluster, those count too, unless they are far larger than the others.
    """
    rows, columns = np.nonzero(capacity)
    if not len(rows):
        return {}
    units = capacity[rows, columns]
    # Most nodes have equal cards: runs of them are far fewer than cards.
    starts = np.flatnonzero((np.diff(units, prepend=0) != 0) | (np.diff(rows, prepend=-1) != 0))
    lengths, rows = np.diff(starts, append=len(units)), rows[starts]
    sizes, which = np.unique(units[starts], return_inverse=True)
    cards = np.bincount(which, weights=lengths)
    pairs = np.divmod(np.unique(which * len(capacity) + rows), len(capacity))
    nodes = np.bincount(pairs[0], minlength=len(sizes))
    counts = nodes >= 2
    alone = np.unique(pairs[1][~counts[pairs[0]]])
    largest = capacity.max(axis=1)
    largest = np.sort(largest[largest > 0])
    if 2 * len(alone) > len(largest):
        counts |= sizes <= FARTHEST * largest[(len(largest) - 1) // 2]
    ranked = sorted(
        (-int(nodes[at]), -int(cards[at]), int(sizes[at])) for at in np.flatnonzero(counts)
    )
    return {size: -count for _, count, size in ranked[:MOST_SIZES]}


def typical_size(sizes: Mapping[int, int]) -> int:
    """Return the size of most cards, the largest of equally common ones; 0 without cards.

    sizes: each with the number of its cards.
    """
    return max(sizes, key=lambda size: (sizes[size], size), default=0)
