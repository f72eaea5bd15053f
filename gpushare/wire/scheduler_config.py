"""kube-scheduler's configuration, the parts about extenders: legacy Policy and component config.

Knows both dialects as dicts (reading YAML or JSON is the caller's business) and kube-scheduler's
own validation, so that a file it would refuse is refused here with plain words. The Policy (up to
1.22) matches keys regardless of case and counts nanoseconds; KubeSchedulerConfiguration is strict
about keys and writes durations as text. Every violation is a SettingsError that names the field.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, flag, items, number, only, parse_duration, text

DEFAULT_TIMEOUT = 5.0
"""Seconds kube-scheduler waits for an extender that sets no httpTimeout."""

DEFAULT_SCHEDULER = "default-scheduler"
GROUP = "kubescheduler.config.k8s.io"
VERSIONS = ("v1beta1", "v1beta2", "v1beta3", "v1")


@dataclass(frozen=True, slots=True)
class ManagedResource:
    """An extended resource the extender is responsible for."""

    name: str
    ignored_by_scheduler: bool = False


@dataclass(frozen=True, slots=True)
class ExtenderConfig:
    """One entry of `extenders`. An empty verb: the extender is not asked. http_timeout: seconds."""

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
    managed_resources: tuple[ManagedResource, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the file says.

    percentage_of_nodes_to_score: 0 means adaptive. scheduler_names: one for each profile. Backoffs
    in seconds. warnings: legal, but hardly meant; for a log.
    """

    api_version: str
    extenders: tuple[ExtenderConfig, ...] = ()
    percentage_of_nodes_to_score: int = 0
    scheduler_names: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    pod_initial_backoff: float = 1.0
    pod_max_backoff: float = 10.0
    warnings: tuple[str, ...] = ()


def decode_scheduler_config(document: object) -> SchedulerConfig:
    """The configuration in a parsed file. Raises SettingsError naming what is wrong."""
    top = fields_of(document, "scheduler configuration")
    kind, version = text(top, "kind"), text(top, "apiVersion")
    if kind == "Policy" and version == "v1":
        extenders, warnings = _extenders(_Policy(), _Policy().checked(top, _TOP_KEYS, "Policy"))
        return SchedulerConfig(version, extenders, warnings=warnings)
    group, _, short = version.partition("/")
    if kind == "KubeSchedulerConfiguration" and group == GROUP and short in VERSIONS:
        return _component_config(top, version)
    raise SettingsError(
        f"apiVersion {version[:80]!r}, kind {kind[:40]!r}: expected kind Policy of v1, or kind"
        f" KubeSchedulerConfiguration of {GROUP}/{{{','.join(VERSIONS)}}}"
    )


class _Strict:
    """How a KubeSchedulerConfiguration is read: keys exactly as written, durations as text."""

    def checked(self, value: object, known: Iterable[str], where: str) -> Fields:
        """The object at `where`, under the known keys."""
        fields = fields_of(value, where)
        only(fields, known, where)
        return fields

    def seconds(self, value: object, where: str) -> float:
        """A timeout in seconds; 0 and missing mean the default, as in kube-scheduler."""
        if value is None:
            return DEFAULT_TIMEOUT
        if not isinstance(value, str):
            raise SettingsError(f"{where}: must be a duration as text, such as 5s")
        try:
            seconds = parse_duration(value)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from error
        return _timeout(seconds, where)


class _Policy(_Strict):
    """How a Policy is read: keys in any case, unknown ones ignored, nanoseconds (or text)."""

    def checked(self, value: object, known: Iterable[str], where: str) -> Fields:
        """The same under the known keys' own spelling; of two spellings the last counts."""
        canonical = {key.lower(): key for key in known}
        return {
            canonical[key.lower()]: item
            for key, item in fields_of(value, where).items()
            if key.lower() in canonical
        }

    def seconds(self, value: object, where: str) -> float:
        if isinstance(value, int) and not isinstance(value, bool):
            return _timeout(max(-1, min(value, _LONGEST)) / 1e9, where)
        return super().seconds(value, where)


def _component_config(top: Fields, version: str) -> SchedulerConfig:
    extenders, warnings = _extenders(_Strict(), top)
    percentage = number(top, "percentageOfNodesToScore")
    if not 0 <= percentage <= 100:
        raise SettingsError(f"percentageOfNodesToScore: {percentage} is not from 0 to 100")
    initial = number(top, "podInitialBackoffSeconds", default=1)
    longest = number(top, "podMaxBackoffSeconds", default=10)
    if initial <= 0 or longest < initial:
        raise SettingsError(
            "podInitialBackoffSeconds, podMaxBackoffSeconds: must be positive and in this order"
        )
    if number(top, "parallelism", default=16) <= 0:
        raise SettingsError("parallelism: must be positive")
    unknown = tuple(
        f"{key}: kube-scheduler may refuse a key it does not know"
        for key in sorted(set(top) - _TOP_KEYS)
    )
    return SchedulerConfig(
        version,
        extenders,
        percentage,
        _scheduler_names(top),
        float(initial),
        float(longest),
        unknown + warnings,
    )


def _scheduler_names(top: Fields) -> tuple[str, ...]:
    names = []
    for index, item in enumerate(items(top, "profiles")):
        where = f"profiles[{index}]"
        names.append(text(fields_of(item, where), "schedulerName", where, DEFAULT_SCHEDULER))
    if len(set(names)) != len(names):
        raise SettingsError("profiles: each needs a schedulerName of its own")
    return tuple(names) or (DEFAULT_SCHEDULER,)


def _extenders(dialect: _Strict, top: Fields) -> tuple[tuple[ExtenderConfig, ...], tuple[str, ...]]:
    """(the extenders, warnings about them)."""
    extenders: list[ExtenderConfig] = []
    warnings: list[str] = []
    for index, item in enumerate(items(top, "extenders")):
        where = f"extenders[{index}]"
        entry = dialect.checked(item, _EXTENDER_KEYS, where)
        extender = _extender(dialect, entry, where)
        tls = dialect.checked(entry.get("tlsConfig"), _TLS_KEYS, f"{where}.tlsConfig")
        extenders.append(extender)
        warnings += _warnings(extender, tls, where)
    _validate(extenders)
    return tuple(extenders), tuple(warnings)


def _extender(dialect: _Strict, entry: Fields, where: str) -> ExtenderConfig:
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
    )


def _managed_resource(dialect: _Strict, item: object, where: str) -> ManagedResource:
    fields = dialect.checked(item, _RESOURCE_KEYS, where)
    name = text(fields, "name", where)
    if _EXTENDED_RESOURCE.fullmatch(name) is None or "kubernetes.io/" in name:
        raise SettingsError(f"{where}: {name[:80]!r} is no extended resource (domain/name)")
    if name.startswith("requests."):
        raise SettingsError(f"{where}: {name[:80]!r} must not begin with requests.")
    return ManagedResource(name, flag(fields, "ignoredByScheduler", where))


def _validate(extenders: Sequence[ExtenderConfig]) -> None:
    """Nothing, if kube-scheduler would start with these (its rules, alike from 1.22 to 1.35)."""
    for index, extender in enumerate(extenders):
        if extender.prioritize_verb and extender.weight <= 0:
            raise SettingsError(f"extenders[{index}].weight: must be positive to prioritize")
    if sum(1 for extender in extenders if extender.bind_verb) > 1:
        raise SettingsError("extenders: at most one may have a bindVerb")
    names = Counter(r.name for extender in extenders for r in extender.managed_resources)
    for name, count in names.items():
        if count > 1:
            raise SettingsError(f"extenders: managed resource {name} is named {count} times")


def _warnings(extender: ExtenderConfig, tls: Fields, where: str) -> list[str]:
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
    if extender.enable_https and not tls:
        found.append(f"{where}.tlsConfig: without a CA the certificate is not verified")
    return found


def _timeout(seconds: float, where: str) -> float:
    if not 0 <= seconds < _LONGEST / 1e9:
        raise SettingsError(f"{where}: must not be negative, nor longer than 292 years")
    return seconds or DEFAULT_TIMEOUT


_LONGEST = 2**63
"""Nanoseconds a Go duration cannot hold."""

_EXTENDED_RESOURCE = re.compile(
    r"[a-z0-9]([a-z0-9.-]{0,242}[a-z0-9])?/[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_RESOURCE_KEYS = frozenset({"name", "ignoredByScheduler"})
_TLS_KEYS = frozenset(
    {"insecure", "serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"}
)
_VERB_KEYS = frozenset({"filterVerb", "preemptVerb", "prioritizeVerb", "bindVerb"})
_EXTENDER_KEYS = _VERB_KEYS | {
    "urlPrefix",
    "weight",
    "enableHTTPS",
    "tlsConfig",
    "httpTimeout",
    "nodeCacheCapable",
    "ignorable",
    "managedResources",
}
_TOP_KEYS = frozenset(
    {
        "apiVersion",
        "kind",
        "parallelism",
        "leaderElection",
        "clientConnection",
        "healthzBindAddress",
        "metricsBindAddress",
        "enableProfiling",
        "enableContentionProfiling",
        "percentageOfNodesToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "profiles",
        "extenders",
        "delayCacheUntilActive",
    }
)
