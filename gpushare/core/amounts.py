"""The amounts of a device that pods ask for: a table with one row for each.

Memory is the first row. A pod holds a device by the units of memory that the pod has there, and
each device has its own number of units. All other amounts are counted in percent of one device.
Code that reads, counts, compares or shows percents loops over `PERCENT_AMOUNTS`, so a new amount is
a new row (docs/decisions/compute.md).

Standard library only. Tested in `tests/unit/core/test_amounts.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Percents = tuple[int, ...]
"""The percent of each of `PERCENT_AMOUNTS`; () if all of them are 0."""


@dataclass(frozen=True, slots=True)
class DeviceAmount:
    """An amount that a device has and that pods ask for a part of."""

    name: str
    """The key in documents and log lines, and the noun in texts about a part: 20 % of its cores."""
    title: str
    """The noun in headings and in names of JSON keys: Cores, usedCores."""
    resource_suffix: str
    """How the names of the extended resources end."""
    reason: str
    """Why a node with too little of the amount cannot take a pod: a promise, see `Reason`."""
    noun: str = ""
    """The noun in names of metrics and in texts about the whole: compute."""
    annotation: str = ""
    """How the names of the annotations end that say where a pod has its percents; "" for none."""
    original_annotation: str = ""
    """The whole name of that annotation for the resource of the original."""
    whole: int = 0
    """The amount of a whole device, in percent; 0: each device has its own number of units."""
    is_exclusive: bool = False
    """Whether a pod with the whole amount of a device has the device to itself.

    A pod that asks for nothing of an exclusive amount uses some of it all the same. So such a pod
    needs a device of which not the whole amount is given to others.
    """
    is_memory: bool = False
    """Whether the percents are of the device's memory: units of it are charged for them."""
    limit_variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variable with the limit of a container, by the kind of isolation."""

    def needed(self, percent: int) -> int:
        """Return the percent that a device must have free for a pod that asks for `percent`."""
        return max(percent, 1) if self.is_exclusive else percent


MEMORY = DeviceAmount(
    name="memory",
    title="Memory",
    resource_suffix="-mem",
    reason="Insufficient GPU Memory in one device",
)
COMPUTE = DeviceAmount(
    name="cores",
    title="Cores",
    # As ACK has it, and as ACK calls the annotation, which Arena reads.
    resource_suffix="-core.percentage",
    reason="Insufficient GPU Cores in one device",
    noun="compute",
    annotation="core-percentage",
    original_annotation="gpushare.alibabacloud.com/core-percentage",
    whole=100,
    is_exclusive=True,
    limit_variables={
        "hami-core": "CUDA_DEVICE_SM_LIMIT",
        "mps": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    },
)
SHARE = DeviceAmount(
    name="share",
    title="Share",
    resource_suffix="-mem.percentage",
    reason=MEMORY.reason,
    noun="share",
    whole=100,
    is_memory=True,
)

DEVICE_AMOUNTS: tuple[DeviceAmount, ...] = (MEMORY, COMPUTE, SHARE)
PERCENT_AMOUNTS: tuple[DeviceAmount, ...] = DEVICE_AMOUNTS[1:]
"""The amounts that are counted in percent of one device."""
NO_PERCENTS: Percents = (0,) * len(PERCENT_AMOUNTS)
_SHARE = PERCENT_AMOUNTS.index(SHARE)


def percents_of(values: Iterable[int]) -> Percents:
    """Return the percents. values: one for each of `PERCENT_AMOUNTS`."""
    percents = tuple(values)
    return percents if any(percents) else ()


def compute(percent: int) -> Percents:
    """Return `percent` of the compute of a device, and 0 of all other amounts."""
    return percents_of(percent if amount is COMPUTE else 0 for amount in PERCENT_AMOUNTS)


def memory_share(percent: int) -> Percents:
    """Return `percent` of the memory of a device, and 0 of all other amounts."""
    return percents_of(percent if amount is SHARE else 0 for amount in PERCENT_AMOUNTS)


def charged_units(units: int, percents: Percents, capacity: int = 0) -> int:
    """Return the units that a pod is charged on a device of `capacity` units: the requested units,
    or the percents of the memory, rounded up, if these are more. capacity: 0 for a device that is
    not there.
    """
    return max(units, -(-memory_percent(percents) * capacity // SHARE.whole))


def usable_units(units: int, total: int, limit: int, capacity: int) -> int:
    """Return the most units that may be used where a pod, or a container, has so many of the pod's
    units: the pod's limit is distributed like its units, and ends with the device.
    """
    return max(units, min(units * limit // total, capacity))


def memory_percent(percents: Percents) -> int:
    """Return the percent of the memory of a device."""
    return percents[_SHARE] if percents else 0


def of_one_device(totals: Percents) -> Percents:
    """Return the percents, each at most the whole of one device. totals: over all devices."""
    return percents_of(map(min, totals, (amount.whole for amount in PERCENT_AMOUNTS)))


def by_name(percents: Percents) -> dict[str, int]:
    """Return the percents by the names of their amounts, without zeros."""
    pairs = zip(PERCENT_AMOUNTS, percents, strict=False)
    return {amount.name: percent for amount, percent in pairs if percent}


def beside_memory(percents: Percents) -> Percents:
    """Return the percents without those of the memory."""
    pairs = zip(PERCENT_AMOUNTS, percents, strict=False)
    return percents_of(0 if amount.is_memory else percent for amount, percent in pairs)


def percents_text(percents: Percents, whose: str = "") -> str:
    """Return text such as "20 % of its cores", without memory; "" for no percents. whose: as
    "its ".
    """
    pairs = zip(PERCENT_AMOUNTS, beside_memory(percents), strict=False)
    return " and ".join(
        f"{percent} % of {whose}{amount.name}" for amount, percent in pairs if percent
    )


def memory_text(size: str, units: int, percents: Percents) -> str:
    """Return the memory of a request as text. size: the units as text, such as "4 GiB"."""
    percent = memory_percent(percents)
    if not percent:
        return size
    # Any percent of a device is at least 1 unit.
    return f"{percent} % of the memory" + (f", at least {size}" if units > 1 else "")
