"""The GPUs of the node, and the units of memory that they are offered in.

Pure. The kubelet counts devices and has no amounts, so each unit of a card is one device to it. Its
id is the original's, UUID-_-N with N from 0, and does not change while the card has as much memory.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.annotations import is_uuid
from gpushare.wire.inventory import MAX_DEVICES, Device, Inventory, is_unit, mib_of

LONGEST_MESSAGE = 4 * 1024 * 1024
"""Bytes of a list of devices that the kubelet takes at most; gRPC's own limit, and not a flag."""

_ID = re.compile(r"(?P<uuid>.+)-_-(?:0|[1-9][0-9]{0,9})")
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU. index: NVML's. unit_count: its memory in units. numa: its NUMA node, if known."""

    uuid: str
    index: int
    unit_count: int
    model: str = ""
    numa: int | None = None
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class DetectedGpu:
    """What was found out about one GPU. problem: why it cannot be used now, or ""."""

    uuid: str
    index: int
    memory_mib: int
    model: str = ""
    numa: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Cards:
    """The GPUs of the node by index, and their unit: GiB, MiB, or a number of MiB."""

    unit: str
    all: tuple[Card, ...]

    def by_uuid(self, uuid: str) -> Card | None:
        """Return the card of that uuid, or None."""
        return next((card for card in self.all if card.uuid == uuid), None)

    def by_index(self, index: int) -> Card | None:
        """Return the card at that index now, or None."""
        return next((card for card in self.all if card.index == index), None)

    @property
    def unit_mib(self) -> int:
        """MiB of one unit."""
        return unit_mib(self.unit)

    def inventory(self) -> Inventory:
        """Return what the annotation of the node says."""
        devices = tuple(
            Device(card.unit_count, card.uuid, card.model, card.healthy) for card in self.all
        )
        return Inventory(self.unit, devices, marks_assigned=True, serves_by_identity=True)


def unit_mib(unit: str) -> int:
    """Return the MiB of a unit. Raises SettingsError."""
    if not is_unit(unit):
        raise SettingsError(
            f"memory-unit: {unit[:20]!r} is none of GiB, MiB, or a number of MiB such as 256MiB"
        )
    return mib_of(unit)


def make_cards(found: Sequence[DetectedGpu], unit: str, reserve_mib: int) -> Cards:
    """Return the cards in units. reserve_mib: what of each card is not given out.

    Raises SettingsError if the GPUs cannot be counted, or are too many for the kubelet.
    """
    _check(found)
    each = unit_mib(unit)
    cards = tuple(
        Card(
            gpu.uuid,
            gpu.index,
            max(0, gpu.memory_mib - reserve_mib) // each,
            gpu.model,
            gpu.numa,
            not gpu.problem,
        )
        for gpu in sorted(found, key=lambda gpu: gpu.index)
    )
    size = message_size(cards)
    if size > LONGEST_MESSAGE:
        raise SettingsError(_too_many(found, unit, reserve_mib, size))
    return Cards(unit, cards)


def device_id(uuid: str, number: int | str) -> str:
    """Return the id of a unit; with "", what the ids of all units of the card begin with."""
    return f"{uuid}-_-{number}"


def uuid_of(device: str) -> str:
    """Return the uuid of the card that a unit belongs to, or "" if the id is not ours."""
    match = _ID.fullmatch(device)
    return match["uuid"] if match else ""


def number_of(device: str) -> int:
    """Return the number in an id of ours."""
    return int(device.rpartition("-")[2])


def uuids_of(devices: Iterable[str]) -> frozenset[str]:
    """Return the uuids of the cards that the units are of."""
    return frozenset(map(uuid_of, devices))


def message_size(cards: Iterable[Card]) -> int:
    """Return an upper bound of the bytes of a list of all units, as it goes to the kubelet.

    A device is its id, "Unhealthy", perhaps a NUMA node of up to 10 bytes, and tags and lengths.
    """
    size = 0
    for card in cards:
        longest = len(device_id(card.uuid, max(0, card.unit_count - 1)))
        numa = 0 if card.numa is None else 17
        size += card.unit_count * (longest + len("Unhealthy") + numa + 9)
    return size


def _check(found: Sequence[DetectedGpu]) -> None:
    if not found:
        raise SettingsError("there is no GPU on this node")
    if len(found) > MAX_DEVICES:
        raise SettingsError(f"{len(found)} GPUs, but a node may have {MAX_DEVICES} at most")
    if sorted(gpu.index for gpu in found) != list(range(len(found))):
        indices = ", ".join(str(gpu.index) for gpu in found)
        raise SettingsError(f"the GPUs must have the indices 0, 1, ...; they have {indices}")
    seen: set[str] = set()
    for gpu in found:
        if not is_uuid(gpu.uuid) or "-_-" in gpu.uuid:
            raise SettingsError(f"GPU {gpu.index}: {gpu.uuid[:80]!r} is no uuid of a GPU")
        if gpu.uuid in seen:
            raise SettingsError(f"GPU {gpu.index}: another one has the uuid {gpu.uuid}, too")
        seen.add(gpu.uuid)


def _too_many(found: Sequence[DetectedGpu], unit: str, reserve_mib: int, size: int) -> str:
    each = unit_mib(unit)
    for chunk in _CHUNKS:
        if chunk > each:
            cards = [
                Card(gpu.uuid, gpu.index, max(0, gpu.memory_mib - reserve_mib) // chunk)
                for gpu in found
            ]
            if message_size(cards) <= LONGEST_MESSAGE:
                better = "GiB" if chunk == 1024 else f"{chunk}MiB"
                break
    else:
        better = "a larger one"
    return (
        f"memory-unit: in units of {unit} the list of devices is up to {size} bytes, and the"
        f" kubelet takes {LONGEST_MESSAGE}; take {better}, for the whole cluster"
    )
