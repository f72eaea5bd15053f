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
from gpushare.wire.device_list import DeviceList
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
    """The API server, as its answers show it."""

    git_version: str
    """As /version says it."""
    minor: int
    """MINOR of 1.MINOR, 0 if unknown."""
    ahead: float | None = None
    """Seconds that its clock is ahead of ours, None if it did not say."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node, whether it shares devices or not."""

    name: str
    spec: NodeSpec
    """How the ledger reads it."""
    total: int | None = None
    """Units it advertises, None if it does not or they cannot be read."""
    allocatable: int | None = None
    """The same of what it lets pods have."""
    inventory: Inventory | None = None
    """Its annotation, None without one or if `broken` says why it cannot be read."""
    broken: str = ""
    labelled: bool = False
    state: NodeState | None = None
    """As kube-scheduler's own filters see it."""
    whole: tuple[str, ...] = ()
    """Resources of NVIDIA's own device plug-in that it has."""
    control_plane: bool = False
    """It is a node of the control plane by a label that its kubelet may not set."""
    cores: int | None = None
    """Percent of compute that it advertises, None if it does not."""
    kept: bool = False
    """The extender keeps it from scale-down."""
    device_list: DeviceList | None = None
    """How its device plug-in hands devices over; None if it does not say, or cannot be read."""
    gpu_operator: bool = False
    """NVIDIA's GPU operator is to run its own device plug-in there."""

    @property
    def shares(self) -> bool:
        """Whether it offers devices, or states them in a way that cannot be read."""
        return bool(self.total or self.spec.capacity or self.spec.closed or self.broken)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that has not ended and asks for our resource."""

    name: str
    """As namespace/name."""
    node: str = ""
    """Empty while it has none."""
    scheduler: str = "default-scheduler"
    age: float = 0.0
    gated: bool = False
    reason: str | None = None
    """That of its condition PodScheduled while false, None before any scheduler looked at it."""
    message: str = ""
    """The message of the same."""
    bound: float = 0.0
    """Since when it has had a node, in seconds since the epoch; 0 if it has none."""
    broken: str = ""
    """Why its amounts cannot be read."""
    placement: Shares | None = None
    """The devices its annotations name."""
    uuids: tuple[str, ...] = ()
    """Of these devices, () if none is named."""
    assumed: bool = False
    """Its annotations name a time at which it was given them."""
    mapped: bool = False
    """The per-container map is there (which the original does not write) or needless."""
    misplaced: str = ""
    """What of it does not go with device memory."""
    assigned: bool = False
    """A device plug-in has marked it served."""
    request: Request = field(default_factory=Request)
    """What it asks for, if that can be read."""
    runtime_class: str = ""


@dataclass(frozen=True, slots=True)
class PluginPodSeen:
    """A pod of our device plug-in."""

    name: str
    """As namespace/name."""
    node: str
    runtime_class: str = ""
    waiting: str = ""
    """Why its container does not run, as CrashLoopBackOff; "" if it does."""
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """The pods that a check looks at."""

    gpu: tuple[PodSeen, ...] = ()
    """Pods that ask for our resource."""
    originals: tuple[str, ...] = ()
    """Running pods of the original extender in kube-system."""
    schedulers: tuple[str, ...] = ()
    """Image tags of the kube-schedulers that run as pods of kube-system."""
    alike: tuple[str, ...] = ()
    """Running pods that look like the original extender, of other namespaces or made by a node."""
    counting: tuple[tuple[str, str], ...] = ()
    """Pods that ask for the count or for compute and for no memory, with what is wrong about it."""
    cores_alone: tuple[tuple[str, str], ...] = ()
    """Those of them that ask for compute, with their node."""
    whole: tuple[tuple[str, str], ...] = ()
    """Pods that ask for cards of NVIDIA's own device plug-in, with their node."""
    static: tuple[tuple[str, str], ...] = ()
    """Image tags of the kube-schedulers that run as static pods, each with its node."""
    placeholders: tuple[str, ...] = ()
    """Placeholders, which are for autoscalers."""
    gated: tuple[str, ...] = ()
    """Placeholders with a scheduling gate."""
    beside: tuple[str, ...] = ()
    """Other pods in the namespace of placeholders."""
    claiming: tuple["ClaimingPod", ...] = ()
    """Pods with ResourceClaims."""
    plugins: tuple[PluginPodSeen, ...] = ()


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
    """The namespace of placeholders."""

    namespace: str
    phase: str | Unread
    """Active or Terminating, "" if there is none."""


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """A DRA driver with ResourceSlices."""

    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The uuids of its devices, by node name; devices without a uuid are left out."""
    devices: int = 0
    shared: int = 0
    """Number of devices that several claims may share."""


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A ResourceClaim: the device classes that it names, and the drivers of its devices."""

    classes: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClaimingPod:
    """A pod with ResourceClaims that has not ended."""

    name: str
    """As namespace/name."""
    scheduler: str
    claims: tuple[str, ...] = ()
    """As namespace/name; claims that are still to be made from templates are left out."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class ClaimsSeen:
    """What the API server has of ResourceClaims."""

    selectors: tuple[str, ...] | None = None
    """CEL expressions of the DeviceClass gpushare.io; None: there is no such class."""
    drivers: Mapping[str, DriverSeen] = field(default_factory=dict)
    """By driver name."""
    claims: Mapping[str, ClaimSeen] = field(default_factory=dict)
    """By namespace/name."""
    namespaces: frozenset[str] = frozenset()
    """Namespaces whose pods with claims a MutatingAdmissionPolicy sends to our scheduler."""
    left_over: tuple[str, ...] = ()
    """Objects of releases in which the extender allocated claims, as kind/name."""
    forbidden: tuple[str, ...] = ()
    """Kinds that this account may not list, of admission policies and namespaces."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read."""

    now: float
    """This machine's clock."""
    api: ApiServer | Unread
    nodes: tuple[NodeSeen, ...] | Unread
    pods: PodsSeen | Unread
    leases: tuple[LeaseSeen, ...] | Unread
    rights: Mapping[Right, bool] | Unread
    closed: tuple[ClosedSeen, ...] | Unread
    scheduler: SchedulerFile | Unread | None = None
    """None: not asked for."""
    extender: ExtenderSeen | Unread | None = None
    """The same."""
    route: int | Unread | None = None
    """The status that a GET of the filter verb gave, None if it was not sent; an extender answers
    405."""
    certificates: tuple[Certificate, ...] = ()
    names: Names = ALIYUN
    unit: str = "GiB"
    namespace: str = "kube-system"
    """The extender's."""
    listen: tuple[str, int] | None = None
    """Its --listen, which tells its entry from others, None if none was given."""
    own_account: bool = False
    """The account used is the extender's."""
    claims: ClaimsSeen | Unread = field(default_factory=ClaimsSeen)
    """What there is of claims."""
    asks: AsksSeen | None = None
    """Where placeholders are, None if they are off or nobody says it."""

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
