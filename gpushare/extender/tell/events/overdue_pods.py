"""How long pods have waited for a filter call, or for a device plug-in: both should come at once.

Tested in `tests/unit/extender/tell/events/test_pending_without_call.py` and
`tests/unit/extender/tell/events/test_unserved_pods.py`.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushare.core.decide import fits_somewhere
from gpushare.core.model import Kind
from gpushare.core.selectors import Demands
from gpushare.core.states.entry import Phase
from gpushare.daemon.part import Part
from gpushare.extender.managed_resources import ManagedResource, ManagedResources

_MAX_REQUESTS, _MAX_OF_ONE = 256, 8
"""Different requests tried at one scrape, in all and for the pods of one namespace; a cluster asks
for few, and one namespace must not hide the pods of another."""


@dataclass(eq=False)
class OverduePods(Part):
    """The longest waits, for metrics. called: as of `pending_without_call`."""

    resources: ManagedResources
    called: Callable[[str], bool]
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._ready_since = math.inf
        self._unserved_pods = UnservedPods(self.resources)

    def tick(self, is_ready: bool, /) -> None:
        """Note since when this process is ready."""
        self._ready_since = min(self._ready_since, self.wall()) if is_ready else math.inf

    def state(self) -> Mapping[str, float]:
        """Return the seconds of the longest wait for a filter call, and for a device plug-in."""
        pending = 0.0
        if self._ready_since < math.inf:
            pending = pending_without_call(
                self.resources, self.called, self._ready_since, self.wall()
            )
        return {
            "pending_without_call_seconds": pending,
            "bound_unassigned_seconds": self._unserved_pods.longest_seconds(self.clock()),
        }


def pending_without_call(
    resources: ManagedResources, called: Callable[[str], bool], since: float, now: float
) -> float:
    """Return the seconds (wall clock) that the oldest pod has waited without a filter call, 0 for
    no such pod. A long wait shows that a scheduler does not call this extender.

    kube-scheduler calls no extender for a pod if its own plug-ins reject all nodes. So a pod counts
    only while the ledger shows a node with room, CPU and memory of the host included, that
    kube-scheduler does not reject.

    called: whether filter was called for the pod of that uid. since: the time when this process
    became ready.
    """
    return max((_longest_wait(resource, called, since, now) for resource in resources), default=0.0)


def _longest_wait(
    resource: ManagedResource, called: Callable[[str], bool], since: float, now: float
) -> float:
    fits: dict[tuple[Kind, frozenset[int], Demands], bool] = {}
    tries_by_namespace: Counter[str] = Counter()
    for pod in resource.ledger.waiting():
        if pod.gated or called(pod.uid):
            continue
        key = (pod.request.kind, pod.request.sizes, pod.demands)
        if key not in fits:
            tries_by_namespace[pod.ref.namespace] += 1
            if tries_by_namespace[pod.ref.namespace] > _MAX_OF_ONE:
                continue
            if len(fits) == _MAX_REQUESTS:
                break
            room = fits_somewhere(resource.ledger.snapshot(), pod.request)
            fits[key] = room and any(True for _ in resource.places(pod.request, pod.demands))
        if fits[key]:
            return max(0.0, now - max(pod.created, since))
    return 0.0


class UnservedPods:
    """The time of the first look at each bound pod that no device plug-in has served.

    The device plug-in or the kubelet may be away, or the container was started with no device or a
    wrong device: if the plug-in of the original finds no pod, the plug-in answers the kubelet with
    an unusable environment (allocate.go). The charge of the pod stays. For one thread at a time.
    """

    def __init__(self, resources: ManagedResources) -> None:
        self._resources = resources
        self._since: dict[tuple[str, str], float] = {}

    def longest_seconds(self, now: float) -> float:
        """Return the seconds since the pod that waits longest was first seen unserved; 0 if none.

        now: by any clock, the same one at each call.
        """
        since: dict[tuple[str, str], float] = {}
        for resource in self._resources:
            entries, specs = resource.ledger.entries_and_specs()
            for uid, entry in entries.items():
                node = specs.get(entry.node)
                waits = entry.phase is Phase.BOUND and not entry.assigned and not entry.terminating
                if waits and entry.cover.written is not None and node and node.marks_served:
                    key = resource.names.resource, uid
                    since[key] = self._since.get(key, now)
        self._since = since
        return now - min(since.values(), default=now)
