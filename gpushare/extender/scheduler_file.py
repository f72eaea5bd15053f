"""kube-scheduler's own file as `gpushare serve` reads it: our entry, and where to listen.

Follows an old configuration to the Policy it names, in a file or a ConfigMap. With whose
credentials that is read is handed in; knows no settings.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import ApiError, SettingsError
from gpushare.extender.http.app import Routes
from gpushare.kube.client import KubeClient
from gpushare.wire.scheduler.component import DEFAULT_LEASE
from gpushare.wire.scheduler.config import ExtenderConfig, decode_scheduler_config
from gpushare.wire.scheduler.entry import (
    DEFAULT_LISTEN,
    PREFIX,
    endpoint,
    listening_warning,
    our_entry,
)
from gpushare.wire.scheduler.policy import POLICY_KEY, PolicyConfigMap, PolicyFile, policy_source
from gpushare.yamlfile import parse_yaml, read_yaml

_DEFAULT_LISTEN = f"{DEFAULT_LISTEN[0]}:{DEFAULT_LISTEN[1]}"
_TIMEOUT = 10.0
"""Seconds for reading the ConfigMap."""


@dataclass(frozen=True, slots=True)
class SchedulerFile:
    """kube-scheduler's file, as far as it concerns the extender.

    `entry`: our entry. `listen`: HOST:PORT to listen at if no other is set. `warnings`: texts
    for the operator. `lease`: (namespace, name) of the Lease of kube-scheduler's leader, None if
    it elects none. `schedulers`: the names of its profiles; () if the file does not say (a
    Policy), or there is no file. `current`: it is not of a version that releases of today no longer
    read.
    """

    entry: ExtenderConfig
    listen: str = _DEFAULT_LISTEN
    warnings: tuple[str, ...] = ()
    lease: tuple[str, str] | None = DEFAULT_LEASE
    schedulers: tuple[str, ...] = ()
    current: bool = True


def read_scheduler_file(
    path: str, listen: tuple[str, int] | None, tls: bool, client: Callable[[], KubeClient]
) -> SchedulerFile:
    """Return the content of the file at `path`; the defaults if the path is empty.

    listen: the (host, port) asked for, if any; tls: whether we speak TLS; client: connects for a
    ConfigMap. Raises SettingsError in one line that begins with the path.
    """
    if not path:
        return SchedulerFile(ExtenderConfig(f"http://{_DEFAULT_LISTEN}{PREFIX}"))
    document = read_yaml(path)
    try:
        config = decode_scheduler_config(document, _policy(Path(path).parent, document, client))
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


def _policy(folder: Path, document: object, client: Callable[[], KubeClient]) -> object:
    """Return the Policy that the document names; None if it names none."""
    source = policy_source(document)
    if source is None:
        return None
    if isinstance(source, PolicyFile):
        policy = read_yaml(str(folder / source.path))  # an absolute path stays as it is
    else:
        policy = parse_yaml(_read_config_map(client(), source), str(source))
    if policy is None:
        raise SettingsError(f"{source}: is empty")
    return policy


def _read_config_map(client: KubeClient, source: PolicyConfigMap) -> str:
    """Return the text of a Policy in a ConfigMap; close the client. Raises SettingsError."""
    path = f"/api/v1/namespaces/{source.namespace}/configmaps/{source.name}"
    try:
        text = json.loads(client.request("GET", path, timeout=_TIMEOUT))["data"][POLICY_KEY]
    except ApiError as error:
        raise SettingsError(f"{source}: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        text = None
    finally:
        client.close()
    if not isinstance(text, str):
        raise SettingsError(f"{source}: has no text under the key {POLICY_KEY}")
    return text
