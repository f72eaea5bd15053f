"""Waking kube-scheduler for room that no change of an object tells it of.

kube-scheduler tries a pod that it has refused again when a Pod or a Node changes, and else after
five minutes. Some room comes without that: a ConfigMap opens a device, a charge in doubt is given
back, a process starts with other settings, what was held for another pod is free again. So a time
is then written on the Node, where a pod that waits would fit. Which changes of a Node count:
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
from gpushare.kube.api import Calls
from gpushare.logline import Line

log = logging.getLogger("gpushare.wake")

KEY = "gpushare.io/room-since"
"""The annotation or label of a Node: when room came there, in seconds since the epoch."""

EVERY = 10.0
"""Seconds between two writes to one node."""

AFTER_START = 15.0
"""Seconds after this process has begun to answer in which kube-scheduler asks by itself."""

_TIMEOUT = 2.0
_MOST_REQUESTS = 64
"""Kinds of pod that are tried on a node, the oldest first."""


class SchedulerWaker(Part):
    """Writes on Nodes with new room; any thread may call `room_on`, and none waits.

    annotates: whether kube-scheduler looks at annotations of nodes; else a label is written. clock:
    seconds, monotonic. wall: seconds since the epoch.
    """

    def __init__(
        self,
        api: Calls,
        resources: ManagedResources,
        annotates: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._resources = resources
        self._annotates = annotates
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._marked: dict[str, None] = {}
        self._written: dict[str, float] = {}
        self._paused_until = -math.inf
        self._look_at: float | None = None
        self._wakes = 0
        self._offers = [(managed, offers_of(managed)) for managed in resources]

    def room_on(self, node: str) -> None:
        """Note that there may be new room on the node of which no Pod and no Node tells."""
        with self._lock:
            self._marked[node] = None

    def tick(self, is_ready: bool) -> None:
        """Write on one node at most; call it every second, from one thread.

        is_ready: this process answers kube-scheduler.
        """
        now = self._clock()
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
            taken = [(managed, _taken_by(managed, node)) for managed in self._resources]
            if any(kinds for _, kinds in taken):
                if self._write(node, now):
                    for managed, kinds in taken:
                        waiting = managed.ledger.waiting()
                        managed.holds.forget_turned_away(
                            pod.uid for pod in waiting if _kind(pod) in kinds
                        )
                return

    def state(self) -> dict[str, float]:
        """Return counters for metrics: how often a node was written on."""
        return {"scheduler_wakes_total": self._wakes}

    def _fitting_nodes(self) -> Iterator[str]:
        """Yield, for each request that waits, a node on which it would fit."""
        for managed in self._resources:
            for pod in _kinds_waiting(managed):
                yield from islice(managed.places(pod.request, pod.demands), 1)

    def _after_holds(self, now: float) -> Iterator[str]:
        """Yield, for each kind of pod refused for a hold that has ended since, a node for it now.

        Filter would offer it that node: other holds may be there still.
        """
        for managed, offers in self._offers:
            managed.holds.expire(now)
            ended = managed.holds.take_ended()
            if not ended.groups:
                continue
            # What is held is not the same for all pods of a kind.
            kinds = (
                (pod, (_kind(pod), claim.priority, claim.group))
                for pod in managed.ledger.waiting()
                if (claim := ended.pods.get(pod.uid)) is not None
            )
            for pod in _first_of_each(kinds):
                claim = ended.pods[pod.uid]
                nodes = NodeNames(ended.nodes(claim))
                books = managed.ledger.snapshot
                seen, judged = offers.look(claim, claim.request, nodes, books, now)
                needs = group_needs(managed, self._resources.gate, claim, pod.demands)
                if any(room_for(seen, asks, count) < count for asks, count in needs.items()):
                    continue  # filter would refuse its group
                fit = nodes.part(judged.fits)
                yield from islice(managed.allowed(fit, pod.request, pod.demands), 1)

    def _write(self, node: str, now: float) -> bool:
        """Write on the node, and return whether that went well."""
        kind = "annotations" if self._annotates() else "labels"
        body = json.dumps({"metadata": {kind: {KEY: str(int(self._wall()))}}}).encode()
        self._written[node] = now
        try:
            self._api.request(
                "PATCH",
                f"/api/v1/nodes/{node}",
                body=body,
                content_type="application/merge-patch+json",
                timeout=_TIMEOUT,
            )
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


def _taken_by(managed: ManagedResource, node: str) -> set[_Kind]:
    """Return the kinds of pod that kube-scheduler looks at and that would fit on the node now."""
    kinds = map(_kind, _kinds_waiting(managed))
    return {kind for kind in kinds if any(managed.places(*kind, [node]))}


def _kinds_waiting(managed: ManagedResource) -> Iterator[Waiting]:
    """Yield the oldest pod of each kind that waits, of those that kube-scheduler may place."""
    return _first_of_each((pod, _kind(pod)) for pod in managed.ledger.waiting())


def _first_of_each(pods: Iterable[tuple[Waiting, Hashable]]) -> Iterator[Waiting]:
    """Yield the first pod of each kind, of those that kube-scheduler may place.

    pods: each with its kind, the oldest first.
    """
    seen = set()
    for pod, kind in pods:
        if pod.demands.gated or not pod.served or kind in seen:
            continue
        seen.add(kind)
        if len(seen) > _MOST_REQUESTS:
            return
        yield pod
