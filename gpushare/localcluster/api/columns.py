"""The columns that `kubectl get` shows, kind by kind.

Pure: an object and the time in, cells out. Texts as kubectl's users know them from a real cluster
(k8s.io/kubernetes pkg/printers/internalversion).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpushare.localcluster.api.objects import Object, elements, metadata, name_of, section
from gpushare.localcluster.api.resources import EVENTS, NAMESPACES, NODES, PODS

Cell = str | int
NONE = "<none>"
UNKNOWN = "<unknown>"
ROLE = "node-role.kubernetes.io/"
RUNTIME = "containerRuntimeVersion"


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `wide` ones appear with `-o wide` only."""

    title: str
    cell: Callable[[Object, datetime], Cell]
    wide: bool = False
    type: str = "string"
    format: str = ""


def human_duration(seconds: float) -> str:
    """Return a length of time as kubectl prints ages: `45s`, `3m7s`, `5h2m`, `3d4h`, `400d`."""
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


def _age(body: Object, now: datetime) -> Cell:
    return since(metadata(body).get("creationTimestamp"), now)


def _path(*steps: str, absent: str = NONE) -> Callable[[Object, datetime], Cell]:
    def cell(body: Object, _: datetime) -> Cell:
        found: object = body
        for step in steps:
            found = found.get(step) if isinstance(found, dict) else None
        return absent if found is None or found == "" else str(found)

    return cell


def _ready(pod: Object, _: datetime) -> Cell:
    statuses = elements(section(pod, "status"), "containerStatuses")
    up = sum(1 for item in statuses if item.get("ready"))
    return f"{up}/{len(elements(section(pod, 'spec'), 'containers'))}"


def pod_status(pod: Object) -> str:
    """Return the word in the STATUS column: a reason where there is one, else the phase."""
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


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


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
    return _whole(section(event, "series").get("count")) or _whole(event.get("count")) or 1


def _entries(body: Object, _: datetime) -> Cell:
    return len(section(body, "data")) + len(section(body, "binaryData"))


NAME = Column("Name", lambda body, _: name_of(body), format="name")
AGE = Column("Age", _age)
GENERIC = (NAME, AGE)

_INFO = ("status", "nodeInfo")
_POD_COLUMNS = (
    NAME,
    Column("Ready", _ready),
    Column("Status", lambda pod, _: pod_status(pod)),
    Column("Restarts", _restarts),
    AGE,
    Column("IP", _path("status", "podIP"), wide=True),
    Column("Node", _path("spec", "nodeName"), wide=True),
    Column("Nominated Node", _path("status", "nominatedNodeName"), wide=True),
    Column("Readiness Gates", _gates, wide=True),
)
_NODE_COLUMNS = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _roles),
    AGE,
    Column("Version", _path(*_INFO, "kubeletVersion", absent="")),
    Column("Internal-IP", _address("InternalIP"), wide=True),
    Column("External-IP", _address("ExternalIP"), wide=True),
    Column("OS-Image", _path(*_INFO, "osImage", absent=UNKNOWN), wide=True),
    Column("Kernel-Version", _path(*_INFO, "kernelVersion", absent=UNKNOWN), wide=True),
    Column(
        "Container-Runtime", _path(*_INFO, "containerRuntimeVersion", absent=UNKNOWN), wide=True
    ),
)
_EVENT_COLUMNS = (
    Column("Last Seen", _last_seen),
    Column("Type", _path("type", absent="")),
    Column("Reason", _path("reason", absent="")),
    Column("Object", _involved),
    Column("Subobject", _path("involvedObject", "fieldPath", absent=""), wide=True),
    Column("Source", _source, wide=True),
    Column("Message", lambda event, _: str(event.get("message") or "").strip()),
    Column("First Seen", _first_seen, wide=True),
    Column("Count", _count, wide=True, type="integer"),
    Column("Name", lambda event, _: name_of(event), wide=True, format="name"),
)

_COLUMNS: dict[str, tuple[Column, ...]] = {
    PODS.table: _POD_COLUMNS,
    NODES.table: _NODE_COLUMNS,
    EVENTS.table: _EVENT_COLUMNS,
    NAMESPACES.table: (NAME, Column("Status", _path("status", "phase")), AGE),
    "configmaps": (NAME, Column("Data", _entries, type="integer"), AGE),
    "leases.coordination.k8s.io": (
        NAME,
        Column("Holder", _path("spec", "holderIdentity", absent="")),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Column("Value", _path("value", absent="0"), type="integer"),
        Column("Global-Default", _path("globalDefault", absent="False")),
        AGE,
    ),
}


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a resource; only name and age for one that has none of its own."""
    return _COLUMNS.get(table, GENERIC)
