"""The GPUs of the node, in units of memory.

Pure. The kubelet counts devices and has no amounts, so each unit of a card is one device to the
kubelet. The id of a unit is UUID::N with N from 0, the form that dcgm-exporter reads, or UUID-_-N,
the original's form. The ids stay the same while the card has as much memory.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpushare.errors import SettingsError
from gpushare.wire.annotations import is_uuid
from gpushare.wire.inventory import MAX_DEVICES, Inventory, InventoryDevice, is_unit, mib_of

LONGEST_MESSAGE = 4 * 1024 * 1024
"""Bytes of a list of devices that the kubelet takes at most; gRPC's own limit, and not a flag."""

NVIDIA_IDS = "::"
ORIGINAL_IDS = "-_-"
"""The separator between the uuid of a card and the number of a unit."""

_ID = re.compile(r"(?P<uuid>.+)(?P<between>-_-|::)(?:0|[1-9][0-9]{0,9})")
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Fault(StrEnum):
    """Why a card is unhealthy; the label of a metric."""

    GONE = "gone"
    """NVML does not list the card any more."""
    LOST = "lost"
    """NVML says that the card is lost: no answer on the bus."""
    UNREADABLE = "unreadable"
    """NVML answers a question about the card with another error."""
    NO_ANSWER = "no-answer"
    """NVML does not answer at all."""
    RECOVERY = "recovery"
    """The card's recovery action is a reset, a reboot, or another one."""
    XID = "xid"
    """The driver has reported an error of the card."""
    REMAP = "remap"
    """A row of the card's memory could not be replaced by a spare one."""
    MIG = "mig"
    """The card is in MIG mode: only MIG instances, if there are any, are served."""
    FABRIC = "fabric"
    """The NVLink fabric of the card is not up: CUDA programs fail."""
    SIZE = "size"
    """The card has less memory than before, or less than a unit, or NVML does not tell the memory.
    """
    FILE = "file"
    """The devices file says so."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a card cannot be used now, for a metric and for people."""

    fault: Fault
    text: str
    """At most 120 characters."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU."""

    uuid: str
    index: int
    """NVML's number of the GPU."""
    unit_count: int
    """The memory in units."""
    model: str = ""
    numa: int | None = None
    """The NUMA node, if known."""
    problem: Problem | None = None
    minor: int | None = None
    """The number of the device node, if known: N of /dev/nvidiaN."""
    memory_mib: int = 0
    """All memory; 0 if unknown."""

    @property
    def healthy(self) -> bool:
        """Whether new pods may use the card."""
        return self.problem is None

    @property
    def is_instance(self) -> bool:
        """Whether the card is a MIG instance: the index is no number of NVML's then."""
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True)
class DetectedGpu:
    """The facts of one GPU, or of one MIG instance, which counts as a GPU. None: this GPU or this
    driver does not tell.
    """

    uuid: str
    """ "": NVML does not tell the uuid."""
    index: int
    memory_mib: int
    """All memory; 0 if unreadable."""
    model: str = ""
    numa: int | None = None
    problem: Problem | None = None
    reserved_mib: int = 0
    """The part of the memory that driver and firmware keep."""
    recovery: int | None = None
    """The recovery action, as NVML numbers actions (NVML_GPU_RECOVERY_ACTION_...).
    0: nothing."""
    remap_pending: bool | None = None
    """Whether rows of the memory are to be replaced at the next reset."""
    remap_failed: bool | None = None
    """Whether a row could not be replaced."""
    loads: int = 0
    """How often the driver was seen not to be loaded, and was loaded again."""
    minor: int | None = None
    """N of the device node /dev/nvidiaN; a MIG instance has nodes of another kind."""
    parent: str = ""
    """The uuid of the GPU of a MIG instance."""


@dataclass(frozen=True, slots=True)
class NodeCards:
    """The GPUs of the node."""

    unit: str
    """GiB, MiB, or a number of MiB."""
    all: tuple[Card, ...]
    """By index."""
    uncounted: tuple[str, ...] = ()
    """Uuids of GPUs that came while the plug-in ran, and count after its next start."""

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
        """Return the inventory for the annotation of the node."""
        devices = tuple(
            InventoryDevice(
                card.unit_count,
                card.uuid,
                card.model,
                healthy=card.healthy,
                problem=str(card.problem or ""),
            )
            for card in self.all
        )
        return Inventory(
            self.unit,
            devices,
            marks_assigned=True,
            serves_by_identity=True,
            uncounted=self.uncounted,
        )


def unit_mib(unit: str) -> int:
    """Return the MiB of a unit. Raises SettingsError."""
    if not is_unit(unit):
        raise SettingsError(
            f"memory-unit: {unit[:20]!r} is none of GiB, MiB, or a number of MiB such as 256MiB"
        )
    return mib_of(unit)


def make_cards(
    gpus: Sequence[DetectedGpu], unit: str, reserve_mib: int | None, uncounted: Sequence[str] = ()
) -> NodeCards:
    """Return the cards in units. reserve_mib: MiB of each card that are not served; None: the MiB
    that driver and firmware keep, as NVML tells.

    Raises SettingsError if the GPUs cannot be counted, or are too many for the kubelet.
    """
    if not gpus:
        raise SettingsError("there is no GPU on this node")
    if len(gpus) > MAX_DEVICES:
        raise SettingsError(f"{len(gpus)} GPUs, but a node may have {MAX_DEVICES} at most")
    if sorted(gpu.index for gpu in gpus) != list(range(len(gpus))):
        indices = ", ".join(str(gpu.index) for gpu in gpus)
        raise SettingsError(f"the GPUs must have the indices 0, 1, ...; they have {indices}")
    uuids: set[str] = set()
    for gpu in gpus:
        if not is_uuid(gpu.uuid) or any(
            separator in gpu.uuid for separator in (NVIDIA_IDS, ORIGINAL_IDS)
        ):
            raise SettingsError(f"GPU {gpu.index}: {gpu.uuid[:80]!r} is no uuid of a GPU")
        if gpu.uuid in uuids:
            raise SettingsError(f"GPU {gpu.index}: another one has the uuid {gpu.uuid}, too")
        uuids.add(gpu.uuid)
    cards = tuple(
        _card(gpu, unit_mib(unit), reserve_mib) for gpu in sorted(gpus, key=lambda gpu: gpu.index)
    )
    size = message_size(cards)
    if size > LONGEST_MESSAGE:
        raise SettingsError(_too_many(gpus, unit, reserve_mib, size))
    return NodeCards(unit, cards, tuple(uncounted))


def _card(gpu: DetectedGpu, unit: int, reserve_mib: int | None) -> Card:
    """Return the card in units of so many MiB."""
    reserved = gpu.reserved_mib if reserve_mib is None else reserve_mib
    units = max(0, gpu.memory_mib - reserved) // unit
    problem = gpu.problem
    if not units and problem is None:
        text = f"has {gpu.memory_mib} MiB, of which {reserved} are reserved: less than a unit"
        problem = Problem(Fault.SIZE, text)
    return Card(
        uuid=gpu.uuid,
        index=gpu.index,
        unit_count=units,
        model=gpu.model,
        numa=gpu.numa,
        problem=problem,
        minor=gpu.minor,
        memory_mib=gpu.memory_mib,
    )


def device_id(uuid: str, number: int, between: str = ORIGINAL_IDS) -> str:
    """Return the id of a unit. between: NVIDIA_IDS or ORIGINAL_IDS."""
    return f"{uuid}{between}{number}"


def starts_of_ids(uuids: Iterable[str]) -> tuple[str, ...]:
    """Return the prefixes of the ids of all units of these cards, in each form."""
    return tuple(f"{uuid}{between}" for uuid in uuids for between in (NVIDIA_IDS, ORIGINAL_IDS))


def form_of(devices: Iterable[str]) -> str:
    """Return the form of ids that the kubelet has on record: NVIDIA_IDS, ORIGINAL_IDS, "" if none.

    While a pod has ids of the original's form, that form is to be kept.
    """
    matches = [match for match in map(_ID.fullmatch, devices) if match]
    forms = {match["between"] for match in matches}
    return ORIGINAL_IDS if ORIGINAL_IDS in forms else NVIDIA_IDS if forms else ""


def uuid_of(device: str) -> str:
    """Return the uuid of the card that a unit belongs to, or "" if the id is not ours."""
    match = _ID.fullmatch(device)
    return match["uuid"] if match else ""


def number_of(device: str) -> int:
    """Return the number in an id of ours."""
    return int(device.rpartition(":")[2].rpartition("-")[2])


def uuids_of(devices: Iterable[str]) -> frozenset[str]:
    """Return the uuids of the cards that the units are of."""
    return frozenset(map(uuid_of, devices))


def message_size(cards: Iterable[Card]) -> int:
    """Return an upper bound of the bytes of the message to the kubelet with all units.

    A device is the id, "Unhealthy", perhaps a NUMA node of up to 10 bytes, and tags and lengths.
    """
    size = 0
    for card in cards:
        longest = len(device_id(card.uuid, max(0, card.unit_count - 1)))
        numa = 0 if card.numa is None else 17
        size += card.unit_count * (longest + len("Unhealthy") + numa + 9)
    return size


def _too_many(gpus: Sequence[DetectedGpu], unit: str, reserve_mib: int | None, size: int) -> str:
    smaller = unit_mib(unit)
    for chunk in _CHUNKS:
        if chunk > smaller:
            cards = [_card(gpu, chunk, reserve_mib) for gpu in gpus]
            if message_size(cards) <= LONGEST_MESSAGE:
                better = "GiB" if chunk == 1024 else f"{chunk}MiB"
                break
    else:
        better = "a larger one"
    return (
        f"memory-unit: in units of {unit} the list of devices is up to {size} bytes, and the"
        f" kubelet takes {LONGEST_MESSAGE}; take {better}, for the whole cluster"
    )
