"""Small clusters for the tests of core: as plain objects, and as the Snapshot made of them.

The functions at the end compute with plain objects the results that `decide` computes with arrays.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from gpushare.core.amounts import NO_PERCENTS, PERCENT_AMOUNTS, Percents, compute, percents_of
from gpushare.core.decide import best_row, rows_of
from gpushare.core.model import (
    ANY_CARD,
    ANY_SHARERS,
    Allocation,
    Apart,
    Cards,
    Charge,
    NodeSpec,
    Pinned,
    Reason,
    Request,
)
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.node_filters import NodeState
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Snapshot
from gpushare.core.workload import PodClass, workload_of

WORKLOAD = workload_of(
    {
        PodClass(cpu=500, units=2, devices=1, memory=2**30): 50,
        PodClass(cpu=2000, units=3, devices=1, models=("A",), memory=2**30): 20,
        PodClass(cpu=4000, units=8, devices=1, memory=2**32): 30,
        PodClass(cpu=6000, units=8, devices=2, memory=2**33): 9,
        PodClass(cpu=8000, units=4, devices=3, models=("B",)): 5,
        PodClass(cpu=1000): 20,
    },
    capacities=range(1, 9),
    turnover=1.0,
)
"""Pods of small clusters: shares of a device, whole devices, several devices, no device."""

COMPUTE = workload_of(
    {
        **dict(WORKLOAD.classes),
        PodClass(cpu=500, units=2, devices=1, memory=2**30, cores=30): 40,
        PodClass(cpu=2000, units=1, devices=1, memory=2**30, cores=70): 20,
        PodClass(cpu=4000, units=4, devices=1, memory=2**32, cores=100): 10,
        PodClass(cpu=6000, units=3, devices=2, cores=30): 5,
    },
    WORKLOAD.devices,
    turnover=1.0,
)
"""The same, with others that ask for compute, too."""

POLICIES: dict[str, Policy] = {name: load_policy(name, WORKLOAD) for name in policy_names()}

NEVER = (Reason.NO_DEVICE, Reason.TOO_LARGE, Reason.TOO_MANY_DEVICES)


def node(name: str, *capacity: int, unhealthy: Iterable[int] = (), **fields: object) -> NodeSpec:
    """A node with these devices, healthy but for those named."""
    sick = frozenset(unhealthy)
    count = len(capacity)
    spec = NodeSpec(
        name,
        capacity,
        tuple(device not in sick for device in range(count)),
        ("A100",) * count,
        ("",) * count,
    )
    return replace(spec, **fields)  # type: ignore[arg-type]  # the caller names fields of NodeSpec


def state_of(spec: NodeSpec, **changes: object) -> NodeState:
    """The node for kube-scheduler's own filters: aliyun resources for devices and compute, CPU,
    memory.

    Unknown CPU and memory are huge.
    """
    amounts = {
        "aliyun.com/gpu-mem": sum(spec.capacity),
        "aliyun.com/gpu-core.percentage": 100 * len(spec.capacity),
        "pods": 110,
        "cpu": spec.cpu,
        "memory": spec.memory,
    }
    allocatable = {name: 2**40 if amount is None else amount for name, amount in amounts.items()}
    state = NodeState(spec.name, {}, allocatable=allocatable)
    return replace(state, **changes)  # type: ignore[arg-type]  # the caller names its fields


APART = st.sampled_from([None, None, Apart("web", required=True), Apart("web", required=False)])
"""Wishes of pods to stay apart, half of them of one workload."""


@dataclass(frozen=True)
class Cluster:
    """Nodes, units and cores used by device of each, and the bound pods not served yet."""

    nodes: tuple[NodeSpec, ...]
    used: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pins: Mapping[str, tuple[Pinned, ...]] = field(default_factory=dict)
    cores: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.nodes]

    def spec(self, name: str) -> NodeSpec:
        return next(spec for spec in self.nodes if spec.name == name)

    def cores_used(self, name: str) -> tuple[int, ...]:
        return self.cores.get(name, (0,) * len(self.spec(name).capacity))

    def memory_left(self, name: str) -> list[int]:
        """Free units by open device, usable or not."""
        spec = self.spec(name)
        used = self.used.get(name, (0,) * len(spec.capacity))
        return [
            max(has - used_units, 0) if fine and not spec.closed else 0
            for has, used_units, fine in zip(spec.capacity, used, spec.healthy, strict=True)
        ]

    def free(self, name: str) -> list[int]:
        """Units that can be given out, by device: none where all cores are given, or all places."""
        memory, cores = self.memory_left(name), self.cores_used(name)
        return [
            units if used_cores < 100 and self.has_places(name) else 0
            for units, used_cores in zip(memory, cores, strict=True)
        ]

    def has_places(self, name: str) -> bool:
        """Whether the devices of the node take more pods; a pod is on each."""
        return self.spec(name).max_sharers > (name in self.used)

    def with_cores(self, name: str, request: Request) -> list[int]:
        """The open devices with enough free cores for the request, regardless of memory."""
        spec = self.spec(name)
        used = self.used.get(name, (0,) * len(spec.capacity))
        devices = zip(self.cores_used(name), used, spec.healthy, strict=True)
        return [
            device
            for device, (cores, units, fine) in enumerate(devices)
            if (fine and not spec.closed)
            and (cores < 100 and cores + request.cores <= 100)
            and not (request.cores == 100 and units)
        ]

    def snapshot(self, order: Sequence[int] | None = None, gaps: int = 0) -> Snapshot:
        """The cluster as arrays, rows in this order, with rows left empty by removed nodes."""
        tally = self.tally(order, gaps)
        return tally.snapshot(self.pins)

    def tally(self, order: Sequence[int] | None = None, gaps: int = 0) -> NodeArrays:
        """The arrays that count the cluster."""
        tally = NodeArrays()
        for gap in range(gaps):
            tally.set_node(node(f"gone-{gap}", 7, 7, 7, 7, 7), ())
        for index in order if order is not None else range(len(self.nodes)):
            spec = self.nodes[index]
            cores = self.cores_used(spec.name)
            charges = [
                Charge(
                    spec.name,
                    Request(units, 1, percents=compute(cores[device])),
                    ((device, units),),
                )
                for device, units in enumerate(self.used.get(spec.name, ()))
            ]
            tally.set_node(spec, charges)
        for gap in range(gaps):
            tally.remove_node(f"gone-{gap}")
        return tally


_UNITS = st.integers(1, 9)
_CORES = st.sampled_from([0, 0, 30, 70, 100])
_SHARES = st.sampled_from([0, 0, 0, 34, 60])
_UUIDS = st.lists(st.sampled_from([f"{n}-{d}" for n in range(4) for d in range(3)]), max_size=6)
_CARDS = st.one_of(
    st.just(ANY_CARD),
    st.just(ANY_CARD),
    st.builds(
        Cards,
        st.sampled_from([(), ("a",), ("x", "b")]),
        st.sampled_from([(), ("b",)]),
        _UUIDS.map(tuple),
        _UUIDS.map(tuple),
    ),
)


@st.composite
def clusters(draw: st.DrawFn, pins: bool = True, most_devices: int = 4) -> Cluster:
    """Up to six nodes, some without devices, closed, with sick or over-full devices."""
    nodes, used, cores, pinned = [], {}, {}, {}
    shared, has_uuids = draw(st.booleans()), draw(st.booleans())
    for index in range(draw(st.integers(1, 6))):
        name = f"n{draw(st.integers(0, 99))}-{index}"
        capacity = draw(st.lists(st.integers(0, 8), max_size=most_devices))
        sick = draw(st.sets(st.integers(0, most_devices - 1), max_size=2))
        close_reason = draw(st.sampled_from([None, None, None, Reason.OTHER_UNIT]))
        cpu = draw(st.sampled_from([None, 3000, 16_000]))
        memory = None if cpu is None else 2**34
        shape = node(name, *capacity, unhealthy=sick, closed=close_reason, cpu=cpu, memory=memory)
        models = (draw(st.sampled_from("AB")),) * len(capacity)
        uuids = tuple(f"{index}-{device}" * has_uuids for device in range(len(capacity)))
        limit = draw(st.sampled_from([ANY_SHARERS, ANY_SHARERS, 2, 1]))
        nodes.append(replace(shape, models=models, uuids=uuids, max_sharers=limit))
        used[name] = tuple(draw(st.integers(0, units + 1)) for units in capacity)
        cores[name] = tuple(draw(_CORES) if shared else 0 for _ in capacity)
        if pins and draw(st.booleans()):
            devices = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
            pin = st.tuples(st.frozensets(_UNITS, min_size=1, max_size=2), devices)
            pinned[name] = tuple(
                (sizes, tuple(sorted(pin_devices)))
                for sizes, pin_devices in draw(st.lists(pin, max_size=2))
            )
    return Cluster(tuple(nodes), used, pinned, cores)


@st.composite
def requests(draw: st.DrawFn, most_devices: int = 3) -> Request:
    """A request that small nodes may fit."""
    units, devices = draw(_UNITS), draw(st.integers(1, most_devices))
    containers = draw(st.lists(_UNITS, max_size=2))
    return Request(
        units,
        devices,
        cpu=draw(st.sampled_from([0, 500, 4000])),
        memory=draw(st.sampled_from([0, 2**33])),
        containers=tuple(enumerate(containers)),
        models=draw(st.sampled_from([(), (), ("A",)])),
        percents=with_share(draw(_CORES), draw(_SHARES)),
        cards=draw(_CARDS),
    )


def with_share(cores: int, share: int) -> Percents:
    """Percent of compute and of memory."""
    memory = (share if amount.is_memory else 0 for amount in PERCENT_AMOUNTS)
    return percents_of(map(max, compute(cores) or NO_PERCENTS, memory))


def needed_units(request: Request, capacity: int) -> int:
    """The units that each device of the request is charged."""
    share = request.percents[1] if request.percents else 0
    return max(request.units, -(-share * capacity // 100))


def wanted_devices(cluster: Cluster, name: str, request: Request) -> list[int]:
    """The devices of a node that the request accepts, regardless of free units."""
    spec, (models, not_models, uuids, not_uuids) = cluster.spec(name), request.cards
    return [
        device
        for device, (model, uuid) in enumerate(zip(spec.models, spec.uuids, strict=True))
        if (not models or any(part.upper() in model for part in models))
        and not any(part.upper() in model for part in not_models)
        and (not uuids or uuid in uuids)
        and (uuid not in not_uuids)
    ]


def expected_devices(cluster: Cluster, name: str, request: Request) -> list[int]:
    """The devices of a node that may take the request."""
    free, with_cores = cluster.free(name), cluster.with_cores(name, request)
    accepted = wanted_devices(cluster, name, request)
    capacity = cluster.spec(name).capacity
    roomy = [
        at
        for at in with_cores
        if free[at] >= needed_units(request, capacity[at]) and at in accepted
    ]
    equals = [pin for pin in cluster.pins.get(name, ()) if pin[0] & request.sizes]
    pins = {pin_devices for _, pin_devices in equals}
    if not pins:
        return roomy
    pin_devices = min(pins)
    if len(pins) > 1 or len(pin_devices) != request.devices:
        return []
    if len(pin_devices) > 1 and any(
        sizes != {request.total} for sizes in (request.sizes, *dict(equals))
    ):
        return []
    return [device for device in roomy if device in pin_devices]


def expected_reason(cluster: Cluster, name: str, request: Request) -> Reason | None:
    """The reason why the node cannot take the request; None if it can."""
    if len(expected_devices(cluster, name, request)) >= request.devices:
        return None
    spec = cluster.spec(name)
    if spec.closed:
        return spec.closed
    usable = [has for has, fine in zip(spec.capacity, spec.healthy, strict=True) if fine]
    accepted = wanted_devices(cluster, name, request)
    if usable and not any(spec.healthy[device] for device in accepted):
        return Reason.NOT_WANTED
    usable = [spec.capacity[device] for device in accepted if spec.healthy[device]]
    large = [has for has in usable if has >= request.units]
    if len(large) < request.devices:
        return NEVER[(1 if usable else 0) + (1 if large else 0)]
    memory = [
        at
        for at, units in enumerate(cluster.memory_left(name))
        if units >= needed_units(request, spec.capacity[at]) and at in accepted
    ]
    cores = [at for at in cluster.with_cores(name, request) if at in accepted]
    if len(memory) >= request.devices and not cluster.has_places(name):
        no_cores = len(cores) < request.devices
        return Reason(PERCENT_AMOUNTS[0].reason) if no_cores else Reason.MOST_SHARERS
    if len({*memory} & {*cores}) >= request.devices:
        return Reason.WAITS_FOR_PLUGIN
    if len(memory) >= request.devices:
        enough = len(cores) >= request.devices
        return Reason.INSUFFICIENT_TOGETHER if enough else Reason(PERCENT_AMOUNTS[0].reason)
    return Reason.INSUFFICIENT_MEMORY if request.devices == 1 else Reason.INSUFFICIENT_DEVICES


def fits_allocation(view: Snapshot, allocation: Allocation) -> bool:
    """Whether the allocation has room on the open devices of the node."""
    row = view.row[allocation.node]
    return all(
        view.open[row, device] and view.free[row, device] >= units
        for device, units in allocation.shares
    )


def by_name(names: Mapping[int, Sequence[str]]) -> dict[str, int]:
    """The score of each name."""
    return {name: score for score, some in names.items() for name in some}


def best_node(
    snapshot: Snapshot, names: Sequence[str], request: Request, scorer: Scorer
) -> str | None:
    """The best of the named nodes, or None if none fits."""
    place = best_row(snapshot, rows_of(snapshot, names), request, scorer)
    return None if place is None else names[place]
