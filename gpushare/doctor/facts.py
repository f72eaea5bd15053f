"""What was read of a cluster, its scheduler's file and the extender: the input of the checks.

Knows no I/O. What could not be read is an `Unread` in its place, so that one refusal leaves the
other checks alone.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.core.model import NodeSpec, Request, Shares
from gpushare.core.node_filters import NodeState
from gpushare.doctor.finding import Finding, Level
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.inventory import Inventory
from gpushare.wire.scheduler.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class Unread:
    """Facts that could not be read: why, what to do, and how grave that is."""

    why: str
    todo: str = ""
    level: Level = "fail"

    def finding(self, check: str) -> Finding:
        """Return the finding of a check that needs these facts."""
        return Finding(check, self.level, self.why, self.todo)


@dataclass(frozen=True, slots=True)
class SchedulerFile:
    """kube-scheduler's file, and what it says."""

    path: str
    config: SchedulerConfig
    document: object = None
    """The parsed file, to be read as one release reads it."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """git_version: as /version says it. minor: of 1.MINOR, 0 if unknown. ahead: seconds that its
    clock is ahead of ours, None if it did not say.
    """

    git_version: str
    minor: int
    ahead: float | None = None


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node, whether it shares devices or not.

    spec: how the ledger reads it. total, allocatable: units it advertises, None if it does not
    or they cannot be read. inventory: its annotation, None without one or if `broken` says why
    it cannot be read. state: as kube-scheduler's own filters see it. whole: resources of NVIDIA's
    own device plug-in that it has. control_plane: it is a node of the control plane by a label that
    its kubelet may not set. cores: percent of compute that it advertises, None if it does not.
    kept: the extender keeps it from scale-down.
    """

    name: str
    spec: NodeSpec
    total: int | None = None
    allocatable: int | None = None
    inventory: Inventory | None = None
    broken: str = ""
    labelled: bool = False
    state: NodeState | None = None
    whole: tuple[str, ...] = ()
    control_plane: bool = False
    cores: int | None = None
    kept: bool = False

    @property
    def shares(self) -> bool:
        """Whether it offers devices, or states them in a way that cannot be read."""
        return bool(self.total or self.spec.capacity or self.spec.closed or self.broken)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that has not ended and asks for our resource.

    name: namespace/name. node: "" while unscheduled. reason, message: of its condition PodScheduled
    while false, None before any scheduler has looked at it. bound: seconds since the epoch since
    when that is true, 0 if it is not. broken: why its amounts cannot be read. placement: the
    devices its annotations name; uuids: theirs, () if none is named. assumed: they name a time at
    which it was given them. mapped: the per-container map is there (which the original does not
    write) or needless. misplaced: what of it does not go with device memory. assigned: a device
    plug-in has marked it served. request: what it asks for, if that can be read.
    """

    name: str
    node: str = ""
    scheduler: str = "default-scheduler"
    age: float = 0.0
    gated: bool = False
    reason: str | None = None
    message: str = ""
    bound: float = 0.0
    broken: str = ""
    placement: Shares | None = None
    uuids: tuple[str, ...] = ()
    assumed: bool = False
    mapped: bool = False
    misplaced: str = ""
    assigned: bool = False
    request: Request = field(default_factory=Request)


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """gpu: pods that ask for our resource. originals: running pods of the original extender.
    schedulers: image tags of the kube-schedulers that run as pods. Both are of kube-system alone.
    static: the same of static pods, each with its node. alike: running pods that look like the
    original extender, of other namespaces or made by a node. counting: pods that ask for the count
    or for compute and for no memory, with what is wrong about it. cores_alone: those that ask for
    compute, with their node. whole: pods that ask for cards of NVIDIA's own device
    plug-in, with their node. placeholders: for autoscalers. gated: those of them with
    a scheduling gate. beside: others in their namespace.
    rewritten: pods whose claim is of a template that is named after its size.
    """

    gpu: tuple[PodSeen, ...] = ()
    originals: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    counting: tuple[tuple[str, str], ...] = ()
    cores_alone: tuple[tuple[str, str], ...] = ()
    whole: tuple[tuple[str, str], ...] = ()
    static: tuple[tuple[str, str], ...] = ()
    placeholders: tuple[str, ...] = ()
    gated: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease of an extender; times are seconds since the epoch, 0 if unknown."""

    namespace: str
    holder: str = ""
    duration: float = 0.0
    renewed: float = 0.0
    acquired: float = 0.0


@dataclass(frozen=True, slots=True)
class ClosedSeen:
    """A ConfigMap that closes devices of a node: indices and uuids, or why they cannot be read."""

    node: str
    devices: frozenset[int | str] = frozenset()
    broken: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One right; namespace "" means all, name "" any object."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """Return it as in "create pods/binding"."""
        group = f".{self.group}" if self.group else ""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{where}"


@dataclass(frozen=True, slots=True)
class ExtenderSeen:
    """The extender's health listener: its answers, how far its clock is ahead of ours, and its
    metrics by sample.
    """

    live: int
    ready: int
    ready_text: str = ""
    ahead: float | None = None
    samples: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate file: when it ends (seconds since the epoch), or why it cannot be read."""

    path: str
    until: float = 0.0
    broken: str = ""


@dataclass(frozen=True, slots=True)
class AsksSeen:
    """The namespace of placeholders. phase: Active or Terminating, "" if there is none."""

    namespace: str
    phase: str | Unread


@dataclass(frozen=True, slots=True)
class FenceSeen:
    """A ValidatingAdmissionPolicy over allocations. gaps: why it lets some through, if it does."""

    name: str
    drivers: frozenset[str] = frozenset()
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """A driver with slices. nodes: by name, the uuids of its cards that may be shared. unfit: by
    what keeps a device from being shared, their number.
    """

    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unfit: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimsSeen:
    """What there is of claims.

    classes: of the names that our class may have, those that there are, with the selectors of each.
    drivers: by name. unused: claims of the class that have devices and are reserved for nobody,
    with the time of their allocation in seconds since the epoch, 0 if it is not known.
    """

    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fences: tuple[FenceSeen, ...] = ()
    drivers: Mapping[str, DriverSeen] = field(default_factory=dict)
    unused: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read.

    now: this machine's clock. namespace: of the extender. listen: its --listen, which tells its
    entry from others, None if none was given. own_account: the account used is the
    extender's. scheduler, extender None: not asked for. route: the status that a GET of the filter
    verb gave, None if it was not sent; an extender answers 405. claims: what there is of claims.
    asks: where placeholders are, None if they are off or nobody says it.
    """

    now: float
    api: ApiServer | Unread
    nodes: tuple[NodeSeen, ...] | Unread
    pods: PodsSeen | Unread
    leases: tuple[LeaseSeen, ...] | Unread
    rights: Mapping[Right, bool] | Unread
    closed: tuple[ClosedSeen, ...] | Unread
    scheduler: SchedulerFile | Unread | None = None
    extender: ExtenderSeen | Unread | None = None
    route: int | Unread | None = None
    certificates: tuple[Certificate, ...] = ()
    names: Names = ALIYUN
    unit: str = "GiB"
    namespace: str = "kube-system"
    listen: tuple[str, int] | None = None
    own_account: bool = False
    claims: ClaimsSeen | Unread = field(default_factory=ClaimsSeen)
    asks: AsksSeen | None = None

    @property
    def known_nodes(self) -> tuple[NodeSeen, ...]:
        """The nodes; none if they could not be read."""
        return () if isinstance(self.nodes, Unread) else self.nodes

    @property
    def known_pods(self) -> PodsSeen:
        """The pods; none if they could not be read."""
        return PodsSeen() if isinstance(self.pods, Unread) else self.pods

    @property
    def samples(self) -> Mapping[str, float]:
        """The extender's metrics; none if it was not asked or does not answer."""
        return self.extender.samples if isinstance(self.extender, ExtenderSeen) else {}

    @property
    def now_there(self) -> float:
        """Now, by the API server's clock, as are the times of its objects."""
        ahead = self.api.ahead if isinstance(self.api, ApiServer) else None
        return self.now + (ahead or 0.0)
