"""A scenario as values: nodes, pods, steps and expectations.

Knows no file format, no API and no HTTP. Memory is counted in units, as everywhere in gpushare.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodePlan:
    """A node: `devices` are the units of each device by index; cpu and memory are quantities.

    driver: the DRA driver of the devices, "" for a device plug-in. nic: whether the node also has a
    network card of a DRA driver.
    """

    name: str
    devices: tuple[int, ...]
    cpu: str = "64"
    memory: str = "256Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    cordoned: bool = False
    driver: str = ""
    nic: bool = False

    @property
    def mixed(self) -> bool:
        """Whether the devices have different sizes."""
        return len(set(self.devices)) > 1


@dataclass(frozen=True)
class PodPlan:
    """A pod: `containers` are the units of device memory of each container, 0 for none.

    gpu_cores, gpu_percent: percent of compute and of memory that the first container requests.
    gpu_limit: the units that the pod may use, 0 for no more than the request.
    gpu_split: the split of the memory over devices, "" for even. claim_class: the device class of
    the claim for the memory, "" for no claim. nic: whether the claim requests a network card too.
    spread_over: the topology key over which equal pods are spread, "" for none. apart: the wish to
    stay apart from the pods of the group, "" for none. policy: the placement policy, "" for the
    extender's default. scheduler_name: the profile of the scheduler, "" for the default.
    """

    name: str
    containers: tuple[int, ...] = (0,)
    gpu_count: int = 1
    gpu_cores: int = 0
    gpu_percent: int = 0
    gpu_limit: int = 0
    gpu_split: str = ""
    cpu: str = "100m"
    memory: str = "64Mi"
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    run_seconds: float | None = None
    policy: str = ""
    scheduler_name: str = ""
    claim_class: str = ""
    nic: bool = False
    spread_over: str = ""
    apart: str = ""


@dataclass(frozen=True)
class Say:
    """Print a line for the reader."""

    text: str


@dataclass(frozen=True)
class Apply:
    """Create pods, in order."""

    pods: tuple[PodPlan, ...]


@dataclass(frozen=True)
class Delete:
    """Delete the pods with matching names."""

    patterns: tuple[str, ...]


@dataclass(frozen=True)
class Cordon:
    """Cordon or uncordon nodes."""

    nodes: tuple[str, ...]
    unschedulable: bool


@dataclass(frozen=True)
class Protect:
    """Create a PodDisruptionBudget: up to `allowed_count` pods with these labels may be evicted."""

    name: str
    labels: Mapping[str, str]
    allowed_count: int = 0


@dataclass(frozen=True)
class WaitFor:
    """Wait until all matching pods are in a state: bound, pending, settled, done or gone.

    pending: rejected by the scheduler; settled: bound or pending; done: Succeeded or Failed.
    """

    patterns: tuple[str, ...]
    state: str
    timeout: float


@dataclass(frozen=True)
class Pause:
    """Wait a number of seconds, for effects of time alone."""

    seconds: float


@dataclass(frozen=True)
class PodOn:
    """The pod is bound to this node, to these devices (None: any)."""

    pod: str
    node: str | None
    devices: tuple[int, ...] | None


@dataclass(frozen=True)
class PodPending:
    """The pod is pending and its reason contains the text."""

    pod: str
    reason: str


@dataclass(frozen=True)
class DeviceUsed:
    """Units in use on one device, by the extender's books."""

    node: str
    device: int
    used: int


@dataclass(frozen=True)
class BoundCount:
    """The number of matching pods that are bound."""

    pattern: str
    count: int


@dataclass(frozen=True)
class Packed:
    """No device is over its capacity, and no pending pod would fit anywhere."""


@dataclass(frozen=True)
class Allocated:
    """The used percent of the memory of all devices, rounded down."""

    percent: int


@dataclass(frozen=True)
class Traced:
    """The small scheduler's trace of the pod has a line with this text, regardless of spaces."""

    pod: str
    text: str


@dataclass(frozen=True)
class CycleCount:
    """The number of the pod's scheduling cycles in the small scheduler."""

    pod: str
    count: int


Check = PodOn | PodPending | DeviceUsed | BoundCount | Packed | Allocated | Traced | CycleCount


@dataclass(frozen=True)
class Expect:
    """A statement that must be true; `words` is the statement as text."""

    check: Check
    words: str


Step = Say | Apply | Delete | Cordon | Protect | Pause | WaitFor | Expect


@dataclass(frozen=True)
class Scenario:
    """Nodes and steps, with a title."""

    name: str
    title: str
    nodes: tuple[NodePlan, ...]
    steps: tuple[Step, ...]

    @property
    def has_claims(self) -> bool:
        """Whether some node has devices of a DRA driver."""
        return any(node.driver for node in self.nodes)
