"""kube-scheduler's configuration, the parts about extenders: legacy Policy and component config.

Knows both dialects as dicts (reading YAML or JSON is the caller's business) and kube-scheduler's
own validation, so that a file it would refuse is refused here with plain words. Every violation is
a SettingsError that names the field. Which entry is ours is not decided here.
"""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, flag, items, number, text
from gpushare.wire.scheduler.component import DEFAULT_LEASE, DEFAULT_LEASE_TIMES, read_component
from gpushare.wire.scheduler.dialects import (
    DEFAULT_TIMEOUT,
    EXTENDER_KEYS,
    POLICY_KEYS,
    RESOURCE_KEYS,
    TLS_KEYS,
    Legacy,
    Strict,
)
from gpushare.wire.scheduler.policy import check_keys, check_priorities, policy_profile
from gpushare.wire.scheduler.profiles import Profile

GROUP = "kubescheduler.config.k8s.io"
VERSIONS = ("v1beta1", "v1beta2", "v1beta3", "v1")


@dataclass(frozen=True, slots=True)
class ExtenderManagedResource:
    """An extended resource the extender is responsible for."""

    name: str
    ignored_by_scheduler: bool = False


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """An extender's `tlsConfig`: paths of PEM files, or what stands in them, which comes first."""

    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_data: str = ""
    cert_data: str = ""
    key_data: str = ""

    @property
    def has_ca(self) -> bool:
        """Whether it names whom to trust."""
        return bool(self.ca_file or self.ca_data)


@dataclass(frozen=True, slots=True)
class ExtenderConfig:
    """One entry of `extenders`. An empty verb is not called. http_timeout: seconds."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    preempt_verb: str = ""
    weight: int = 0
    enable_https: bool = False
    http_timeout: float = DEFAULT_TIMEOUT
    node_cache_capable: bool = False
    ignorable: bool = False
    managed_resources: tuple[ExtenderManagedResource, ...] = ()
    tls: TlsConfig | None = None


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the file says.

    Backoffs in seconds. warnings: legal, but hardly meant; for a log. lease: (namespace, name) of
    the Lease that the leader holds; None if kube-scheduler elects none. lease_times: its
    leaseDuration, renewDeadline and retryPeriod in seconds.
    """

    api_version: str
    extenders: tuple[ExtenderConfig, ...] = ()
    profiles: tuple[Profile, ...] = (Profile(),)
    pod_initial_backoff: float = 1.0
    pod_max_backoff: float = 10.0
    warnings: tuple[str, ...] = ()
    lease: tuple[str, str] | None = DEFAULT_LEASE
    lease_times: tuple[float, float, float] = DEFAULT_LEASE_TIMES

    @property
    def percentage_of_nodes_to_score(self) -> int:
        """The least of all profiles; 0 means adaptive."""
        return min(profile.percentage for profile in self.profiles)

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """One for each profile."""
        return tuple(profile.scheduler_name for profile in self.profiles)


def decode_scheduler_config(document: object) -> SchedulerConfig:
    """Return the configuration in a parsed file. Raises SettingsError naming what is wrong."""
    top = fields_of(document, "scheduler configuration")
    kind, version = text(top, "kind"), text(top, "apiVersion")
    if kind == "Policy" and version == "v1":
        return _policy(top)
    group, _, short = version.partition("/")
    if kind != "KubeSchedulerConfiguration" or group != GROUP or short not in VERSIONS:
        raise SettingsError(
            f"apiVersion {version[:80]!r}, kind {kind[:40]!r}: expected kind Policy of v1, or kind"
            f" KubeSchedulerConfiguration of {GROUP}/{{{','.join(VERSIONS)}}}"
        )
    return _component_config(top, version, short)


def _policy(top: Fields) -> SchedulerConfig:
    policy = Legacy().fields(top, POLICY_KEYS, "")
    warnings = check_keys(top) + check_priorities(policy)
    dialect = Legacy()
    extenders = _extenders(dialect, policy, warnings)
    unknown = [_unknown(dialect.unknown, "Policy")] if dialect.unknown else []
    told = (*unknown, *dialect.remarks, *warnings)
    return SchedulerConfig("v1", extenders, (policy_profile(policy),), warnings=told)


def _component_config(top: Fields, version: str, short: str) -> SchedulerConfig:
    dialect = Strict()
    component = read_component(dialect, top, short)
    warnings: list[str] = []
    extenders = _extenders(dialect, top, warnings)
    unknown = [_unknown(dialect.unknown, short)] if dialect.unknown else []
    return SchedulerConfig(
        version,
        extenders,
        component.profiles,
        component.initial_backoff,
        component.max_backoff,
        (*unknown, *dialect.remarks, *warnings),
        component.lease,
        component.lease_times,
    )


def _unknown(paths: Sequence[str], short: str) -> str:
    """Return one warning for all of them."""
    listed = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
    if short == "Policy":
        return f"{listed}: unknown, and not read"
    return (
        f"{listed}: unknown; kube-scheduler up to 1.37 does not start with a key it does not know"
    )


def _extenders(dialect: Strict, top: Fields, warnings: list[str]) -> tuple[ExtenderConfig, ...]:
    """Return the extenders; add to `warnings` what is legal but probably not meant."""
    extenders: list[ExtenderConfig] = []
    for index, item in enumerate(items(top, "extenders")):
        where = f"extenders[{index}]"
        entry = dialect.fields(item, EXTENDER_KEYS, where)
        extender = _extender(dialect, entry, where)
        extenders.append(extender)
        warnings += _warnings(extender, where)
    _validate(extenders)
    return tuple(extenders)


def _extender(dialect: Strict, entry: Fields, where: str) -> ExtenderConfig:
    return ExtenderConfig(
        url_prefix=text(entry, "urlPrefix", where),
        filter_verb=text(entry, "filterVerb", where),
        prioritize_verb=text(entry, "prioritizeVerb", where),
        bind_verb=text(entry, "bindVerb", where),
        preempt_verb=text(entry, "preemptVerb", where),
        weight=number(entry, "weight", where),
        enable_https=flag(entry, "enableHTTPS", where),
        http_timeout=dialect.seconds(entry.get("httpTimeout"), f"{where}.httpTimeout"),
        node_cache_capable=flag(entry, "nodeCacheCapable", where),
        ignorable=flag(entry, "ignorable", where),
        managed_resources=tuple(
            _managed_resource(dialect, item, f"{where}.managedResources[{index}]")
            for index, item in enumerate(items(entry, "managedResources", where))
        ),
        tls=_tls(dialect, entry.get("tlsConfig"), f"{where}.tlsConfig"),
    )


def _tls(dialect: Strict, value: object, where: str) -> TlsConfig | None:
    fields = dialect.fields(value, TLS_KEYS, where)
    if not fields:
        return None
    return TlsConfig(
        flag(fields, "insecure", where),
        *(text(fields, key, where) for key in ("serverName", "caFile", "certFile", "keyFile")),
        *(_pem(fields, key, where) for key in ("caData", "certData", "keyData")),
    )


def _pem(fields: Fields, key: str, where: str) -> str:
    try:
        return base64.b64decode(text(fields, key, where), validate=True).decode("ascii")
    except ValueError as error:
        raise SettingsError(f"{where}.{key}: must be PEM in base64") from error


def _managed_resource(dialect: Strict, item: object, where: str) -> ExtenderManagedResource:
    fields = dialect.fields(item, RESOURCE_KEYS, where)
    name = text(fields, "name", where)
    if _QUALIFIED.fullmatch(name) is None:
        raise SettingsError(f"{where}: {name[:80]!r} is no extended resource (domain/name)")
    if "kubernetes.io/" in name:
        raise SettingsError(
            f"{where}: {name[:80]!r} is no extended resource: kubernetes.io/ is Kubernetes' own"
        )
    if name.startswith("requests."):
        raise SettingsError(f"{where}: {name[:80]!r} must not begin with requests.")
    return ExtenderManagedResource(name, flag(fields, "ignoredByScheduler", where))


def _validate(extenders: Sequence[ExtenderConfig]) -> None:
    """Check that kube-scheduler would start with these (its rules, the same from 1.22 to 1.35).

    Raises SettingsError.
    """
    for index, extender in enumerate(extenders):
        if extender.prioritize_verb and extender.weight <= 0:
            raise SettingsError(f"extenders[{index}].weight: must be positive to prioritize")
    binding = [f"extenders[{index}]" for index, item in enumerate(extenders) if item.bind_verb]
    if len(binding) > 1:
        raise SettingsError(f"{', '.join(binding)}: at most one may have a bindVerb")
    names = Counter(r.name for extender in extenders for r in extender.managed_resources)
    for name, count in names.items():
        if count > 1:
            raise SettingsError(f"extenders: managed resource {name} is named {count} times")


def _warnings(extender: ExtenderConfig, where: str) -> list[str]:
    found = []
    if not extender.url_prefix:
        found.append(f"{where}.urlPrefix: empty, so no call can succeed")
    if extender.ignorable and extender.bind_verb:
        found.append(
            f"{where}.ignorable: kube-scheduler (1.30 on) binds without the extender when a bind"
            " fails, and pods then run without an allocation"
        )
    if extender.filter_verb and not extender.node_cache_capable:
        found.append(f"{where}.nodeCacheCapable: false sends whole nodes with every call")
    if extender.enable_https and extender.tls is None:
        found.append(f"{where}.tlsConfig: without a CA the certificate is not verified")
    if extender.filter_verb and not extender.ignorable and not extender.managed_resources:
        found.append(
            f"{where}.managedResources: empty, so every pod of the cluster waits for the extender"
        )
    return found


_QUALIFIED = re.compile(
    r"[a-z0-9]([a-z0-9.-]{0,242}[a-z0-9])?/[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
