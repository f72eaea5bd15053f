"""Nodes and pods from files: the openb traces, and other clusters with the same columns.

A file is CSV (with a header) or JSON (a list of objects with the same keys), plain or compressed
(.xz, .gz). Columns, with the name in the openb traces after the bar:

    nodes  name|sn, cpu_milli, memory_mib, gpu, [units], [model]
    pods   name, cpu_milli, memory_mib, gpu|num_gpu, units|gpu_milli, [models|gpu_spec],
           [cores], [created|creation_time], [scheduled|scheduled_time], [deleted|deletion_time]

`units` is the capacity of each device, or the request of a pod on each device: GPU memory in GiB,
MiB or any other unit. Without the column a device has 1000 units, the unit of `gpu_milli`. If the
devices of a node differ, the units are joined by "|" (`80|80|24`), as are `models`; times are in
seconds. `cores` is the percent of compute that a pod requests of each device. Other columns are
ignored.

Source of the openb columns and rules: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, and
the repository hkust-adsl/kubernetes-scheduler-simulator.
"""

import csv
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from gpushare.core.amounts import compute
from gpushare.core.model import ALL_CORES, Request
from gpushare.errors import WireError

RawRows = Iterator[tuple[str, dict[str, str]]]
"""(position, cells by name) of each row."""

Columns = Mapping[str, tuple[str, ...]]
"""Role of a column -> possible names of the column."""

_MAX_BYTES = 128 * 1024 * 1024
"""Upper bound of the unpacked bytes of a file: a million pods are less."""

_WHOLE_FRACTION = re.compile(r"[0-9]+\.0*", re.ASCII)
_OTHER_SIGNS = ";\t|"
_SHOWN = 80
_MAX_NAME = 63 + 1 + 253
"""Upper bound of the characters of a name: namespace, slash and name of a pod."""


class TraceError(WireError):
    """A trace violates the format; the text names file, line and column."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with the position in the file."""

    position: str
    columns: Mapping[str, str]
    """The names of the columns here, by role."""
    cells: Mapping[str, str]
    """The text by the name of the column."""

    def wrong(self, role: str, problem: str) -> TraceError:
        """Return the error for a wrong cell."""
        return TraceError(f"{self.position}, column {self.columns[role]}: {problem}")

    def text(self, role: str) -> str:
        """Return the cell; "" if there is no such column."""
        return self.cells[self.columns[role]] if role in self.columns else ""

    def name(self) -> str:
        """Return the name in the row."""
        name = self.text("name")
        if not name or not name.isprintable() or len(name) > _MAX_NAME:
            problem = f"is no name of 1 to {_MAX_NAME} printable characters: {name[:40]!r}"
            raise self.wrong("name", problem)
        return name

    def count(self, role: str, minimum: int, maximum: int) -> int:
        """Return a whole number within these bounds."""
        return self.number(role, self.text(role), minimum, maximum)

    def number(self, role: str, text: str, minimum: int, maximum: int) -> int:
        """Return a part of the cell as a whole number within these bounds."""
        # pandas writes all numbers of a column with an empty cell as fractions.
        digits = text.partition(".")[0] if _WHOLE_FRACTION.fullmatch(text) else text
        number = int(digits) if digits.isascii() and digits.isdigit() and len(text) <= 20 else -1
        if not minimum <= number <= maximum:
            raise self.wrong(role, f"is no whole number from {minimum} to {maximum}: {text[:40]!r}")
        return number

    def seconds(self, role: str) -> float | None:
        """Return a time; None if the cell is empty."""
        text = self.text(role)
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.wrong(role, f"is no time in seconds: {text[:40]!r}")
        return number


def read_rows(rows: RawRows, columns: Columns, optional: Collection[str]) -> Iterator[Row]:
    """Yield the rows with the known columns.

    Raises TraceError if a needed column is missing, or if two rows have the same name.
    """
    roles: dict[str, str] = {}
    header: Collection[str] = ()
    names: set[str] = set()
    for position, cells in rows:
        if cells.keys() != header:
            header, roles = cells.keys(), _roles(position, cells, columns, optional)
        row = Row(position, roles, cells)
        name = row.name()
        if name in names:
            raise row.wrong("name", f"{name!r} is there twice")
        names.add(name)
        yield row


def of_file(path: Path) -> RawRows:
    """Return the rows of a file. Raises TraceError."""
    text = _text(path)
    if ".json" not in path.suffixes:
        return _csv(path, text)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is no JSON: {error}") from error
    if isinstance(items, dict) and "items" in items:
        raise TraceError(
            f"{path}: is a list of Kubernetes' objects, as kubectl prints it, and no table: whatif"
            " without --nodes, and simulate with --from-cluster, read nodes and pods of the cluster"
        )
    return _of_items(str(path), items)


def _of_items(source: str, items: object) -> RawRows:
    if not isinstance(items, list) or not items:
        raise TraceError(f"{source}: must be a list of objects, and not empty")
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise TraceError(f"{source} item {number}: is no object")
        cells = {}
        for key, value in item.items():
            if isinstance(value, list):  # of models, say
                cells[str(key)] = "|".join(map(str, value))
            else:
                cells[str(key)] = "" if value is None else str(value)
        yield f"{source} item {number}", cells


def _roles(
    position: str, header: Collection[str], columns: Columns, optional: Collection[str]
) -> dict[str, str]:
    roles, missing = {}, []
    for role, names in columns.items():
        name = next((name for name in names if name in header), None)
        if name is not None:
            roles[role] = name
        elif role not in optional:
            missing.append(" or ".join(names))
    if missing:
        file, line, _ = position.rpartition(" line ")
        there_are = ", ".join(header)
        there_are = there_are if len(there_are) <= _SHOWN else f"{there_are[:_SHOWN]}..."
        raise TraceError(
            f"{f'{file} line 1' if line else position}: has no column {'; '.join(missing)}; it has:"
            f" {there_are!r}"
        )
    return roles


def _text(path: Path) -> str:
    try:
        with path.open("rb") as packed:
            content = _unpacked(packed, path.suffix).read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise TraceError(f"{path}: has more than {_MAX_BYTES} bytes when it is unpacked")
        # A table saved by a spreadsheet opens with a byte-order mark.
        return content.decode("utf-8-sig")
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _unpacked(packed: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".xz":
        return cast(BinaryIO, lzma.open(packed))
    return cast(BinaryIO, gzip.open(packed)) if suffix == ".gz" else packed


def _csv(path: Path, text: str) -> RawRows:
    lines = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        if not header:
            raise TraceError(f"{path}: is empty")
        separator = next(
            (sign for sign in _OTHER_SIGNS if len(header) == 1 and sign in header[0]), ""
        )
        if separator:
            raise TraceError(
                f"{path} line 1: its columns are separated by {separator!r}: write commas"
            )
        if len(set(header)) < len(header):
            raise TraceError(f"{path} line 1: has a column twice")
        none = True
        for cells in lines:
            position = f"{path} line {lines.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise TraceError(f"{position}: has {len(cells)} columns, the header {len(header)}")
            none = False
            yield position, dict(zip(header, map(str.strip, cells), strict=True))
    except csv.Error as error:
        raise TraceError(f"{path} line {lines.line_num}: {error}") from error
    if none:
        raise TraceError(f"{path}: has a header and nothing under it")


MIB = 2**20
MILLI = 1000
"""Units of a device of the openb traces."""

_MAX_CPU, _MAX_MEMORY, _MAX_DEVICES, _MAX_UNITS = 10**8, 10**10, 1024, 10**9
"""Upper bounds of plausible values: milli, MiB, devices, units."""

_NODE: Columns = {
    "name": ("name", "sn"),
    "cpu": ("cpu_milli",),
    "memory": ("memory_mib",),
    "gpu": ("gpu",),
    "units": ("units",),
    "model": ("model",),
}
_POD: Columns = {
    "name": ("name",),
    "cpu": ("cpu_milli",),
    "memory": ("memory_mib",),
    "gpu": ("gpu", "num_gpu"),
    "units": ("units", "gpu_milli"),
    "models": ("models", "gpu_spec"),
    "cores": ("cores",),
    "utilization": ("utilization",),
    "created": ("created", "creation_time"),
    "scheduled": ("scheduled", "scheduled_time"),
    "deleted": ("deleted", "deletion_time"),
}
UTILIZATION = 50
"""An assumption: the median of training jobs, by the sources of `sim/interference.py`."""

_NODE_OPTIONAL = ("units", "model")
_POD_OPTIONAL = ("models", "cores", "utilization", "created", "scheduled", "deleted")


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node: cpu in milli, memory in MiB, devices of `capacity` units each."""

    name: str
    cpu: int
    memory: int
    devices: int
    capacity: int
    model: str
    mixed: tuple[int, ...] = ()
    """Units of each device if the devices differ, `capacity` being the maximum; else ()."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of each device."""
        return self.mixed or (self.capacity,) * self.devices

    def can_run(self, pod: "TracePod") -> bool:
        """Return whether the pod fits the empty node."""
        if pod.devices and pod.models and self.model not in pod.models:
            return False
        room = sum(units >= pod.units for units in self.sizes) if pod.devices else 0
        return room >= pod.devices and self.cpu >= pod.cpu and self.memory >= pod.memory


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod: cpu in milli, memory in MiB, `units` on each of `devices` (0: no GPU).

    Times are in seconds; None if the file has none.
    """

    name: str
    cpu: int
    memory: int
    devices: int
    units: int
    models: tuple[str, ...]
    """The accepted models, () for any."""
    created: float | None
    scheduled: float | None
    deleted: float | None
    cores: int = 0
    """Percent of the compute of each device; 0: no request."""
    utilization: int | None = None
    """Percent of each device that the pod keeps busy while it runs alone; None: unknown."""


def read_nodes(path: Path) -> list[TraceNode]:
    """Return the nodes of a file, in order. Raises TraceError."""
    nodes = list(map(_node, read_rows(of_file(path), _NODE, _NODE_OPTIONAL)))
    if not any(node.devices for node in nodes):
        raise TraceError(f"{path}: no node has a GPU")
    return nodes


def read_pods(path: Path) -> list[TracePod]:
    """Return the pods of a file, in order. Raises TraceError."""
    pods = list(map(_pod, read_rows(of_file(path), _POD, _POD_OPTIONAL)))
    if not any(pod.devices for pod in pods):
        raise TraceError(f"{path}: no pod asks for a GPU")
    return pods


def _node(row: Row) -> TraceNode:
    devices = row.count("gpu", 0, _MAX_DEVICES)
    sizes: tuple[int, ...] = (MILLI,)  # of each device, or one size for all
    if devices and "units" in row.columns:
        several = row.text("units").split("|")
        if len(several) == 1:
            sizes = (row.count("units", 1, _MAX_UNITS),)
        elif len(several) != devices:
            raise row.wrong("units", f"names {len(several)} devices where the node has {devices}")
        else:
            sizes = tuple(row.number("units", part, 1, _MAX_UNITS) for part in several)
    return TraceNode(
        name=row.name(),
        cpu=row.count("cpu", 0, _MAX_CPU),
        memory=row.count("memory", 0, _MAX_MEMORY),
        devices=devices,
        capacity=max(sizes),
        model=row.text("model"),
        mixed=sizes if len(set(sizes)) > 1 else (),
    )


def _pod(row: Row) -> TracePod:
    created, scheduled, deleted = map(row.seconds, ("created", "scheduled", "deleted"))
    start = created if scheduled is None else scheduled
    if deleted is not None and start is not None and deleted < start:
        raise row.wrong("deleted", "lies before the pod's creation or placement")
    devices = row.count("gpu", 0, _MAX_DEVICES)
    name = row.name()
    cpu, memory = row.count("cpu", 0, _MAX_CPU), row.count("memory", 0, _MAX_MEMORY)
    units, cores = 0, 0
    utilization = None
    models: tuple[str, ...] = ()
    # Size and model mean nothing if a pod asks for no device.
    if devices:
        units = row.count("units", 1, _MAX_UNITS)
        # In the traces more than a whole device means a whole device.
        units = min(units, MILLI) if row.columns["units"] == "gpu_milli" else units
        text = row.text("models")
        models = tuple(dict.fromkeys(text.split("|"))) if text else ()
        if "" in models:
            raise row.wrong("models", f"has an empty name: {text[:40]!r}")
        cores = row.count("cores", 0, ALL_CORES) if row.text("cores") else 0
        if row.text("utilization"):
            utilization = row.count("utilization", 0, ALL_CORES)
    return TracePod(
        name=name,
        cpu=cpu,
        memory=memory,
        devices=devices,
        units=units,
        models=models,
        created=created,
        scheduled=scheduled,
        deleted=deleted,
        cores=cores,
        utilization=utilization,
    )


def utilization_of(pod: TracePod) -> int:
    """Return the percent of each device that the pod keeps busy while it runs alone.

    If the file does not say: the compute that the pod asks for, else UTILIZATION.
    """
    if pod.utilization is None:
        return pod.cores or UTILIZATION
    return pod.utilization


def in_units(
    nodes: Sequence[TraceNode], pods: Sequence[TracePod], units: int
) -> tuple[list[TraceNode], list[TracePod]]:
    """Return the same with devices of this many units, the sizes of pods rounded up.

    A trace counts in thousandths of a device, a cluster in units of memory. Raises TraceError if
    the devices are not all of one size.
    """
    sizes = {units for node in nodes for units in node.sizes}
    if len(sizes) > 1:
        raise TraceError("devices of different sizes cannot be counted anew; leave out --devices")
    (size,) = sizes
    return (
        [replace(node, capacity=units) for node in nodes],
        [replace(pod, units=-(-pod.units * units // size)) for pod in pods],
    )


def request_of(pod: TracePod) -> Request:
    """Return the request of the pod."""
    return Request(
        units=pod.units if pod.devices else 0,
        devices=pod.devices,
        cpu=pod.cpu,
        memory=pod.memory * MIB,
        models=tuple(sorted(pod.models)) if pod.devices else (),
        percents=compute(pod.cores if pod.devices else 0),
    )
