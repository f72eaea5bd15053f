"""The handle: the parts of the scheduler that plug-ins may use.

A plug-in gets the handle in its constructor. Tests leave out the parts they do not need.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.wire.budgets import DisruptionBudget
from gpushare.wire.fields import Fields
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.scheduler.cache import Snapshot
from gpushare_localcluster.scheduler.candidates import Candidate
from gpushare_localcluster.scheduler.claims import Claims
from gpushare_localcluster.scheduler.cluster_events import Change
from gpushare_localcluster.scheduler.extender import HttpExtender
from gpushare_localcluster.scheduler.objects import Json, PodView
from gpushare_localcluster.scheduler.runtime import Framework
from gpushare_localcluster.scheduler.waiting import WaitingPods

Nominated = Mapping[str, Sequence[PodView]]
"""Node -> the pending pods that are nominated for the node."""
Evict = Callable[[PodView, Candidate], None]


def _nobody(_pod: PodView, _candidate: Candidate) -> None:
    """Evict no pod."""


def _no_labels(_namespace: str) -> Mapping[str, str]:
    return {}


@dataclass
class Handle:
    """The handle of one scheduler.

    api: the API server's client, None in a dry run. snapshot: all nodes at the start of the cycle.
    profiles: by schedulerName. waiting_pods: the pods that Permit delays. evict: evicts victims.
    activate: makes pending pods ready at once. nominated: the nominated pods by node.
    namespace_labels: of a namespace. default_selector: the LabelSelector of a pod's Services and
    controller; a plug-in that calls it sets spreads_by_default in its constructor, since otherwise
    Services and controllers are not watched. claims: of DynamicResources, which sets uses_claims
    for the same reason. empty_candidates: see Preemption.
    """

    api: ApiClient | None = None
    extenders: Sequence[HttpExtender] = ()
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(()))
    profiles: dict[str, Framework] = field(default_factory=dict)
    waiting_pods: WaitingPods = field(default_factory=WaitingPods)
    budgets: Callable[[], Sequence[DisruptionBudget]] = tuple
    evict: Evict = _nobody
    activate: Callable[[Iterable[PodView]], None] = lambda _pods: None
    nominated: Callable[[], Nominated] = dict
    namespace_labels: Callable[[str], Mapping[str, str]] = _no_labels
    default_selector: Callable[[PodView], Json | None] = lambda _pod: None
    spreads_by_default: bool = False
    claims: Claims = field(default_factory=Claims)
    uses_claims: bool = False
    empty_candidates: bool = True

    def is_worth_requeuing(self, pod: PodView, rejected_by: frozenset[str], change: Change) -> bool:
        """Return whether a change may let a rejected pod fit, by the hints of the profile."""
        return self.profiles[pod.scheduler_name].is_worth_requeuing(pod, rejected_by, change)


class PlainPlugin:
    """The constructor of in-tree plug-ins without arguments."""

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Keep the handle."""
        self._handle = handle or Handle()
