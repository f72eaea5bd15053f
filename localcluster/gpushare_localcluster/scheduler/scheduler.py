"""The small kube-scheduler: watches, the queue, the cache, and a thread that schedules.

`Feed` has the event handlers: assigned pods are in the cache, pending ones in the queue, and a
change of either may wake other pods. Other objects of plug-ins (budgets, labels of namespaces,
selectors of pods) are written by informers and read from any thread: each change replaces a whole
entry.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random

from gpushare.errors import WireError
from gpushare.wire.budgets import DisruptionBudget, read_budget
from gpushare.wire.label_selectors import selects
from gpushare_localcluster.client import ApiClient, Json
from gpushare_localcluster.informer import Informer
from gpushare_localcluster.scheduler.cache import Cache
from gpushare_localcluster.scheduler.claims import WATCHED
from gpushare_localcluster.scheduler.cluster_events import (
    Action,
    Change,
    Resource,
    node_actions,
    pod_actions,
)
from gpushare_localcluster.scheduler.events import EventRecorder
from gpushare_localcluster.scheduler.extender import HttpExtender
from gpushare_localcluster.scheduler.handle import Handle, WaitingPod
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.preemption import evict
from gpushare_localcluster.scheduler.profiles import SchedulerOptions, build_frameworks
from gpushare_localcluster.scheduler.queue import QueuedPod, SchedulingQueue
from gpushare_localcluster.scheduler.schedule_one import Observer, ScheduleOne
from gpushare_localcluster.scheduler.trace import Tracer


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


SELECTING = {
    "Service": "/api/v1/services",
    "ReplicationController": "/api/v1/replicationcontrollers",
    "ReplicaSet": "/apis/apps/v1/replicasets",
    "StatefulSet": "/apis/apps/v1/statefulsets",
}
"""The kinds with pods that are spread by default, and the paths of their lists."""
_CONTROLLERS = {
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
}
"""apiVersion and kind: another kind called StatefulSet does not count."""


class OtherObjects:
    """Current PodDisruptionBudgets, namespaces and the selectors of `SELECTING`."""

    def __init__(self) -> None:
        self._budgets: dict[str, DisruptionBudget] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._selectors: dict[tuple[str, str, str], Json] = {}

    def on_budget(self, before: Json | None, after: Json | None) -> None:
        """Handle an added, changed or deleted budget."""
        meta = _meta(before, after)
        if after is None:
            self._budgets.pop(str(meta.get("uid")), None)
        else:
            self._budgets[str(meta.get("uid"))] = read_budget(
                str(meta.get("namespace")), after.get("spec"), after.get("status")
            )

    def on_namespace(self, before: Json | None, after: Json | None) -> None:
        """Handle an added, changed or deleted namespace."""
        meta = _meta(before, after)
        self._namespaces[str(meta.get("name"))] = (meta.get("labels") or {}) if after else {}

    def on_selecting(self, kind: str, before: Json | None, after: Json | None) -> None:
        """Handle an added, changed or deleted Service or controller of pods."""
        meta = _meta(before, after)
        selector = ((after or {}).get("spec") or {}).get("selector")
        key = (kind, str(meta.get("namespace")), str(meta.get("name")))
        if selector:
            self._selectors[key] = selector
        else:
            self._selectors.pop(key, None)

    def budgets(self) -> tuple[DisruptionBudget, ...]:
        """Return all budgets."""
        return tuple(self._budgets.copy().values())

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace, {} for an unknown one."""
        return self._namespaces.get(namespace, {})

    def default_selector(self, pod: PodView) -> Json | None:
        """Return the selector of the pod's Services and controller (helper.DefaultSelector)."""
        labels: dict[str, str] = {}
        for (kind, namespace, _), selector in self._selectors.copy().items():
            if kind == "Service" and namespace == pod.namespace:
                labels |= selector if selects({"matchLabels": selector}, pod.labels) else {}
        expressions: list[Json] = []
        for owner in (pod.raw.get("metadata") or {}).get("ownerReferences") or ():
            kind, name = str(owner.get("kind")), str(owner.get("name"))
            if not owner.get("controller") or (owner.get("apiVersion"), kind) not in _CONTROLLERS:
                continue
            # In one read: an informer may remove the entry at any time.
            selector = self._selectors.get((kind, pod.namespace, name), {})
            if kind == "ReplicationController":
                labels |= selector
                continue
            # With a Service that requires another value of the same label no pod is selected.
            for key, value in (selector.get("matchLabels") or {}).items():
                expressions.append({"key": key, "operator": "In", "values": [value]})
            expressions += selector.get("matchExpressions") or ()
        if not labels and not expressions:
            return None
        return {"matchLabels": labels, "matchExpressions": expressions}


def _meta(before: Json | None, after: Json | None) -> Json:
    return (after or before or {}).get("metadata") or {}


log = logging.getLogger(__name__)

Feeder = Callable[[Json | None, Json | None, float], None]

# Pods that have not ended; ended pods hold nothing.
_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_NAMESPACES = "/api/v1/namespaces"
_POD_QUERY = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class Scheduler:
    """A small kube-scheduler.

    `observer` is called with each decision before the binding, `tracer` with each ended cycle.
    """

    def __init__(
        self,
        api_url: str,
        options: SchedulerOptions,
        *,
        observer: Observer = lambda _decision: None,
        tracer: Tracer = lambda _cycle: None,
    ) -> None:
        self._api = ApiClient(api_url, user_agent="gpushare-local-scheduler")
        self._events = EventRecorder(self._api)
        self._others = OtherObjects()
        self._cache = Cache()
        self._handle = self._make_handle(options)
        first = next(iter(self._handle.profiles.values()))
        self._queue = SchedulingQueue(
            self._handle.is_worth_requeuing,
            initial_backoff=options.initial_backoff,
            max_backoff=options.max_backoff,
            less=first.queue_sorts[0].less,
            pre_enqueue=lambda pod: self._handle.profiles[pod.scheduler_name].run_pre_enqueue(pod),
        )
        waiting_pods = self._handle.waiting_pods
        self._feed = Feed(self._queue, self._cache, waiting_pods, options.scheduler_names)
        self._changed = threading.Condition()
        self._schedule_one = ScheduleOne(
            self._handle,
            self._queue,
            self._changed,
            cache=self._cache,
            api=self._api,
            events=self._events,
            random=Random(options.seed),
            observer=observer,
            tracer=tracer,
        )
        self._stopping = False
        self._loop = threading.Thread(target=self._run, name="scheduler", daemon=True)
        on_pod = partial(self._take_in, self._feed.pod)
        self._informers = [
            Informer(self._api, "/api/v1/nodes", partial(self._take_in, self._feed.node)),
            Informer(self._api, "/api/v1/pods", on_pod, query=_POD_QUERY),
            Informer(self._api, _BUDGETS, self._others.on_budget),
            Informer(self._api, _NAMESPACES, self._others.on_namespace),
        ]
        if self._handle.spreads_by_default:
            self._informers += [
                Informer(self._api, path, partial(self._others.on_selecting, kind))
                for kind, path in SELECTING.items()
            ]
        if self._handle.uses_claims:
            self._informers += [
                Informer(self._api, path, partial(self._take_in, partial(self._on_claims, kind)))
                for kind, path in WATCHED.items()
            ]

    def start(self) -> None:
        """Start to watch and to schedule."""
        for informer in self._informers:
            informer.start()
        self._loop.start()

    def stop(self) -> None:
        """Finish the running bindings and end all threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for informer in self._informers:
            informer.stop()
        if self._loop.is_alive():
            self._loop.join(10)
        self._schedule_one.stop()
        self._events.close()
        for extender in self._handle.extenders:
            extender.close()
        self._api.close()

    def wait_synced(self, timeout: float) -> bool:
        """Wait for all first lists; return whether all arrived within `timeout` seconds each."""
        return all(informer.wait_synced(timeout) for informer in self._informers)

    def sees(self, node: str) -> bool:
        """Return whether the watch has shown the node, so that later decisions include it."""
        return self._cache.has_node(node)

    def _take_in(self, feed: Feeder, before: Json | None, after: Json | None) -> None:
        """Feed an added, changed or deleted object."""
        with self._changed:
            try:
                feed(before, after, time.monotonic())
            except WireError as error:
                name = ((after or before or {}).get("metadata") or {}).get("name")
                log.warning("object not understood name=%s error=%s", name, error)
            self._changed.notify_all()

    def _on_claims(
        self, kind: Resource, before: Json | None, after: Json | None, now: float
    ) -> None:
        """Handle an added, changed or deleted claim, slice, device class or taint rule."""
        self._handle.claims.changed(kind, before, after)
        happened = Action.ADD if before is None else Action.UPDATE_OTHER
        self._queue.move(Change(kind, happened if after else Action.DELETE), now)

    def _make_handle(self, options: SchedulerOptions) -> Handle:
        """Return the handle with the frameworks of all profiles. Raises SettingsError."""
        handle = Handle(
            api=self._api,
            extenders=[HttpExtender(config) for config in options.extenders],
            budgets=self._others.budgets,
            evict=partial(evict, self._api, self._events.preempted),
            activate=self._activate,
            nominated=self._nominated,
            namespace_labels=self._others.labels_of,
            default_selector=self._others.default_selector,
            empty_candidates=options.empty_candidates,
        )
        build_frameworks(options.profiles, handle, options.ignored_resources)
        return handle

    def _activate(self, pods: Iterable[PodView]) -> None:
        with self._changed:
            self._queue.activate(pod.uid for pod in pods)
            self._changed.notify_all()

    def _nominated(self) -> dict[str, list[PodView]]:
        with self._changed:
            return self._queue.nominated()

    def _run(self) -> None:
        if not self._wait_for_lists():
            return
        while (entry := self._next()) is not None:
            self._schedule_one.run(entry)

    def _wait_for_lists(self) -> bool:
        """Wait for all lists; return True, or False at the end of the scheduler."""
        while not self.wait_synced(0.1):
            with self._changed:
                if self._stopping:
                    return False
        return True

    def _next(self) -> QueuedPod | None:
        """Wait until a pod is ready; return the pod, None at the end."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                entry = self._queue.pop(now)
                if entry is not None:
                    return entry
                change = self._queue.next_change()
                self._changed.wait(None if change is None else max(change - now, 0.01))
            return None
