"""A value for each node of a ledger, such as a text, made again only after a change of the node."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from gpushare.core.states.entry import NodeBooks
from gpushare.ledger import Ledger

Inputs = TypeVar("Inputs")
T = TypeVar("T")


class NodeValues(Generic[Inputs, T]):
    """The last value of each node of one ledger. Any thread may call.

    make: makes the value from the books of a node and from its other inputs.
    """

    def __init__(self, make: Callable[[NodeBooks, Inputs], T]) -> None:
        self._make = make
        self._kept: dict[str, tuple[int, Inputs, T]] = {}

    def all(
        self, ledger: Ledger, inputs: Inputs, by_node: Mapping[str, Inputs] = MappingProxyType({})
    ) -> list[T]:
        """Return the values of the nodes that share devices, by name.

        inputs: the other inputs of a node that is not in by_node. Values may be of different
        moments: the ledger is locked for one node at a time.
        """
        last, kept = self._kept, dict[str, tuple[int, Inputs, T]]()
        for name, version in ledger.node_versions().items():
            of_node, before = by_node.get(name, inputs), last.get(name)
            if before is None or before[0] != version or before[1] != of_node:
                # The books may be newer than the version: then the next call makes the value again.
                books = ledger.node_books(name)
                if books is None:
                    continue
                before = version, of_node, self._make(books, of_node)
            kept[name] = before
        self._kept = kept
        return [value for _, _, value in kept.values()]
