"""kube-scheduler's own file as `gpushare serve` reads it: our entry, and where to listen.

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
class SchedulerFile:
    """kube-scheduler's file, as far as it concerns the extender."""

    entry: ExtenderConfig
    """Our entry."""
    listen: str = _DEFAULT_LISTEN
    """HOST:PORT to listen at if no other is set."""
    warnings: tuple[str, ...] = ()
    """Texts for the operator."""
    lease: tuple[str, str] | None = DEFAULT_LEASE
    """(namespace, name) of the Lease of kube-scheduler's leader, None if it elects none."""
    schedulers: tuple[str, ...] = ()
    """The names of its profiles; () if the file does not say (a Policy)."""
    current: bool = True
    """Whether it is of a version that releases of today read."""
    choice_is_ours: bool = False
    """Whether kube-scheduler takes the node that we like best, whatever else it scores, and asks no
    extender after us."""


def read_scheduler_file(path: str, listen: tuple[str, int] | None, tls: bool) -> SchedulerFile:
    """Return the content of the file at `path`; the defaults if the path is empty.

    listen: the (host, port) asked for, if any; tls: whether we speak TLS. Raises SettingsError in
    one line that begins with the path.
    """
    if not path:
        # As in the original's files, and as kube-scheduler calls itself: without this, bind would
        # place any pod of the cluster.
        managed = tuple(map(ExtenderManagedResource, (ALIYUN.resource, ALIYUN.count)))
        url = f"http://{_DEFAULT_LISTEN}{PREFIX}"
        entry = ExtenderConfig(url, managed_resources=managed)
        return SchedulerFile(entry, schedulers=(DEFAULT_SCHEDULER,))
    document = read_as_kubernetes(path)
    try:
        config = decode_scheduler_config(document)
        entry = our_entry(config, listen)
        warning = listening_warning(entry, listen, tls)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    place = endpoint(entry)
    return SchedulerFile(
        entry,
        place.listen if place.loopback else _DEFAULT_LISTEN,
        (*config.warnings, *([warning] if warning else [])),
        config.lease,
        () if config.api_version == "v1" else config.scheduler_names,
        config.api_version == "kubescheduler.config.k8s.io/v1",
        entry.order_decides and entry is config.extenders[-1],
    )


def routes_of(entry: ExtenderConfig) -> Routes:
    """Return the paths of the verbs: as kube-scheduler calls them, else our own names."""
    usual = Routes()
    return Routes(
        prefix=endpoint(entry).path,
        filter=entry.filter_verb or usual.filter,
        prioritize=entry.prioritize_verb or usual.prioritize,
        bind=entry.bind_verb or usual.bind,
        preempt=entry.preempt_verb or usual.preempt,
    )
