"""The input of the checks: facts about a cluster, kube-scheduler's file and the extender.

No I/O. An `Unread` stands in the place of facts that could not be read, so that the checks of other
facts go on.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.core.model import NodeSpec, Request, Shares
from gpushare.core.node_filters import NodeState
from gpushare.doctor.finding import Finding, Level
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.device_list import DeviceList
from gpushare.wire.inventory import Inventory
from gpushare.wire.scheduler.config import SchedulerConfig

_OK = 200


@dataclass(frozen=True, slots=True)
class Unread:
    """The reason why facts could not be read, a remedy, and the level of the finding."""

    reason: str
    todo: str = ""
    level: Level = "fail"

    def finding(self, check: str) -> Finding:
        """Return the finding of a check that needs these facts."""
        return Finding(check, self.level, self.reason, self.todo)


@dataclass(frozen=True, slots=True)
class SchedulerFile:
    """kube-scheduler's file and its settings."""

    path: str
    config: SchedulerConfig
    document: object = None
    """The parsed file, for a check by one release of kube-scheduler."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The API server."""

    git_version: str
    """From /version."""
    minor: int
    """MINOR of 1.MINOR, 0 if unknown."""
    ahead: float | None = None
    """Seconds that the server's clock is ahead of ours; None if unknown."""


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node, with or without shared devices."""

    name: str
    spec: NodeSpec
    """The node in the ledger."""
    total: int | None = None
    """Units in the capacity; None if absent or unreadable."""
    allocatable: int | None = None
    """Allocatable units; None if absent or unreadable."""
    inventory: Inventory | None = None
    """The inventory annotation; None without a readable one."""
    broken: str = ""
    """Why the inventory cannot be read, or ""."""
    labelled: bool = False
    state: NodeState | None = None
    """The state for kube-scheduler's own filters."""
    whole: tuple[str, ...] = ()
    """Resources of NVIDIA's own device plug-in in the capacity."""
    control_plane: bool = False
    """Whether a label that no kubelet may set marks a node of the control plane."""
    cores: int | None = None
    """Advertised percent of compute, or None."""
    is_kept: bool = False
    """Whether the extender keeps the node from scale-down."""
    device_list: DeviceList | None = None
    """The device plug-in's way to hand devices over; None if unknown."""
    misnamed: str = ""
    """A label or annotation that is meant as the label MAX_SHARERS and has no effect, or ""."""
    gpu_operator: bool = False
    """Whether NVIDIA's GPU operator is told to run its own device plug-in there."""

    @property
    def shares(self) -> bool:
        """Whether the node offers devices, readable or not."""
        return bool(self.total or self.spec.capacity or self.spec.closed or self.broken)


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod that has not ended and asks for our resource."""

    name: str
    """As namespace/name."""
    node: str = ""
    """"" while the pod is pending."""
    scheduler: str = "default-scheduler"
    age: float = 0.0
    gated: bool = False
    reason: str | None = None
    """The reason of a false condition PodScheduled; None before a scheduler sets the condition."""
    message: str = ""
    """The message of this condition."""
    bound_at: float = 0.0
    """The time of the bind in seconds since the epoch; 0 for a pending pod."""
    broken: str = ""
    """Why the amounts cannot be read, or ""."""
    placement: Shares | None = None
    """The devices in the annotations."""
    uuids: tuple[str, ...] = ()
    """The uuids of these devices, () if none is named."""
    assumed: bool = False
    """Whether the annotations have an assume time."""
    mapped: bool = False
    """Whether the per-container map, which the original does not write, is there or needless."""
    misplaced: str = ""
    """A field that does not go with device memory, or ""."""
    assigned: bool = False
    """Whether a device plug-in has marked the pod served."""
    request: Request = field(default_factory=Request)
    """The request; empty if it cannot be read."""
    runtime_class: str = ""


@dataclass(frozen=True, slots=True)
class StrayPod:
    """A pod with a mistake that asks for none of our resources."""

    name: str
    """As namespace/name."""
    mistake: str
    resources: frozenset[str] = frozenset()
    """Resources with names of other products: no mistake where a node offers one of them."""


@dataclass(frozen=True, slots=True)
class PluginPod:
    """A pod of our device plug-in."""

    name: str
    """As namespace/name."""
    node: str
    runtime_class: str = ""
    waiting_reason: str = ""
    """The reason of a waiting container, such as CrashLoopBackOff; "" if the container runs."""
    age: float = 0.0


@dataclass(slots=True)
class ListedPods:
    """The pods of a cluster, for the checks."""

    gpu: list[ListedPod] = field(default_factory=list)
    """Pods that ask for our resource."""
    originals: list[str] = field(default_factory=list)
    """Running pods of the original extender in kube-system."""
    schedulers: list[str] = field(default_factory=list)
    """Image tags of the kube-schedulers that run as pods of kube-system."""
    alike: list[str] = field(default_factory=list)
    """Running pods that look like the original extender, of other namespaces or made by a node."""
    without_memory: list[tuple[str, str]] = field(default_factory=list)
    """(pod, mistake) of pods that ask for a count or for compute, and for no memory."""
    strays: list["StrayPod"] = field(default_factory=list)
    """Pods that ask for none of our resources, and seem to want a part of a card."""
    cores_alone: list[tuple[str, str]] = field(default_factory=list)
    """(pod, node) of pods that ask for compute and for no memory."""
    whole: list[tuple[str, str]] = field(default_factory=list)
    """(pod, node) of pods that ask for cards of NVIDIA's own device plug-in."""
    static: list[tuple[str, str]] = field(default_factory=list)
    """(image tag, node) of the kube-schedulers that run as static pods."""
    placeholders: list[str] = field(default_factory=list)
    """Placeholders, which are for autoscalers."""
    gated: list[str] = field(default_factory=list)
    """Placeholders with a scheduling gate."""
    neighbours: list[str] = field(default_factory=list)
    """Other pods in the namespace of placeholders."""
    claiming: list["ClaimingPod"] = field(default_factory=list)
    """Pods with ResourceClaims."""
    plugins: list[PluginPod] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ListedLease:
    """A Lease of an extender; times are seconds since the epoch, 0 if unknown."""

    namespace: str
    holder: str = ""
    duration: float = 0.0
    renewed: float = 0.0
    acquired: float = 0.0


@dataclass(frozen=True, slots=True)
class UnhealthyConfigMap:
    """A ConfigMap that closes devices of a node.

    devices: indices and uuids. broken: why they cannot be read, or "".
    """

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
        """Return the right as text, such as "create pods/binding"."""
        group = f".{self.group}" if self.group else ""
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{place}"


@dataclass(frozen=True, slots=True)
class ExtenderAnswers:
    """The answers of the extender's health listener.

    ahead: seconds that the extender's clock is ahead of ours. samples: metrics by sample.
    """

    live: int
    ready: int
    ready_text: str = ""
    ahead: float | None = None
    samples: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate file.

    until: its end in seconds since the epoch. broken: why it cannot be read, or "".
    """

    path: str
    until: float = 0.0
    broken: str = ""


@dataclass(frozen=True, slots=True)
class PlaceholderNamespace:
    """The namespace of placeholders."""

    namespace: str
    phase: str | Unread
    """Active or Terminating, "" if there is none."""


@dataclass(frozen=True, slots=True)
class ListedDriver:
    """A DRA driver with ResourceSlices."""

    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The uuids of devices by node name; devices without a uuid are left out."""
    devices: int = 0
    shared: int = 0
    """Number of devices that several claims may share."""


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A ResourceClaim: device classes in its requests, and drivers of its allocated devices."""

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
class ListedClaims:
    """Objects of the API server about ResourceClaims."""

    selectors: tuple[str, ...] | None = None
    """CEL expressions of the DeviceClass gpushare.io; None: there is no such class."""
    drivers: Mapping[str, ListedDriver] = field(default_factory=dict)
    """By driver name."""
    claims: Mapping[str, ListedClaim] = field(default_factory=dict)
    """By namespace/name."""
    namespaces: frozenset[str] = frozenset()
    """Namespaces with the label for a MutatingAdmissionPolicy (see collect.CLAIMS_LABEL)."""
    left_over: tuple[str, ...] = ()
    """Objects of earlier releases, when the extender allocated claims, as kind/name."""
    forbidden: tuple[str, ...] = ()
    """Kinds that this account may not list, of admission policies and namespaces."""


@dataclass(frozen=True, slots=True)
class ListedKueue:
    """Objects of Kueue, in a cluster with an AdmissionCheck of the extender."""

    checks: tuple[str, ...] = ()
    """The names of the AdmissionChecks."""
    by_host: tuple[str, ...] = ()
    """ResourceFlavors with a Topology whose lowest level is the host name."""
    inactive: tuple[str, ...] = ()
    """The AdmissionChecks without the condition Active, with the reason."""
    is_too_old: bool = False
    """Whether Kueue does not serve the version of its API that the extender reads."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts for the checks."""

    now: float
    """This machine's clock."""
    api: ApiServer | Unread
    nodes: tuple[ListedNode, ...] | Unread
    pods: ListedPods | Unread
    leases: tuple[ListedLease, ...] | Unread
    rights: Mapping[Right, bool] | Unread
    config_maps: tuple[UnhealthyConfigMap, ...] | Unread
    scheduler: SchedulerFile | Unread | None = None
    """None: not requested."""
    extender: ExtenderAnswers | Unread | None = None
    """None: not requested."""
    route: int | Unread | None = None
    """The status of a GET of the filter verb, 405 from an extender; None: not sent."""
    certificates: tuple[Certificate, ...] = ()
    names: Names = ALIYUN
    unit: str = "GiB"
    namespace: str = "kube-system"
    """The extender's namespace."""
    listen: tuple[str, int] | None = None
    """The extender's --listen, which finds its entry in the file; None: unknown."""
    own_account: bool = False
    """Whether the account is the extender's."""
    claims: ListedClaims | Unread = field(default_factory=ListedClaims)
    asks: PlaceholderNamespace | None = None
    """The namespace of placeholders; None: placeholders are off, or unknown."""
    kueue: ListedKueue | Unread = field(default_factory=ListedKueue)

    @property
    def known_nodes(self) -> tuple[ListedNode, ...]:
        """The readable nodes."""
        return () if isinstance(self.nodes, Unread) else self.nodes

    @property
    def known_pods(self) -> ListedPods:
        """The readable pods."""
        return ListedPods() if isinstance(self.pods, Unread) else self.pods

    @property
    def samples(self) -> Mapping[str, float]:
        """The extender's metrics; empty if unknown."""
        return self.extender.samples if isinstance(self.extender, ExtenderAnswers) else {}

    @property
    def leader(self) -> ExtenderAnswers | None:
        """The answers of an extender that leads and is ready; None if unknown."""
        answers = self.extender
        return answers if isinstance(answers, ExtenderAnswers) and answers.ready == _OK else None

    def lacked(self, rights: Iterable[Right]) -> list[Right]:
        """Return the rights that the extender's account is known to lack."""
        if not self.own_account or isinstance(self.rights, Unread):
            return []
        return [right for right in rights if not self.rights.get(right)]

    @property
    def now_there(self) -> float:
        """The time by the API server's clock, in seconds since the epoch."""
        ahead = self.api.ahead if isinstance(self.api, ApiServer) else None
        return self.now + (ahead or 0.0)
