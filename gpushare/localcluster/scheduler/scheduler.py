"""The scheduler around the pure parts: watches, the loop, the binding threads, what users are told.

One pod is decided at a time; bindings run beside the next decisions, as in kube-scheduler. One lock
guards queue and cache feeding; no call to the API server or an extender is made under it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

from gpushare.errors import WireError
from gpushare.localcluster.client import ApiClient, Json
from gpushare.localcluster.informer import Informer
from gpushare.localcluster.scheduler import trace
from gpushare.localcluster.scheduler.binding_cycle import BindingCycle
from gpushare.localcluster.scheduler.cache import Cache
from gpushare.localcluster.scheduler.cluster_events import Action, Change, Resource
from gpushare.localcluster.scheduler.config import SchedulerOptions
from gpushare.localcluster.scheduler.cycle import CycleError, Decision, FitError, SchedulingCycle
from gpushare.localcluster.scheduler.diagnosis import unschedulable_message
from gpushare.localcluster.scheduler.events import EventRecorder, timestamp, write_condition
from gpushare.localcluster.scheduler.eviction import Evictor
from gpushare.localcluster.scheduler.extender import PLUGIN_NAME, HttpExtender
from gpushare.localcluster.scheduler.feed import Feed
from gpushare.localcluster.scheduler.framework import Code, Status
from gpushare.localcluster.scheduler.handle import Handle
from gpushare.localcluster.scheduler.objects import PodView
from gpushare.localcluster.scheduler.others import OtherObjects
from gpushare.localcluster.scheduler.profiles import build_frameworks
from gpushare.localcluster.scheduler.queue import QueuedPod, SchedulingQueue
from gpushare.localcluster.scheduler.waiting import WaitingPod

log = logging.getLogger(__name__)

Observer = Callable[[Decision], None]
Feeder = Callable[[Json | None, Json | None, float], None]
Tracer = Callable[[trace.CycleTrace], None]

_BINDERS = 32
# Pods that have not ended; the others hold nothing.
_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_NAMESPACES = "/api/v1/namespaces"
_POD_QUERY = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


class Scheduler:
    """A small kube-scheduler.

    `observer` hears of each decision before it is bound, `tracer` of each cycle when it has ended.
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
        self._observer = observer
        self._tracer = tracer
        self._events = EventRecorder(self._api)
        self._others = OtherObjects()
        self._cache = Cache()
        self._handle = self._make_handle(options)
        self._cycle = SchedulingCycle(self._handle, Random(options.seed))
        self._binding = BindingCycle(self._handle)
        first = next(iter(self._handle.profiles.values()))
        self._queue = SchedulingQueue(
            self._handle.is_worth_requeuing,
            initial_backoff=options.initial_backoff,
            max_backoff=options.max_backoff,
            less=first.queue_sorts[0].less,
            pre_enqueue=lambda pod: self._handle.profiles[pod.scheduler_name].run_pre_enqueue(pod),
        )
        self._metrics = self._handle.metrics
        self._metrics.watch_queue(self._pending)
        waiting = self._handle.waiting
        self._feed = Feed(self._queue, self._cache, waiting, options.scheduler_names)
        self._changed = threading.Condition()
        self._stopping = False
        self._binders = ThreadPoolExecutor(_BINDERS, thread_name_prefix="bind")
        self._waiters: set[threading.Thread] = set()
        self._ends: list[Callable[[], None]] = []
        self._loop = threading.Thread(target=self._run, name="scheduler", daemon=True)
        on_pod = partial(self._take_in, self._feed.pod)
        self._informers = [
            Informer(self._api, "/api/v1/nodes", partial(self._take_in, self._feed.node)),
            Informer(self._api, "/api/v1/pods", on_pod, query=_POD_QUERY),
            Informer(self._api, _BUDGETS, self._others.on_budget),
            Informer(self._api, _NAMESPACES, self._others.on_namespace),
        ]

    def start(self) -> None:
        """Begin to watch and to schedule."""
        for informer in self._informers:
            informer.start()
        self._loop.start()

    def stop(self) -> None:
        """Finish the bindings under way and end all threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for informer in self._informers:
            informer.stop()
        if self._loop.is_alive():
            self._loop.join(10)
        for pod in self._handle.waiting:
            pod.reject("", "the scheduler stops")
        for thread in tuple(self._waiters):
            thread.join(10)
        self._binders.shutdown(wait=True, cancel_futures=True)
        self._events.close()
        for extender in self._handle.extenders:
            extender.close()
        for end in self._ends:
            end()
        self._api.close()

    def wait_synced(self, timeout: float) -> bool:
        """Wait for all first lists; return whether each arrived within `timeout` seconds."""
        return all(informer.wait_synced(timeout) for informer in self._informers)

    def sees(self, node: str) -> bool:
        """Return whether the node has come through the watch: pods decided from now
        on know of it.
        """
        return self._cache.snapshot().get(node) is not None

    def _take_in(self, feed: Feeder, before: Json | None, after: Json | None) -> None:
        """Have the feed take in a pod or a node that appeared, changed or vanished."""
        with self._changed:
            try:
                feed(before, after, time.monotonic())
            except WireError as error:
                name = ((after or before or {}).get("metadata") or {}).get("name")
                log.warning("object not understood name=%s error=%s", name, error)
            self._changed.notify_all()

    def serve_metrics(self) -> str:
        """Serve what is counted until the scheduler stops, and return the URL."""
        url, stop = self._metrics.serve()
        self._ends.append(stop)
        return url

    def _pending(self) -> Counter[str]:
        with self._changed:
            return Counter(self._queue.places().values())

    def _make_handle(self, options: SchedulerOptions) -> Handle:
        """Return the handle with the frameworks of all profiles. Raises SettingsError."""
        evictor = Evictor(self._api, self._events.preempted, timestamp)
        handle = Handle(
            api=self._api,
            extenders=[HttpExtender(config) for config in options.extenders],
            budgets=self._others.budgets,
            evict=evictor.carry_out,
            activate=self._activate,
            nominated=self._nominated,
            namespace_labels=self._others.labels_of,
            empty_candidates=options.empty_candidates,
        )
        build_frameworks(options.profiles, handle, options.ignored_resources)
        return handle

    def _activate(self, pods: Iterable[PodView]) -> None:
        with self._changed:
            self._queue.activate(pod.uid for pod in pods)
            self._changed.notify_all()

    def _activate_asked(self, decision: Decision) -> None:
        """Have the pods tried at once that plug-ins asked for; each request counts once."""
        if asked := decision.state.pods_to_activate:
            self._activate(asked.values())
            asked.clear()

    def _nominated(self) -> dict[str, list[PodView]]:
        with self._changed:
            return self._queue.nominated()

    def _run(self) -> None:
        if not self._wait_for_lists():
            return
        while (entry := self._next()) is not None:
            try:
                self._schedule(entry)
            except Exception:
                # The loop must outlive a bug in one pod's cycle; the pod comes back by its backoff.
                log.exception("scheduling cycle failed pod=%s", entry.pod.key)
                with self._changed:
                    self._queue.fail(entry, time.monotonic())

    def _wait_for_lists(self) -> bool:
        """Wait for all lists; return whether they arrived, False when stopped before that."""
        while not self.wait_synced(0.1):
            with self._changed:
                if self._stopping:
                    return False
        return True

    def _next(self) -> QueuedPod | None:
        """Wait for the next pod to decide, and return it; None when the scheduler stops."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                entry = self._queue.pop(now)
                if entry is not None:
                    return entry
                change = self._queue.next_change()
                self._changed.wait(None if change is None else max(change - now, 0.01))
            return None

    def _schedule(self, entry: QueuedPod) -> None:
        pod = entry.pod
        if pod.deleting or self._cache.holds(pod.uid):
            with self._changed:
                self._queue.done(pod.uid)
            return
        try:
            with self._metrics.algorithm_seconds.time():
                decision = self._cycle.decide(pod, self._cache.snapshot())
        except (FitError, CycleError) as error:
            self._tracer(trace.waiting(pod, error))
            if isinstance(error, FitError):
                self._rejected(entry, str(error), error.rejected_by)
            else:
                self._broken(entry, str(error))
            return
        self._assume(entry, decision)

    def _assume(self, entry: QueuedPod, decision: Decision) -> None:
        """Count the pod on its node, then reserve, permit, and bind beside the next decision."""
        pod, state, node = decision.pod, decision.state, decision.node
        framework = self._handle.profiles[pod.scheduler_name]
        self._cache.assume(pod, node)
        status, waits = framework.run_reserve(state, pod, node), dict[str, float]()
        if status.ok:
            status, waits = framework.run_permit(state, pod, node)
        if not status.ok and not waits:
            self._undo(decision)
            self._failed(entry, decision, status)
            return
        self._activate_asked(decision)
        self._observer(decision)
        if waits:  # in a thread of its own: any number may wait, and others must get through
            self._handle.waiting.add(WaitingPod(pod, node, waits))
            thread = threading.Thread(target=self._bind, args=(entry, decision), name="bind-waits")
            self._waiters.add(thread)
            thread.start()
            return
        try:
            self._binders.submit(self._bind, entry, decision)
        except RuntimeError:
            self._undo(decision)

    def _bind(self, entry: QueuedPod, decision: Decision) -> None:
        pod = decision.pod
        try:
            status = self._binding.run(decision)
        except Exception:
            log.exception("binding failed pod=%s node=%s", pod.key, decision.node)
            status = Status(Code.ERROR, ("internal error while binding",))
        self._waiters.discard(threading.current_thread())
        if status.ok:
            self._tracer(trace.decided(decision, status))
            with self._changed:
                self._queue.done(pod.uid)
            self._count(entry, "scheduled")
            self._metrics.pod_attempts.observe(entry.attempts)
            self._activate_asked(decision)
            self._events.scheduled(pod, decision.node)
            return
        self._undo(decision)
        with self._changed:
            # As if the assumed pod had been deleted: others may fit now.
            gone = Change(Resource.ASSIGNED_POD, Action.DELETE, old_pod=pod)
            self._queue.move(gone, time.monotonic())
        self._failed(entry, decision, status)

    def _failed(self, entry: QueuedPod, decision: Decision, status: Status) -> None:
        """Have the pod wait: as one that does not fit the one node, or as one with an error."""
        self._tracer(trace.decided(decision, status))
        if status.rejected:
            message = unschedulable_message(1, {decision.node: status})
            self._rejected(entry, message, frozenset({status.plugin}))
        else:
            self._broken(entry, status.message)

    def _undo(self, decision: Decision) -> None:
        framework = self._handle.profiles[decision.pod.scheduler_name]
        framework.run_unreserve(decision.state, decision.pod, decision.node)
        self._cache.forget(decision.pod)

    def _rejected(self, entry: QueuedPod, message: str, rejected_by: frozenset[str]) -> None:
        self._count(entry, "unschedulable")
        with self._changed:
            # An extender learns of a change by its own watch, perhaps a moment after us.
            again = PLUGIN_NAME in rejected_by
            self._queue.reject(entry, rejected_by, time.monotonic(), look_again=again)
            waits = entry.uid in self._queue
            self._changed.notify_all()
        if waits:
            self._tell(entry.pod, "Unschedulable", message)

    def _broken(self, entry: QueuedPod, message: str) -> None:
        self._count(entry, "error")
        with self._changed:
            self._queue.fail(entry, time.monotonic())
            waits = entry.uid in self._queue
            self._changed.notify_all()
        if waits:
            self._tell(entry.pod, "SchedulerError", message)

    def _count(self, entry: QueuedPod, result: str) -> None:
        profile = entry.pod.scheduler_name
        self._metrics.attempted(result, profile, time.monotonic() - entry.popped)

    def _tell(self, pod: PodView, reason: str, message: str) -> None:
        self._events.failed(pod, message)
        write_condition(self._api, pod, reason, message)
