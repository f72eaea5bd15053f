"""`gpushare serve`: the composition root. Settings -> objects -> threads -> gunicorn.

One gunicorn worker process, because two would keep two ledgers; its threads start after the fork,
because threads do not survive one.
"""

import contextlib
import logging
import math
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from gpushare.addresses import is_loopback
from gpushare.core.pairing import Pairing
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.trial import AUTO, SAFE
from gpushare.errors import ApiError, SettingsError
from gpushare.extender.audit.auditor import Auditor
from gpushare.extender.binding.bind_transaction import BUDGET
from gpushare.extender.binding.binder import Binder
from gpushare.extender.binding.refusal_hold import RefusalHold
from gpushare.extender.disruption_budgets import DisruptionBudgets
from gpushare.extender.event_handlers import (
    NodeEventHandler,
    PodEventHandler,
    UnhealthyEventHandler,
)
from gpushare.extender.events.messages import EventMessages
from gpushare.extender.events.pending_without_call import pending_without_call
from gpushare.extender.events.recorder import NullRecorder, Recorder
from gpushare.extender.events.unserved_pods import UnservedPods
from gpushare.extender.garbage_collection import GarbageCollection
from gpushare.extender.http.app import build_app
from gpushare.extender.http.callers import Callers
from gpushare.extender.http.certificates import Certificates
from gpushare.extender.http.health import Checks, HealthServer
from gpushare.extender.http.server import Server
from gpushare.extender.http.unanswered import PendingRequest, UnansweredRequests
from gpushare.extender.learning.policy_builder import make_policies, try_policies
from gpushare.extender.learning.policy_refresher import PolicyRefresher
from gpushare.extender.logs.formatters import Line, configure, start_logging
from gpushare.extender.logs.writer import LogWriter
from gpushare.extender.managed_resources import ExtenderScope, ManagedResource, ManagedResources
from gpushare.extender.metrics import Metrics
from gpushare.extender.readiness import Readiness, Source
from gpushare.extender.scheduler_file import (
    DocumentReader,
    SchedulerFile,
    read_scheduler_file,
    routes_of,
)
from gpushare.extender.service import Service
from gpushare.kube.client import KubeClient, connect
from gpushare.kube.election import Elector
from gpushare.kube.lease_runner import LeaseRunner
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.kube.scheduler_lease import SchedulerLease
from gpushare.ledger import Ledger
from gpushare.settings import SPARE_THREADS, Settings, address, read_settings
from gpushare.wire.annotations import ALIYUN, Names, distinct
from gpushare.wire.fields import NAME
from gpushare.wire.inventory import is_unit, mib_of
from gpushare.wire.objects import BUDGETS, CONFIG_MAPS, NODES, PODS
from gpushare.wire.scheduler.config import ExtenderConfig
from gpushare.wire.scheduler.entry import endpoint

log = logging.getLogger("gpushare.serve")

_LEASE = "gpushare-extender"
_LIVE_PODS = (("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),)
_SWITCH_INTERVAL = 0.001
_SETTLE_EVERY = 1.0
STUCK = 120.0
"""Seconds until the thread that settles counts as stuck, and the process as not alive."""
_LOG_FLUSH_SECONDS = 2.0
"""Seconds at the end in which the log may still be written."""
_WARM_EVERY = 45.0
"""Seconds; kube-apiserver closes connections that are idle for 90 s."""


class Extender:
    """Everything one process needs, wired up; `start` sets it going."""

    def __init__(self, settings: Settings, found: SchedulerFile, log_writer: LogWriter) -> None:
        entry = found.entry
        self._settings = settings
        self._log_writer = log_writer
        self._managed_resources = _managed_resources(settings, entry, found.schedulers)
        self._client = _connect(settings, settings.threads - SPARE_THREADS + 8)
        budgets = DisruptionBudgets()
        # They matter to preemption alone, and it takes a right of its own to list them.
        followed = budgets if entry.preempt_verb else None
        self._learning = PolicyRefresher(self._managed_resources, make_policies, try_policies)
        self._events = Recorder(self._client, settings.identity or socket.gethostname())
        recorder = self._events if settings.events else NullRecorder()
        self._event_messages = EventMessages(recorder, self._managed_resources, settings.unit)
        pod_handler = PodEventHandler(
            self._managed_resources,
            self._learning.created,
            self._learning.moved,
            self._event_messages.mistaken_pods,
        )
        sources = _sources(settings, self._client, self._managed_resources, followed, pod_handler)
        self._readiness = Readiness(sources, _lease_runner(settings, self._client, found.lease))
        self.not_ready = self._readiness.not_ready
        self._binder = Binder(self._client, self._managed_resources, self._readiness.leads_until)
        self._unserved_pods = UnservedPods(self._managed_resources)
        self._metrics = Metrics(self._managed_resources, mib_of(settings.unit) << 20, self._state)
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
        self._service = service = Service(
            self._managed_resources,
            self._binder,
            not_ready=self._readiness.not_ready,
            best_only=settings.filter_answer == "best",
            max_binds=settings.threads - SPARE_THREADS,
            observe=self._metrics.observe,
            rejected=self._metrics.rejected,
            event_messages=self._event_messages,
            budgets_of=budgets.budgets_of,
            refusal_hold=RefusalHold(),
        )
        callers = _callers(settings, entry)
        self.app = build_app(service, routes_of(entry), settings.body_limit, callers)
        # The one socket of ours that is there before the fork: a port in use is a wrong setting.
        self._health = _health_server(settings, self._live, self._readiness, self._metrics)
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
        self._health.start()
        self._warm()
        self._readiness.start()
        self._events.start()
        self._auditor.start()
        self._learning.start()
        threading.Thread(target=self._settle, name="settle", daemon=True).start()
        resources = ",".join(managed.names.resource for managed in self._managed_resources)
        listen, health = self._settings.listen, self._settings.health_listen
        policy = self._settings.policy
        log.info(Line("started", listen=listen, health=health, resources=resources, policy=policy))

    def stop(self) -> None:
        """Stop following and leading. Every request has been answered, unless gunicorn's master
        ends a worker that did not turn for long: then a bind may be under way.
        """
        # First: another process waits for the Lease.
        self._readiness.stop(self._binder.settled)
        self._auditor.stop()
        self._events.stop()
        self._learning.stop()
        self._log_writer.stop(_LOG_FLUSH_SECONDS)

    def _warm(self) -> None:
        """Open connections, or keep them open: a burst of binds must not pay the handshakes."""
        try:
            self._client.warm(self._settings.threads - SPARE_THREADS)
        except ApiError as error:
            log.warning("no connection to the API server yet: %s", error)
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
                self._tick(not self._readiness.not_ready())
            except Exception:
                # The thread must go on: without it a charge in doubt would stay for ever.
                log.exception("settling failed")
            time.sleep(_SETTLE_EVERY)

    def _tick(self, ready: bool) -> None:
        if not ready:
            self._ready_since = math.inf
        elif self._ready_since == math.inf:
            self._ready_since = time.time()
        self._event_messages.tick(ready)

    def _state(self) -> dict[str, float]:
        """Return the values of this process for metrics."""
        pending = 0.0
        if self._ready_since < math.inf:
            since, called = self._ready_since, self._service.called
            pending = pending_without_call(self._managed_resources, called, since, time.time())
        unserved = self._unserved_pods.longest_seconds(time.monotonic())
        own = {"pending_without_call_seconds": pending, "bound_unassigned_seconds": unserved}
        parts = (self._auditor, self._readiness, self._binder, self._events, self._learning)
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


def main(argv: Sequence[str]) -> int:
    """Serve until a signal ends it. 2: a setting is wrong, said in one line on stderr."""
    try:
        settings = read_settings(argv, os.environ, _read_yaml, "gpushare serve")
        settings, found = _with_scheduler_file(settings)
        tls = _tls(settings)
        log_writer = configure(settings.log_level, settings.log_format)
        extender = Extender(settings, found, log_writer)
    except SettingsError as error:
        print(f"gpushare serve: {error}", file=sys.stderr)
        return 2
    Server(
        extender.app,
        listen=settings.listen,
        threads=settings.threads,
        drain=int(BUDGET) + 2,
        log=log_writer,
        tls=tls,
        not_ready=extender.not_ready,
        start=extender.start,
        stop=extender.stop,
    ).run()
    return 0


def _with_scheduler_file(settings: Settings) -> tuple[Settings, SchedulerFile]:
    """Return the settings with the address that kube-scheduler's file calls, and the content of the
    file.
    """
    # It goes into paths of the API, and a list of ConfigMaps that is refused closes no device.
    if NAME.fullmatch(settings.namespace) is None:
        raise SettingsError(f"namespace: {settings.namespace[:80]!r} is no name of a namespace")
    path = settings.scheduler_config
    listen = address(settings.listen, "listen") if settings.listen else None
    reader = DocumentReader(_read_yaml, _parse_yaml, lambda: _connect(settings, 1))
    found = read_scheduler_file(path, listen, bool(settings.tls_cert), reader)
    for warning in found.warnings:
        print(f"gpushare serve: {path}: {warning}", file=sys.stderr)
    return replace(settings, listen=settings.listen or found.listen), found


def _tls(settings: Settings) -> Certificates | None:
    """Return the certificates to listen with, tried; None without. Raises SettingsError."""
    if not settings.tls_cert:
        return None
    found = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    found.context()
    return found


def _callers(settings: Settings, entry: ExtenderConfig) -> Callers:
    """Return who may call; on loopback by its addresses, or as kube-scheduler calls it."""
    host, _ = address(settings.listen, "listen")
    hosts = frozenset({endpoint(entry).host}) if is_loopback(host) else None
    return Callers(settings.callers, hosts)


def _connect(settings: Settings, pool_size: int) -> KubeClient:
    # Outside a pod, where kubectl would look too.
    kubeconfig = settings.kubeconfig or os.environ.get("KUBECONFIG")
    context = settings.context or None
    return connect(kubeconfig, context, pool_size=pool_size, user_agent="gpushare-extender")


def _managed_resources(
    settings: Settings, entry: ExtenderConfig, schedulers: Sequence[str]
) -> ManagedResources:
    if not is_unit(settings.unit):
        raise SettingsError(f"unit: {settings.unit!r} is none of GiB, MiB, or a chunk as 256MiB")
    policies = _policies(settings.policy)
    candidates = tuple(dict.fromkeys(name.strip() for name in settings.candidates.split(",")))
    for name in candidates:
        if name == AUTO or name not in policies:
            there_are = ", ".join(name for name in policies if name != AUTO)
            raise SettingsError(f"candidates: {name!r} is no policy; there are: {there_are}")
    managed = [resource.name for resource in entry.managed_resources] or [ALIYUN.resource]
    names = [Names.for_resource(resource) for resource in managed]
    # Configurations of the original name the count of devices too: it is no memory of its own.
    counts = {name.count for name in names}
    names = [name for name in names if name.resource not in counts]
    distinct(names)
    ignored = {item.name for item in entry.managed_resources if item.ignored_by_scheduler}
    return ManagedResources(
        tuple(
            ManagedResource(
                names=own,
                ledger=Ledger(Pairing(settings.pairing)),
                rankings=_rankings(policies),
                default_policy=settings.policy,
                candidates=candidates,
                unavailable_policies=frozenset(policy_names()) - policies.keys(),
                counted_by_scheduler=own.resource not in ignored,
            )
            for own in names
        ),
        ExtenderScope(
            frozenset(resource.name for resource in entry.managed_resources), frozenset(schedulers)
        ),
    )


def _rankings(policies: Mapping[str, Policy]) -> dict[str, Ranking]:
    """Return a ranking by each policy; `auto` is another one of them from the beginning."""
    rankings = {name: Ranking(policy) for name, policy in policies.items()}
    if SAFE in rankings:
        rankings[AUTO] = rankings[SAFE]
    return rankings


def _policies(default: str) -> dict[str, Policy]:
    """Return all installed policies by name, without those that cannot be made: each of these is
    logged.

    Raises SettingsError where the default is one of them.
    """
    made = {default: load_policy(default)}
    for name in policy_names():
        if name not in made:
            try:
                made[name] = load_policy(name)
            except SettingsError as error:  # another package's policy: the others still work
                log.error(
                    Line("policy left out; pods that wish for it are refused", error=str(error))
                )
    return made


def _health_server(
    settings: Settings, live: Checks, readiness: Readiness, metrics: Metrics
) -> HealthServer:
    host, port = address(settings.health_listen, "health-listen")
    try:
        return HealthServer(host, port, live, readiness.checks, metrics.text)
    except OSError as error:
        raise SettingsError(f"health-listen: {settings.health_listen}: {error}") from error


def _sources(
    settings: Settings,
    client: KubeClient,
    resources: ManagedResources,
    budgets: DisruptionBudgets | None,
    pod_handler: PodEventHandler,
) -> dict[str, Source]:
    maps = f"/api/v1/namespaces/{settings.namespace}/configmaps"
    nodes = Reflector(
        client, ListWatch("/api/v1/nodes", NODES), NodeEventHandler(resources, settings.unit)
    )
    live_pods = ListWatch("/api/v1/pods", PODS, _LIVE_PODS)
    pods = Reflector(client, live_pods, pod_handler)
    unhealthy = Reflector(client, ListWatch(maps, CONFIG_MAPS), UnhealthyEventHandler(resources))
    sources = {
        "nodes": Source(nodes),
        "pods": Source(pods),
        "configmaps": Source(unhealthy, optional=True),
    }
    if budgets is not None:
        watch = ListWatch("/apis/policy/v1/poddisruptionbudgets", BUDGETS)
        sources["poddisruptionbudgets"] = Source(Reflector(client, watch, budgets), optional=True)
    return sources


def _lease_runner(
    settings: Settings, client: KubeClient, lease: tuple[str, str] | None
) -> LeaseRunner | None:
    """Return what leads, None for "off".

    `lease`: that of kube-scheduler. Raises SettingsError where there is none to follow.
    """
    host = socket.gethostname()
    if settings.leadership == "off":
        return None
    if settings.leadership == "scheduler":
        if lease is None:
            raise SettingsError(
                f"leadership: {settings.scheduler_config} says leaderElection.leaderElect: false,"
                " so there is no Lease of kube-scheduler to follow; with one kube-scheduler alone,"
                " say lease"
            )
        follower = SchedulerLease(host, BUDGET)
        return LeaseRunner(client, follower, namespace=lease[0], name=lease[1])
    identity = settings.identity or f"{host}_{uuid.uuid4()}"
    elector = Elector(settings.namespace, _LEASE, identity, BUDGET)
    return LeaseRunner(client, elector, namespace=settings.namespace, name=_LEASE)


def _keep_to_one_cpu() -> None:
    """Restrict this thread, and those it starts, to one of the CPUs.

    The interpreter lock lets one thread run at a time; on several CPUs it is handed from one to
    another some forty times a bind, and each time another CPU wakes up with cold caches.
    """
    allowed = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})


def _read_yaml(path: str) -> object:
    """Return the document of a YAML (or JSON) file. Raises SettingsError in one line."""
    try:
        return _parse_yaml(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error


def _parse_yaml(text: str, where: str) -> object:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError(f"{where}: {' '.join(str(error).split())}") from error
