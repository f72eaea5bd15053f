"""The scheduling framework: the points where a plug-in can take part, and what it answers.

Names and order are kube-scheduler's. A plug-in is a class with a `name` and the methods of the
points that it joins; nothing has to be inherited. `events_to_register` says after what a pod that
it rejected is worth another try; a plug-in without it has its pods tried after any event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import EventWithHint
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.objects import PodView

MAX_NODE_SCORE = 100


class Code(Enum):
    """How a plug-in judged. UNRESOLVABLE: evicting other pods would not help.

    SKIP, of PreFilter, PreScore and Bind: the plug-in has nothing to do with this pod. WAIT, of
    Permit alone: the binding waits for somebody to allow it.
    """

    SUCCESS = "Success"
    UNSCHEDULABLE = "Unschedulable"
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    ERROR = "Error"
    WAIT = "Wait"
    SKIP = "Skip"


@dataclass(frozen=True)
class Status:
    """A plug-in's judgement with the reasons the user reads, and the plug-in that gave it."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @property
    def ok(self) -> bool:
        """Whether the plug-in has no objection."""
        return self.code is Code.SUCCESS

    @property
    def rejected(self) -> bool:
        """Whether the pod does not fit (and nothing is broken)."""
        return self.code in (Code.UNSCHEDULABLE, Code.UNRESOLVABLE)

    @property
    def message(self) -> str:
        """The reasons in one line."""
        return ", ".join(self.reasons)


SUCCESS = Status()
SKIP = Status(Code.SKIP)

NodeNames = frozenset[str]
"""The only nodes worth a look, as a PreFilter plug-in may say."""


class PluginError(Exception):
    """A plug-in could not judge, for a reason that has nothing to do with the pod's fitting."""


class Plugin(Protocol):
    """Every plug-in has a name."""

    @property
    def name(self) -> str:
        """The name by which configuration files know this plug-in."""


@runtime_checkable
class EnqueueExtensions(Protocol):
    """Says after which events a pod that it rejected is worth another try."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Return the events that can turn this plug-in's rejection, with their queueing hints."""


class Queued(Protocol):
    """A pod in the queue, as QueueSort sees it."""

    @property
    def pod(self) -> PodView:
        """The pod."""

    @property
    def since(self) -> float:
        """Its arrival or last failure, in seconds."""


@runtime_checkable
class QueueSortPlugin(Plugin, Protocol):
    """Says which pod comes first. All profiles have the same one."""

    def less(self, one: Queued, other: Queued) -> bool:
        """Return whether `one` comes before `other`."""


@runtime_checkable
class PreEnqueuePlugin(Plugin, Protocol):
    """Says whether a pod may be tried at all."""

    def pre_enqueue(self, pod: PodView) -> Status:
        """Return Success, or why the pod stays outside the queue."""


@runtime_checkable
class PreFilterPlugin(Plugin, Protocol):
    """Computes once for a pod what its filter needs for each node."""

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[NodeNames | None, Status]:
        """Return the only nodes worth a look (None: all), and Success, Skip or an objection."""


@runtime_checkable
class PreFilterExtensions(Plugin, Protocol):
    """Keeps what PreFilter computed up to date while preemption tries pods away and back."""

    def add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Take in that `other` is on the node."""

    def remove_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Take in that `other` has left the node."""


@runtime_checkable
class FilterPlugin(Plugin, Protocol):
    """Says whether a pod may run on a node."""

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or why this pod cannot run on this node."""


@runtime_checkable
class PostFilterPlugin(Plugin, Protocol):
    """Acts when no node is left; its text ends the message the user reads."""

    def post_filter(
        self, state: CycleState, pod: PodView, statuses: Mapping[str, Status]
    ) -> Status:
        """Return Unschedulable with a text, or Success when room was made."""


@runtime_checkable
class PreScorePlugin(Plugin, Protocol):
    """Computes once for a pod what its score needs for each node."""

    def pre_score(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> Status:
        """Return Success, or Skip when this plug-in has no preference for this pod."""


@runtime_checkable
class ScorePlugin(Plugin, Protocol):
    """Ranks the nodes that are left; after NormalizeScore, if any, 0 to MAX_NODE_SCORE."""

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return how good the node is for the pod. Raises PluginError."""


@runtime_checkable
class ScoreExtensions(Plugin, Protocol):
    """Brings a plug-in's raw scores into 0 to MAX_NODE_SCORE, once all are known."""

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the final score of each node by name."""


@runtime_checkable
class ReservePlugin(Plugin, Protocol):
    """Sets something aside for an assumed pod, and gives it back when binding fails."""

    def reserve(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Set aside what the pod needs; return Success, or why nothing could be."""

    def unreserve(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Give back; called in reverse order, also for plug-ins whose reserve was never called."""


@runtime_checkable
class PermitPlugin(Plugin, Protocol):
    """Approves, denies or delays the binding."""

    def permit(self, state: CycleState, pod: PodView, node_name: str) -> tuple[Status, float]:
        """Return Success, Wait or an objection, and for Wait the longest wait in seconds."""


@runtime_checkable
class PreBindPlugin(Plugin, Protocol):
    """Does what must be done before a pod is bound."""

    def pre_bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Return Success, or what went wrong."""


@runtime_checkable
class BindPlugin(Plugin, Protocol):
    """Writes the binding."""

    def bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Bind the pod; return Success, Skip to leave it to the next plug-in, or an error."""


@runtime_checkable
class PostBindPlugin(Plugin, Protocol):
    """Hears of pods that were bound."""

    def post_bind(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Take note; nothing depends on it any more."""


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
"""Each point by its name in configuration files, and the method by which a plug-in joins it."""


def joins(plugin: Plugin, point: str) -> bool:
    """Return whether the plug-in has the method of the point."""
    return hasattr(plugin, POINTS[point])
