"""The handle: what a plug-in may use of the scheduler that it runs in.

A plug-in gets it when it is made, and keeps it. What a test does not need it leaves out.
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
"""Node -> the waiting pods for which room was made there."""
Evict = Callable[[PodView, Candidate], None]


def _nobody(_pod: PodView, _candidate: Candidate) -> None:
    """Evict nobody."""


def _no_labels(_namespace: str) -> Mapping[str, str]:
    return {}


@dataclass
class Handle:
    """One for each scheduler.

    api: the API server's client, None in a decision that is only tried. snapshot: all nodes, as
    they were when the cycle began. profiles: by schedulerName. waiting: the pods that Permit
    delays. evict: has victims go. activate: has waiting pods tried at once. nominated: for
    whom room was made where. namespace_labels: of a namespace. default_selector: a LabelSelector of
    a pod and its like; a plug-in that will ask for it sets spreads_by_default when it is made, for
    otherwise nobody watches what selects pods. claims: those of DynamicResources, which sets
    uses_claims for the same reason. empty_candidates: see Preemption.
    """

    api: ApiClient | None = None
    extenders: Sequence[HttpExtender] = ()
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(()))
    profiles: dict[str, Framework] = field(default_factory=dict)
    waiting: WaitingPods = field(default_factory=WaitingPods)
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
        """Return whether a change can make a rejected pod fit, by the hints of its profile."""
        return self.profiles[pod.scheduler_name].is_worth_requeuing(pod, rejected_by, change)


class PlainPlugin:
    """What plug-ins in tree have that take no arguments: how they are made."""

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Keep the handle."""
        self._handle = handle or Handle()
