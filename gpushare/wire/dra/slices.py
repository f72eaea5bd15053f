"""The cards of nodes, from their ResourceSlices.

A driver numbers its devices anew when it likes: a device is known by driver, pool and name only
while its slice says so, the card by its uuid.

Tested in `tests/unit/wire/dra`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpushare.errors import QuantityError
from gpushare.wire.dra.objects import (
    Device,
    Pool,
    Range,
    RequestPolicy,
    ResourceSlice,
    SliceSpec,
)
from gpushare.wire.objects import Metadata
from gpushare.wire.quantity import parse_quantity, to_bytes

MEMORY, UUID, MODEL = "memory", "uuid", "productName"
"""Of a device: its capacity, and the attributes that say which card it is, and of what model."""

NO_SUCH_AMOUNT = "the driver deals out no such amount of memory"
"""What is wrong with a claim if cards are large enough for it."""


class DeviceKey(NamedTuple):
    """By what an allocation names a device."""

    driver: str
    pool: str
    device: str


class CardDeals(NamedTuple):
    """By which amounts a card is dealt out, in bytes: equal for cards that are dealt out alike."""

    memory: int
    values: tuple[int, ...] | None
    """All that there are; None: those of the range."""
    least: int
    step: int
    """From the least one on."""
    most: int

    @classmethod
    def by(cls, memory: int, policy: RequestPolicy | None, *, shared: bool) -> "CardDeals":
        """Return how a card of so much is dealt out. Raises QuantityError."""
        policy = policy or RequestPolicy()
        bounds, values = policy.valid_range or Range(), policy.valid_values
        amounts = None if values is None else tuple(map(to_bytes, values))
        least, step, most = (to_bytes(each or 0) for each in (bounds.min, bounds.step, bounds.max))
        if bounds.max is None:
            most = memory
        if not shared:
            amounts = (memory,)
        return cls(memory, amounts, least, step or 1, min(most, memory))

    def consumed(self, asked: int) -> int | None:
        """Return the bytes that a claim for so many takes, rounded up as the driver wants it.

        None: it has no such amount, whatever is free.
        """
        if self.values is None:
            amount = self.least + -(-max(asked - self.least, 0) // self.step) * self.step
            return amount if asked <= amount <= self.most else None
        amount = min((each for each in self.values if each >= asked), default=self.memory + 1)
        return amount if amount <= self.memory else None

    def could_ask(self, amount: int) -> int:
        """Return the most bytes that a claim may be for to take so many; 0 if none takes so few."""
        if self.values is None:
            amount = min(amount, self.most)
            return amount - (amount - self.least) % self.step if amount >= self.least else 0
        amount = min(amount, self.memory)
        return max((each for each in self.values if each <= amount), default=0)


@dataclass(frozen=True, slots=True)
class SliceCard:
    """A card that a slice offers. It is the same whatever its device is called."""

    key: DeviceKey
    node: str
    uuid: str
    model: str
    memory: int
    """Bytes."""
    shared: bool
    """Several claims may have parts of it."""
    open: bool
    """It may be given out: its pool is whole, nothing taints it, and we can tell all that giving
    it out would take."""
    deals: CardDeals
    """By which amounts the driver deals it out."""

    def consumed(self, asked: int) -> int | None:
        """Return the bytes that a claim for so many takes; None if it has no such amount."""
        return self.deals.consumed(asked)

    def given(self, asked: int) -> int:
        """Return the bytes that a claim for so many has of it: the whole, if it cannot be told."""
        return self.consumed(asked) or self.memory


def kept_slice(item: ResourceSlice, driver: str) -> ResourceSlice | None:
    """Return what is kept of a slice of the driver: of each device what says which card it is, how
    much it has, and whether it may be given out; None of another driver's.
    """
    spec = item.spec
    if spec is None or spec.driver != driver:
        return None
    told = {name for short in (UUID, MODEL) for name in (short, f"{driver}/{short}")}
    devices = []
    for device in spec.devices or ():
        attributes, capacity = device.attributes or {}, device.capacity or {}
        others = next((name for name in capacity if name != MEMORY), None)
        devices.append(
            Device(
                device.name,
                {name: attributes[name] for name in told & attributes.keys()},
                # One more tells that there are more.
                {name: capacity[name] for name in (MEMORY, others) if name in capacity},
                device.allow_multiple_allocations,
                device.taints,
                [True] if device.consumes_counters else None,
                device.binding_conditions,
            )
        )
    metadata = Metadata(name=(item.metadata and item.metadata.name) or "")
    return ResourceSlice(metadata, SliceSpec(driver, spec.pool, spec.node_name, devices))


def cards_of(slices: Iterable[ResourceSlice]) -> dict[DeviceKey, SliceCard]:
    """Return the cards with a uuid and memory that these slices offer, by what names them.

    Of each pool only the slices of the newest generation count. While some of them are missing, or
    if two of its devices have one name or two devices of a node one uuid, none of these is open.
    What is no card of one node is left out.

    A node speaks for itself alone, since its kubelet may write what it likes into slices of its
    own: a pool is one of a node, and what is called like another node is that one's, whoever else
    says that he has it.
    """
    pools: dict[tuple[str, str, str], list[tuple[Pool, SliceSpec]]] = defaultdict(list)
    for item in slices:
        spec, pool = item.spec, item.spec and item.spec.pool
        if spec and spec.driver and spec.node_name and pool and pool.name:
            pools[spec.driver, pool.name, spec.node_name].append((pool, spec))
    cards: dict[DeviceKey, SliceCard] = {}
    seen: set[DeviceKey] = set()
    doubtful: set[DeviceKey] = set()
    for (driver, name, node), members in pools.items():
        if node != name and (driver, name, name) in pools:
            continue
        newest = max(pool.generation or 0 for pool, _ in members)
        current = [member for member in members if (member[0].generation or 0) == newest]
        whole = {pool.resource_slice_count for pool, _ in current} == {len(current)}
        for _, spec in current:
            for device in spec.devices or ():
                key = DeviceKey(driver, name, device.name or "")
                if key in seen:
                    doubtful.add(key)
                seen.add(key)
                card = _card(key, node, device, whole)
                if card is not None:
                    cards[key] = card
    named: dict[tuple[str, str], list[DeviceKey]] = defaultdict(list)
    for key, card in cards.items():
        named[card.node, card.uuid].append(key)
    doubtful.update(key for keys in named.values() if len(keys) > 1 for key in keys)
    return {
        key: replace(card, open=False) if key in doubtful else card for key, card in cards.items()
    }


def _card(key: DeviceKey, node: str, device: Device, whole: bool) -> SliceCard | None:
    capacity = (device.capacity or {}).get(MEMORY)
    uuid = _text(device, UUID, key.driver)
    if not (key.device and uuid and capacity and capacity.value is not None):
        return None
    shared = device.allow_multiple_allocations is True
    try:
        to_bytes(capacity.value)  # its bounds
        memory = math.floor(parse_quantity(capacity.value))  # what it has of a byte is none
        deals = CardDeals.by(memory, capacity.request_policy, shared=shared)
    except QuantityError:
        return None
    # Counters are shared with other devices, and conditions are met by others after us. Of a shared
    # device each claim also takes of every other capacity, which nobody here counts.
    others = shared and len(device.capacity or {}) > 1
    unknown = device.consumes_counters or device.binding_conditions or others
    return SliceCard(
        key=key,
        node=node,
        uuid=uuid,
        model=_text(device, MODEL, key.driver),
        memory=memory,
        shared=shared,
        open=whole
        and not unknown
        # A taint of an effect that is not known may keep claims off.
        and not any(taint.effect != "None" for taint in device.taints or ()),
        deals=deals,
    )


def _text(device: Device, name: str, driver: str) -> str:
    attributes = device.attributes or {}
    attribute = attributes.get(name) or attributes.get(f"{driver}/{name}")
    return (attribute and attribute.string) or ""
