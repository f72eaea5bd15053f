"""The scheduling framework: the extension points of plug-ins, their results, and the cycle's state.

Names and order are those of kube-scheduler. A plug-in is a class with a `name` and the methods of
its extension points, without a base class. `events_to_register` returns the events that may resolve
a rejection; without this method any event may.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import EventWithHint
from gpushare_localcluster.scheduler.objects import PodView

_T = TypeVar("_T")


@runtime_checkable
class StateData(Protocol):
    """A value that is copied with the state."""

    def clone(self) -> object:
        """Return an independent copy."""


class CycleState:
    """Values by key, and the results of the extension points so far.

    skip_filter, skip_score: the plug-ins that returned Skip. waits: the plug-ins that delay the
    binding, with the longest wait in seconds. pods_to_activate: other pods, by UID, that a plug-in
    asks to try at once: after this pod's scheduling cycle, and again after its binding cycle.

    Copies share this dict.
    """

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self.pods_to_activate: dict[str, PodView] = {}
        self.skip_filter: frozenset[str] = frozenset()
        self.skip_score: frozenset[str] = frozenset()
        self.waits: Mapping[str, float] = {}

    def write(self, key: str, value: object) -> None:
        """Store a value under a key, replacing the old one."""
        self._values[key] = value

    def read(self, key: str, kind: type[_T]) -> _T:
        """Return the value of this type under a key. Raises KeyError."""
        value = self._values.get(key)
        if not isinstance(value, kind):
            raise KeyError(f"{key}: no {kind.__name__} in the cycle's state")
        return value

    def find(self, key: str, kind: type[_T]) -> _T | None:
        """Return the value of this type under a key, or None."""
        value = self._values.get(key)
        return value if isinstance(value, kind) else None

    def delete(self, key: str) -> None:
        """Remove a key."""
        self._values.pop(key, None)

    def clone(self) -> "CycleState":
        """Return a copy of the state with cloned values."""
        copy = CycleState()
        copy._values = {
            key: value.clone() if isinstance(value, StateData) else value
            for key, value in self._values.items()
        }
        copy.pods_to_activate = self.pods_to_activate
        copy.skip_filter, copy.skip_score = self.skip_filter, self.skip_score
        copy.waits = self.waits
        return copy


MAX_NODE_SCORE = 100


class Code(Enum):
    """The result of a plug-in.

    UNRESOLVABLE: evicting other pods would not help. SKIP, of PreFilter, PreScore and Bind: the
    plug-in does not concern this pod. WAIT, of Permit alone: the binding waits until it is allowed.
    """

    SUCCESS = "Success"
    UNSCHEDULABLE = "Unschedulable"
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    ERROR = "Error"
    WAIT = "Wait"
    SKIP = "Skip"


@dataclass(frozen=True)
class Status:
    """The result of a plug-in, with reasons for the user and the name of the plug-in."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @property
    def ok(self) -> bool:
        """Whether the plug-in has no objection."""
        return self.code is Code.SUCCESS

    @property
    def rejected(self) -> bool:
        """Whether the pod does not fit, without an error."""
        return self.code in (Code.UNSCHEDULABLE, Code.UNRESOLVABLE)

    @property
    def message(self) -> str:
        """The reasons in one line."""
        return ", ".join(self.reasons)


SUCCESS = Status()
SKIP = Status(Code.SKIP)

NodeNames = frozenset[str]
"""The only nodes to filter, from a PreFilter plug-in."""


class PluginError(Exception):
    """An error of a plug-in that says nothing about the fit of the pod."""


class Plugin(Protocol):
    """Every plug-in has a name."""

    @property
    def name(self) -> str:
        """The name of the plug-in in configuration files."""


@runtime_checkable
class EnqueueExtensions(Protocol):
    """Registers the events after which a rejected pod is worth another try."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Return the events that may resolve a rejection by this plug-in, with queueing hints."""


class Queued(Protocol):
    """A queued pod for QueueSort."""

    @property
    def pod(self) -> PodView:
        """The pod."""

    @property
    def since(self) -> float:
        """The time of the arrival or the last failure, in seconds."""


@runtime_checkable
class QueueSortPlugin(Plugin, Protocol):
    """Sorts the queue. All profiles have the same plug-in."""

    def less(self, one: Queued, other: Queued) -> bool:
        """Return whether `one` comes before `other`."""


@runtime_checkable
class PreEnqueuePlugin(Plugin, Protocol):
    """Decides whether a pod may be tried at all."""

    def pre_enqueue(self, pod: PodView) -> Status:
        """Return Success, or why the pod stays outside the queue."""


@runtime_checkable
class PreFilterPlugin(Plugin, Protocol):
    """Prepares the filter of a pod, once for all nodes."""

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[NodeNames | None, Status]:
        """Return the only nodes to filter (None: all), and Success, Skip or an objection."""


@runtime_checkable
class PreFilterExtensions(Plugin, Protocol):
    """Updates the result of PreFilter while preemption removes and adds pods."""

    def add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Update for `other`, which was added to the node."""

    def remove_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Update for `other`, which was removed from the node."""


@runtime_checkable
class FilterPlugin(Plugin, Protocol):
    """Decides whether a pod may run on a node."""

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or why this pod cannot run on this node."""


@runtime_checkable
class PostFilterPlugin(Plugin, Protocol):
    """Acts if no node fits; the text ends the message for the user."""

    def post_filter(
        self, state: CycleState, pod: PodView, statuses: Mapping[str, Status]
    ) -> Status:
        """Return Unschedulable with a text, or Success after making room."""


@runtime_checkable
class PreScorePlugin(Plugin, Protocol):
    """Prepares the score of a pod, once for all nodes."""

    def pre_score(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> Status:
        """Return Success, or Skip without a preference for this pod."""


@runtime_checkable
class ScorePlugin(Plugin, Protocol):
    """Scores the feasible nodes; after NormalizeScore, if any, 0 to MAX_NODE_SCORE."""

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return how good the node is for the pod. Raises PluginError."""


@runtime_checkable
class ScoreExtensions(Plugin, Protocol):
    """Scales all raw scores of a plug-in to 0 to MAX_NODE_SCORE."""

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the final score of each node by name."""


@runtime_checkable
class ReservePlugin(Plugin, Protocol):
    """Reserves resources for an assumed pod, and releases them after a failed binding."""

    def reserve(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Reserve the resources of the pod; return Success or an objection."""

    def unreserve(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Release the resources; called in reverse order, also without a call of reserve."""


@runtime_checkable
class PermitPlugin(Plugin, Protocol):
    """Approves, denies or delays the binding."""

    def permit(self, state: CycleState, pod: PodView, node_name: str) -> tuple[Status, float]:
        """Return Success, Wait or an objection, and for Wait the longest wait in seconds."""


@runtime_checkable
class PreBindPlugin(Plugin, Protocol):
    """Acts before the binding of a pod."""

    def pre_bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Return Success or an error."""


@runtime_checkable
class BindPlugin(Plugin, Protocol):
    """Writes the binding."""

    def bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Bind the pod; return Success, Skip to leave it to the next plug-in, or an error."""


@runtime_checkable
class PostBindPlugin(Plugin, Protocol):
    """Is called after the binding of a pod."""

    def post_bind(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Handle a bound pod, without a result."""


POINTS = {
    "queueSort": "less",
    "preEnqueue": "pre_enqueue",
    "preFilter": "pre_filter",
    "filter": "filter",
    "postFilter": "post_filter",
    "preScore": "pre_score",
    "score": "score",
    "reserve": "reserve",
    "permit": "permit",
    "preBind": "pre_bind",
    "bind": "bind",
    "postBind": "post_bind",
}
"""The extension points by name in configuration files, with the methods of plug-ins."""


def joins(plugin: Plugin, point: str) -> bool:
    """Return whether the plug-in has the method of the point."""
    return hasattr(plugin, POINTS[point])


NO_NODES = "no nodes available to schedule pods"


def unschedulable_message(total: int, statuses: Mapping[str, Status], post_filter: str = "") -> str:
    """Return the message of a pod that fits nowhere: `0/3 nodes are available: 1 Insufficient cpu,
    2 node(s) were unschedulable.

    preemption: ...`.

    Sorted by the whole counted text, the number included (kube-scheduler FitError.Error).
    """
    counts = Counter(reason for status in statuses.values() for reason in status.reasons)
    text = f"0/{total} nodes are available:"
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items())
    if reasons:
        text += f" {', '.join(reasons)}."
    return f"{text} {post_filter}" if post_filter else text
