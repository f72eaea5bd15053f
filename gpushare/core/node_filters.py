"""kube-scheduler's own filters, as far as nodes and pods tell: whether a pod could run on a node.

The filters read cordons, readiness, taints, node selectors and sums of requests; not devices, which
are the extender's part, and not the rules of other pods, volumes or ports. Data that was too large
to store (None) excludes no pod.

Tested in `tests/unit/core/test_node_filters.py`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpushare.core.model import Amounts, Request
from gpushare.core.selectors import HARD_EFFECTS, NO_DEMANDS, Demands, Taint, untolerated

CPU, MEMORY, PODS = "cpu", "memory", "pods"
"""Names of resources: CPU counts in thousandths of a core, memory in bytes, pods one by one."""

CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that a cordon stands for."""

NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
"""The taint that kube-controller-manager writes on a node that is not ready."""

_MAX_TAINTS = 2
_OF_NOT_READY = frozenset({NOT_READY.key, "node.kubernetes.io/unreachable"})


@dataclass(frozen=True, slots=True)
class NodeState:
    """The input of kube-scheduler's own filters for one node."""

    name: str
    labels: Mapping[str, str] | None = None
    """None for more labels than are stored."""
    taints: tuple[Taint, ...] = ()
    """Without the taint of a cordon."""
    cordoned: bool = False
    """spec.unschedulable, or the taint of a cordon."""
    ready: bool = True
    """False if the condition Ready says so."""
    allocatable: Mapping[str, int] | None = None
    """By resource name; None for more resources than are stored."""

    def label(self, resource: str, capacity: int) -> str:
        """Return a short text of the obstacles for every pod on this node; "" for none.

        resource: the managed resource. capacity: the units of all its devices on the node.
        """
        reasons = ["cordoned"] * self.cordoned + ["not ready"] * (not self.ready)
        hard = {taint.key for taint in self.taints if taint.effect in HARD_EFFECTS}
        reasons += [f"taint {key}" for key in sorted(hard - _OF_NOT_READY)[:_MAX_TAINTS]]
        usable = capacity if self.allocatable is None else self.allocatable.get(resource, 0)
        if usable < capacity:
            reasons.append(f"allocatable {usable} of {capacity}")
        return ", ".join(reasons)


class NodeStates(Mapping[str, NodeState]):
    """The states of all nodes, by name. One thread changes them, any may read.

    version: differs after each change.
    """

    def __init__(self, states: Iterable[NodeState] = ()) -> None:
        self._states = {state.name: state for state in states}
        self.version = 0

    def __getitem__(self, name: str) -> NodeState:
        """Return the state of a node."""
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter(self._states)

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self._states)

    def replace(self, states: Iterable[NodeState], keep: Collection[str] = ()) -> None:
        """Take over all nodes. keep: names of nodes that keep an old state if no new one comes."""
        before = {name: self._states[name] for name in keep if name in self._states}
        self._states = before | {state.name: state for state in states}
        self.version += 1

    def put(self, state: NodeState) -> None:
        """Take over one node."""
        if self._states.get(state.name) != state:
            self._states[state.name] = state
            self.version += 1

    def remove(self, name: str) -> None:
        """Forget a node."""
        self._states.pop(name, None)
        self.version += 1


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why kube-scheduler itself keeps a pod from a node."""

    text: str
    cure: str = ""
    """The condition that ends the obstacle, as text after "once"; "" if only another pod or other
    node labels help."""
    resource: str = ""
    """The resource with too little free."""
    lasting: bool = True
    """Whether the obstacle stays when pods on the node end."""


CORDONED = Obstacle("cordoned", "it is uncordoned")
UNREADY = Obstacle("not ready", "it is ready")
UNSELECTED = Obstacle("not what the pod's node selector or affinity asks for")


_NOTHING: Amounts = MappingProxyType({})


def amounts_of(request: Request) -> dict[str, int]:
    """Return the amounts that a pod with this request takes of the node, by resource."""
    return {CPU: request.cpu, MEMORY: request.memory, PODS: 1, **dict(request.resources)}


class OwnFilters:
    """kube-scheduler's own filters over the current nodes. Any thread may call any method.

    states: by name; a node without a state excludes no pod. taken_amounts: returns the amounts that
    the pods of a node take. ignored: resources that kube-scheduler is told not to count.
    """

    def __init__(
        self,
        states: NodeStates | None = None,
        taken_amounts: Callable[[str], Amounts] = lambda _node: {},
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        self.states = NodeStates() if states is None else states
        self._taken = taken_amounts
        self._ignored = ignored

    def obstacles(
        self,
        node: str,
        request: Request,
        demands: Demands = NO_DEMANDS,
        more: Amounts = _NOTHING,
    ) -> tuple[Obstacle, ...]:
        """Return all obstacles for the pod on the node, the gravest first.

        more: amounts that count as taken.
        """
        state = self.states.get(node)
        if state is None:
            return ()
        refusals = list(_refusals(state, demands)) if demands.known else []
        return (*refusals, *self.shortages(node, request, more=more))

    def refuses(self, node: str, demands: Demands) -> bool:
        """Return whether these demands exclude the node, however much is free there."""
        state = self.states.get(node)
        return state is not None and demands.known and any(True for _ in _refusals(state, demands))

    def free(self, node: str, resource: str) -> int | None:
        """Return the free amount of a resource; None if the resource is not counted there."""
        state = self.states.get(node)
        if state is None or state.allocatable is None or resource in self._ignored:
            return None
        return state.allocatable.get(resource, 0) - self._taken(node).get(resource, 0)

    def shortages(
        self, node: str, request: Request, *, less: Iterable[Request] = (), more: Amounts = _NOTHING
    ) -> tuple[Obstacle, ...]:
        """Return one obstacle for each resource with too little free for the request.

        less: the requests of pods that count as gone. more: amounts that count as taken.
        """
        state = self.states.get(node)
        if state is None or state.allocatable is None:
            return ()
        taken_amounts = Counter(self._taken(node))
        taken_amounts.update(more)
        for ended_request in less:
            taken_amounts.subtract(amounts_of(ended_request))
        shortages = []
        for name, needed in amounts_of(request).items():
            allocatable = state.allocatable.get(name, 0)
            if 0 < needed > allocatable - taken_amounts[name] and name not in self._ignored:
                shortages.append(_shortage(name, lasting=needed > allocatable))
        return tuple(shortages)


def _refusals(state: NodeState, demands: Demands) -> Iterable[Obstacle]:
    """Yield the obstacles for the pod that do not depend on free amounts."""
    if state.labels is not None and not demands.selects(state.name, state.labels):
        yield UNSELECTED
    if state.cordoned and untolerated((CORDON,), demands.tolerations):
        yield CORDONED
    taint = untolerated(state.taints, demands.tolerations)
    # kube-controller-manager writes the taint within seconds; from then on the taint's key counts.
    if not state.ready and (untolerated((NOT_READY,), demands.tolerations) or taint):
        yield UNREADY
    elif taint:
        cure = f"its taint {taint.key} is gone or the pod tolerates it"
        yield Obstacle(f"untolerated taint {taint.key}", cure)


def _shortage(name: str, *, lasting: bool) -> Obstacle:
    text = "too many pods" if name == PODS else f"too little {name}"
    if not lasting:
        return Obstacle(text, f"more of its {name} is free", name, lasting=False)
    # CPU and memory of the host do not change; a device plug-in may offer more again.
    cure = f"it offers more {name}" if "/" in name else ""
    return Obstacle(f"{text} even if empty", cure, name)
