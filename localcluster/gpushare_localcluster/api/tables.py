"""Tables: objects as the rows that `kubectl get` prints, in the form of `meta.k8s.io/v1` Table.

Pure: objects and the time in, cells out. The texts are those of a real cluster (k8s.io/kubernetes
pkg/printers/internalversion).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpushare_localcluster.api.objects import (
    Object,
    Record,
    elements,
    metadata,
    name_of,
    section,
    to_json,
)
from gpushare_localcluster.api.resources import EVENTS, NAMESPACES, NODES, PODS, Resource
from gpushare_localcluster.api.selectors import selector_text

Cell = str | int
NONE = "<none>"
UNKNOWN = "<unknown>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `wide` ones appear with `-o wide` only."""

    title: str
    cell: Callable[[Object, datetime], Cell]
    wide: bool = False
    type: str = "string"
    format: str = ""


def human_duration(seconds: float) -> str:
    """Return a duration as kubectl prints ages: `45s`, `3m7s`, `5h2m`, `3d4h`, `400d`."""
    if seconds < 0:
        return "0s"
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    steps = (
        (120, f"{whole}s"),
        (600, _two(minutes, "m", whole % 60, "s")),
        (3 * 3600, f"{minutes}m"),
        (8 * 3600, _two(hours, "h", minutes % 60, "m")),
        (48 * 3600, f"{hours}h"),
        (8 * 86400, _two(days, "d", hours % 24, "h")),
        (2 * 365 * 86400, f"{days}d"),
        (8 * 365 * 86400, _two(days // 365, "y", days % 365, "d")),
    )
    return next((text for limit, text in steps if whole < limit), f"{days // 365}y")


def _two(high: int, high_unit: str, low: int, low_unit: str) -> str:
    return f"{high}{high_unit}{low}{low_unit}" if low else f"{high}{high_unit}"


def since(moment: object, now: datetime) -> str:
    """Return the age of a timestamp, `<unknown>` for none."""
    try:
        return human_duration((now - datetime.fromisoformat(str(moment))).total_seconds())
    except (ValueError, TypeError):
        return UNKNOWN


def path(*steps: str, absent: str = NONE) -> Callable[[Object, datetime], Cell]:
    """Return a cell with the text at a path of the object."""

    def cell(body: Object, _: datetime) -> Cell:
        value = _at(body, steps)
        return absent if value is None or value == "" else str(value)

    return cell


def _at(body: Object, steps: tuple[str, ...]) -> object:
    value: object = body
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def whole(value: object) -> int:
    """Return a number, 0 for anything else."""
    return value if isinstance(value, int) else 0


def number(*steps: str) -> Callable[[Object, datetime], Cell]:
    """Return a cell with the number at a path of the object, 0 where there is none."""
    return lambda body, _: whole(_at(body, steps))


def out_of(ready: tuple[str, ...], total: tuple[str, ...]) -> Callable[[Object, datetime], Cell]:
    """Return a cell with a count and a total: `2/3`."""
    return lambda body, now: f"{number(*ready)(body, now)}/{number(*total)(body, now)}"


def pairs(*steps: str) -> Callable[[Object, datetime], Cell]:
    """Return a cell with the map at a path of the object: `a=b,c=d`."""

    def cell(body: Object, _: datetime) -> Cell:
        for step in steps:
            body = section(body, step)
        return ",".join(f"{key}={value}" for key, value in sorted(body.items())) or NONE

    return cell


ROLE = "node-role.kubernetes.io/"


def _ready(pod: Object, _: datetime) -> Cell:
    spec, status = section(pod, "spec"), section(pod, "status")
    first = elements(spec, "initContainers")
    sidecars = {item.get("name") for item in first if item.get("restartPolicy") == "Always"}
    up = sum(1 for item in elements(status, "containerStatuses") if item.get("ready"))
    up += sum(
        1
        for item in elements(status, "initContainerStatuses")
        if item.get("ready") and item.get("name") in sidecars
    )
    return f"{up}/{len(elements(spec, 'containers')) + len(sidecars)}"


def pod_status(pod: Object) -> str:
    """Return the word in the STATUS column: the reason if the pod has one, else the phase."""
    status = section(pod, "status")
    if metadata(pod).get("deletionTimestamp"):
        return "Terminating"
    if status.get("reason"):
        return str(status["reason"])
    for item in elements(status, "containerStatuses"):
        for state in ("waiting", "terminated"):
            reason = section(section(item, "state"), state).get("reason")
            if reason:
                return str(reason)
    gated = section(pod, "spec").get("schedulingGates")
    return "SchedulingGated" if gated else str(status.get("phase", UNKNOWN))


def _restarts(pod: Object, _: datetime) -> Cell:
    statuses = elements(section(pod, "status"), "containerStatuses")
    return str(sum(whole(item.get("restartCount")) for item in statuses))


def _gates(pod: Object, _: datetime) -> Cell:
    gates = elements(section(pod, "spec"), "readinessGates")
    return str(len(gates)) if gates else NONE


def _node_status(node: Object, _: datetime) -> Cell:
    conditions = elements(section(node, "status"), "conditions")
    ready = [item for item in conditions if item.get("type") == "Ready"]
    words = ["Ready" if item.get("status") == "True" else "NotReady" for item in ready]
    words = words or ["Unknown"]
    if section(node, "spec").get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(node: Object, _: datetime) -> Cell:
    labels = metadata(node).get("labels") or {}
    roles = sorted(label.removeprefix(ROLE) for label in labels if label.startswith(ROLE))
    return ",".join(roles) or NONE


def _address(kind: str) -> Callable[[Object, datetime], Cell]:
    def cell(node: Object, _: datetime) -> Cell:
        for item in elements(section(node, "status"), "addresses"):
            if item.get("type") == kind:
                return str(item.get("address"))
        return NONE

    return cell


def _last_seen(event: Object, now: datetime) -> Cell:
    series = section(event, "series").get("lastObservedTime")
    return since(series or event.get("lastTimestamp") or event.get("eventTime"), now)


def _first_seen(event: Object, now: datetime) -> Cell:
    return since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _involved(event: Object, _: datetime) -> Cell:
    involved = section(event, "involvedObject")
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _source(event: Object, _: datetime) -> Cell:
    source = section(event, "source")
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host")
    return f"{component}, {host}" if host else str(component)


def _count(event: Object, _: datetime) -> Cell:
    return whole(section(event, "series").get("count")) or whole(event.get("count")) or 1


def _entries(body: Object, _: datetime) -> Cell:
    return len(section(body, "data")) + len(section(body, "binaryData"))


def _containers(field: str) -> Callable[[Object, datetime], Cell]:
    def cell(body: Object, _: datetime) -> Cell:
        spec = section(section(section(body, "spec"), "template"), "spec")
        return ",".join(str(item.get(field)) for item in elements(spec, "containers"))

    return cell


def _selector(body: Object, _: datetime) -> Cell:
    return selector_text(section(section(body, "spec"), "selector")) or NONE


def _job_status(job: Object, _: datetime) -> Cell:
    conditions = elements(section(job, "status"), "conditions")
    holds = {item.get("type") for item in conditions if item.get("status") == "True"}
    for kind in ("Complete", "Failed", "FailureTarget", "Suspended"):
        if kind in holds:
            return kind
    return "Terminating" if metadata(job).get("deletionTimestamp") else "Running"


def _completions(job: Object, _: datetime) -> Cell:
    spec, succeeded = section(job, "spec"), whole(section(job, "status").get("succeeded"))
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = whole(spec.get("parallelism"))
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(job: Object, now: datetime) -> Cell:
    status = section(job, "status")
    ended = status.get("completionTime")
    until = datetime.fromisoformat(str(ended)) if ended else now
    return since(status["startTime"], until) if status.get("startTime") else ""


def _service_ports(service: Object, _: datetime) -> Cell:
    ports = elements(section(service, "spec"), "ports")
    return ",".join(f"{item.get('port')}/{item.get('protocol', 'TCP')}" for item in ports) or NONE


NAME = Column("Name", lambda body, _: name_of(body), format="name")
AGE = Column("Age", lambda body, now: since(metadata(body).get("creationTimestamp"), now))
GENERIC = (NAME, AGE)

_INFO = ("status", "nodeInfo")
_POD_COLUMNS = (
    NAME,
    Column("Ready", _ready),
    Column("Status", lambda pod, _: pod_status(pod)),
    Column("Restarts", _restarts),
    AGE,
    Column("IP", path("status", "podIP"), wide=True),
    Column("Node", path("spec", "nodeName"), wide=True),
    Column("Nominated Node", path("status", "nominatedNodeName"), wide=True),
    Column("Readiness Gates", _gates, wide=True),
)
_NODE_COLUMNS = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _roles),
    AGE,
    Column("Version", path(*_INFO, "kubeletVersion", absent="")),
    Column("Internal-IP", _address("InternalIP"), wide=True),
    Column("External-IP", _address("ExternalIP"), wide=True),
    Column("OS-Image", path(*_INFO, "osImage", absent=UNKNOWN), wide=True),
    Column("Kernel-Version", path(*_INFO, "kernelVersion", absent=UNKNOWN), wide=True),
    Column("Container-Runtime", path(*_INFO, "containerRuntimeVersion", absent=UNKNOWN), wide=True),
)
_EVENT_COLUMNS = (
    Column("Last Seen", _last_seen),
    Column("Type", path("type", absent="")),
    Column("Reason", path("reason", absent="")),
    Column("Object", _involved),
    Column("Subobject", path("involvedObject", "fieldPath", absent=""), wide=True),
    Column("Source", _source, wide=True),
    Column("Message", lambda event, _: str(event.get("message") or "").strip()),
    Column("First Seen", _first_seen, wide=True),
    Column("Count", _count, wide=True, type="integer"),
    Column("Name", lambda event, _: name_of(event), wide=True, format="name"),
)

_MADE_OF = (
    Column("Containers", _containers("name"), wide=True),
    Column("Images", _containers("image"), wide=True),
    Column("Selector", _selector, wide=True),
)


def _counts(**paths: str) -> tuple[Column, ...]:
    """Return columns of numbers, each from a field of the spec or the status."""
    cells = {title: number(*field.split(".")) for title, field in paths.items()}
    return tuple(
        Column(title.replace("_", "-"), cell, type="integer") for title, cell in cells.items()
    )


_SET_READY = Column("Ready", out_of(("status", "readyReplicas"), ("spec", "replicas")))
_DAEMON_COUNTS = {
    "Desired": "status.desiredNumberScheduled",
    "Current": "status.currentNumberScheduled",
    "Ready": "status.numberReady",
    "Up_to_date": "status.updatedNumberScheduled",
    "Available": "status.numberAvailable",
}

_COLUMNS: dict[str, tuple[Column, ...]] = {
    "daemonsets.apps": (
        NAME,
        *_counts(**_DAEMON_COUNTS),
        Column("Node Selector", pairs("spec", "template", "spec", "nodeSelector")),
        AGE,
        *_MADE_OF,
    ),
    "deployments.apps": (
        NAME,
        _SET_READY,
        *_counts(Up_to_date="status.updatedReplicas", Available="status.availableReplicas"),
        AGE,
        *_MADE_OF,
    ),
    "jobs.batch": (
        NAME,
        Column("Status", _job_status),
        Column("Completions", _completions),
        Column("Duration", _job_duration),
        AGE,
        *_MADE_OF,
    ),
    "replicasets.apps": (
        NAME,
        *_counts(Desired="spec.replicas", Current="status.replicas", Ready="status.readyReplicas"),
        AGE,
        *_MADE_OF,
    ),
    "services": (
        NAME,
        Column("Type", path("spec", "type", absent="ClusterIP")),
        Column("Cluster-IP", path("spec", "clusterIP")),
        Column("External-IP", lambda *_: NONE),
        Column("Port(s)", _service_ports),
        AGE,
        Column("Selector", pairs("spec", "selector"), wide=True),
    ),
    "statefulsets.apps": (NAME, _SET_READY, AGE, *_MADE_OF[:2]),
    PODS.table: _POD_COLUMNS,
    NODES.table: _NODE_COLUMNS,
    EVENTS.table: _EVENT_COLUMNS,
    NAMESPACES.table: (NAME, Column("Status", path("status", "phase")), AGE),
    "configmaps": (NAME, Column("Data", _entries, type="integer"), AGE),
    "leases.coordination.k8s.io": (
        NAME,
        Column("Holder", path("spec", "holderIdentity", absent="")),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Column("Value", path("value", absent="0"), type="integer"),
        Column("Global-Default", path("globalDefault", absent="False")),
        AGE,
    ),
}


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a resource; name and age for one without an entry in the table."""
    return _COLUMNS.get(table, GENERIC)


def table(
    resource: Resource,
    records: Sequence[Record],
    version: int,
    now: datetime,
    *,
    include: str = "",
) -> Object:
    """Return the Table of some objects; `now` is for ages.

    `include` is the parameter `includeObject`: rows carry metadata, or with "Object" the whole
    object.
    """
    shown_columns = columns(resource.table)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": [_definition(column) for column in shown_columns],
        "rows": [_row(record.body, shown_columns, now, include) for record in records],
    }


def row_encoder(
    resource: Resource, clock: Callable[[], datetime], include: str
) -> Callable[[Record], bytes]:
    """Return the function that encodes an object for a watch, as a Table of one row."""

    def encode(record: Record) -> bytes:
        one = table(resource, [record], record.version, clock(), include=include)
        return to_json(one)

    return encode


def _definition(column: Column) -> Object:
    return {
        "name": column.title,
        "type": column.type,
        "format": column.format,
        "description": "",
        "priority": int(column.wide),
    }


def _row(body: Object, shown_columns: Sequence[Column], now: datetime, include: str) -> Object:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    whole = body if include == "Object" else {**partial, "metadata": metadata(body)}
    return {"cells": [column.cell(body, now) for column in shown_columns], "object": whole}
