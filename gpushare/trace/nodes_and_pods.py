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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpushare.core.amounts import compute
from gpushare.core.model import ALL_CORES, Request
from gpushare.trace.rows import Columns, RawRows, Row, TraceError, of_file, read_rows

_T = TypeVar("_T")

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
    return nodes_of(of_file(path), str(path))


def read_pods(path: Path) -> list[TracePod]:
    """Return the pods of a file, in order. Raises TraceError."""
    return pods_of(of_file(path), str(path))


def nodes_of(raw_rows: RawRows, source: str, errors: list[str] | None = None) -> list[TraceNode]:
    """Return the nodes of these rows. Raises TraceError.

    errors: list for the errors of bad rows, which are omitted; None: the first error is raised.
    """
    nodes = list(_readable(read_rows(raw_rows, _NODE, _NODE_OPTIONAL), _node, errors))
    if not any(node.devices for node in nodes):
        raise TraceError(f"{source}: no node has a GPU")
    return nodes


def pods_of(raw_rows: RawRows, source: str, errors: list[str] | None = None) -> list[TracePod]:
    """Return the pods of these rows. left_out: as in nodes_of. Raises TraceError."""
    pods = list(_readable(read_rows(raw_rows, _POD, _POD_OPTIONAL), _pod, errors))
    if not any(pod.devices for pod in pods):
        raise TraceError(f"{source}: no pod asks for a GPU")
    return pods


def _readable(
    rows: Iterator[Row], parse: Callable[[Row], _T], errors: list[str] | None
) -> Iterator[_T]:
    for row in rows:
        try:
            yield parse(row)
        except TraceError as error:
            if errors is None:
                raise
            errors.append(f"{row.name()} is left out: {error}")


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
