"""The parts of the extender, each made from the settings. Raises SettingsError for a wrong one.

Tested in `tests/integration/test_extender.py` and `tests/integration/test_scheduler_file.py`.
"""

import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from gpushare.addresses import is_loopback
from gpushare.core.amounts import MEMORY, PERCENT_AMOUNTS
from gpushare.core.pairing import Pairing
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.trial import AUTO, FALLBACK_POLICY
from gpushare.daemon.callers import Callers
from gpushare.daemon.health import Checks, HealthServer
from gpushare.errors import SettingsError
from gpushare.extender.claims.service import ClaimsService
from gpushare.extender.door.certificates import Certificates
from gpushare.extender.follow import watch_handlers
from gpushare.extender.follow.admission_checks import KueueObjects
from gpushare.extender.follow.disruption_budgets import DisruptionBudgets
from gpushare.extender.follow.group_sizes import SIZE_SOURCES, GroupSizes
from gpushare.extender.follow.readiness import Source
from gpushare.extender.follow.shown import ObjectHandler, Shown
from gpushare.extender.managed_resources import ExtenderScope, ManagedResource, ManagedResources
from gpushare.extender.shadow.shadow import Shadow
from gpushare.extender.tell.explainer import Explainer
from gpushare.extender.tell.metrics import Metrics
from gpushare.extender.tell.page.server import UiServer
from gpushare.extender.verbs.bind.gate import WAIT, Gate
from gpushare.extender.verbs.bind.transaction import BUDGET, wait_within
from gpushare.kube.client import KubeClient, connect
from gpushare.kube.election import Elector, SchedulerLease
from gpushare.kube.lease_runner import LeaseRunner
from gpushare.kube.listwatch import ListWatch, Timing
from gpushare.kube.reflector import Reflector
from gpushare.ledger import Ledger
from gpushare.logline import Line
from gpushare.settings import Settings, address
from gpushare.wire import kueue
from gpushare.wire.annotations import ALIYUN, Names, distinct
from gpushare.wire.codec import Codec
from gpushare.wire.inventory import is_unit
from gpushare.wire.kept import LEASE
from gpushare.wire.objects import BUDGETS, CONFIG_MAPS, NODES, PODS
from gpushare.wire.scale_down import Mark
from gpushare.wire.scheduler.config import ExtenderConfig
from gpushare.wire.scheduler.entry import endpoint

_OF_SIZES = Timing(longest_pause=60.0)
"""Most clusters lack most of these APIs, and each is asked for once in a while."""
_LIVE_PODS = (("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),)

log = logging.getLogger("gpushare.serve")


def callers_of(settings: Settings, entry: ExtenderConfig) -> Callers:
    """Return the access rules: on loopback only by addresses of loopback or the host in
    kube-scheduler's file.
    """
    host, _ = address(settings.listen, "listen")
    hosts = frozenset({endpoint(entry).host}) if is_loopback(host) else None
    return Callers(settings.callers, hosts)


def certificates(settings: Settings) -> Certificates:
    """Return the certificates to listen with, tried. Raises SettingsError."""
    loaded = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    loaded.context()
    return loaded


def connect_client(settings: Settings, pool_size: int) -> KubeClient:
    """Return a client of the API server; outside a pod by the kubeconfig, as kubectl does."""
    kubeconfig = settings.kubeconfig or os.environ.get("KUBECONFIG")
    context = settings.context or None
    return connect(kubeconfig, context, pool_size=pool_size, user_agent="gpushare-extender")


def make_managed_resources(
    settings: Settings, entry: ExtenderConfig, schedulers: Sequence[str], sizes: GroupSizes
) -> ManagedResources:
    """Return the managed resources of our entry in kube-scheduler's file, with empty ledgers, and
    the gate for groups of these sizes.

    schedulers: the names of kube-scheduler's profiles.
    """
    if not is_unit(settings.unit):
        raise SettingsError(f"unit: {settings.unit!r} is none of GiB, MiB, or a chunk as 256MiB")
    policies = _policies(settings.policy)
    candidates = tuple(dict.fromkeys(name.strip() for name in settings.candidates.split(",")))
    for name in candidates:
        if name == AUTO or name not in policies:
            there_are = ", ".join(name for name in policies if name != AUTO)
            raise SettingsError(f"candidates: {name!r} is no policy; there are: {there_are}")
    pod_policies = _pod_policies(settings.pod_policies, policies)
    resource_names = [resource.name for resource in entry.managed_resources] or [ALIYUN.resource]
    names = [Names.for_resource(resource) for resource in resource_names]
    # Configurations of the original also name the count of devices: this is no memory resource.
    # Neither are amounts in percent: the books of the memory resource include these.
    side_names = {own_names.count for own_names in names}
    side_names |= {of_amount.resource for own_names in names for of_amount in own_names.percents}
    names = [own_names for own_names in names if own_names.resource not in side_names]
    for resource in (own_names.resource for own_names in names):
        for amount in PERCENT_AMOUNTS:
            if resource.endswith(amount.resource_suffix):
                memory = resource.removesuffix(amount.resource_suffix) + MEMORY.resource_suffix
                raise SettingsError(
                    f"managedResources: {resource} is the {amount.noun} of devices, which are"
                    f" given out by their memory: name {memory} beside it"
                )
    distinct(names)
    ignored = {item.name for item in entry.managed_resources if item.ignored_by_scheduler}
    if not settings.scheduler_config:  # as in the file that we ship: no node advertises them
        ignored |= {
            of_amount.resource
            for own_names in names
            for amount, of_amount in zip(PERCENT_AMOUNTS, own_names.percents, strict=True)
            if amount.is_memory
        }
    return ManagedResources(
        tuple(
            ManagedResource(
                names=own_names,
                ledger=Ledger(Pairing(settings.pairing)),
                rankings=_rankings(policies, settings.neighbours),
                default_policy=settings.policy,
                candidates=candidates,
                pod_policies=pod_policies,
                neighbours=settings.neighbours,
                unavailable_policies=frozenset(policy_names()) - policies.keys(),
                counted_by_scheduler=own_names.resource not in ignored,
                uncounted_percents=tuple(
                    of_amount.resource
                    for of_amount in own_names.percents
                    if of_amount.resource in ignored
                ),
            )
            for own_names in names
        ),
        ExtenderScope(
            frozenset(resource.name for resource in entry.managed_resources),
            frozenset(schedulers),
            binds_every_pod=entry.binds_every_pod,
        ),
        gate=Gate(
            sizes.size_of, wait_within(entry.http_timeout) if settings.scheduler_config else WAIT
        ),
    )


def claims_service(
    settings: Settings, client: KubeClient, resources: ManagedResources
) -> ClaimsService | None:
    """Return the service for the claims of a driver; None if no driver is set."""
    if not settings.claims:
        return None
    return ClaimsService(
        settings.claims, client, resources, unit=settings.unit, policy=settings.policy
    )


def make_shadow(settings: Settings, resources: ManagedResources) -> Shadow | None:
    """Return the shadow policy; None if no policy is set. Raises SettingsError."""
    name = settings.shadow
    if not name:
        return None
    for resource in resources:
        if name not in resource.rankings:
            there_are = ", ".join(sorted(resource.rankings))
            raise SettingsError(f"shadow: {name!r} is no policy; there are: {there_are}")
    return Shadow(resources, name)


def _pod_policies(text: str, policies: Collection[str]) -> frozenset[str] | None:
    """Return the policies that a pod may choose; None for all. Raises SettingsError."""
    if text == "all":
        return None
    names = () if text == "none" else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name != AUTO and name not in policies:
            there_are = ", ".join(sorted({AUTO, *policies}))
            raise SettingsError(f"pod-policies: {name!r} is no policy; there are: {there_are}")
    return frozenset(names)


def _rankings(policies: Mapping[str, Policy], neighbours: int) -> dict[str, Ranking]:
    """Return a ranking for each policy; `auto` begins as the ranking of the fallback policy."""
    rankings = {name: Ranking(policy, neighbours=neighbours) for name, policy in policies.items()}
    if FALLBACK_POLICY in rankings:
        rankings[AUTO] = rankings[FALLBACK_POLICY]
    return rankings


def _policies(default: str) -> dict[str, Policy]:
    """Return all installed policies by name; log those that cannot be made.

    Raises SettingsError if the default policy cannot be made.
    """
    policies = {default: load_policy(default)}
    for name in policy_names():
        if name not in policies:
            try:
                policies[name] = load_policy(name)
            except SettingsError as error:  # another package's policy: the others still work
                log.error(
                    Line("policy left out; pods that wish for it are refused", error=str(error))
                )
    return policies


def health_server(
    settings: Settings, checks: tuple[Checks, Checks], metrics: Metrics, explainer: Explainer
) -> HealthServer:
    """Return the server of probes and metrics, with a bound socket and no thread.

    checks: of life, of readiness.
    """
    host, port = address(settings.health_listen, "health-listen")
    try:
        return HealthServer(
            host, port, *checks, metrics.text, explain=explainer.answer, held=explainer.held
        )
    except OSError as error:
        raise SettingsError(f"health-listen: {settings.health_listen}: {error}") from error


def ui_server(settings: Settings, document: Callable[[], bytes]) -> UiServer:
    """Return the server of the page, with a bound socket and no thread."""
    host, port = address(settings.ui_listen, "ui-listen")
    tls, names = None, settings.ui_callers
    if names:
        tls = certificates(settings).context
    try:
        return UiServer(host, port, document, tls=tls, names=names)
    except OSError as error:
        raise SettingsError(f"ui-listen: {settings.ui_listen}: {error}") from error


def watched_sources(
    settings: Settings,
    client: KubeClient,
    resources: ManagedResources,
    budgets: DisruptionBudgets | None,
    pod_handler: watch_handlers.PodEventHandler,
    *,
    group_sizes: GroupSizes,
    marks: Shown[Mark],
    room_on: Callable[[str], None],
) -> dict[str, Source]:
    """Return the watched collections by name, each with an event handler.

    budgets: None if budgets are not followed. group_sizes: the handler of objects with the sizes of
    groups. marks: the annotations of nodes about scale-down. room_on: called with a node after a
    ConfigMap has closed or opened devices.
    """
    maps = f"/api/v1/namespaces/{settings.namespace}/configmaps"
    nodes = Reflector(
        client,
        ListWatch("/api/v1/nodes", NODES),
        watch_handlers.NodeEventHandler(resources, settings.unit, marks),
    )
    live_pods = ListWatch("/api/v1/pods", PODS, _LIVE_PODS)
    pods = Reflector(client, live_pods, pod_handler)
    sources = {"nodes": Source(nodes), "pods": Source(pods)}
    closing = watch_handlers.UnhealthyEventHandler(resources, room_on)
    unhealthy = Reflector(client, ListWatch(maps, CONFIG_MAPS), closing)
    sources["configmaps"] = Source(unhealthy, optional=True)
    sources |= _size_sources(client, group_sizes)
    if budgets is not None:
        watch = ListWatch("/apis/policy/v1/poddisruptionbudgets", BUDGETS)
        sources["poddisruptionbudgets"] = Source(Reflector(client, watch, budgets), optional=True)
    return sources


def _size_sources(client: KubeClient, sizes: GroupSizes) -> dict[str, Source]:
    """Return the collections of objects with sizes of groups, by name, each with a handler."""
    sources = {}
    for source in SIZE_SOURCES:
        machine = ListWatch(source.path, source.codec, timing=_OF_SIZES)
        handler = sizes.handler(source.kind)
        reflector = Reflector(client, machine, handler, optional=True)
        sources[source.name] = Source(reflector, optional=True)
    return sources


def kueue_sources(
    client: KubeClient, resources: ManagedResources, seen: KueueObjects
) -> dict[str, Source]:
    """Return the collections of Kueue by name, each with a handler that fills `seen`."""
    names = [resource.names for resource in resources]
    collections: tuple[tuple[str, Codec[Any], Callable[[Any], Any], Shown[Any]], ...] = (
        (
            "workloads",
            kueue.WORKLOADS,
            partial(kueue.read_workload, managed_names=names),
            seen.workloads,
        ),
        ("admissionchecks", kueue.ADMISSION_CHECKS, kueue.read_check, seen.checks),
        ("resourceflavors", kueue.RESOURCE_FLAVORS, kueue.read_flavor, seen.flavors),
    )
    sources = {}
    for name, codec, read, shown in collections:
        handler = ObjectHandler[Any, Any](read, shown.replace, shown.put)
        machine = ListWatch(f"{kueue.API}/{name}", codec)
        sources[name] = Source(Reflector(client, machine, handler, optional=True), optional=True)
    return sources


def lease_runner(
    settings: Settings, client: KubeClient, lease: tuple[str, str] | None
) -> LeaseRunner | None:
    """Return the runner that decides whether this process leads; None for "off".

    lease: (namespace, name) of kube-scheduler's Lease. Raises SettingsError if the setting needs
    this Lease and there is none.
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
    elector = Elector(settings.namespace, LEASE, identity, BUDGET)
    return LeaseRunner(client, elector, namespace=settings.namespace, name=LEASE)
