"""The devices of a node that a pod may hold, as the node is now.

An index is not a device: when a card dies, the later cards move to other indices. So a charge
belongs to *cards*, which an inventory names by uuid, and the indices of a charge are looked up
again whenever the node changes. While the devices of a pod are uncertain, the pod is charged on
every device that the pod may hold:

- A served pod holds the cards that the pod's Binding names by uuid, wherever these cards are now.
  If the node reports that such a card has left, the pod holds nothing of that card. If the node
  reports nothing, the uuid may be invented, so the card at the index is charged instead, or every
  card if no card is at the index. The rule does not depend on cards that this process has seen
  before, so a restarted process computes the same charge.
- A device plug-in of the original's kind hands out the card that is at the index when the kubelet
  calls. Nobody can tell whether that was before or after the cards moved: pods and nodes come by
  two watches, and people write inventories later than cards move. So unless the node serves by
  identity, every card that was seen at the index is charged too, until the pod ends.
- A device without a uuid may be any missing card. Without any uuids an index is charged as written
  only while the node has as many devices as when the node was first read.
- A pod that received other cards than the Binding names is charged on both; the plug-in annotates
  the pod with them.

Values and arithmetic only; the Ledger keeps the covers.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpushare.core.model import Cover, Given, NodeSpec, Shares

MAX_CARDS = 64
"""Upper bound of the cards of one share; with more the pod is charged on every device."""

_NONE: frozenset[str] = frozenset()
_UNKNOWN = -1


def resolve_devices(cover: Cover, spec: NodeSpec) -> tuple[Cover, Shares | None]:
    """Return (the cover updated by the node's current spec, the charge there).

    The charge is units by index, () for nothing, None for the whole request on every device. The
    node must have devices. A second call with the same spec changes nothing.
    """
    if cover.written is None:
        return cover, None
    uuids = spec.uuids or ("",) * len(spec.capacity)
    lost_uuids = frozenset(spec.gone).difference(uuids)
    binding_uuids = cover.uuids or ("",) * len(cover.written)
    before = cover.cards or [frozenset([name]) if name else _NONE for name in binding_uuids]
    possible_cards: list[frozenset[str]] = []
    units_by_device: dict[int, int] = {}
    everywhere, all_present = False, True
    by_identity, indexed = spec.serves_by_identity and not cover.indexed, False
    for (index, units), binding_uuid, possible in zip(
        cover.written, binding_uuids, before, strict=True
    ):
        # The card now at the index if the pod may hold that card; "" for a card without a uuid.
        card = uuids[index] if index < len(uuids) and not (by_identity and binding_uuid) else None
        if not possible and cover.of not in (0, len(uuids)):
            card = None  # the number of devices changed: the index may mean another device now
        if binding_uuid:
            # The index still counts if the card there has no uuid to be remembered by.
            indexed |= cover.indexed if card is None else card == "" and not by_identity
        cards, devices = _resolve_share(possible, card, index, uuids)
        if (
            by_identity
            and binding_uuid
            and binding_uuid not in uuids
            and binding_uuid not in lost_uuids
            and index < len(uuids)
        ):
            devices.add(index)
        possible_cards.append(cards)
        # A uuid that the node never listed may be invented: it is not used until the node lists it.
        all_present &= binding_uuid in ("", *uuids)
        for device in devices:
            units_by_device[device] = max(units_by_device.get(device, 0), units)
        # A card may have left the node; a card without any sign may be anywhere.
        is_lost = not devices and not (cards and cards <= lost_uuids)
        everywhere |= is_lost or len(cards) > MAX_CARDS
    of = cover.of if everywhere or not all_present else cover.of or len(uuids)
    if any(uuids) and of not in (0, len(uuids)) and _NONE in possible_cards:
        of = _UNKNOWN  # the cards have names now, and which one was meant cannot be known
    if (of, tuple(possible_cards), indexed) != (cover.of, cover.cards, cover.indexed):
        cover = replace(cover, cards=tuple(possible_cards), of=of, indexed=indexed)
    for uuid, units in cover.given:
        if uuid in uuids:
            device = uuids.index(uuid)
            units_by_device[device] = max(units_by_device.get(device, 0), units)
    return cover, None if everywhere else tuple(sorted(units_by_device.items()))


def with_given(cover: Cover, served_shares: Given) -> Cover:
    """Return the cover with the cards that the device plug-in says it gave the pod instead.

    Nothing is removed: a container keeps its devices until the container ends.
    """
    if not served_shares or served_shares == cover.given:
        return cover
    largest = dict(cover.given)
    for uuid, units in served_shares:
        largest[uuid] = max(largest.get(uuid, 0), units)
    return replace(cover, given=tuple(sorted(largest.items())))


def _resolve_share(
    cards: frozenset[str], card: str | None, index: int, uuids: Sequence[str]
) -> tuple[frozenset[str], set[int]]:
    """Return (the cards that one share may be on, the devices that may be these cards)."""
    if card and len(cards) <= MAX_CARDS:
        cards |= {card}
    devices = {device for device, uuid in enumerate(uuids) if uuid in cards}
    if len(devices) < len(cards):
        devices.update(device for device, uuid in enumerate(uuids) if not uuid)
    if card == "":
        devices.add(index)
    return cards, devices
