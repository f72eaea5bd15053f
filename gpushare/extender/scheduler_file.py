"""kube-scheduler's own file for `gpushare serve`: our entry, and the address to listen at.

Knows no settings.
"""

from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.extender.door.app import Routes
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import (
    DEFAULT_LEASE,
    ExtenderConfig,
    ExtenderManagedResource,
    decode_scheduler_config,
)
from gpushare.wire.scheduler.entry import (
    DEFAULT_LISTEN,
    PREFIX,
    endpoint,
    listening_warning,
    our_entry,
)
from gpushare.wire.scheduler.profiles import DEFAULT_SCHEDULER
from gpushare.yamlfile import read_as_kubernetes

_DEFAULT_LISTEN = f"{DEFAULT_LISTEN[0]}:{DEFAULT_LISTEN[1]}"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The part of kube-scheduler's file that concerns the extender."""

    entry: ExtenderConfig
    """Our entry."""
    listen: str = _DEFAULT_LISTEN
    """HOST:PORT to listen at by default."""
    warnings: tuple[str, ...] = ()
    """Texts for the operator."""
    lease: tuple[str, str] | None = DEFAULT_LEASE
    """(namespace, name) of the Lease of kube-scheduler's leader, None without leader election."""
    schedulers: tuple[str, ...] = ()
    """The scheduler names of the profiles; () for a Policy, which has no profiles."""
    current: bool = True
    """Whether the current releases of kube-scheduler read this version of the file."""
    choice_is_ours: bool = False
    """Whether kube-scheduler takes the node with our highest score, whatever its own scores are,
    and calls no extender after us."""


def read_scheduler_file(path: str, listen: tuple[str, int] | None, tls: bool) -> SchedulerSettings:
    """Return the content of the file at `path`; the defaults if the path is empty.

    listen: the (host, port) of the settings, if any. tls: whether the extender listens with TLS.
    Raises SettingsError in one line that begins with the path.
    """
    if not path:
        # The resources of the original's files, and kube-scheduler's default name: without these,
        # bind would place any pod of the cluster.
        resources = tuple(map(ExtenderManagedResource, (ALIYUN.resource, ALIYUN.count)))
        url = f"http://{_DEFAULT_LISTEN}{PREFIX}"
        entry = ExtenderConfig(url, managed_resources=resources)
        return SchedulerSettings(entry, schedulers=(DEFAULT_SCHEDULER,))
    document = read_as_kubernetes(path)
    try:
        config = decode_scheduler_config(document)
        entry = our_entry(config, listen)
        warning = listening_warning(entry, listen, tls)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    place = endpoint(entry)
    return SchedulerSettings(
        entry=entry,
        listen=place.listen if place.loopback else _DEFAULT_LISTEN,
        warnings=(*config.warnings, *([warning] if warning else [])),
        lease=config.lease,
        schedulers=() if config.api_version == "v1" else config.scheduler_names,
        current=config.api_version == "kubescheduler.config.k8s.io/v1",
        choice_is_ours=entry.order_decides and entry is config.extenders[-1],
    )


def routes_of(entry: ExtenderConfig) -> Routes:
    """Return the paths of the verbs by kube-scheduler's file, or else the default paths."""
    usual = Routes()
    return Routes(
        prefix=endpoint(entry).path,
        filter=entry.filter_verb or usual.filter,
        prioritize=entry.prioritize_verb or usual.prioritize,
        bind=entry.bind_verb or usual.bind,
        preempt=entry.preempt_verb or usual.preempt,
    )
