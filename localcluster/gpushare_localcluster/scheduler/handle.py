"""The handle: the parts of the scheduler that plug-ins may use, with the pods that wait at Permit.

A plug-in gets the handle in its constructor. Tests leave out the parts they do not need. Pods that
wait at Permit are assumed on a node, reserved, and not bound yet; plug-ins allow or reject them.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.wire.budgets import DisruptionBudget
from gpushare.wire.fields import Fields
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.scheduler.cache import Snapshot
from gpushare_localcluster.scheduler.claims import Claims
from gpushare_localcluster.scheduler.cluster_events import Change
from gpushare_localcluster.scheduler.extender import Candidate, HttpExtender
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Status
from gpushare_localcluster.scheduler.objects import Json, PodView
from gpushare_localcluster.scheduler.runtime import Framework

LONGEST_WAIT = 15 * 60.0
"""Upper bound on the wait of a plug-in, in seconds."""

Nominated = Mapping[str, Sequence[PodView]]
"""Node -> the pending pods that are nominated for the node."""
Evict = Callable[[PodView, Candidate], None]


class WaitingPod:
    """One waiting pod. waits: seconds until the time-out, by plug-in."""

    def __init__(self, pod: PodView, node_name: str, waits: Mapping[str, float]) -> None:
        self.pod = pod
        self.node_name = node_name
        self._changed = threading.Condition()
        self._pending = {name: min(longest, LONGEST_WAIT) for name, longest in waits.items()}
        self._answer: Status | None = None

    def allow(self, plugin: str) -> None:
        """Allow the binding on behalf of the plug-in."""
        with self._changed:
            self._pending.pop(plugin, None)
            if not self._pending:
                self._end(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """Reject the binding on behalf of the plug-in."""
        with self._changed:
            self._end(Status(Code.UNSCHEDULABLE, (message,), plugin))

    def wait(self) -> Status:
        """Wait for the result, and return it."""
        begun = time.monotonic()
        with self._changed:
            while self._answer is None:
                plugin, longest = min(self._pending.items(), key=lambda item: item[1])
                remaining = begun + longest - time.monotonic()
                if remaining <= 0:
                    text = f"rejected due to timeout after waiting {longest:g}s at plugin {plugin}"
                    self._end(Status(Code.UNSCHEDULABLE, (text,), plugin))
                else:
                    self._changed.wait(remaining)
            return self._answer

    def _end(self, answer: Status) -> None:
        if self._answer is None:
            self._answer = answer
            self._changed.notify_all()


@dataclass
class Handle:
    """The handle of one scheduler.

    api: the API server's client, None in a dry run. snapshot: all nodes at the start of the cycle.
    profiles: by schedulerName. waiting_pods: the pods that Permit delays, by UID. evict: evicts
    victims. activate: makes pending pods ready at once. nominated: the nominated pods by node.
    namespace_labels: of a namespace. default_selector: the LabelSelector of a pod's Services and
    controller; a plug-in that calls it sets spreads_by_default in its constructor, since otherwise
    Services and controllers are not watched. claims: of DynamicResources, which sets uses_claims
    for the same reason. empty_candidates: see Preemption.
    """

    api: ApiClient | None = None
    extenders: Sequence[HttpExtender] = ()
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(()))
    profiles: dict[str, Framework] = field(default_factory=dict)
    waiting_pods: dict[str, WaitingPod] = field(default_factory=dict)
    budgets: Callable[[], Sequence[DisruptionBudget]] = tuple
    evict: Evict = lambda _pod, _candidate: None
    activate: Callable[[Iterable[PodView]], None] = lambda _pods: None
    nominated: Callable[[], Nominated] = dict
    namespace_labels: Callable[[str], Mapping[str, str]] = lambda _namespace: {}
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
