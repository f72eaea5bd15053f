"""Tables: objects as the rows that `kubectl get` prints, in the form of `meta.k8s.io/v1` Table.

Pure: objects and the time in, cells out. The texts are those of a real cluster (k8s.io/kubernetes
pkg/printers/internalversion).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpushare_localcluster.api.objects import Object, Record, elements, metadata, name_of, section
from gpushare_localcluster.api.resources import Resource
from gpushare_localcluster.api.selectors import selector_text

Cell = str | int
NONE, UNKNOWN = "<none>", "<unknown>"
ROLE = "node-role.kubernetes.io/"

_MADE_OF = "*Containers=@containers, *Images=@images"
_INFO = "status.nodeInfo"
_COLUMNS = {
    "daemonsets.apps": "Name, Desired=#status.desiredNumberScheduled,"
    " Current=#status.currentNumberScheduled, Ready=#status.numberReady,"
    " Up-to-date=#status.updatedNumberScheduled, Available=#status.numberAvailable,"
    f" Node Selector=spec.template.spec.nodeSelector{{}}, Age, {_MADE_OF}, *Selector=@selector",
    "deployments.apps": "Name, Ready=status.readyReplicas/spec.replicas,"
    " Up-to-date=#status.updatedReplicas, Available=#status.availableReplicas, Age,"
    f" {_MADE_OF}, *Selector=@selector",
    "jobs.batch": "Name, Status=@job_status, Completions=@completions, Duration=@duration, Age,"
    f" {_MADE_OF}, *Selector=@selector",
    "replicasets.apps": "Name, Desired=#spec.replicas, Current=#status.replicas,"
    f" Ready=#status.readyReplicas, Age, {_MADE_OF}, *Selector=@selector",
    "services": "Name, Type=spec.type?ClusterIP, Cluster-IP=spec.clusterIP,"
    " External-IP=spec.loadBalancerIP, Port(s)=@ports, Age, *Selector=spec.selector{}",
    "statefulsets.apps": f"Name, Ready=status.readyReplicas/spec.replicas, Age, {_MADE_OF}",
    "pods": "Name, Ready=@pod_ready, Status=@pod_status, Restarts=@restarts, Age,"
    " *IP=status.podIP, *Node=spec.nodeName, *Nominated Node=status.nominatedNodeName,"
    " *Readiness Gates=@gates",
    "nodes": "Name, Status=@node_status, Roles=@roles, Age,"
    f" Version={_INFO}.kubeletVersion?, *Internal-IP=@internal_ip, *External-IP=@external_ip,"
    f" *OS-Image={_INFO}.osImage?{UNKNOWN}, *Kernel-Version={_INFO}.kernelVersion?{UNKNOWN},"
    f" *Container-Runtime={_INFO}.containerRuntimeVersion?{UNKNOWN}",
    "events": "Last Seen=@last_seen, Type=type?, Reason=reason?, Object=@involved,"
    " *Subobject=involvedObject.fieldPath?, *Source=@source, Message=@message,"
    " *First Seen=@first_seen, *Count=#@count, *Name",
    "namespaces": "Name, Status=status.phase, Age",
    "configmaps": "Name, Data=#@entries, Age",
    "leases.coordination.k8s.io": "Name, Holder=spec.holderIdentity?, Age",
    "priorityclasses.scheduling.k8s.io": "Name, Value=#value, Global-Default=globalDefault?False,"
    " Age",
}
"""The columns of each table: titles, with a star for `-o wide` only, and sources of cells.

A source is a function of `_CELLS`, or a path with the text for an absent value behind `?`, for a
ratio two paths. `#`: a number. `{}`: a map. Other resources show name and age.
"""


@dataclass(frozen=True, slots=True)
class _Column:
    """One column; `wide` ones appear with `-o wide` only."""

    title: str
    cell: Callable[[Object, datetime], Cell]
    wide: bool
    type: str


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


def _since(moment: object, now: datetime) -> str:
    """Return the age of a timestamp, `<unknown>` for none."""
    try:
        return human_duration((now - datetime.fromisoformat(str(moment))).total_seconds())
    except (ValueError, TypeError):
        return UNKNOWN


def _at(body: object, path: str) -> object:
    for step in path.split("."):
        body = body.get(step) if isinstance(body, dict) else None
    return body


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _pod_ready(pod: Object, _: datetime) -> Cell:
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


def _pod_status(pod: Object, _: datetime) -> Cell:
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
    return str(sum(_whole(item.get("restartCount")) for item in statuses))


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


def _address(node: Object, kind: str) -> Cell:
    addresses = elements(section(node, "status"), "addresses")
    return next((str(item.get("address")) for item in addresses if item.get("type") == kind), NONE)


def _last_seen(event: Object, now: datetime) -> Cell:
    series = section(event, "series").get("lastObservedTime")
    return _since(series or event.get("lastTimestamp") or event.get("eventTime"), now)


def _first_seen(event: Object, now: datetime) -> Cell:
    return _since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _involved(event: Object, _: datetime) -> Cell:
    involved = section(event, "involvedObject")
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _source(event: Object, _: datetime) -> Cell:
    source = section(event, "source")
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host")
    return f"{component}, {host}" if host else str(component)


def _containers(body: Object, field: str) -> Cell:
    containers = elements(section(section(section(body, "spec"), "template"), "spec"), "containers")
    return ",".join(str(item.get(field)) for item in containers)


def _job_status(job: Object, _: datetime) -> Cell:
    conditions = elements(section(job, "status"), "conditions")
    holds = {item.get("type") for item in conditions if item.get("status") == "True"}
    for kind in ("Complete", "Failed", "FailureTarget", "Suspended"):
        if kind in holds:
            return kind
    return "Terminating" if metadata(job).get("deletionTimestamp") else "Running"


def _completions(job: Object, _: datetime) -> Cell:
    spec, succeeded = section(job, "spec"), _whole(section(job, "status").get("succeeded"))
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = _whole(spec.get("parallelism"))
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(job: Object, now: datetime) -> Cell:
    status = section(job, "status")
    ended = status.get("completionTime")
    until = datetime.fromisoformat(str(ended)) if ended else now
    return _since(status["startTime"], until) if status.get("startTime") else ""


def _service_ports(service: Object, _: datetime) -> Cell:
    ports = elements(section(service, "spec"), "ports")
    return ",".join(f"{item.get('port')}/{item.get('protocol', 'TCP')}" for item in ports) or NONE


_CELLS: dict[str, Callable[[Object, datetime], Cell]] = {
    "age": lambda body, now: _since(metadata(body).get("creationTimestamp"), now),
    "completions": _completions,
    "containers": lambda body, _: _containers(body, "name"),
    "count": lambda event, _: (
        _whole(section(event, "series").get("count")) or _whole(event.get("count")) or 1
    ),
    "duration": _job_duration,
    "entries": lambda body, _: len(section(body, "data")) + len(section(body, "binaryData")),
    "external_ip": lambda node, _: _address(node, "ExternalIP"),
    "first_seen": _first_seen,
    "gates": _gates,
    "images": lambda body, _: _containers(body, "image"),
    "internal_ip": lambda node, _: _address(node, "InternalIP"),
    "involved": _involved,
    "job_status": _job_status,
    "last_seen": _last_seen,
    "message": lambda event, _: str(event.get("message") or "").strip(),
    "name": lambda body, _: name_of(body),
    "node_status": _node_status,
    "pod_ready": _pod_ready,
    "pod_status": _pod_status,
    "ports": _service_ports,
    "restarts": _restarts,
    "roles": _roles,
    "selector": lambda body, _: selector_text(section(section(body, "spec"), "selector")) or NONE,
    "source": _source,
}


def _read(source: str) -> Callable[[Object, datetime], Cell]:
    """Return the function of a cell with this source."""
    if source.lstrip("#").startswith("@"):
        return _CELLS[source.lstrip("#@")]
    if source.startswith("#"):
        return lambda body, _: _whole(_at(body, source[1:]))
    path, is_ratio, total = source.partition("/")
    if is_ratio:
        return lambda body, _: f"{_whole(_at(body, path))}/{_whole(_at(body, total))}"
    if source.endswith("{}"):
        return lambda body, _: _pairs(_at(body, source[:-2]))
    path, mark, absent = source.partition("?")
    return lambda body, _: str(_at(body, path) or (absent if mark else NONE))


def _pairs(labels: object) -> str:
    pairs = sorted(labels.items()) if isinstance(labels, dict) else ()
    return ",".join(f"{key}={value}" for key, value in pairs) or NONE


def _column(text: str) -> _Column:
    title, _, source = text.removeprefix("*").partition("=")
    kind = "integer" if source.startswith("#") else "string"
    return _Column(title, _read(source or f"@{title.lower()}"), text.startswith("*"), kind)


_TABLES = {name: [_column(part) for part in text.split(", ")] for name, text in _COLUMNS.items()}
_GENERIC = [_column("Name"), _column("Age")]


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
    columns = _TABLES.get(resource.table, _GENERIC)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": [_row(record.body, columns, now, include) for record in records],
    }


def _definition(column: _Column) -> Object:
    return {
        "name": column.title,
        "type": column.type,
        "format": "name" if column.title == "Name" else "",
        "description": "",
        "priority": int(column.wide),
    }


def _row(body: Object, columns: Sequence[_Column], now: datetime, include: str) -> Object:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    whole = body if include == "Object" else {**partial, "metadata": metadata(body)}
    return {"cells": [column.cell(body, now) for column in columns], "object": whole}
