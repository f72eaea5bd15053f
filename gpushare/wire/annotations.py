"""The aliyun gpushare dialect of pod annotations: which devices a pod was given.

Derives the names of a resource, and reads a placement from annotations; binding.py writes one.
Knows no JSON objects of Kubernetes and no node: this module only bounds an index; the ledger checks
that a node has the device. Users can edit annotations, so numbers are strict (ASCII `[0-9]{1,10}`;
Python's int() would take " +7 ", "1_000" and Arabic digits) and annotations that do not add up to
the request of the pod's spec are no placement at all.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpushare.core.amounts import COMPUTE, MEMORY, PERCENT_AMOUNTS, SHARE
from gpushare.core.model import MAX_UNITS, Request, Shares
from gpushare.errors import SettingsError

MAX_INDEX = 2**31 - 1
"""Largest device index and container index read."""

MAX_DEVICES_PER_POD = 64

_COMPUTE, _SHARE = PERCENT_AMOUNTS.index(COMPUTE), PERCENT_AMOUNTS.index(SHARE)

_QUALIFIED = re.compile(
    r"(?P<domain>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)/(?P<name>[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)",
    re.ASCII,
)
_NUMBER = re.compile(r"[0-9]{1,10}")
_UUID = re.compile(r"[!-+\--~]{1,128}")
_MAX_MAP_LENGTH = 64 * 1024
_MAX_IDX_LENGTH = 1024
_MAX_UUIDS_LENGTH = 64 * 129

LARGEST_ANNOTATIONS = 256 * 1024
"""Bytes of all keys and values of an object (TotalAnnotationSizeLimitB of apimachinery). The API
server checks the limit at each update of the object, but not at a Binding.
"""
MOST_GIVEN = 64
"""Cards that a device plug-in may add to a pod (given_annotation.py)."""

SCALE_DOWN_GUARD = "gpushare.io/scale-down-guard"
"""Annotation of a Node that the extender keeps from scale-down: the reason."""


class PercentNames(NamedTuple):
    """The names under which an amount of PERCENT_AMOUNTS appears in objects."""

    resource: str
    """Extended resource: percent of one device."""
    allocation: str
    """Container -> device -> percent; only of a pod that asks for the amount. "" for none."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names under which one managed resource appears in objects."""

    resource: str
    """Extended resource: device memory, in units."""
    count: str
    """Extended resource of a node: the number of devices. Label or annotation of a pod: the number
    of requested devices.
    """
    percents: tuple[PercentNames, ...]
    """One for each of `PERCENT_AMOUNTS`."""
    idx: str
    """Pod annotation written at bind, as the next six: the devices."""
    dev: str
    """Units of the first device."""
    pod: str
    """Units of the pod."""
    assigned: str
    """Whether the device plug-in has served the pod; the device plug-in sets "true"."""
    assume_time: str
    """Nanoseconds since the epoch."""
    allocation: str
    """Container -> device -> units."""
    uuids: str
    """Of the devices of `idx`."""
    given: str
    """Pod annotation of the device plug-in: units on devices that the Binding does not name."""
    inventory: str
    """Node annotation."""
    unhealthy: str
    """The ConfigMap of a node is this prefix + the name of the node."""
    shape: str
    """Node label: the devices of nodes that do not exist yet."""
    policy: str = "gpushare.io/policy"
    """Pod annotation."""

    @property
    def cores(self) -> str:
        """Extended resource: the compute of devices, in percent of one device."""
        return self.percents[_COMPUTE].resource

    @property
    def share(self) -> str:
        """Extended resource: the memory of devices, in percent of one device."""
        return self.percents[_SHARE].resource

    @property
    def core_allocation(self) -> str:
        """Pod annotation: container -> device -> percent of the compute."""
        return self.percents[_COMPUTE].allocation

    @staticmethod
    def for_resource(resource: str) -> "Names":
        """Return the names for a resource: aliyun's own for aliyun.com/gpu-mem, similar ones for
        any other.

        Raises SettingsError if the resource is no qualified name, or is too long for this.
        """
        match = _QUALIFIED.fullmatch(resource)
        if match is None:
            raise SettingsError(f"{resource[:80]!r} is no extended resource (domain/name)")
        suffix = re.sub("[^A-Za-z0-9]", "-", resource).lower()
        prefix = suffix.replace("-", "_").upper()
        if len(prefix) > 63 - len("device-uuids-"):
            raise SettingsError(f"{resource!r} is too long: annotations named after it must fit 63")
        kind = match["name"].removesuffix(MEMORY.resource_suffix)
        original = resource == "aliyun.com/gpu-mem"
        return Names(
            resource=resource,
            count=f"{match['domain']}/{kind}-count",
            percents=tuple(
                PercentNames(
                    resource=f"{match['domain']}/{kind}{amount.resource_suffix}",
                    allocation=amount.original_annotation
                    if original or not amount.annotation
                    else f"gpushare.io/{amount.annotation}-{suffix}",
                )
                for amount in PERCENT_AMOUNTS
            ),
            idx=f"{prefix}_IDX",
            dev=f"{prefix}_DEV",
            pod=f"{prefix}_POD",
            assigned=f"{prefix}_ASSIGNED",
            assume_time=f"{prefix}_ASSUME_TIME",
            allocation=(
                "scheduler.framework.gpushare.allocation"
                if original
                else f"gpushare.io/allocation-{suffix}"
            ),
            uuids="gpushare.io/device-uuids" if original else f"gpushare.io/device-uuids-{suffix}",
            given="gpushare.io/given" if original else f"gpushare.io/given-{suffix}",
            inventory="gpushare.io/devices" if original else f"gpushare.io/devices-{suffix}",
            shape="gpushare.io/shape" if original else f"gpushare.io/shape-{suffix}",
            unhealthy="unhealthy-gpu-" if original else f"unhealthy-{suffix}-",
        )


def distinct(names: Sequence[Names]) -> None:
    """Check that no two resources have a name in objects in common.

    Raises SettingsError that names both: each would read the annotations of the other.
    """
    owners: dict[str, str] = {}
    for resource_names in names:
        derived = {
            *(
                resource_names.resource,
                resource_names.count,
                resource_names.idx,
                resource_names.allocation,
            ),
            *(resource_names.uuids, resource_names.given, resource_names.inventory),
            *(name for of_amount in resource_names.percents for name in of_amount),
        }
        for name in sorted(derived - {""}):
            owner = owners.setdefault(name, resource_names.resource)
            if owner != resource_names.resource:
                raise SettingsError(
                    f"managedResources: {owner} and {resource_names.resource} cannot both be"
                    f" managed: {name} would stand for either; rename one of them"
                )


ALIYUN = Names.for_resource("aliyun.com/gpu-mem")
"""The names of the original."""


def strict_number(text: str, limit: int = MAX_INDEX) -> int | None:
    """Return the number, or None unless the text is one to ten ASCII digits and at most `limit`."""
    if _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= limit else None


def is_uuid(text: str) -> bool:
    """Return whether the text can be the uuid of a device: printable ASCII, no blank, no comma."""
    return _UUID.fullmatch(text) is not None


def placement(annotations: Mapping[str, str], request: Request, names: Names) -> Shares | None:
    """Return the devices that a pod may hold by the annotations, or None without a usable one.

    Device plug-ins read IDX, command lines read the map by container. If both name the same
    devices, the map gives the units of each device. If the two contradict each other, every device
    of either counts with the larger number of units; so the units may sum to more than the request.
    The map is usable when the grants of every container sum to the limit of that container. If the
    request is larger than the sum of the containers (the peak of an init container), the map cannot
    say where the surplus lies: the request is then spread evenly, as over the devices of IDX. A
    split request is never spread evenly: only the map says where the parts are.
    """
    if not request.total:
        return None
    idx_devices = frozenset(_read_idx(annotations.get(names.idx, "")))
    map_units = _by_device(container_shares(annotations, request, names))
    evenly = None if request.split else _evenly(idx_devices, request.total)
    if not map_units:
        return evenly
    by_map: Shares | None = tuple(sorted(map_units.items()))
    if sum(map_units.values()) == request.total:
        agree = not idx_devices or idx_devices == map_units.keys()
    else:
        agree = not idx_devices
        if not map_units.keys() <= idx_devices:
            by_map = _evenly(map_units, request.total)
    return by_map if agree else _merge_placements(evenly, by_map)


def container_shares(
    annotations: Mapping[str, str], request: Request, names: Names
) -> dict[int, dict[int, int]]:
    """Return the map by container: container -> device -> units, without zeros.

    {} if there is none that agrees with the request.
    """
    text = annotations.get(names.allocation, "")
    if not text or len(text) > _MAX_MAP_LENGTH:
        return {}
    try:
        document = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
        grants = {container: _grant(grant) for container, grant in _object(document).items()}
    except (ValueError, RecursionError):
        return {}
    sums = {container: sum(grant.values()) for container, grant in grants.items() if grant}
    return grants if sums == dict(request.containers) else {}


def device_uuids(
    annotations: Mapping[str, str], shares: Shares, names: Names
) -> tuple[str, ...] | None:
    """Return the uuids beside the shares, "" for a device without one; () if none is named.

    None if the annotation makes no sense; the uuids are unknown then.
    """
    text = annotations.get(names.uuids, "")
    if not text:
        return ()
    if len(text) > _MAX_UUIDS_LENGTH:
        return None
    devices, uuids = _read_idx(annotations.get(names.idx, "")), text.split(",")
    present_uuids = [uuid for uuid in uuids if uuid]
    if (
        len(devices) != len(uuids)
        or len(set(present_uuids)) != len(present_uuids)
        or not all(map(is_uuid, present_uuids))
    ):
        return None
    by_device = dict(zip(devices, uuids, strict=True))
    return tuple(by_device.get(device, "") for device, _ in shares)


def has_own_devices(request: Request) -> bool:
    """Return whether a split request has for each container one device, of that many units."""
    container_units = sorted((units for _, units in request.containers), reverse=True)
    return request.split == tuple(container_units)


def _evenly(devices: Collection[int], total: int) -> Shares | None:
    if not devices or total % len(devices):
        return None
    units = total // len(devices)
    return tuple((device, units) for device in sorted(devices))


def _merge_placements(first: Shares | None, second: Shares | None) -> Shares | None:
    """Return for each device the most that either states; None if one states nothing."""
    if first is None or second is None:
        return None
    largest_units = dict(first)
    for device, units in second:
        largest_units[device] = max(largest_units.get(device, 0), units)
    return tuple(sorted(largest_units.items()))


def _read_idx(text: str) -> tuple[int, ...]:
    """Return the devices of "0" or "0,3"; none at all if one token is not a number or comes
    twice.
    """
    if len(text) > _MAX_IDX_LENGTH:
        return ()
    numbers = [strict_number(token) for token in text.split(",")]
    devices = tuple(number for number in numbers if number is not None)
    return devices if len(set(devices)) == len(numbers) else ()


def _by_device(grants: Mapping[int, Mapping[int, int]]) -> dict[int, int]:
    """Return the units by device, of all containers together."""
    granted: dict[int, int] = {}
    for grant in grants.values():
        for device, units in grant.items():
            granted[device] = granted.get(device, 0) + units
    return granted


def _grant(value: object) -> dict[int, int]:
    """Return the units by device of one container, zeros left out. Raises ValueError."""
    grant = _object(value)
    if any(type(units) is not int or not 0 <= units <= MAX_UNITS for units in grant.values()):
        raise ValueError("units")
    return {device: units for device, units in grant.items() if units}


def _object(value: object) -> dict[int, Any]:
    """Return a JSON object keyed by indices, each once. Raises ValueError otherwise."""
    if not isinstance(value, dict):
        raise ValueError("object")
    keyed = {strict_number(key): item for key, item in value.items()}
    if None in keyed or len(keyed) != len(value):
        raise ValueError("index")
    return {key: item for key, item in keyed.items() if key is not None}


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError if a key comes twice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate key")
    return fields


def _refuse_constant(constant: str) -> None:
    raise ValueError(constant)
