"""Wakes kube-scheduler for new room that no change of an object shows.

kube-scheduler tries an unschedulable pod again when a Pod or a Node changes, and else after five
minutes. Room also comes without such a change: a ConfigMap opens a device, a charge in doubt ends,
a process starts with other settings, a hold for another pod ends. The waker then writes a time on
a Node where a pending pod would fit. The changes of a Node that count:
nodeSchedulingPropertiesChange in kube-scheduler's pkg/scheduler/framework/events.go; labels in all
releases, annotations from 1.30 on.

Tested in `tests/unit/extender/follow/test_wake.py` and `tests/e2e/test_wake.py`.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from gpushare.core.decide import room_for
from gpushare.core.model import Request
from gpushare.core.node_names import NodeNames
from gpushare.core.selectors import Demands
from gpushare.core.states.entry import Waiting
from gpushare.daemon.part import Part
from gpushare.errors import ApiError
from gpushare.extender.follow.write_right import PAUSE, lacks_right
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.verbs.group_room import group_needs
from gpushare.extender.verbs.offers import offers_of
from gpushare.kube.api import Calls, merge_patch
from gpushare.logline import Line

log = logging.getLogger("gpushare.wake")

KEY = "gpushare.io/room-since"
"""The annotation or label of a Node: when room came there, in seconds since the epoch."""

EVERY = 10.0
"""Seconds between two writes to one node."""

AFTER_START = 15.0
"""Seconds after this process becomes ready in which kube-scheduler calls without a wake."""

_TIMEOUT = 2.0
_MOST_REQUESTS = 64
"""Kinds of pod that are tried on a node, the oldest first."""


@dataclass(eq=False)
class SchedulerWaker(Part):
    """Writes on Nodes with new room; any thread may call `room_on`, and none waits.

    annotates: whether kube-scheduler looks at annotations of nodes; else a label is written. clock:
    seconds, monotonic. wall: seconds since the epoch.
    """

    api: Calls
    resources: ManagedResources
    annotates: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._marked: dict[str, None] = {}
        self._written: dict[str, float] = {}
        self._paused_until = -math.inf
        self._look_at: float | None = None
        self._wakes = 0
        self._offers = [(resource, offers_of(resource)) for resource in self.resources]

    def room_on(self, node: str) -> None:
        """Note that the node may have new room that no change of a Pod or Node shows."""
        with self._lock:
            self._marked[node] = None

    def tick(self, is_ready: bool) -> None:
        """Write on one node at most.

        is_ready: this process answers kube-scheduler.
        """
        now = self.clock()
        if not is_ready:
            self._look_at = None
            return
        if self._look_at is None:
            self._look_at = now + AFTER_START
        if now >= self._look_at:
            self._look_at = math.inf
            for node in self._fitting_nodes():
                self.room_on(node)
        for node in self._after_holds(now):
            self.room_on(node)
        if now < self._paused_until:
            with self._lock:
                self._marked.clear()
            return
        self._written = {name: at for name, at in self._written.items() if now < at + EVERY}
        with self._lock:
            marked = [name for name in self._marked if name not in self._written]
        for node in marked:
            with self._lock:
                self._marked.pop(node, None)
            fitting_kinds = [(resource, _taken_by(resource, node)) for resource in self.resources]
            if any(kinds for _, kinds in fitting_kinds):
                if self._write(node, now):
                    for resource, kinds in fitting_kinds:
                        pending_pods = resource.ledger.waiting()
                        resource.holds.forget_turned_away(
                            pod.uid for pod in pending_pods if _kind(pod) in kinds
                        )
                return

    def state(self) -> dict[str, float]:
        """Return counters for metrics: how often a node was written on."""
        return {"scheduler_wakes_total": self._wakes}

    def _fitting_nodes(self) -> Iterator[str]:
        """Yield a node with room for each kind of pending pod."""
        for resource in self.resources:
            for pod in _kinds_waiting(resource):
                yield from islice(resource.places(pod.request, pod.demands), 1)

    def _after_holds(self, now: float) -> Iterator[str]:
        """Yield a node with room for each kind of pod that filter refused for a hold, if that hold
        has ended. Filter would offer this node to the pod, less the holds that remain.
        """
        for resource, offers in self._offers:
            resource.holds.expire(now)
            ended = resource.holds.take_ended()
            if not ended.groups:
                continue
            # The holds against a pod depend on its priority and group.
            kinds = (
                (pod, (_kind(pod), claim.priority, claim.group))
                for pod in resource.ledger.waiting()
                if (claim := ended.pods.get(pod.uid)) is not None
            )
            for pod in _first_of_each(kinds):
                claim = ended.pods[pod.uid]
                nodes = NodeNames(ended.nodes(claim))
                books = resource.ledger.snapshot
                snapshot, judgement = offers.look(claim, claim.request, nodes, books, now)
                needs = group_needs(resource, self.resources.gate, claim, pod.demands)
                if any(room_for(snapshot, asks, count) < count for asks, count in needs.items()):
                    continue  # filter would refuse the group of the pod
                fit = nodes.part(judgement.fits)
                yield from islice(resource.allowed(fit, pod.request, pod.demands), 1)

    def _write(self, node: str, now: float) -> bool:
        """Write on the node, and return whether that went well."""
        kind = "annotations" if self.annotates() else "labels"
        body = json.dumps({"metadata": {kind: {KEY: str(int(self.wall()))}}}).encode()
        self._written[node] = now
        try:
            merge_patch(self.api, f"/api/v1/nodes/{node}", body, _TIMEOUT)
        except ApiError as error:
            self._paused_until = now + (PAUSE if lacks_right(error) else EVERY)
            text = "kube-scheduler is not woken; it tries waiting pods again within 5 minutes"
            log.warning(Line(text, node=node, error=str(error)))
            return False
        self._wakes += 1
        log.info(Line("kube-scheduler woken", node=node))
        return True


_Kind = tuple[Request, Demands]


def _kind(pod: Waiting) -> _Kind:
    return pod.request, pod.demands


def _taken_by(resource: ManagedResource, node: str) -> set[_Kind]:
    """Return the kinds of pod that kube-scheduler looks at and that would fit on the node now."""
    kinds = map(_kind, _kinds_waiting(resource))
    return {kind for kind in kinds if any(resource.places(*kind, [node]))}


def _kinds_waiting(resource: ManagedResource) -> Iterator[Waiting]:
    """Yield the oldest pod of each kind that waits, of those that kube-scheduler may place."""
    return _first_of_each((pod, _kind(pod)) for pod in resource.ledger.waiting())


def _first_of_each(pods: Iterable[tuple[Waiting, Hashable]]) -> Iterator[Waiting]:
    """Yield the first pod of each kind, of those that kube-scheduler may place.

    pods: (pod, kind of the pod), the oldest pod first.
    """
    yielded_kinds = set()
    for pod, kind in pods:
        if pod.demands.gated or not pod.served or kind in yielded_kinds:
            continue
        yielded_kinds.add(kind)
        if len(yielded_kinds) > _MOST_REQUESTS:
            return
        yield pod
