"""The scheduling queue of kube-scheduler as a step machine; time is an argument.

Five places: gated (rejected by PreEnqueue), active (a heap in the order of QueueSort), backoff
(until a time), unschedulable (until a change that may resolve the rejection), in flight (in a
scheduling cycle; changes in the meantime are kept, so that none is lost). Without lock, thread or
clock.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cmp_to_key

from gpushare_localcluster.scheduler.cluster_events import (
    FORCE_ACTIVATE,
    Change,
    Resource,
    pod_actions,
)
from gpushare_localcluster.scheduler.framework import SUCCESS, Queued, Status
from gpushare_localcluster.scheduler.objects import PodView

# podInitialBackoffSeconds, podMaxBackoffSeconds and --pod-max-in-unschedulable-pods-duration.
INITIAL_BACKOFF = 1.0
MAX_BACKOFF = 10.0
MAX_UNSCHEDULABLE = 300.0

IsWorthRequeuing = Callable[[PodView, frozenset[str], Change], bool]
PreEnqueue = Callable[[PodView], Status]
Less = Callable[[Queued, Queued], bool]


def by_priority(one: Queued, other: Queued) -> bool:
    """Return whether `one` has the higher priority, or an equal one and waits longer."""
    return (-one.pod.priority, one.since) < (-other.pod.priority, other.since)


@dataclass
class QueuedPod:
    """A queued pod, with the data for its back-off.

    since: the time of the last failure or the arrival; among equal pods the oldest is first. woken:
    an event or the arrival made the pod active; an extender may not know of the event yet.
    """

    pod: PodView
    since: float
    unschedulable: int = 0
    errors: int = 0
    rejected_by: frozenset[str] = frozenset()
    ready_at: float = 0.0
    missed: list[Change] = field(default_factory=list)
    woken: bool = True

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.pod.uid


def backoff(tries: int, initial: float = INITIAL_BACKOFF, maximum: float = MAX_BACKOFF) -> float:
    """Return the back-off after n failures in a row: initial * 2^(n-1), at most maximum."""
    if tries <= 0:
        return 0.0
    return float(min(initial * 2 ** min(tries - 1, 32), maximum))


class SchedulingQueue:
    """The pending pods.

    is_worth_requeuing: whether a change may resolve a rejection by these plug-ins. less: whether
    the first pod comes before the second. pre_enqueue: whether a pod may be tried at all.
    """

    def __init__(
        self,
        is_worth_requeuing: IsWorthRequeuing,
        *,
        initial_backoff: float = INITIAL_BACKOFF,
        max_backoff: float = MAX_BACKOFF,
        less: Less = by_priority,
        pre_enqueue: PreEnqueue = lambda _pod: SUCCESS,
    ) -> None:
        self._is_worth_requeuing = is_worth_requeuing
        self._pre_enqueue = pre_enqueue

        def compare(one: Queued, other: Queued) -> int:
            return less(other, one) - less(one, other)

        self._key = cmp_to_key(compare)
        self._initial = initial_backoff
        self._maximum = max_backoff
        self._active: dict[str, QueuedPod] = {}
        self._heap: list[tuple[object, int, str]] = []
        self._gated: dict[str, QueuedPod] = {}
        self._backoff: dict[str, QueuedPod] = {}
        self._waiting: dict[str, QueuedPod] = {}
        self._in_flight: dict[str, QueuedPod] = {}
        self._ticket = 0

    def add(self, pod: PodView, now: float) -> None:
        """Add a new pod; a pod rejected by PreEnqueue is gated."""
        if pod.uid not in self:
            self._admit(QueuedPod(pod, since=now))

    def update(self, pod: PodView, now: float) -> None:
        """Store the newer copy; a change that may let the pod fit wakes the pod."""
        entry = self._find(pod.uid)
        if entry is None:
            self.add(pod, now)
            return
        old, entry.pod = entry.pod, pod
        actions = pod_actions(old.raw, pod.raw)
        if not actions:
            return
        change = Change(Resource.TARGET_POD, actions, old_pod=old, new_pod=pod)
        if pod.uid in self._gated:
            self._admit(self._gated.pop(pod.uid))
        elif pod.uid in self._waiting and self._awaits(entry, change):
            self._wake(self._waiting.pop(pod.uid), now)
        elif pod.uid in self._in_flight:
            entry.missed.append(change)

    def remove(self, uid: str) -> None:
        """Remove a deleted or bound pod."""
        for _, place in self._named():
            place.pop(uid, None)

    def pop(self, now: float) -> QueuedPod | None:
        """Return the next pod, which is then in flight; None if no pod is ready."""
        self.flush(now)
        while self._heap:
            *_, uid = heapq.heappop(self._heap)
            entry = self._active.pop(uid, None)
            if entry is not None:
                entry.missed = []
                self._in_flight[uid] = entry
                return entry
        return None

    def done(self, uid: str) -> None:
        """Remove a pod in flight after its binding or its end."""
        self._in_flight.pop(uid, None)

    def reject(
        self,
        entry: QueuedPod,
        rejected_by: frozenset[str],
        now: float,
        *,
        look_again: bool = False,
    ) -> None:
        """Put a rejected pod among the unschedulable, or after a missed change into back-off.

        look_again: the extender may have got the event later than the queue, so one more try
        follows after the back-off. (kube-scheduler >= 1.32 tries again too, since its own status
        patch counts as an event.)
        """
        if self._in_flight.pop(entry.uid, None) is None:
            return
        entry.unschedulable += 1
        entry.errors = 0
        entry.rejected_by = rejected_by
        entry.since = now
        entry.ready_at = now + backoff(entry.unschedulable, self._initial, self._maximum)
        missed = any(self._awaits(entry, change) for change in entry.missed)
        if missed or (look_again and entry.woken):
            entry.woken = missed
            self._wake(entry, now)
        else:
            self._waiting[entry.uid] = entry

    def fail(self, entry: QueuedPod, now: float) -> None:
        """Put a pod into back-off after an error, which no event can resolve."""
        if self._in_flight.pop(entry.uid, None) is None:
            return
        entry.errors += 1
        entry.rejected_by = frozenset()
        entry.since = now
        entry.ready_at = now + backoff(entry.errors, self._initial, self._maximum)
        self._backoff[entry.uid] = entry

    def move(self, change: Change, now: float) -> None:
        """Wake the pods that the change may let fit; pods in flight store the change."""
        for entry in self._in_flight.values():
            entry.missed.append(change)
        for entry in [e for e in self._gated.values() if self._awaits(e, change)]:
            self._admit(self._gated.pop(entry.uid))
        for entry in [e for e in self._waiting.values() if self._awaits(e, change)]:
            del self._waiting[entry.uid]
            entry.woken = True
            self._wake(entry, now)

    def activate(self, uids: Iterable[str]) -> None:
        """Make pending pods active at once; pods in flight return after back-off."""
        for uid in uids:
            entry = self._waiting.pop(uid, None) or self._backoff.pop(uid, None)
            if entry is not None:
                self._activate(entry)
            elif uid in self._in_flight:
                self._in_flight[uid].missed.append(FORCE_ACTIVATE)

    def nominated(self) -> dict[str, list[PodView]]:
        """Return the nominated, unbound pods by node."""
        by_node: dict[str, list[PodView]] = {}
        for _, place in self._named():
            for entry in place.values():
                if entry.pod.nominated_node:
                    by_node.setdefault(entry.pod.nominated_node, []).append(entry.pod)
        return by_node

    def flush(self, now: float) -> None:
        """Wake pods at the end of back-off, and pods that were unschedulable for five minutes."""
        for entry in [e for e in self._waiting.values() if now - e.since > MAX_UNSCHEDULABLE]:
            del self._waiting[entry.uid]
            self._wake(entry, now)
        for entry in [e for e in self._backoff.values() if e.ready_at <= now]:
            del self._backoff[entry.uid]
            self._activate(entry)

    def next_change(self) -> float | None:
        """Return the next time at which a pod becomes ready without an event, None for none."""
        moments = [entry.ready_at for entry in self._backoff.values()]
        moments += [entry.since + MAX_UNSCHEDULABLE for entry in self._waiting.values()]
        return min(moments, default=None)

    def places(self) -> dict[str, str]:
        """Return the place by UID: gated, active, backoff, unschedulable or in-flight."""
        return {uid: word for word, place in self._named() for uid in place}

    def __contains__(self, uid: str) -> bool:
        """Return whether the pod is in the queue or in flight."""
        return self._find(uid) is not None

    def _named(self) -> tuple[tuple[str, dict[str, QueuedPod]], ...]:
        return (
            ("gated", self._gated),
            ("active", self._active),
            ("backoff", self._backoff),
            ("unschedulable", self._waiting),
            ("in-flight", self._in_flight),
        )

    def _find(self, uid: str) -> QueuedPod | None:
        return next((place[uid] for _, place in self._named() if uid in place), None)

    def _awaits(self, entry: QueuedPod, change: Change) -> bool:
        return self._is_worth_requeuing(entry.pod, entry.rejected_by, change)

    def _admit(self, entry: QueuedPod) -> None:
        status = self._pre_enqueue(entry.pod)
        if status.ok:
            self._activate(entry)
        else:
            entry.rejected_by = frozenset({status.plugin})
            self._gated[entry.uid] = entry

    def _wake(self, entry: QueuedPod, now: float) -> None:
        if entry.ready_at > now:
            self._backoff[entry.uid] = entry
        else:
            self._activate(entry)

    def _activate(self, entry: QueuedPod) -> None:
        self._active[entry.uid] = entry
        self._ticket += 1
        heapq.heappush(self._heap, (self._key(entry), self._ticket, entry.uid))
