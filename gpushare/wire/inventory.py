"""A node's devices: our node annotation, and the ConfigMap of unhealthy devices.

Knows both formats, standard library only. The annotation is compact JSON, written by our device
plug-in (or by hand, for mixed cards without it):

    {"v":1,"unit":"GiB","devices":[{"uuid":"GPU-1b0c","model":"A100-SXM4-80GB","mem":80},
                                   {"mem":40,"healthy":false,"problem":"is lost"}],
     "marksAssigned":true,"servesByIdentity":true,"uncounted":["GPU-77aa"],"gone":["GPU-31de"]}

`devices` is in order of the device index. `mem` (units of `unit`, 0..MAX_UNITS) is required;
`uuid`, `model` and `problem` default to "", `healthy` to true, the others to false and nothing.
`problem` says to people why a device is unhealthy. `marksAssigned`: the device plug-in sets the
ASSIGNED annotation of each served pod. `servesByIdentity`: the device plug-in knows the pod that
the kubelet asks for, and serves the pod the cards of the Binding by uuid, or none. `uncounted`:
uuids of GPUs that were added and count when the device plug-in has started anew. `gone`: uuids of
cards that were listed here before, so that a pod with a Binding to one of these cards holds nothing
of the present cards. `unit` is GiB, MiB or a chunk such as 256MiB. Unknown keys are ignored; a
change that an old reader would misread raises `v`, and an unknown `v` is refused.

A uuid is printable ASCII without blanks and commas, and no two devices have the same.

The ConfigMap `unhealthy-gpu-<node>` holds `gpus: "0,GPU-1b0c"`: devices not to be used, by the
present index or by uuid.

The label `gpushare.io/max-sharers` is for people to write, so that pools of nodes and autoscalers
have it, too.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpushare.core.model import ANY_SHARERS, MAX_UNITS, Reason
from gpushare.errors import AnnotationError, SettingsError
from gpushare.wire.annotations import Names, is_uuid, strict_number
from gpushare.wire.quantity import Quantity, to_units

_T = TypeVar("_T")

VERSION = 1
MAX_DEVICES = 64
"""Most devices of one node; the arrays of the ledger are as wide as the widest node."""

MAX_SIZES = 8
"""Most sizes of the devices of one node: two kinds of cards, cut into parts."""

LARGEST_IN_GIB = 100
"""The most units of a device in GiB: a device with more counts in MiB, as in the original."""

MAX_SHARERS = "gpushare.io/max-sharers"
"""The label of a node with the most pods that hold a part of one device."""

UNHEALTHY_KEY = "gpus"
"""The key of the indices in the ConfigMap of unhealthy devices."""

_MAX_TEXT_LENGTH = 128
_MAX_DOCUMENT_LENGTH = 64 * 1024
_TYPE_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
}
_LIKE_A_UUID = re.compile(r"[A-Za-z][^-]*-")
_UNIT = re.compile(r"GiB|MiB|[1-9][0-9]{0,6}MiB")


@dataclass(frozen=True, slots=True)
class InventoryDevice:
    """One device: memory in units, and facts of the card."""

    mem: int
    uuid: str = ""
    model: str = ""
    healthy: bool = True
    problem: str = ""


def devices_of_totals(
    capacity: Mapping[str, Quantity], allocatable: Mapping[str, Quantity], names: Names
) -> tuple[tuple[InventoryDevice, ...], Reason | None]:
    """Return the devices of a node without an inventory, and why the node is closed, or None.

    A count that is not there for a moment would make one giant device of all. The kubelet subtracts
    unhealthy devices from allocatable: 0 means that all are unhealthy. Raises QuantityError.
    """
    total, count = (
        to_units(capacity.get(name, allocatable.get(name, 0)))
        for name in (names.resource, names.count)
    )
    usable = to_units(allocatable.get(names.resource, total))
    if not total:
        return (), None
    if not count:
        return (), Reason.NO_COUNT
    if count > MAX_DEVICES:
        return (), Reason.BROKEN_CAPACITY
    devices = (InventoryDevice(total // count, healthy=usable > 0),) * count
    return devices, Reason.UNEVEN if total % count else None


def most_sharers(labels: Mapping[str, str]) -> int:
    """Return the most pods that hold a part of one device, by the labels of the node.

    Raises AnnotationError if the label is no such number.
    """
    text = labels.get(MAX_SHARERS)
    number = ANY_SHARERS if text is None else strict_number(text, ANY_SHARERS - 1)
    if not number:
        raise AnnotationError(
            f"label {MAX_SHARERS}: {text!a} is not a number of pods from 1 to {ANY_SHARERS - 1}"
        )
    return number


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of a node by index, the unit of memory, and promises of the device plug-in."""

    unit: str
    devices: tuple[InventoryDevice, ...]
    marks_assigned: bool = False
    serves_by_identity: bool = False
    uncounted: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def after(self, previous: "Inventory") -> "Inventory":
        """Return this inventory, with missing cards of the previous inventory as gone."""
        present = {device.uuid for device in self.devices}
        earlier_uuids = (*previous.gone, *(device.uuid for device in previous.devices))
        gone_uuids = dict.fromkeys(uuid for uuid in earlier_uuids if uuid and uuid not in present)
        return replace(self, gone=tuple(gone_uuids)[-MAX_DEVICES:])


def encode_inventory(inventory: Inventory) -> str:
    """Return the annotation's text; default values are left out."""
    devices = []
    for device in inventory.devices:
        item: dict[str, Any] = {"uuid": device.uuid} if device.uuid else {}
        item |= {"model": device.model} if device.model else {}
        item["mem"] = device.mem
        item |= {} if device.healthy else {"healthy": False}
        item |= {"problem": device.problem[:_MAX_TEXT_LENGTH]} if device.problem else {}
        devices.append(item)
    flags = {
        "marksAssigned": inventory.marks_assigned,
        "servesByIdentity": inventory.serves_by_identity,
        "uncounted": inventory.uncounted[:MAX_DEVICES],
        "gone": inventory.gone[-MAX_DEVICES:],
    }
    document = {"v": VERSION, "unit": inventory.unit, "devices": devices}
    document |= {key: value for key, value in flags.items() if value}
    return json.dumps(document, separators=(",", ":"))


def decode_inventory(text: str) -> Inventory:
    """Return the inventory in an annotation.

    Raises AnnotationError naming the field that is wrong.
    """
    if len(text) > _MAX_DOCUMENT_LENGTH:
        raise AnnotationError(f"inventory: longer than {_MAX_DOCUMENT_LENGTH} characters")
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnnotationError("inventory: not JSON") from error
    document: dict[str, Any] = _typed(parsed, dict, "inventory")
    version = document.get("v")
    if type(version) is not int or version != VERSION:
        raise AnnotationError(f"inventory.v: must be {VERSION}")
    unit = _typed(document.get("unit"), str, "inventory.unit")
    if not is_unit(unit):
        raise AnnotationError("inventory.unit: must be GiB, MiB or a number of MiB such as 256MiB")
    devices = _typed(document.get("devices"), list, "inventory.devices")
    if len(devices) > MAX_DEVICES:
        raise AnnotationError(f"inventory.devices: more than {MAX_DEVICES}")
    decoded = tuple(
        _decode_device(device, f"inventory.devices[{n}]") for n, device in enumerate(devices)
    )
    first: dict[str, int] = {}
    for number, device in enumerate(decoded):
        if device.uuid and (same := first.setdefault(device.uuid, number)) != number:
            raise AnnotationError(f"inventory.devices[{number}].uuid: devices[{same}] has the same")
    if len({device.mem for device in decoded}) > MAX_SIZES:
        raise AnnotationError(f"inventory.devices: more than {MAX_SIZES} sizes of mem")
    return Inventory(
        unit=unit,
        devices=decoded,
        marks_assigned=_typed(
            document.get("marksAssigned", False), bool, "inventory.marksAssigned"
        ),
        serves_by_identity=_typed(
            document.get("servesByIdentity", False), bool, "inventory.servesByIdentity"
        ),
        uncounted=_uuids(document, "uncounted"),
        gone=_uuids(document, "gone"),
    )


def _uuids(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the uuids of cards that are no devices here."""
    path = f"inventory.{key}"
    uuids = _typed(document.get(key, []), list, path)
    if len(uuids) > MAX_DEVICES:
        raise AnnotationError(f"{path}: more than {MAX_DEVICES}")
    return tuple(_short_text(uuid, f"{path}[{n}]") for n, uuid in enumerate(uuids))


def is_unit(text: str) -> bool:
    """Return whether the text names a unit of memory: GiB, MiB, or a chunk such as 256MiB."""
    return _UNIT.fullmatch(text) is not None


def check_unit(unit: str) -> None:
    """Raise SettingsError if the value of the flag --unit is no unit of memory."""
    if not is_unit(unit):
        raise SettingsError("--unit: must be GiB, MiB or a number of MiB such as 256MiB")


def mib_of(unit: str) -> int:
    """Return the MiB of a unit of memory."""
    return 1024 if unit == "GiB" else int(unit.removesuffix("MiB") or "1")


def units_of(size: int, size_unit: str, unit: str) -> int | None:
    """Return an amount in GiB or MiB in units of the cluster; None if that is no whole number."""
    amount, chunk = size * mib_of(size_unit), mib_of(unit)
    whole = amount and not amount % chunk and amount // chunk <= MAX_UNITS
    return amount // chunk if whole else None


def decode_unhealthy(data: Mapping[str, str]) -> frozenset[int | str]:
    """Return the unhealthy devices, by index or uuid, in the data of a node's ConfigMap.

    None if `gpus` is empty. Blanks around a token are allowed, since people write this by hand. A
    uuid begins with a letter and has a hyphen, as in GPU-1b0c, so a typing error is not taken for
    one. Raises AnnotationError on any other token: the caller keeps the last good answer (the
    original takes such a token for device 0).
    """
    text = data.get(UNHEALTHY_KEY, "").strip()
    if not text:
        return frozenset()
    if len(text) > _MAX_DOCUMENT_LENGTH:
        raise AnnotationError(f"gpus: longer than {_MAX_DOCUMENT_LENGTH} characters")
    devices: set[int | str] = set()
    for token in map(str.strip, text.split(",")):
        index = strict_number(token)
        if index is None and not (_LIKE_A_UUID.match(token) and is_uuid(token)):
            raise AnnotationError(f"gpus: {token[:20]!a} is not a device index, and no uuid")
        devices.add(token if index is None else index)
    return frozenset(devices)


def _decode_device(value: object, path: str) -> InventoryDevice:
    item: dict[str, Any] = _typed(value, dict, path)
    mem = item.get("mem")
    if type(mem) is not int or not 0 <= mem <= MAX_UNITS:
        raise AnnotationError(f"{path}.mem: must be a whole number from 0 to {MAX_UNITS}")
    uuid = _short_text(item.get("uuid", ""), f"{path}.uuid")
    if uuid and not is_uuid(uuid):
        raise AnnotationError(f"{path}.uuid: must be printable ASCII without blanks and commas")
    return InventoryDevice(
        mem,
        uuid,
        _short_text(item.get("model", ""), f"{path}.model"),
        _typed(item.get("healthy", True), bool, f"{path}.healthy"),
        _short_text(item.get("problem", ""), f"{path}.problem"),
    )


def _short_text(value: object, path: str) -> str:
    text = _typed(value, str, path)
    if len(text) > _MAX_TEXT_LENGTH:
        raise AnnotationError(f"{path}: longer than {_MAX_TEXT_LENGTH} characters")
    return text


def _typed(value: object, kind: type[_T], path: str) -> _T:
    if not isinstance(value, kind):
        raise AnnotationError(f"{path}: must be {_TYPE_NAMES[kind]}")
    return value
