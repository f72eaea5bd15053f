"""NodeResourcesFit and NodeResourcesBalancedAllocation: filter and scores by sums of requests.

They count cpu, memory, the number of pods and extended resources exactly as kube-scheduler does,
and know nothing of devices, which are the extender's part.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, items, number, text
from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import Action, Change, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import CycleState
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import CPU, MEMORY, PODS, PodView

_EPHEMERAL = "ephemeral-storage"
_ORDER = (CPU, MEMORY, _EPHEMERAL)
_MAX_CUSTOM_SCORE = 10

Weights = Mapping[str, int]
"""Resource -> weight."""


class Strategy:
    """Scores by the used share of a node's resources, with one of three strategies.

    fields: `type` LeastAllocated, MostAllocated or RequestedToCapacityRatio, `resources` (name and
    weight), and the `requestedToCapacityRatio.shape` of the last.
    """

    def __init__(self, fields: Fields, path: str) -> None:
        self._weights = read_weights(fields, path)
        kind = text(fields, "type", path, "LeastAllocated")
        self._by_shape = kind == "RequestedToCapacityRatio"
        self._share: Callable[[int, int], int]
        if self._by_shape:
            self._share = _by_shape(_shape(fields, path))
        elif kind in ("LeastAllocated", "MostAllocated"):
            self._share = _left if kind == "LeastAllocated" else _used
        else:
            strategies = "LeastAllocated, MostAllocated, RequestedToCapacityRatio"
            raise SettingsError(
                f"{path}.type: {kind[:40]!r} is no strategy; there are: {strategies}"
            )

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return the weighted mean of the strategy over the resources, 0 to 100."""
        total = weights = 0
        for name, weight in self._weights.items():
            allocatable = node.node.allocatable.get(name)
            request = pod.scored.get(name, 0)
            if not allocatable or not (request or name in _ORDER):
                continue
            amounts = node.scored if name in (CPU, MEMORY) else node.requested
            share = self._share(amounts.get(name, 0) + request, allocatable)
            if share > 0 or not self._by_shape:
                total += share * weight
                weights += weight
        if not weights:
            return 0
        return (2 * total + weights) // (2 * weights) if self._by_shape else total // weights


class NodeResourcesFit(Strategy):
    """Rejects nodes that are too full; scores by one of three strategies.

    args: `ignoredResources` (names of extended resources), `ignoredResourceGroups` (the part before
    the slash), `scoringStrategy` with `type` LeastAllocated, MostAllocated or
    RequestedToCapacityRatio, `resources` (name and weight) and the `shape` of the last.
    """

    name = "NodeResourcesFit"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the plug-in. Raises SettingsError."""
        args = args or {}
        self._ignored = frozenset(str(name) for name in items(args, "ignoredResources"))
        self._groups = frozenset(str(name) for name in items(args, "ignoredResourceGroups"))
        strategy = fields_of(args.get("scoringStrategy"), "scoringStrategy")
        super().__init__(strategy, "scoringStrategy")

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: fewer or smaller pods, more or larger nodes, a smaller request."""
        pod, node = Resource.ASSIGNED_POD, Resource.NODE
        return (
            EventWithHint(pod, Action.DELETE),
            EventWithHint(pod, Action.UPDATE_POD_SCALE_DOWN, _frees),
            EventWithHint(Resource.TARGET_POD, Action.UPDATE_POD_SCALE_DOWN),
            EventWithHint(node, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE, self._grew),
        )

    def _grew(self, pod: PodView, change: Change) -> bool:
        """Return whether the pod fits the empty node, and a requested resource grew."""
        old, new = change.old_node, change.new_node
        if new is None or not self.filter(CycleState(), pod, NodeInfo(new)).ok:
            return False
        names = [PODS, *(name for name, amount in pod.requests.items() if amount)]
        return old is None or any(
            new.allocatable.get(name, 0) > old.allocatable.get(name, 0) for name in names
        )

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or all insufficient resources, in kube-scheduler's order."""
        reasons: list[str] = []
        code = fwk.Code.UNSCHEDULABLE
        allocatable, requested = node.node.allocatable, node.requested
        if allocatable.get(PODS, 0) <= len(node.pods):
            reasons.append("Too many pods")
        for name, request in pod.requests.items():
            all_of_it = allocatable.get(name, 0)
            if 0 < request > all_of_it - requested.get(name, 0) and not (
                name in self._ignored or ("/" in name and name.partition("/")[0] in self._groups)
            ):
                reasons.append(f"Insufficient {name}")
                if request > all_of_it:
                    # More than the empty node has: evicting pods would not help.
                    code = fwk.Code.UNRESOLVABLE
        return fwk.Status(code, tuple(sorted(reasons, key=_rank))) if reasons else fwk.SUCCESS


class NodeResourcesLeastAllocated(Strategy):
    """A separate plug-in up to 1.22. args: `resources`."""

    name = "NodeResourcesLeastAllocated"
    _type = "LeastAllocated"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the plug-in. Raises SettingsError."""
        args = args or {}
        super().__init__({**args, "type": self._type, "requestedToCapacityRatio": args}, "")


class NodeResourcesMostAllocated(NodeResourcesLeastAllocated):
    """A separate plug-in up to 1.22. args: `resources`."""

    name = "NodeResourcesMostAllocated"
    _type = "MostAllocated"


class RequestedToCapacityRatio(NodeResourcesLeastAllocated):
    """A separate plug-in up to 1.22. args: `shape` and `resources`."""

    name = _type = "RequestedToCapacityRatio"


class NodeResourcesBalancedAllocation:
    """Prefers nodes with a more equal use of `resources` after the pod, without weights."""

    name = "NodeResourcesBalancedAllocation"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the plug-in. Raises SettingsError."""
        self._resources = tuple(read_weights(args or {}, ""))

    def pre_score(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> fwk.Status:
        """Return Success, or Skip for a pod without requests of these resources."""
        return fwk.SUCCESS if any(pod.requests.get(name) for name in self._resources) else fwk.SKIP

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return 75 for an unchanged balance, up to 100 for a better one."""
        before: list[float] = []
        after: list[float] = []
        for name in self._resources:
            allocatable = node.node.allocatable.get(name)
            request = pod.requests.get(name, 0)
            if not allocatable or not (request or name in _ORDER):
                continue
            used = node.requested.get(name, 0)
            before.append(used / allocatable if used < allocatable else 1.0)
            used += request
            after.append(used / allocatable if used < allocatable else 1.0)
        change = _balance(after) - _balance(before)
        half = fwk.MAX_NODE_SCORE // 2
        return half + int((half + change) / 2)


def read_weights(fields: Fields, path: str) -> Weights:
    """Return the weights in `resources`, by default cpu and memory. Raises SettingsError."""
    weights: dict[str, int] = {}
    for index, item in enumerate(items(fields, "resources", path)):
        item_path = f"{path}.resources[{index}]" if path else f"resources[{index}]"
        entry = fields_of(item, item_path)
        weight = number(entry, "weight", item_path) or 1
        if not 1 <= weight <= fwk.MAX_NODE_SCORE:
            raise SettingsError(f"{item_path}.weight: resource weight must be from 1 to 100")
        weights[text(entry, "name", item_path)] = weight
    return weights or {CPU: 1, MEMORY: 1}


def _shape(strategy: Fields, path: str) -> list[tuple[int, int]]:
    """Return (utilization in percent, score 0 to 100), in rising order. Raises SettingsError."""
    ratio_path = f"{path}.requestedToCapacityRatio"
    ratio = fields_of(strategy.get("requestedToCapacityRatio"), ratio_path)
    points = [fields_of(item, f"{ratio_path}.shape") for item in items(ratio, "shape", ratio_path)]
    scale = fwk.MAX_NODE_SCORE // _MAX_CUSTOM_SCORE
    shape = [
        (
            number(p, "utilization", f"{ratio_path}.shape"),
            number(p, "score", f"{ratio_path}.shape") * scale,
        )
        for p in points
    ]
    utilizations = [utilization for utilization, _ in shape]
    if not shape or utilizations != sorted(set(utilizations)):
        raise SettingsError(f"{ratio_path}.shape: needs points whose utilization rises")
    if not all(0 <= u <= 100 and 0 <= score <= fwk.MAX_NODE_SCORE for u, score in shape):
        raise SettingsError(f"{ratio_path}.shape: utilization is from 0 to 100, score from 0 to 10")
    return shape


def _by_shape(shape: Sequence[tuple[int, int]]) -> Callable[[int, int], int]:
    """Return the linear interpolation between the points."""

    def share(used: int, allocatable: int) -> int:
        at = min(used, allocatable) * 100 // allocatable
        before = shape[0]
        for point in shape:
            if at <= point[0]:
                if point is shape[0]:
                    return point[1]
                # Go's division rounds towards zero.
                return before[1] + int(
                    (point[1] - before[1]) * (at - before[0]) / (point[0] - before[0])
                )
            before = point
        return shape[-1][1]

    return share


def _rank(reason: str) -> tuple[int, str]:
    """Return the sort key of a reason: pods, cpu, memory, ephemeral storage, then by name."""
    name = reason.removeprefix("Insufficient ")
    if name == reason:
        return -1, ""
    return _ORDER.index(name) if name in _ORDER else len(_ORDER), name


def _frees(pod: PodView, change: Change) -> bool:
    """Return whether the changed pod requests less of a resource that this pod requests."""
    if change.old_pod is None or change.new_pod is None:
        return True
    old, new = change.old_pod.requests, change.new_pod.requests
    return any(amount and old.get(n, 0) > new.get(n, 0) for n, amount in pod.requests.items())


def _left(used: int, allocatable: int) -> int:
    return (allocatable - used) * fwk.MAX_NODE_SCORE // allocatable if used < allocatable else 0


def _used(used: int, allocatable: int) -> int:
    return min(used, allocatable) * fwk.MAX_NODE_SCORE // allocatable


def _balance(shares: Sequence[float]) -> int:
    """Return 100 for equal shares, less for a larger deviation."""
    if len(shares) < 2:
        return fwk.MAX_NODE_SCORE
    if len(shares) == 2:
        deviation = abs((shares[0] - shares[1]) / 2)
    else:
        mean = sum(shares) / len(shares)
        deviation = sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))
    return int((1 - deviation) * fwk.MAX_NODE_SCORE)
