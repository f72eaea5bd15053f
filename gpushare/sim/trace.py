"""Nodes and pods from files: the openb traces, and one's own cluster in the same words.

Knows the columns, what a value may be, and how to say where a file is wrong; nothing of policies or
of simulated time. A file is CSV (with a header) or JSON (a list of objects with the same keys), as
it is or compressed (.xz, .gz). Columns, the name of the openb traces after the bar:

    nodes  name|sn, cpu_milli, memory_mib, gpu, [units], [model]
    pods   name, cpu_milli, memory_mib, gpu|num_gpu, units|gpu_milli, [models|gpu_spec],
           [created|creation_time], [scheduled|scheduled_time], [deleted|deletion_time]

`units` is what each device has, or what a pod asks of each of its devices: GPU memory in GiB, MiB
or whatever one counts in; without the column a device has 1000, of which `gpu_milli` asks. `models`
are joined by "|"; times are seconds. Further columns are left alone.

Source of the openb columns and rules: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, and
the repository hkust-adsl/kubernetes-scheduler-simulator.
"""

import csv
import gzip
import io
import json
import lzma
import math
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import WireError

MILLI = 1000
"""Units of a device of the openb traces."""

_MOST: Mapping[str, int] = {"cpu": 10**8, "memory": 10**10, "gpu": 1024, "units": 10**9}
"""The largest values that are not taken for a slip: milli, MiB, devices, units."""

_NODE_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "name": ("name", "sn"),
    "cpu": ("cpu_milli",),
    "memory": ("memory_mib",),
    "gpu": ("gpu",),
    "units": ("units",),
    "model": ("model",),
}
_POD_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "name": ("name",),
    "cpu": ("cpu_milli",),
    "memory": ("memory_mib",),
    "gpu": ("gpu", "num_gpu"),
    "units": ("units", "gpu_milli"),
    "models": ("models", "gpu_spec"),
    "created": ("created", "creation_time"),
    "scheduled": ("scheduled", "scheduled_time"),
    "deleted": ("deleted", "deletion_time"),
}
_NODE_OPTIONAL = ("units", "model")
_POD_OPTIONAL = ("models", "created", "scheduled", "deleted")


class TraceError(WireError):
    """A trace is not what its format says; the text names file, line and column."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node: cpu in milli, memory in MiB, equal devices of `capacity` units each."""

    name: str
    cpu: int
    memory: int
    devices: int
    capacity: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod: cpu in milli, memory in MiB, `units` on each of `devices` (0: it asks for no GPU).

    models: any of them will do, () is any at all. Times in seconds; None where the file has none.
    """

    name: str
    cpu: int
    memory: int
    devices: int
    units: int
    models: tuple[str, ...]
    created: float | None
    scheduled: float | None
    deleted: float | None


def read_nodes(path: Path) -> list[TraceNode]:
    """The nodes of a file, in its order. Raises TraceError."""
    rows = _rows(path, _NODE_COLUMNS, _NODE_OPTIONAL)
    nodes = [_node(row) for row in _named(rows)]
    if not any(node.devices for node in nodes):
        raise TraceError(f"{path}: no node has a GPU")
    return nodes


def read_pods(path: Path, models: Collection[str] | None = None) -> list[TracePod]:
    """The pods of a file, in its order. Raises TraceError.

    models: those that the nodes have, so that a pod that names another is refused; None asks none.
    """
    rows = _rows(path, _POD_COLUMNS, _POD_OPTIONAL)
    pods = [_pod(row, models) for row in _named(rows)]
    if not any(pod.devices for pod in pods):
        raise TraceError(f"{path}: no pod asks for a GPU")
    return pods


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a file and where it stands. columns: by role its name there; cells: by that name."""

    where: str
    columns: Mapping[str, str]
    cells: Mapping[str, str]

    def wrong(self, role: str, what: str) -> TraceError:
        return TraceError(f"{self.where}, column {self.columns[role]}: {what}")

    def text(self, role: str) -> str:
        return self.cells[self.columns[role]] if role in self.columns else ""

    def name(self) -> str:
        name = self.text("name")
        if not name or not name.isprintable() or len(name) > 253:
            raise self.wrong("name", f"is no name of 1 to 253 printable characters: {name[:40]!r}")
        return name

    def count(self, role: str, least: int = 0) -> int:
        text = self.text(role)
        most = _MOST[role]
        try:
            number = int(text) if len(text) <= 20 else -1
        except ValueError:
            number = -1
        if not least <= number <= most:
            raise self.wrong(role, f"is no whole number from {least} to {most}: {text[:40]!r}")
        return number

    def seconds(self, role: str) -> float | None:
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


def _node(row: _Row) -> TraceNode:
    devices = row.count("gpu")
    capacity = row.count("units", 1 if devices else 0) if "units" in row.columns else MILLI
    return TraceNode(
        row.name(), row.count("cpu"), row.count("memory"), devices, capacity, row.text("model")
    )


def _pod(row: _Row, known: Collection[str] | None) -> TracePod:
    created, scheduled, deleted = map(row.seconds, ("created", "scheduled", "deleted"))
    start = created if scheduled is None else scheduled
    if deleted is not None and start is not None and deleted < start:
        raise row.wrong("deleted", "lies before the pod's creation or placement")
    devices = row.count("gpu")
    # Of a pod that asks for no device, neither size nor model means anything.
    units = _units(row) if devices else 0
    return TracePod(
        row.name(),
        row.count("cpu"),
        row.count("memory"),
        devices,
        units,
        _models(row, known) if devices else (),
        created,
        scheduled,
        deleted,
    )


def _units(row: _Row) -> int:
    units = row.count("units", 1)
    # Above a whole device the traces mean a whole device.
    return min(units, MILLI) if row.columns["units"] == "gpu_milli" else units


def _models(row: _Row, known: Collection[str] | None) -> tuple[str, ...]:
    text = row.text("models")
    if not text:
        return ()
    models = tuple(dict.fromkeys(text.split("|")))
    unknown = [model for model in models if not model or (known is not None and model not in known)]
    if unknown:
        raise row.wrong("models", f"no node has the model {unknown[0][:40]!r}")
    return models


def _named(rows: Iterator[_Row]) -> Iterator[_Row]:
    """The same rows, whose names must differ."""
    seen: set[str] = set()
    for row in rows:
        name = row.name()
        if name in seen:
            raise row.wrong("name", f"{name!r} is there twice")
        seen.add(name)
        yield row


def _rows(
    path: Path, columns: Mapping[str, tuple[str, ...]], optional: Collection[str]
) -> Iterator[_Row]:
    """The rows of a file with the columns that we know. Raises TraceError."""
    text = _text(path)
    found = _json(path, text) if ".json" in path.suffixes else _csv(path, text)
    roles: dict[str, str] = {}
    known: Collection[str] = ()
    for where, given in found:
        if given.keys() != known:
            known, roles = given.keys(), _roles(where, given, columns, optional)
        yield _Row(where, roles, given)


def _roles(
    where: str,
    given: Collection[str],
    columns: Mapping[str, tuple[str, ...]],
    optional: Collection[str],
) -> dict[str, str]:
    """By role the name of its column here."""
    roles = {}
    for role, names in columns.items():
        name = next((name for name in names if name in given), None)
        if name is not None:
            roles[role] = name
        elif role not in optional:
            raise TraceError(f"{where}: has no column {' or '.join(names)}")
    return roles


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        elif path.suffix == ".gz":
            content = gzip.decompress(content)
        # A table saved by a spreadsheet opens with a byte-order mark.
        return content.decode("utf-8-sig")
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _csv(path: Path, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    lines = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        if not header:
            raise TraceError(f"{path}: is empty")
        none = True
        for cells in lines:
            where = f"{path} line {lines.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise TraceError(f"{where}: has {len(cells)} columns, the header {len(header)}")
            none = False
            yield where, dict(zip(header, map(str.strip, cells), strict=True))
    except csv.Error as error:
        raise TraceError(f"{path} line {lines.line_num}: {error}") from error
    if none:
        raise TraceError(f"{path}: has a header and nothing under it")


def _json(path: Path, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is no JSON: {error}") from error
    if not isinstance(items, list) or not items:
        raise TraceError(f"{path}: must be a list of objects, and not empty")
    for number, item in enumerate(items, 1):
        where = f"{path} item {number}"
        if not isinstance(item, dict):
            raise TraceError(f"{where}: is no object")
        yield where, {key: _as_cell(value) for key, value in item.items()}


def _as_cell(value: object) -> str:
    """The value as a cell of a table would hold it; a list of models joined."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "|".join(map(str, value))
    return str(value)
