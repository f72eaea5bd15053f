"""One process of the extender: the list of parts, each with its collaborators.

Tested in `tests/integration/test_extender.py` and `tests/integration/test_serve_threads.py`.
"""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from functools import partial

from gpushare.core.model import ObservedPod
from gpushare.daemon.events import NullRecorder, Recorder
from gpushare.daemon.listener import Listener
from gpushare.daemon.logs import LogWriter, start_logging
from gpushare.daemon.part import Part
from gpushare.extender import factory
from gpushare.extender.bind_threads import GATE_WRITERS, BindKeeper, GateWriters
from gpushare.extender.connections import Connections
from gpushare.extender.door.app import build_app
from gpushare.extender.door.worker import PendingRequest, UnansweredRequests
from gpushare.extender.follow.admission_checks import AdmissionChecks, KueueObjects
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
from gpushare.extender.moves.reserver import Reserver
from gpushare.extender.scheduler_file import SchedulerSettings, routes_of
from gpushare.extender.service import Service
from gpushare.extender.settler import Settler
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.events.overdue_pods import OverduePods
from gpushare.extender.tell.explainer import Explainer
from gpushare.extender.tell.gpu_seconds import GpuSeconds
from gpushare.extender.tell.inspect_documents import InspectDocuments
from gpushare.extender.tell.metrics import Metrics
from gpushare.extender.tell.page.document import Documents
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.filter import FilterOptions
from gpushare.extender.verbs.holds import FLOOR
from gpushare.extender.verbs.recipients import Recipients
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.extender.verbs.wait_budget import WaitBudget
from gpushare.logline import Line
from gpushare.settings import SPARE_THREADS, Settings
from gpushare.wire.inventory import mib_of
from gpushare.wire.placeholders import Placeholder
from gpushare.wire.scale_down import Mark, kept_nodes

log = logging.getLogger("gpushare.serve")

_SWITCH_INTERVAL = 0.001
_LOG_FLUSH_SECONDS = 2.0
"""Seconds for the last log lines at the end of the process."""


class Extender:
    """One process: the parts that it runs, and the application that answers its calls.

    A new part is one class, and one line in `all_parts`.
    """

    def __init__(
        self, settings: Settings, scheduler_file: SchedulerSettings, log_writer: LogWriter
    ) -> None:
        entry, unit = scheduler_file.entry, settings.unit
        self._settings = settings
        self._log_writer = log_writer
        budgets, group_sizes = DisruptionBudgets(), GroupSizes()
        resources = factory.make_managed_resources(
            settings, entry, scheduler_file.schedulers, group_sizes
        )
        self._managed_resources = resources
        bind_threads = settings.threads - SPARE_THREADS
        client = factory.connect_client(settings, bind_threads + GATE_WRITERS + 8)
        # Configurations of other versions are read by releases before 1.29 alone.
        self._connections = Connections(
            client, resources, bind_threads, is_current=scheduler_file.current
        )
        policy_refresher = PolicyRefresher(
            resources, make_policies, partial(try_policies, neighbours=settings.neighbours)
        )
        events = Recorder(client, settings.identity or socket.gethostname())
        messages = EventMessages(events if settings.events else NullRecorder(), resources, unit)
        marks, placeholder_pods = Shown[Mark](), Shown[Placeholder]()
        running = Shown[ObservedPod]() if settings.scale_down_guard else None
        claims = factory.claims_service(settings, client, resources)
        ranker, view = (claims.ranker, claims.view) if claims is not None else (None, None)
        shadow = factory.make_shadow(settings, resources)
        kueue = KueueObjects() if settings.kueue else None
        waker = SchedulerWaker(client, resources, self._connections.retries_on_annotations)
        sources = factory.watched_sources(
            settings,
            client,
            resources,
            # Only preemption needs budgets, and a list of budgets needs a further right.
            budgets if entry.preempt_verb else None,
            PodEventHandler(
                resources,
                policy_refresher.changed,
                messages.mistaken_pods,
                running=running,
                placeholders=placeholder_pods,
                waiting=view.waiting if view is not None and settings.ui_listen else None,
                admitted=kueue.pods if kueue is not None else None,
                moved=shadow.moved if shadow is not None else lambda *_: None,
                gone=ranker.pod_gone if ranker is not None else lambda _: None,
            ),
            group_sizes=group_sizes,
            marks=marks,
            room_on=waker.room_on,
        )
        sources |= claims.sources if claims is not None else {}
        kueue_sources = {} if kueue is None else factory.kueue_sources(client, resources, kueue)
        sources |= kueue_sources
        readiness = Readiness(
            sources,
            factory.lease_runner(settings, client, scheduler_file.lease),
            is_settled=lambda: self._binder.settled(),  # noqa: PLW0108 -- made below
        )
        self.not_ready = not_ready = readiness.not_ready
        gate_writers = GateWriters()
        self._binder = Binder(
            client,
            resources,
            readiness.leads_until,
            room_on=waker.room_on,
            torn=messages.group_torn,
            run=gate_writers.run,
        )
        placeholders = Placeholders(
            client,
            resources,
            placeholder_pods,
            settings.placeholders,
            not_ready=not_ready,
            tell=messages.node_asked,
        )
        mover = None
        if settings.defrag_moves_per_hour:
            mover = Mover(
                client,
                resources,
                messages,
                budget=settings.defrag_moves_per_hour,
                after=settings.defrag_after,
                namespace=settings.namespace,
                not_ready=not_ready,
                leads_until=readiness.leads_until,
            )
        gpu_seconds = GpuSeconds(
            resources,
            settings.metrics_detail,
            readiness.earlier_end,
            claims=view.source if view is not None else None,
        )
        metrics = Metrics(
            resources,
            mib_of(unit) << 20,
            self._state,
            detail=settings.metrics_detail,
            shadow=shadow,
            claims=view,
            stopped_moves=mover.stopped if mover is not None else dict,
            placeholders=placeholders.counts,
            gpu_seconds=gpu_seconds.text,
        )
        last_hour = LastHour() if settings.ui_listen else None
        service = Service(
            resources,
            self._binder,
            not_ready=not_ready,
            bind_slots=BindSlots(bind_threads),
            filter_options=FilterOptions(
                best_only=settings.filter_answer == "best"
                or (settings.filter_answer == "auto" and scheduler_file.choice_is_ours),
                ranks_all=settings.filter_answer == "all",
                room_wait=WaitBudget(),
                hold_wait=WaitBudget(hold=FLOOR),
            ),
            recipients=Recipients(
                observe=metrics.observe,
                rejected=metrics.rejected,
                event_messages=messages,
                last_hour=last_hour,
                shadow=shadow.asked if shadow is not None else None,
            ),
            ranker=ranker,
            budgets_of=budgets.budgets_of,
            inspect=InspectDocuments(resources, view, lambda: kept_nodes(marks.all())),
        )
        self._unanswered_requests = UnansweredRequests()
        all_parts: list[Part | None] = [
            # First to stop: another process waits for the Lease.
            readiness,
            gate_writers,
            BindKeeper(self._binder),
            events,
            messages,
            waker,
            Auditor(
                client,
                resources,
                unit,
                not_ready=not_ready,
                watch_version=readiness.last_resource_version,
                report=messages.books_wrong,
            ),
            ScaleDownGuard(client, resources, marks, running, not_ready=not_ready),
            placeholders,
            mover,
            Reserver(client, resources, after=settings.reserve_after, not_ready=not_ready)
            if settings.reserve_after
            else None,
            policy_refresher,
            shadow,
            AdmissionChecks(
                client,
                resources,
                kueue,
                unit,
                not_ready=not_ready,
                is_synced=lambda: all(s.reflector.status.synced for s in kueue_sources.values()),
            )
            if kueue is not None
            else None,
            OverduePods(resources, service.called),
            gpu_seconds,
            self._unanswered_requests,
            GarbageCollection(),
        ]
        parts = [part for part in all_parts if part is not None]  # None: switched off
        self._parts = [*parts, Settler([self._connections, *parts], not_ready)]
        """In the order of start and stop."""
        self.app = build_app(
            service, routes_of(entry), settings.body_limit, factory.callers_of(settings, entry)
        )
        explainer = Explainer(
            client,
            resources,
            unit,
            not_ready=not_ready,
            called=service.called,
            claims=view,
            ask_for=placeholders.ask_for,
        )
        # Only these sockets are opened before the fork: a port in use is a wrong setting.
        checks = (self._liveness, readiness.checks)
        self._listeners: list[Listener] = [
            factory.health_server(settings, checks, metrics, explainer)
        ]
        """Probes, metrics and the page. These answer until the process ends."""
        if last_hour is not None:
            documents = Documents(
                resources,
                unit,
                last_hour,
                not_ready=not_ready,
                called=service.called,
                mistaken_pods=messages.mistaken_pods,
                shadow=shadow,
                claims=view,
                kept_nodes=lambda: kept_nodes(marks.all()),
            )
            self._listeners.append(factory.ui_server(settings, documents.body))

    def start(self, pending_requests: Callable[[], Iterable[PendingRequest]]) -> None:
        """Start the threads; connections to the API server are open before this is ready.

        pending_requests: returns the requests that have no answer yet.
        """
        # Before any thread: a new thread inherits the CPUs of the thread that starts it.
        if not self._settings.any_cpu:
            _keep_to_one_cpu()
        start_logging(self._log_writer)
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._unanswered_requests.pending = pending_requests
        for listener in self._listeners:
            listener.start()
        self._connections.start()
        for part in self._parts:
            part.start()
        resources = ",".join(resource.names.resource for resource in self._managed_resources)
        listen, health = self._settings.listen, self._settings.health_listen
        policy = self._settings.policy
        log.info(Line("started", listen=listen, health=health, resources=resources, policy=policy))

    def stopping(self) -> None:
        """Turn back the binds at the gate; none of their Bindings is sent."""
        self._managed_resources.gate.stop()
        self._binder.open_gate()

    def stop(self) -> None:
        """Stop following and leading. Every request has been answered, unless gunicorn's master
        ends a worker that hangs: then a bind may be under way.
        """
        for part in self._parts:
            part.stop()
        self._log_writer.stop(_LOG_FLUSH_SECONDS)

    def _state(self) -> dict[str, float]:
        """Return the values of this process for metrics."""
        states = [self._log_writer.state(), *(part.state() for part in self._parts)]
        return {name: value for state in states for name, value in state.items()}

    def _liveness(self) -> dict[str, str]:
        return {name: problem for part in self._parts for name, problem in part.liveness().items()}


def _keep_to_one_cpu() -> None:
    """Restrict this thread and all threads that it starts to one CPU.

    The interpreter lock lets one thread run at a time. On several CPUs the lock moves to another
    CPU some forty times a bind, and each time a CPU with cold caches wakes up.
    """
    cpus = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):  # a sandbox may forbid this
        os.sched_setaffinity(0, {cpus[os.getpid() % len(cpus)]})
