"""How cards and claims count in a ledger: as nodes, and as holders of their devices.

Tested in `tests/unit/wire/dra/test_counted.py`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpushare.core.model import MAX_UNITS, NodeSpec, ObservedPod, PodRef, Request
from gpushare.wire.dra.slices import CardDeals, DeviceKey, SliceCard

Cards = tuple[SliceCard, ...]
"""The cards of a node, each where its device has its index."""


class DealsInUnits(NamedTuple):
    """How a card is dealt out, in units of so many bytes; what is asked for is in bytes."""

    card: CardDeals
    unit: int

    def takes(self, asked: int) -> int:
        """Return the units that a claim takes; more than MAX_UNITS if there is no such amount."""
        amount = self.card.consumed(asked)
        return MAX_UNITS + 1 if amount is None else units_up(amount, self.unit)

    def most(self, units: int) -> int:
        """Return the most whole units that may be asked for to take so many, 0 for none."""
        return self.card.could_ask(units * self.unit) // self.unit


def cards_by_node(cards: Mapping[DeviceKey, SliceCard]) -> dict[str, Cards]:
    """Return the cards of each node, each once, by the name of its device."""
    by_node: dict[str, dict[str, SliceCard]] = defaultdict(dict)
    for _, card in sorted(cards.items()):
        known = by_node[card.node].get(card.uuid)
        if known is None or not known.open:
            by_node[card.node][card.uuid] = card
    return {name: tuple(by_uuid.values()) for name, by_uuid in by_node.items()}


def units_up(memory: int, unit: int) -> int:
    """Return so many bytes in units of so many, rounded up: what is taken of a card."""
    return min(-(-memory // unit), MAX_UNITS)


def node_of_cards(name: str, cards: Cards, unit: int) -> NodeSpec:
    """Return the node as it counts; a card that is not shared, or not open, is not healthy."""
    return NodeSpec(
        name,
        tuple(_whole(card, unit) for card in cards),
        tuple(card.open and card.shared for card in cards),
        tuple(card.model for card in cards),
        tuple(card.uuid for card in cards),
        serves_by_identity=True,
        deals=tuple(DealsInUnits(card.deals, unit) for card in cards),
    )


def holders_of(
    claim: PodRef, taken: Mapping[tuple[str, str], int], on_nodes: Mapping[str, Cards], unit: int
) -> Iterator[ObservedPod]:
    """Yield what holds the devices of a claim, one for each node.

    taken: units by node and uuid of the card. Whatever it says that it has of a card, it is the
    whole one at most.
    """
    by_node: dict[str, dict[int, int]] = defaultdict(dict)
    for (node, uuid), units in taken.items():
        cards = on_nodes.get(node, ())
        index = next((at for at, card in enumerate(cards) if card.uuid == uuid), None)
        if units and index is not None:
            by_node[node][index] = min(units, max(_whole(cards[index], unit), 1))
    for name, by_index in by_node.items():
        shares = tuple(sorted(by_index.items()))
        yield ObservedPod(
            replace(claim, uid=f"{claim.uid}/{name}"),
            Request().of_parts(by_index.values()),
            name,
            shares,
            assigned=True,
            running=True,
            uuids=tuple(on_nodes[name][index].uuid for index, _ in shares),
        )


def _whole(card: SliceCard, unit: int) -> int:
    return min(card.memory // unit, MAX_UNITS)
