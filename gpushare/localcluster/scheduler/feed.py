"""What the watches mean for the queue and the cache: kube-scheduler's event handlers.

Turns the state of an object before and after a change into calls on queue and cache. Assigned pods
live in the cache, waiting ones in the queue, and a change of either may wake other pods. Knows no
API server and no thread: the owner holds the lock.
"""

from gpushare.localcluster.scheduler.cache import Cache
from gpushare.localcluster.scheduler.framework import ClusterEvent
from gpushare.localcluster.scheduler.objects import Json, PodView, read_node, read_pod
from gpushare.localcluster.scheduler.queue import SchedulingQueue
from gpushare.localcluster.scheduler.waiting import WaitingPods


class Feed:
    """Feeds one queue and one cache. `scheduler_names` are the profiles whose pods are ours.

    `waiting`: the pods that Permit delays; one that goes waits no more.
    """

    def __init__(
        self,
        queue: SchedulingQueue,
        cache: Cache,
        waiting: WaitingPods,
        scheduler_names: frozenset[str],
    ) -> None:
        self._queue = queue
        self._cache = cache
        self._waiting = waiting
        self._names = scheduler_names

    def pod(self, before: Json | None, after: Json | None, now: float) -> None:
        """Take in a pod that appeared (before None), changed, or vanished (after None)."""
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
        """Take in a node that appeared, changed or vanished."""
        if after is None:
            if before is not None:
                self._cache.remove_node(str(before["metadata"]["name"]))
                self._queue.move(ClusterEvent.NODE_DELETE, now)
            return
        self._cache.set_node(read_node(after))
        if before is None:
            self._queue.move(ClusterEvent.NODE_ADD, now)
        elif _node_substance(before) != _node_substance(after):
            self._queue.move(ClusterEvent.NODE_UPDATE, now)

    def _pod_gone(self, pod: PodView, now: float) -> None:
        self._queue.remove(pod.uid)
        if waiting := self._waiting.get(pod.uid):
            waiting.reject("", "removed")
        held = self._cache.holds(pod.uid)
        self._cache.remove_pod(pod.uid)
        if held or pod.node_name:
            self._queue.move(ClusterEvent.ASSIGNED_POD_DELETE, now)

    def _pod_assigned(self, pod: PodView, before: Json | None, now: float) -> None:
        self._cache.set_pod(pod)
        self._queue.remove(pod.uid)
        if before is None or not (before.get("spec") or {}).get("nodeName"):
            self._queue.move(ClusterEvent.ASSIGNED_POD_ADD, now)
        elif _pod_substance(before) != _pod_substance(pod.raw):
            self._queue.move(ClusterEvent.ASSIGNED_POD_UPDATE, now)


def _pod_substance(raw: Json) -> tuple[object, ...]:
    """Return what of a running pod can matter to waiting ones: not its status."""
    meta: Json = raw["metadata"]
    return (raw.get("spec"), meta.get("labels"), meta.get("annotations"))


def _node_substance(raw: Json) -> tuple[object, ...]:
    """Return what of a node can make a pod fit: a heartbeat cannot, annotations can
    (since 1.30).
    """
    meta: Json = raw["metadata"]
    status: Json = raw.get("status") or {}
    conditions = [(c.get("type"), c.get("status")) for c in status.get("conditions") or ()]
    return (
        raw.get("spec"),
        meta.get("labels"),
        meta.get("annotations"),
        status.get("allocatable"),
        conditions,
    )
