"""The scheduling framework: the stages a plugin can take part in, and what it answers.

Names and order are kube-scheduler's (PreEnqueue, Filter, PostFilter, Score, Reserve, Permit, Bind).
Knows pods, nodes and a snapshot of them; no API server, no threads, no clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

from gpushare.localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare.localcluster.scheduler.objects import PodView

MAX_NODE_SCORE = 100


class Code(Enum):
    """How a plugin judged. UNRESOLVABLE: evicting other pods would not help."""

    SUCCESS = "Success"
    UNSCHEDULABLE = "Unschedulable"
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    ERROR = "Error"


class ClusterEvent(Enum):
    """What can make a waiting pod fit; plugins say which of these they wait for."""

    NODE_ADD = "NodeAdd"
    NODE_UPDATE = "NodeUpdate"
    NODE_DELETE = "NodeDelete"
    ASSIGNED_POD_ADD = "AssignedPodAdd"
    ASSIGNED_POD_UPDATE = "AssignedPodUpdate"
    ASSIGNED_POD_DELETE = "AssignedPodDelete"
    UNSCHEDULED_POD_UPDATE = "UnscheduledPodUpdate"


ANY_EVENT = frozenset(ClusterEvent)
NODE_CHANGES = frozenset({ClusterEvent.NODE_ADD, ClusterEvent.NODE_UPDATE})


@dataclass(frozen=True)
class Status:
    """A plugin's judgement with the reasons the user reads, and the plugin that gave it."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @property
    def ok(self) -> bool:
        """Whether the plugin has no objection."""
        return self.code is Code.SUCCESS

    @property
    def message(self) -> str:
        """The reasons in one line."""
        return ", ".join(self.reasons)


SUCCESS = Status()


class Plugin(Protocol):
    """Every plugin has a name and the events after which a pod it rejected is worth another try."""

    @property
    def name(self) -> str:
        """The name kube-scheduler knows this plugin by."""

    @property
    def events(self) -> frozenset[ClusterEvent]:
        """Events that can turn this plugin's rejection."""


@runtime_checkable
class FilterPlugin(Plugin, Protocol):
    """Says whether a pod may run on a node."""

    def filter(self, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or why this pod cannot run on this node."""


@runtime_checkable
class PostFilterPlugin(Plugin, Protocol):
    """Acts when no node is left; its text ends the message the user reads."""

    def post_filter(
        self, pod: PodView, snapshot: Snapshot, statuses: Mapping[str, Status]
    ) -> Status:
        """Return Unschedulable with a text, or Success when room was made."""


@runtime_checkable
class ScorePlugin(Plugin, Protocol):
    """Ranks the nodes that are left, 0 to 100, times its weight."""

    @property
    def weight(self) -> int:
        """What the score is multiplied with."""

    def score(self, pod: PodView, node: NodeInfo) -> int:
        """Return how good the node is for the pod, 0 to MAX_NODE_SCORE."""


@runtime_checkable
class ReservePlugin(Plugin, Protocol):
    """Sets something aside for an assumed pod, and gives it back when binding fails."""

    def reserve(self, pod: PodView, node_name: str) -> Status:
        """Set aside what the pod needs; return Success, or why nothing could be."""

    def unreserve(self, pod: PodView, node_name: str) -> None:
        """Give back; called in reverse order, also for plugins whose reserve was never called."""


@runtime_checkable
class PermitPlugin(Plugin, Protocol):
    """The last word before binding."""

    def permit(self, pod: PodView, node_name: str) -> Status:
        """Return Success, or why the pod may not be bound now."""


@runtime_checkable
class BindPlugin(Plugin, Protocol):
    """Writes the binding."""

    def bind(self, pod: PodView, node_name: str) -> Status:
        """Bind the pod; return Success, or what went wrong."""


@dataclass(frozen=True)
class Framework:
    """The plugins of one profile, sorted by the stages they take part in."""

    plugins: Sequence[Plugin]
    filters: tuple[FilterPlugin, ...] = field(init=False)
    post_filters: tuple[PostFilterPlugin, ...] = field(init=False)
    scorers: tuple[ScorePlugin, ...] = field(init=False)
    reservers: tuple[ReservePlugin, ...] = field(init=False)
    permits: tuple[PermitPlugin, ...] = field(init=False)
    binders: tuple[BindPlugin, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Sort the plugins by what they offer."""
        plugins = self.plugins
        put = object.__setattr__
        put(self, "filters", tuple(p for p in plugins if isinstance(p, FilterPlugin)))
        put(self, "post_filters", tuple(p for p in plugins if isinstance(p, PostFilterPlugin)))
        put(self, "scorers", tuple(p for p in plugins if isinstance(p, ScorePlugin)))
        put(self, "reservers", tuple(p for p in plugins if isinstance(p, ReservePlugin)))
        put(self, "permits", tuple(p for p in plugins if isinstance(p, PermitPlugin)))
        put(self, "binders", tuple(p for p in plugins if isinstance(p, BindPlugin)))

    def run_filters(self, pod: PodView, node: NodeInfo) -> Status:
        """Return the first objection, with its plugin's name; Success when there is none."""
        return _first_objection(self.filters, lambda plugin: plugin.filter(pod, node))

    def run_post_filters(
        self, pod: PodView, snapshot: Snapshot, statuses: Mapping[str, Status]
    ) -> str:
        """Return the text the post-filter stage adds to the pod's message."""
        texts = [p.post_filter(pod, snapshot, statuses).message for p in self.post_filters]
        return " ".join(text for text in texts if text)

    def run_scores(self, pod: PodView, nodes: Sequence[NodeInfo]) -> dict[str, int]:
        """Return the weighted in-tree score of each node by name."""
        return {
            node.name: sum(p.weight * p.score(pod, node) for p in self.scorers) for node in nodes
        }

    def run_reserve(self, pod: PodView, node_name: str) -> Status:
        """Have all plugins reserve; return Success, or the first objection after everything was
        given back.
        """
        status = _first_objection(self.reservers, lambda plugin: plugin.reserve(pod, node_name))
        if not status.ok:
            self.run_unreserve(pod, node_name)
        return status

    def run_unreserve(self, pod: PodView, node_name: str) -> None:
        """Give everything back, last plugin first."""
        for plugin in reversed(self.reservers):
            plugin.unreserve(pod, node_name)

    def run_permit(self, pod: PodView, node_name: str) -> Status:
        """Return Success, or the first objection."""
        return _first_objection(self.permits, lambda plugin: plugin.permit(pod, node_name))

    def run_bind(self, pod: PodView, node_name: str) -> Status:
        """Have the first binder bind the pod, and return its answer."""
        if not self.binders:
            return Status(Code.ERROR, ("no bind plugin is configured",))
        return self.binders[0].bind(pod, node_name)

    def events_of(self, plugin_names: frozenset[str]) -> frozenset[ClusterEvent]:
        """Return the events after which a pod rejected by these plugins is worth another try.

        A pod that nobody in particular rejected (there was no node at all) waits for any event.
        """
        if not plugin_names:
            return ANY_EVENT
        known = {plugin.name: plugin.events for plugin in self.plugins}
        # A rejecter that is no plugin (an extender) waits for everything.
        return frozenset().union(*(known.get(name, ANY_EVENT) for name in plugin_names))


AnyPlugin = TypeVar("AnyPlugin", bound=Plugin)


def _first_objection(plugins: Sequence[AnyPlugin], judge: Callable[[AnyPlugin], Status]) -> Status:
    for plugin in plugins:
        status = judge(plugin)
        if not status.ok:
            return Status(status.code, status.reasons, plugin.name)
    return SUCCESS
