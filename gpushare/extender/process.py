"""One process of the extender: its parts, wired up, and the thread that settles.

Tested in `tests/integration/test_extender.py` and `tests/integration/test_serve_threads.py`.
"""

import contextlib
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from gpushare.core.model import ObservedPod
from gpushare.daemon.events import NullRecorder, Recorder
from gpushare.daemon.logs import LogWriter, start_logging
from gpushare.errors import ApiError, MessageError
from gpushare.extender import factory
from gpushare.extender.door.app import build_app
from gpushare.extender.door.worker import PendingRequest, UnansweredRequests
from gpushare.extender.follow.auditor import Auditor
from gpushare.extender.follow.disruption_budgets import DisruptionBudgets
from gpushare.extender.follow.group_sizes import GroupSizes
from gpushare.extender.follow.placeholders import Placeholders
from gpushare.extender.follow.readiness import Readiness
from gpushare.extender.follow.scale_down_guard import ScaleDownGuard
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.wake import SchedulerWaker
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.garbage_collection import GarbageCollection
from gpushare.extender.learning.policy_builder import make_policies, try_policies
from gpushare.extender.learning.policy_refresher import PolicyRefresher
from gpushare.extender.moves.mover import Mover
from gpushare.extender.scheduler_file import SchedulerSettings, routes_of
from gpushare.extender.service import Service
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.events.overdue_pods import UnservedPods, pending_without_call
from gpushare.extender.tell.explainer import Explainer
from gpushare.extender.tell.metrics import Metrics
from gpushare.extender.tell.page.document import Documents
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.holds import FLOOR
from gpushare.extender.verbs.refusal_hold import RefusalHold
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.logline import Line
from gpushare.settings import SPARE_THREADS, Settings
from gpushare.wire.inventory import mib_of
from gpushare.wire.placeholders import Placeholder
from gpushare.wire.scale_down import Mark, kept_nodes

log = logging.getLogger("gpushare.serve")

_SWITCH_INTERVAL = 0.001
_SETTLE_EVERY = 1.0
STUCK = 120.0
"""Seconds until the thread that settles counts as stuck, and the process as not alive."""
_GATE_WRITERS = 16
"""Threads that send the Bindings of groups that are whole."""
_LOG_FLUSH_SECONDS = 2.0
"""Seconds at the end in which the log may still be written."""
_WARM_EVERY = 45.0
"""Seconds; kube-apiserver closes connections that are idle for 90 s."""


class Extender:
    """Everything one process needs, wired up; `start` starts it."""

    _gate_writers: ThreadPoolExecutor
    """Sends the Bindings of groups that the gate has let through; made after the fork."""

    def __init__(
        self, settings: Settings, scheduler_file: SchedulerSettings, log_writer: LogWriter
    ) -> None:
        entry = scheduler_file.entry
        self._settings = settings
        self._log_writer = log_writer
        budgets, group_sizes = DisruptionBudgets(), GroupSizes()
        self._managed_resources = factory.make_managed_resources(
            settings, entry, scheduler_file.schedulers, group_sizes
        )
        # Configurations of other versions are read by releases before 1.29 alone.
        self._current = scheduler_file.current
        self._client = factory.connect_client(
            settings, settings.threads - SPARE_THREADS + _GATE_WRITERS + 8
        )
        self._policy_refresher = PolicyRefresher(
            self._managed_resources, make_policies, try_policies
        )
        self._events = Recorder(self._client, settings.identity or socket.gethostname())
        self._event_messages = EventMessages(
            self._events if settings.events else NullRecorder(),
            self._managed_resources,
            settings.unit,
        )
        marks, placeholders = Shown[Mark](), Shown[Placeholder]()
        running = Shown[ObservedPod]() if settings.scale_down_guard else None
        claims = factory.claims_service(settings, self._client, self._managed_resources)
        ranker, view = (claims.ranker, claims.view) if claims is not None else (None, None)
        self._shadow = factory.make_shadow(settings, self._managed_resources)
        pod_handler = PodEventHandler(
            self._managed_resources,
            self._policy_refresher.changed,
            self._event_messages.mistaken_pods,
            running=running,
            placeholders=placeholders,
            moved=self._shadow.moved if self._shadow is not None else lambda *_: None,
            gone=ranker.pod_gone if ranker is not None else lambda _: None,
        )
        self._annotates = False
        self._waker = SchedulerWaker(self._client, self._managed_resources, lambda: self._annotates)
        sources = factory.watched_sources(
            settings,
            self._client,
            self._managed_resources,
            # Budgets matter to preemption alone, and take a right of their own to list.
            budgets if entry.preempt_verb else None,
            pod_handler,
            group_sizes=group_sizes,
            marks=marks,
            room_on=self._waker.room_on,
        )
        sources |= claims.sources if claims is not None else {}
        self._readiness = Readiness(
            sources, factory.lease_runner(settings, self._client, scheduler_file.lease)
        )
        self.not_ready = self._readiness.not_ready
        self._scale_down_guard = ScaleDownGuard(
            self._client,
            self._managed_resources,
            marks,
            running,
            claims=view,
            not_ready=self._readiness.not_ready,
        )
        self._placeholders = Placeholders(
            self._client,
            self._managed_resources,
            placeholders,
            settings.placeholders,
            not_ready=self._readiness.not_ready,
            tell=self._event_messages.node_asked,
        )
        self._mover = Mover(
            self._client,
            self._managed_resources,
            self._event_messages,
            budget=settings.defrag_moves_per_hour,
            after=settings.defrag_after,
            namespace=settings.namespace,
            not_ready=self._readiness.not_ready,
            leads_until=self._readiness.leads_until,
        )
        self._binder = Binder(
            self._client,
            self._managed_resources,
            self._readiness.leads_until,
            room_on=self._waker.room_on,
            torn=self._event_messages.group_torn,
            run=self._send_behind_gate,
        )
        self._unserved_pods = UnservedPods(self._managed_resources)
        self._metrics = Metrics(
            self._managed_resources,
            mib_of(settings.unit) << 20,
            self._state,
            detail=settings.metrics_detail,
            shadow=self._shadow,
            claims=view,
            stopped_moves=self._mover.stopped,
            placeholders=self._placeholders.counts,
        )
        self._auditor = Auditor(
            self._client,
            self._managed_resources,
            settings.unit,
            not_ready=self._readiness.not_ready,
            watch_version=self._readiness.last_resource_version,
            report=self._event_messages.books_wrong,
        )
        self._garbage_collection = GarbageCollection()
        self._unanswered_requests = UnansweredRequests()
        self._pending_requests: Callable[[], Iterable[PendingRequest]] = tuple
        self._ready_since = math.inf
        last_hour = LastHour() if settings.ui_listen else None
        self._service = service = Service(
            self._managed_resources,
            self._binder,
            not_ready=self._readiness.not_ready,
            best_only=settings.filter_answer == "best"
            or (settings.filter_answer == "auto" and scheduler_file.choice_is_ours),
            bind_slots=BindSlots(settings.threads - SPARE_THREADS),
            observe=self._metrics.observe,
            rejected=self._metrics.rejected,
            event_messages=self._event_messages,
            budgets_of=budgets.budgets_of,
            refusal_hold=RefusalHold(),
            promise_wait=RefusalHold(hold=FLOOR),
            last_hour=last_hour,
            shadow=self._shadow.asked if self._shadow is not None else None,
            claims=view,
            ranker=ranker,
            ranks_all=settings.filter_answer == "all",
            kept_nodes=lambda: kept_nodes(marks.all()),
        )
        self.app = build_app(
            service,
            routes_of(entry),
            settings.body_limit,
            factory.callers_of(settings, entry),
        )
        # The only socket that is opened before the fork: a port in use is a wrong setting.
        explainer = Explainer(
            self._client,
            self._managed_resources,
            settings.unit,
            not_ready=self._readiness.not_ready,
            called=service.called,
            claims=view,
            ask_for=self._placeholders.ask_for,
        )
        checks = (self._live, self._readiness.checks)
        self._health = factory.health_server(settings, checks, self._metrics, explainer)
        self._ui = None
        if last_hour is not None:
            documents = Documents(
                self._managed_resources,
                settings.unit,
                last_hour,
                not_ready=self._readiness.not_ready,
                called=service.called,
                mistaken_pods=self._event_messages.mistaken_pods,
                shadow=self._shadow,
                claims=view,
                kept_nodes=lambda: kept_nodes(marks.all()),
            )
            self._ui = factory.ui_server(settings, documents.body)
        self._beat = self._warmed = time.monotonic()

    def start(self, pending_requests: Callable[[], Iterable[PendingRequest]]) -> None:
        """Start the threads; connections to the API server are open before this is ready.

        pending_requests: the requests that have no answer yet.
        """
        # Before any thread: each keeps to the CPU of the one that starts it.
        if not self._settings.any_cpu:
            _keep_to_one_cpu()
        start_logging(self._log_writer)
        self._pending_requests = pending_requests
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._beat = time.monotonic()
        self._garbage_collection.start(time.monotonic())
        self._gate_writers = ThreadPoolExecutor(_GATE_WRITERS, "gate-writer")
        self._health.start()
        if self._ui is not None:
            self._ui.start()
        self._warm()
        self._readiness.start()
        self._events.start()
        self._auditor.start()
        self._scale_down_guard.rounds.start()
        self._placeholders.rounds.start()
        self._mover.start()
        self._policy_refresher.rounds.start()
        if self._shadow is not None:
            self._shadow.rounds.start()
        threading.Thread(target=self._settle, name="settle", daemon=True).start()
        threading.Thread(target=self._guard_gate, name="gate", daemon=True).start()
        resources = ",".join(managed.names.resource for managed in self._managed_resources)
        listen, health = self._settings.listen, self._settings.health_listen
        policy = self._settings.policy
        log.info(Line("started", listen=listen, health=health, resources=resources, policy=policy))

    def stopping(self) -> None:
        """Answer the binds that wait at the gate: nothing of them is sent."""
        self._managed_resources.gate.stop()
        self._binder.open_gate()

    def stop(self) -> None:
        """Stop following and leading. Every request has been answered, unless gunicorn's master
        ends a worker that hangs: then a bind may be under way.
        """
        # First: another process waits for the Lease.
        self._readiness.stop(self._binder.settled)
        self._auditor.stop()
        self._scale_down_guard.rounds.stop()
        self._placeholders.rounds.stop()
        self._mover.stop()
        self._events.stop()
        self._policy_refresher.rounds.stop()
        if self._shadow is not None:
            self._shadow.rounds.stop()
        self._log_writer.stop(_LOG_FLUSH_SECONDS)

    def _send_behind_gate(self, send: Callable[[], None]) -> None:
        self._gate_writers.submit(send)

    def _warm(self) -> None:
        """Open connections, or keep them open, so that a burst of binds needs no handshakes."""
        try:
            self._client.warm(self._settings.threads - SPARE_THREADS)
        except ApiError as error:
            log.warning("no connection to the API server yet: %s", error)
        with contextlib.suppress(ApiError, MessageError):
            release = factory.server_release(self._client)
            self._annotates = self._current and release >= factory.LOOKS_AT_ANNOTATIONS
            for managed in self._managed_resources:
                managed.holds.nominates = self._current and release >= factory.NOMINATES_WHO_WAITS
        self._warmed = time.monotonic()

    def _settle(self) -> None:
        while True:
            self._beat = time.monotonic()
            self._unanswered_requests.observe(self._pending_requests())
            try:
                if self._beat > self._warmed + _WARM_EVERY:
                    self._warm()
                self._readiness.tick()
                self._binder.settle_overdue()
                self._garbage_collection.tick(self._beat)
                ready = not self._readiness.not_ready()
                if not ready:
                    self._ready_since = math.inf
                elif self._ready_since == math.inf:
                    self._ready_since = time.time()
                self._event_messages.tick(ready)
                self._waker.tick(ready)
            except Exception:
                # The thread must go on: without it a charge in doubt would stay for ever.
                log.exception("settling failed")
            time.sleep(_SETTLE_EVERY)

    def _guard_gate(self) -> None:
        while True:
            try:
                self._binder.guard_gate()
            except Exception:
                # The thread must go on: without it nobody ends the waits.
                log.exception("the gate failed")
                time.sleep(_SETTLE_EVERY)

    def _state(self) -> dict[str, float]:
        """Return the values of this process for metrics."""
        pending = 0.0
        if self._ready_since < math.inf:
            since, called = self._ready_since, self._service.called
            pending = pending_without_call(self._managed_resources, called, since, time.time())
        unserved = self._unserved_pods.longest_seconds(time.monotonic())
        own = {"pending_without_call_seconds": pending, "bound_unassigned_seconds": unserved}
        writers = (self._binder, self._events, self._waker)
        helpers = (self._scale_down_guard, self._placeholders, self._mover)
        parts = (self._auditor, self._readiness, *writers, *helpers, self._policy_refresher)
        own |= self._log_writer.state()
        return own | {name: value for part in parts for name, value in part.state().items()}

    def _live(self) -> dict[str, str]:
        stuck = time.monotonic() - self._beat > STUCK
        own = {"settling": stuck, "audit": self._auditor.stuck()}
        thread_problems = {
            name: "its thread is stuck" if is_stuck else "" for name, is_stuck in own.items()
        }
        return {
            **self._readiness.liveness(),
            **thread_problems,
            "verbs": self._unanswered_requests.stuck(),
        }


def _keep_to_one_cpu() -> None:
    """Restrict this thread, and those it starts, to one of the CPUs.

    The interpreter lock lets one thread run at a time; on several CPUs it is handed from one to
    another some forty times a bind, and each time another CPU wakes up with cold caches.
    """
    allowed = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})
