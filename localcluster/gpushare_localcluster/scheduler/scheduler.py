"""The scheduler: wires the pure parts, runs the watches and the loop.

One lock guards the queue and the feed of the cache; no call to the API server or an extender is
made under the lock.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from gpushare.errors import WireError
from gpushare_localcluster.client import ApiClient, Json
from gpushare_localcluster.informer import Informer
from gpushare_localcluster.scheduler.cache import Cache
from gpushare_localcluster.scheduler.claims import WATCHED
from gpushare_localcluster.scheduler.cluster_events import Action, Change, Resource
from gpushare_localcluster.scheduler.events import EventRecorder
from gpushare_localcluster.scheduler.extender import HttpExtender
from gpushare_localcluster.scheduler.feed import Feed
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.others import SELECTING, OtherObjects
from gpushare_localcluster.scheduler.preemption import Evictor
from gpushare_localcluster.scheduler.profiles import SchedulerOptions, build_frameworks
from gpushare_localcluster.scheduler.queue import QueuedPod, SchedulingQueue
from gpushare_localcluster.scheduler.schedule_one import Observer, ScheduleOne
from gpushare_localcluster.scheduler.trace import Tracer

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
        evictor = Evictor(self._api, self._events.preempted)
        handle = Handle(
            api=self._api,
            extenders=[HttpExtender(config) for config in options.extenders],
            budgets=self._others.budgets,
            evict=evictor.carry_out,
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
