"""The devices of a node that a pod may hold, as the node is now.

An index is not a device: when a card dies, the cards after it move to other indices. So a charge
belongs to *cards*, which an inventory names by uuid, and its indices are looked up again whenever
the node changes. If it is not known what a pod really holds, it counts on every device that it may
hold:

- A pod that was served holds the cards that its Binding names by uuid, wherever they are now. If
  the node says that such a card has left it, the pod holds nothing of it. If it says nothing, the
  uuid may be invented, so the card at the index counts in its place, or every one if there is none.
  That is so whether this process has seen the card or not: who starts anew says the same.
- A device plug-in of the original's kind gives the card that is at the index when the kubelet asks.
  Nobody can tell whether that was before or after the cards moved: pods and nodes come by two
  watches, and people write inventories later than cards move. So unless the node says that it
  serves by identity, every card that was seen at the index counts too, until the pod is gone.
- A device without a uuid may be any card that cannot be found. Without any uuids an index counts as
  written only while the node has as many devices as when it was first read.
- A pod that was given other cards than its Binding names counts on both; its plug-in says so.

Values and arithmetic only; the Ledger keeps them.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpushare.core.model import Cover, Given, NodeSpec, Shares

MAX_CARDS = 64
"""Cards that one share may have been given; with more seen the pod counts on every device."""

_NONE: frozenset[str] = frozenset()
_UNKNOWN = -1


def resolve_devices(cover: Cover, spec: NodeSpec) -> tuple[Cover, Shares | None]:
    """Return (the cover updated by the node as it is, what is charged there).

    The second is units by index, () for nothing, None for the whole request on every device. The
    node must have devices. A second call with the same node changes nothing.
    """
    if cover.written is None:
        return cover, None
    uuids = spec.uuids or ("",) * len(spec.capacity)
    gone = frozenset(spec.gone).difference(uuids)
    names = cover.uuids or ("",) * len(cover.written)
    before = cover.cards or [frozenset([name]) if name else _NONE for name in names]
    known: list[frozenset[str]] = []
    held: dict[int, int] = {}
    everywhere, all_present = False, True
    by_identity, indexed = spec.serves_by_identity and not cover.indexed, False
    for (index, units), named, possible in zip(cover.written, names, before, strict=True):
        # The card now at the index if it may be the pod's; "" for one without a uuid.
        card = uuids[index] if index < len(uuids) and not (by_identity and named) else None
        if not possible and cover.of not in (0, len(uuids)):
            card = None  # the number of devices changed: what the index means now is not known
        if named:
            # The index still counts if its card has no uuid by which it could be remembered.
            indexed |= cover.indexed if card is None else card == "" and not by_identity
        cards, devices = _resolve_share(possible, card, index, uuids)
        if (
            by_identity
            and named
            and named not in uuids
            and named not in gone
            and index < len(uuids)
        ):
            devices.add(index)
        known.append(cards)
        # A uuid that was never seen on the node may be invented: it is not used until it is seen.
        all_present &= named in ("", *uuids)
        for device in devices:
            held[device] = max(held.get(device, 0), units)
        # A card may have left the node; one of which nothing is known may be anywhere.
        lost = not devices and not (cards and cards <= gone)
        everywhere |= lost or len(cards) > MAX_CARDS
    of = cover.of if everywhere or not all_present else cover.of or len(uuids)
    if any(uuids) and of not in (0, len(uuids)) and _NONE in known:
        of = _UNKNOWN  # the cards have names now, and which one was meant cannot be known
    if (of, tuple(known), indexed) != (cover.of, cover.cards, cover.indexed):
        cover = replace(cover, cards=tuple(known), of=of, indexed=indexed)
    for uuid, units in cover.given:
        if uuid in uuids:
            device = uuids.index(uuid)
            held[device] = max(held.get(device, 0), units)
    return cover, None if everywhere else tuple(sorted(held.items()))


def with_given(cover: Cover, given: Given) -> Cover:
    """Return the cover with the other cards that the device plug-in says it gave the pod.

    Nothing is removed: a container has its devices until it ends, whatever the annotation says.
    """
    if not given or given == cover.given:
        return cover
    most = dict(cover.given)
    for uuid, units in given:
        most[uuid] = max(most.get(uuid, 0), units)
    return replace(cover, given=tuple(sorted(most.items())))


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
