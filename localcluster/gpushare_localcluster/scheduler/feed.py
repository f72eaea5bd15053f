"""The event handlers of the scheduler: from watch events to calls on queue and cache.

Assigned pods are in the cache, pending ones in the queue, and a change of either may wake other
pods. Knows no API server and no thread: the owner holds the lock.
"""

from collections.abc import Mapping

from gpushare_localcluster.scheduler.cache import Cache
from gpushare_localcluster.scheduler.cluster_events import (
    Action,
    Change,
    Resource,
    node_actions,
    pod_actions,
)
from gpushare_localcluster.scheduler.handle import WaitingPod
from gpushare_localcluster.scheduler.objects import Json, PodView, read_node, read_pod
from gpushare_localcluster.scheduler.queue import SchedulingQueue


class Feed:
    """Feeds one queue and one cache.

    scheduler_names: of the profiles; other pods are ignored while pending. waiting_pods: the pods
    that Permit delays; a deleted pod is rejected there.
    """

    def __init__(
        self,
        queue: SchedulingQueue,
        cache: Cache,
        waiting_pods: Mapping[str, WaitingPod],
        scheduler_names: frozenset[str],
    ) -> None:
        self._queue = queue
        self._cache = cache
        self._waiting = waiting_pods
        self._names = scheduler_names

    def pod(self, before: Json | None, after: Json | None, now: float) -> None:
        """Handle a pod that was added (before None), changed, or deleted (after None)."""
        if after is None:
            if before is not None:
                self._pod_gone(read_pod(before), now)
            return
        pod = read_pod(after)
        if pod.ended:
            self._pod_gone(pod, now)
        elif pod.node_name:
            self._pod_assigned(pod, before, now)
        elif pod.scheduler_name in self._names and not self._cache.is_assumed(pod.uid):
            self._queue.update(pod, now)

    def node(self, before: Json | None, after: Json | None, now: float) -> None:
        """Handle an added, changed or deleted node."""
        if after is None:
            if before is not None:
                old = read_node(before)
                self._cache.remove_node(old.name)
                self._queue.move(Change(Resource.NODE, Action.DELETE, old_node=old), now)
            return
        new = read_node(after)
        self._cache.set_node(new)
        if before is None:
            self._queue.move(Change(Resource.NODE, Action.ADD, new_node=new), now)
        elif actions := node_actions(before, after):
            old = read_node(before)
            self._queue.move(Change(Resource.NODE, actions, old_node=old, new_node=new), now)

    def _pod_gone(self, pod: PodView, now: float) -> None:
        self._queue.remove(pod.uid)
        if waiting_pod := self._waiting.get(pod.uid):
            waiting_pod.reject("", "removed")
        was_counted = self._cache.holds(pod.uid)
        self._cache.remove_pod(pod.uid)
        if was_counted or pod.node_name:
            self._queue.move(Change(Resource.ASSIGNED_POD, Action.DELETE, old_pod=pod), now)

    def _pod_assigned(self, pod: PodView, before: Json | None, now: float) -> None:
        self._cache.set_pod(pod)
        self._queue.remove(pod.uid)
        if before is None or not (before.get("spec") or {}).get("nodeName"):
            self._queue.move(Change(Resource.ASSIGNED_POD, Action.ADD, new_pod=pod), now)
        elif actions := pod_actions(before, pod.raw):
            old = read_pod(before)
            change = Change(Resource.ASSIGNED_POD, actions, old_pod=old, new_pod=pod)
            self._queue.move(change, now)
