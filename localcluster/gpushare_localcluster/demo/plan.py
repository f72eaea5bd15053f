"""A scenario as values: nodes, pods, steps and expectations, in the words of docs/scenarios.md.

msgspec reads the types from a document; here is what the fields of one part must say of each other.
`scenario.py` checks the names of nodes and pods.
"""

from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import replace

from gpushare.errors import QuantityError, SettingsError
from gpushare.wire.quantity import to_bytes, to_milli

Name = Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | tuple[Text, ...]
Whole = Annotated[int, Meta(ge=0, le=1_000_000)]
Units = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Quantity = str | int | float
_T = TypeVar("_T")

_MOST_DEVICES = 64
_OF_PLUGINS = ("gpu_cores", "gpu_percent", "gpu_limit", "gpu_split", "containers", "policy")
"""Fields of a pod that go with device plug-ins alone."""


class ScenarioError(SettingsError):
    """A scenario that cannot be run; the text names file, line and error."""


def several(value: _T | tuple[_T, ...] | None) -> tuple[_T, ...]:
    """Return one value, a list of values, or none, as several."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


class _Part(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping of a scenario."""

    def document(self) -> dict[str, str]:
        """Return the mapping."""
        mapping: dict[str, str] = to_builtins(self)
        return mapping


class Taint(_Part, frozen=True, omit_defaults=True):
    """A taint of a node."""

    key: Text
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""


class Toleration(_Part, frozen=True, omit_defaults=True):
    """A toleration of a pod."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class NodePlan(_Part, frozen=True, kw_only=True):
    """A node, or `count` nodes named prefix1, prefix2, ...

    gpu_memory: the units of each device; of all `gpus`, or of each. driver: the DRA driver of the
    devices, "" for a device plug-in. nic: whether the node also has a network card of a DRA driver.
    """

    name: Name = ""
    prefix: Annotated[str, Meta(pattern="^[a-z0-9][-a-z0-9]{0,57}$")] = ""
    count: Annotated[int, Meta(ge=1, le=5000)] | None = None
    gpus: Annotated[int, Meta(ge=0, le=_MOST_DEVICES)] | None = None
    gpu_memory: Units | Annotated[tuple[Units, ...], Meta(max_length=_MOST_DEVICES)] = 16
    cpu: Quantity = "64"
    memory: Quantity = "256Gi"
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    driver: str = ""
    nic: bool = False

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError."""
        if bool(self.name) == bool(self.prefix) or bool(self.prefix) != bool(self.count):
            raise ValueError("needs either name, or prefix and count")
        if isinstance(self.gpu_memory, tuple) and self.gpus not in (None, len(self.gpu_memory)):
            listed = len(self.gpu_memory)
            raise ValueError(f"gpuMemory lists {listed} devices, gpus says {self.gpus}")
        if self.nic and not self.driver:
            raise ValueError("nic goes with driver alone")
        _check_amounts(self.cpu, self.memory)

    @property
    def devices(self) -> tuple[int, ...]:
        """The units of each device by index."""
        if isinstance(self.gpu_memory, tuple):
            return self.gpu_memory
        return (self.gpu_memory,) * (1 if self.gpus is None else self.gpus)

    @property
    def mixed(self) -> bool:
        """Whether the devices have different sizes."""
        return len(set(self.devices)) > 1

    def each(self) -> list["NodePlan"]:
        """Return the nodes, each with a name."""
        names = [f"{self.prefix}{number + 1}" for number in range(self.count or 0)]
        return [replace(self, name=name, prefix="", count=None) for name in names] or [self]


class PodPlan(_Part, frozen=True):
    """A pod, or `replicas` pods named name-1, name-2, ...

    gpu_mem, containers: the units of device memory of the only container, or of each. gpu_cores,
    gpu_percent: percent of compute and of memory that the first container requests. gpu_limit: the
    units that the pod may use, 0 for no more than the request. claim: the device class of the claim
    for the memory. nic: whether the claim requests a network card too. spread_over: the topology
    key over which equal pods are spread. Empty texts mean none, or the default of Kubernetes.
    """

    name: Name
    gpu_mem: Whole = 0
    gpu_count: Annotated[int, Meta(ge=1, le=_MOST_DEVICES)] = 1
    gpu_cores: Whole = 0
    gpu_percent: Whole = 0
    gpu_limit: Whole = 0
    gpu_split: str = ""
    containers: Annotated[tuple[Whole, ...], Meta(min_length=1)] | None = None
    cpu: Quantity = "100m"
    memory: Quantity = "64Mi"
    replicas: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    labels: dict[str, str] = {}
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000_000)] = 0
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    run_seconds: Seconds | None = None
    policy: str = ""
    scheduler_name: str = ""
    claim: str = ""
    nic: bool = False
    spread_over: str = ""
    apart: str = ""

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError."""
        if self.gpu_mem and self.containers:
            raise ValueError("give either gpuMem or containers")
        if (self.gpu_cores or self.gpu_percent) and not self.units[0]:
            raise ValueError("asks for a percentage without memory: give gpuMem as well")
        if self.nic and not self.claim:
            raise ValueError("nic goes with claim alone")
        if self.spread_over and not self.labels:
            raise ValueError("spreadOver needs labels, which say what pods are equal")
        if self.claim and any(getattr(self, name) for name in _OF_PLUGINS):
            words = ", ".join(self.__struct_encode_fields__[3:7])
            raise ValueError(f"a claim goes without {words}, containers and policy")
        if self.claim and (not self.gpu_mem or self.gpu_mem % self.gpu_count):
            raise ValueError("a claim needs gpuMem, which gpuCount divides")
        _check_amounts(self.cpu, self.memory)

    @property
    def units(self) -> tuple[int, ...]:
        """The units of device memory of each container."""
        return self.containers or (self.gpu_mem,)

    def each(self) -> list["PodPlan"]:
        """Return the pods, each with a name."""
        names = [f"{self.name}-{number + 1}" for number in range(self.replicas or 0)]
        return [replace(self, name=name, replicas=None) for name in names] or [self]


class Trace(_Part, frozen=True):
    """A CSV file beside the scenario; units: the memory of a device."""

    file: Text
    units: Units = 16


class Protect(_Part, frozen=True):
    """Create a PodDisruptionBudget: up to `allowed` pods with these labels may be evicted."""

    name: Name
    labels: Annotated[dict[str, str], Meta(min_length=1)]
    allowed: Whole = 0


class WaitFor(_Part, frozen=True):
    """Wait until all matching pods are in a state.

    pending: rejected by the scheduler; settled: bound or pending; done: Succeeded or Failed.
    """

    pods: Texts
    state: Literal["bound", "pending", "settled", "done", "gone"] = field(name="is")
    timeout: Seconds = 20.0


class Expect(_Part, frozen=True, kw_only=True):
    """A statement about one pod, device, or the whole cluster, that must be true.

    trace: the small scheduler's trace of the pod has a line with this text, regardless of spaces.
    cycles: the number of the pod's scheduling cycles. device: NODE/INDEX. bound: the number of pods
    that match `pods` and are bound. allocated: the used percent of the memory of all devices,
    rounded down. packed: no device is over its capacity, and no pending pod would fit anywhere.
    """

    pod: str = ""
    node: str = ""
    devices: Whole | tuple[Whole, ...] | None = None
    pending: str | None = None
    trace: str = ""
    cycles: Annotated[int, Meta(ge=1)] | None = None
    device: Annotated[str, Meta(pattern="^[^/]+/[0-9]{1,3}$")] = ""
    used: Whole | None = None
    bound: Whole | None = None
    pods: str = "*"
    allocated: Annotated[int, Meta(ge=0, le=100)] | None = None
    packed: bool | None = None

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError."""
        kinds = (self.pod, self.device, self.bound, self.allocated, self.packed)
        if sum(kind not in ("", None) for kind in kinds) != 1:
            raise ValueError("states exactly one of: pod, device, bound, allocated, packed")
        if self.packed is False:
            raise ValueError("packed can only be true")
        if self.device and self.used is None:
            raise ValueError("used is missing")

    @property
    def words(self) -> str:
        """The statement as text."""
        if self.pending is not None:
            return f'{self.pod} is pending because of "{self.pending}"'
        if self.trace:
            return f"{self.pod}: {self.trace}"
        if self.cycles is not None:
            return f"{self.pod} has been tried {_times(self.cycles)}"
        if self.pod:
            devices = "" if self.devices is None else f" {devices_words(several(self.devices))}"
            return f"{self.pod} is on {self.node or 'some node'}{devices}"
        if self.device:
            node, _, index = self.device.partition("/")
            return f"device {index} of {node}: {self.used} units are in use"
        if self.bound is not None:
            some = (
                f"pod{'s' * (self.bound != 1)}" if self.pods == "*" else f"of the pods {self.pods}"
            )
            return f"{self.bound} {some} {'is' if self.bound == 1 else 'are'} bound"
        if self.allocated is not None:
            return f"{self.allocated} % of the GPU memory is allocated"
        return "no device is over its capacity, and no pending pod would fit"


class Step(_Part, frozen=True, kw_only=True):
    """One step: print a line, create or delete pods, close or open nodes, wait, or expect."""

    say: Text | None = None
    apply: PodPlan | tuple[PodPlan, ...] | None = None
    apply_trace: Trace | None = None
    delete: Texts | None = None
    cordon: Texts | None = None
    uncordon: Texts | None = None
    protect: Protect | None = None
    pause: Seconds | None = None
    wait_for: WaitFor | None = None
    expect: Expect | None = None

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError."""
        words = self.__struct_encode_fields__
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 1:
            raise ValueError(f"a step has exactly one key, of: {', '.join(words)}")


class Scenario(_Part, frozen=True):
    """Nodes and steps, with a title."""

    steps: tuple[Step, ...]
    nodes: tuple[NodePlan, ...] = ()
    name: str = ""
    title: str = ""
    trace_nodes: Trace | None = None

    @property
    def has_claims(self) -> bool:
        """Whether some node has devices of a DRA driver."""
        return any(node.driver for node in self.nodes)


def devices_words(devices: tuple[int, ...]) -> str:
    """Return devices of a pod as words."""
    if not devices:
        return "without a device"
    return f"device{'s' * (len(devices) > 1)} {', '.join(map(str, devices))}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _check_amounts(cpu: Quantity, memory: Quantity) -> None:
    try:
        to_milli(str(cpu))
        to_bytes(str(memory))
    except QuantityError as error:
        raise ValueError(str(error)) from error
