"""kube-scheduler's own node filters, as far as the objects of nodes and pods allow.

The filters check cordons, readiness, taints, node selectors and sums of requests. They do not check
devices, which are the extender's part, nor inter-pod affinity, volumes or ports. A field of a node
that was too large to keep (None) excludes no pod.

Tested in `tests/unit/core/test_node_filters.py`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from gpushare.core.model import Amounts, NodeSpec, Request
from gpushare.core.selectors import (
    HARD_EFFECTS,
    NO_DEMANDS,
    Demands,
    Taint,
    all_untolerated,
    untolerated,
)

CPU, MEMORY, PODS = "cpu", "memory", "pods"
"""Names of resources: CPU counts in thousandths of a core, memory in bytes, pods one by one."""

CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that a cordon is equivalent to."""

NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
"""The taint that kube-controller-manager adds to a node that is not ready."""

_MAX_TAINTS = 2
_OF_NOT_READY = frozenset({NOT_READY.key, "node.kubernetes.io/unreachable"})


class Availability(StrEnum):
    """Whether a node takes new pods, and if not, the gravest reason."""

    OPEN = "open"
    TAINTED = "tainted"
    """Pods that tolerate the taint may come."""
    CORDONED = "cordoned"
    NOT_READY = "not ready"
    CLOSED = "closed"
    """The devices of the node cannot be read, or all are unhealthy."""
    PLUGIN_AWAY = "plug-in away"
    """The device plug-in offers none of the healthy devices."""

    @property
    def takes_pods(self) -> bool:
        """Whether some pod may come."""
        return self in (Availability.OPEN, Availability.TAINTED)


@dataclass(frozen=True, slots=True)
class NodeState:
    """The fields of a node that kube-scheduler's own filters check."""

    name: str
    labels: Mapping[str, str] | None = None
    """None if there were too many to keep."""
    taints: tuple[Taint, ...] = ()
    """Without the taint of a cordon."""
    cordoned: bool = False
    """spec.unschedulable, or the taint of a cordon."""
    ready: bool = True
    """False if the condition Ready is False or Unknown."""
    allocatable: Mapping[str, int] | None = None
    """By name of the resource; None if there were too many to keep."""

    def without(self, tolerated: Collection[Taint]) -> Self:
        """Return the state without these taints."""
        taints = tuple(taint for taint in self.taints if taint not in tolerated)
        return self if taints == self.taints else replace(self, taints=taints)

    def advertises(self, resource: str) -> bool:
        """Return whether the node shows the resource, be it 0."""
        return self.allocatable is not None and resource in self.allocatable

    def judge(
        self, resource: str, spec: NodeSpec, *, is_counted: bool = True
    ) -> tuple[Availability, str]:
        """Return whether the node takes pods, and in few words all that kube-scheduler's own
        filters object to; "" for nothing.

        resource: the managed resource. spec: the devices. is_counted: whether kube-scheduler counts
        the resource; otherwise a node need not advertise the resource.
        """
        capacity, amounts = sum(spec.capacity), self.allocatable
        is_advertised = is_counted or self.advertises(resource)
        usable = amounts.get(resource, 0) if amounts is not None and is_advertised else capacity
        hard = {taint.key for taint in self.taints if taint.effect in HARD_EFFECTS} - _OF_NOT_READY
        # Without an inventory, nothing allocatable is all that a node shows of its devices.
        is_readable = spec.closed is None and (
            not capacity or any(spec.healthy) or (spec.counted and not usable)
        )
        # The kubelet keeps the resource in allocatable, as 0, and after 5 minutes in capacity too.
        is_away = is_readable and not usable and (capacity > 0 or self.advertises(resource))
        by_state: dict[Availability, Iterable[str]] = {}
        if self.cordoned:
            by_state[Availability.CORDONED] = ["cordoned"]
        if not self.ready:
            by_state[Availability.NOT_READY] = ["not ready"]
        if not is_readable:
            by_state[Availability.CLOSED] = []
        if is_away:
            by_state[Availability.PLUGIN_AWAY] = ["plug-in away"]
        if hard:
            by_state[Availability.TAINTED] = [f"taint {key}" for key in sorted(hard)[:_MAX_TAINTS]]
        reasons = [reason for texts in by_state.values() for reason in texts]
        if usable < capacity and not is_away:
            reasons.append(f"allocatable {usable} of {capacity}")
        return next(iter(by_state), Availability.OPEN), ", ".join(reasons)


class NodeStates(Mapping[str, NodeState]):
    """The states of all nodes, by name. One thread changes the states, any thread may read them.

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
        """Replace all states; a node of `keep` that is not in `states` keeps the old state."""
        last = self._states
        # An equal state stays the same object, so that others compare it at once.
        listed = {
            state.name: last[state.name] if last.get(state.name) == state else state
            for state in states
        }
        self._states = {name: last[name] for name in keep if name in last} | listed
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
    """Text after "once" that says when the obstacle ends; "" if only a change of the pod or of the
    node's labels can end it."""
    resource: str = ""
    """The resource that is short."""
    lasting: bool = True
    """Whether the obstacle stays even if all pods of the node end."""


CORDONED = Obstacle("cordoned", "it is uncordoned")
UNREADY = Obstacle("not ready", "it is ready")
UNSELECTED = Obstacle("not what the pod's node selector or affinity asks for")


_NOTHING: Amounts = MappingProxyType({})


def amounts_of(request: Request) -> dict[str, int]:
    """Return the amounts that a pod with this request takes of a node, by resource."""
    return {CPU: request.cpu, MEMORY: request.memory, PODS: 1, **dict(request.resources)}


class OwnFilters:
    """kube-scheduler's own filters over the current nodes. Any thread may call the methods.

    states: a node without a state excludes no pod. used_amounts: returns the amounts that the pods
    of a node use. ignored: resources that kube-scheduler is configured not to count.
    """

    def __init__(
        self,
        states: NodeStates | None = None,
        used_amounts: Callable[[str], Amounts] = lambda _node: {},
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        self.states = NodeStates() if states is None else states
        self._taken = used_amounts
        self._ignored = ignored

    def obstacles(
        self, node: str, request: Request, demands: Demands = NO_DEMANDS, more: Amounts = _NOTHING
    ) -> tuple[Obstacle, ...]:
        """Return all reasons that exclude the node, the gravest first.

        more: amounts that count as used in addition.
        """
        state = self.states.get(node)
        if state is None:
            return ()
        refusals = list(_refusals(state, demands)) if demands.is_complete else []
        return (*refusals, *self.shortages(node, request, more=more))

    def refuses(self, node: str, demands: Demands) -> bool:
        """Return whether the node excludes a pod with these demands, regardless of free amounts."""
        state = self.states.get(node)
        return (
            state is not None
            and demands.is_complete
            and any(True for _ in _refusals(state, demands))
        )

    def free(self, node: str, resource: str) -> int | None:
        """Return the free amount of a resource; None if the node's amount is not counted."""
        state = self.states.get(node)
        if state is None or state.allocatable is None or resource in self._ignored:
            return None
        return state.allocatable.get(resource, 0) - self._taken(node).get(resource, 0)

    def shortages(
        self, node: str, request: Request, *, less: Iterable[Request] = (), more: Amounts = _NOTHING
    ) -> tuple[Obstacle, ...]:
        """Return an obstacle for each resource that the node is short of for the request.

        less: requests of pods there that count as ended. more: amounts that count as used in
        addition.
        """
        state = self.states.get(node)
        if state is None or state.allocatable is None:
            return ()
        used = Counter(self._taken(node))
        used.update(more)
        for removed_request in less:
            used.subtract(amounts_of(removed_request))
        shortages = []
        for name, requested in amounts_of(request).items():
            allocatable = state.allocatable.get(name, 0)
            if 0 < requested > allocatable - used[name] and name not in self._ignored:
                if name in state.allocatable and not allocatable and "/" in name:
                    # Its device plug-in is away, or has no healthy device.
                    cure = f"its device plug-in offers {name} again"
                    shortages.append(Obstacle(f"no {name} allocatable", cure, name))
                else:
                    shortages.append(_shortage(name, lasting=requested > allocatable))
        return tuple(shortages)


def _refusals(state: NodeState, demands: Demands) -> Iterable[Obstacle]:
    """Yield the reasons that exclude the node regardless of free amounts."""
    if not demands.selects(state.name, state.labels):
        yield UNSELECTED
    if state.cordoned and untolerated((CORDON,), demands.tolerations):
        yield CORDONED
    # kube-controller-manager adds its taint within seconds after the condition changes.
    taints = state.taints if state.ready else (*state.taints, NOT_READY)
    keys = dict.fromkeys(taint.key for taint in all_untolerated(taints, demands.tolerations))
    if not state.ready and keys.keys() & _OF_NOT_READY:
        yield UNREADY
    for key in keys:
        if state.ready or key not in _OF_NOT_READY:
            cure = f"its taint {key} is gone or the pod tolerates it"
            yield Obstacle(f"untolerated taint {key}", cure)


def _shortage(name: str, *, lasting: bool) -> Obstacle:
    text = "too many pods" if name == PODS else f"too little {name}"
    if not lasting:
        return Obstacle(text, f"more of its {name} is free", name, lasting=False)
    # CPU and memory of a host do not change; the devices of a device plug-in may return.
    cure = f"it offers more {name}" if "/" in name else ""
    return Obstacle(f"{text} even if empty", cure, name)
