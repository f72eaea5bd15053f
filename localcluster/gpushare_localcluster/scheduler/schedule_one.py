"""One pod after another: scheduling cycle, binding cycle, and the handling of failures.

As in kube-scheduler's schedule_one.go, scheduling cycles run one at a time, bindings beside the
next cycles: Permit's wait, PreBind, Bind (by the first interested extender that binds, else by a
plug-in) and PostBind. No call to the API server or an extender is made under the queue's lock.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.scheduler.cache import Cache
from gpushare_localcluster.scheduler.cluster_events import Action, Change, Resource
from gpushare_localcluster.scheduler.cycle import CycleError, Decision, FitError, SchedulingCycle
from gpushare_localcluster.scheduler.events import EventRecorder, write_condition, write_nomination
from gpushare_localcluster.scheduler.extender import PLUGIN_NAME
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Status, unschedulable_message
from gpushare_localcluster.scheduler.handle import Handle, WaitingPod
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.queue import QueuedPod, SchedulingQueue
from gpushare_localcluster.scheduler.trace import Tracer, decided, waiting

log = logging.getLogger(__name__)


Observer = Callable[[Decision], None]

_STOP_SECONDS = 10.0
"""Seconds that running bindings have to end when the scheduler stops."""


class ScheduleOne:
    """Schedules pods popped from the queue, which `queue_changed` guards.

    `observer` is called with each decision before the binding, `tracer` with each ended cycle.
    """

    def __init__(
        self,
        handle: Handle,
        queue: SchedulingQueue,
        queue_changed: threading.Condition,
        *,
        cache: Cache,
        api: ApiClient,
        events: EventRecorder,
        random: Random,
        observer: Observer,
        tracer: Tracer,
    ) -> None:
        self._handle = handle
        self._queue = queue
        self._changed = queue_changed
        self._cache = cache
        self._api = api
        self._events = events
        self._observer = observer
        self._tracer = tracer
        self._cycle = SchedulingCycle(handle, random)
        self._binders: set[threading.Thread] = set()

    def run(self, entry: QueuedPod) -> None:
        """Run the scheduling cycle of a popped pod, and start its binding."""
        try:
            self._schedule(entry)
        except Exception:
            # The loop must survive a bug in one pod's cycle; the pod returns after back-off.
            log.exception("scheduling cycle failed pod=%s", entry.pod.key)
            with self._changed:
                self._queue.fail(entry, time.monotonic())

    def stop(self) -> None:
        """Finish the running bindings."""
        for pod in tuple(self._handle.waiting_pods.values()):
            pod.reject("", "the scheduler stops")
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in tuple(self._binders):
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _schedule(self, entry: QueuedPod) -> None:
        pod = entry.pod
        if pod.deleting or self._cache.holds(pod.uid):
            with self._changed:
                self._queue.done(pod.uid)
            return
        try:
            decision = self._cycle.decide(pod, self._cache.snapshot())
        except (FitError, CycleError) as error:
            self._tracer(waiting(pod, error))
            if isinstance(error, FitError):
                self._rejected(entry, str(error), error.rejected_by)
            else:
                self._broken(entry, str(error))
            return
        self._assume(entry, decision)

    def _assume(self, entry: QueuedPod, decision: Decision) -> None:
        """Assume the pod on its node, then reserve, permit, and bind beside the next decision."""
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
        if waits:
            self._handle.waiting_pods[pod.uid] = WaitingPod(pod, node, waits)
        # In a new thread: any number of pods may wait at Permit or in an extender's bind without
        # blocking others.
        bind = self._bind_later if waits else self._bind
        thread = threading.Thread(target=bind, args=(entry, decision), name="bind", daemon=True)
        self._binders.add(thread)
        thread.start()

    def _bind_later(self, entry: QueuedPod, decision: Decision) -> None:
        """Bind a pod that waits at Permit, and is nominated meanwhile (since 1.35)."""
        write_nomination(self._api, decision.pod, decision.node)
        self._bind(entry, decision)
        write_nomination(self._api, decision.pod, "")

    def _bind(self, entry: QueuedPod, decision: Decision) -> None:
        pod = decision.pod
        try:
            status = self._bound(decision)
        except Exception:
            log.exception("binding failed pod=%s node=%s", pod.key, decision.node)
            status = Status(Code.ERROR, ("internal error while binding",))
        self._binders.discard(threading.current_thread())
        if status.ok:
            self._tracer(decided(decision, status))
            with self._changed:
                self._queue.done(pod.uid)
            self._activate_asked(decision)
            self._events.scheduled(pod, decision.node)
            return
        self._undo(decision)
        with self._changed:
            # As if the assumed pod had been deleted: other pods may fit now.
            deletion = Change(Resource.ASSIGNED_POD, Action.DELETE, old_pod=pod)
            self._queue.move(deletion, time.monotonic())
        self._failed(entry, decision, status)

    def _bound(self, decision: Decision) -> Status:
        """Return Success for a bound pod, else the objection."""
        pod, state, node = decision.pod, decision.state, decision.node
        framework, status = self._handle.profiles[pod.scheduler_name], SUCCESS
        if waiting_pod := self._handle.waiting_pods.get(pod.uid):
            try:
                status = waiting_pod.wait()
            finally:
                self._handle.waiting_pods.pop(pod.uid, None)
        if status.ok:
            status = framework.run_pre_bind(state, pod, node)
        if status.ok:
            status = self._bound_by_extender(decision) or framework.run_bind(state, pod, node)
        if status.ok:
            framework.run_post_bind(state, pod, node)
        return status

    def _bound_by_extender(self, decision: Decision) -> Status | None:
        """Return the answer of the first extender that binds such pods, None for none."""
        for extender in self._handle.extenders:
            if extender.config.bind_verb and extender.is_interested(decision.pod):
                status = extender.bind(decision.pod, decision.node)
                if status.ok or not extender.config.ignorable:
                    return replace(status, plugin=extender.name)
                log.warning("bind skipped url=%s error=%s", extender.name, status.message)
        return None

    def _activate_asked(self, decision: Decision) -> None:
        """Activate the pods that plug-ins requested; each request counts once."""
        if requested_pods := decision.state.pods_to_activate:
            self._handle.activate(requested_pods.values())
            requested_pods.clear()

    def _failed(self, entry: QueuedPod, decision: Decision, status: Status) -> None:
        """Requeue the pod, either as rejected by the one node or with an error."""
        self._tracer(decided(decision, status))
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
        with self._changed:
            # An extender gets a change by its own watch, perhaps a moment later.
            again = PLUGIN_NAME in rejected_by
            self._queue.reject(entry, rejected_by, time.monotonic(), look_again=again)
            waits = entry.uid in self._queue
            self._changed.notify_all()
        if waits:
            self._tell(entry.pod, "Unschedulable", message)

    def _broken(self, entry: QueuedPod, message: str) -> None:
        with self._changed:
            self._queue.fail(entry, time.monotonic())
            waits = entry.uid in self._queue
            self._changed.notify_all()
        if waits:
            self._tell(entry.pod, "SchedulerError", message)

    def _tell(self, pod: PodView, reason: str, message: str) -> None:
        self._events.failed(pod, message)
        write_condition(self._api, pod, reason, message)
