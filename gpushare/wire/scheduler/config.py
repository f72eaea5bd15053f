"""kube-scheduler's configuration, the parts about extenders: legacy Policy and component config.

Knows both dialects as dicts (reading YAML or JSON is the caller's business) and kube-scheduler's
own validation, so that a file it would refuse is refused here with plain words. Every violation is
a SettingsError that names the field. Which entry is ours is not decided here.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.fields import NAME, Fields, fields_of, flag, items, number, text
from gpushare.wire.scheduler.policy import check_keys, check_priorities, policy_profile
from gpushare.wire.scheduler.profiles import Profile, read_profiles
from gpushare.wire.scheduler.schema import DEFAULT_TIMEOUT, RELEASES, lenient, strict

GROUP = "kubescheduler.config.k8s.io"
VERSIONS = tuple(RELEASES)

DEFAULT_LEASE = ("kube-system", "kube-scheduler")
_LEASE_TIMES = (15.0, 10.0, 2.0)
"""The defaults of leaseDuration, renewDeadline and retryPeriod in seconds."""
_JITTER = 1.2
"""By how much client-go spreads the retries."""
_ADDRESS = re.compile(r"|[0-9.]+(:[0-9]{0,5})?|\[[0-9a-fA-F:.]+\]:[0-9]{0,5}|[0-9a-fA-F:.]+")
_QUALIFIED = re.compile(
    r"[a-z0-9]([a-z0-9.-]{0,242}[a-z0-9])?/[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LOCKS = ("endpoints", "configmaps", "leases", "endpointsleases", "configmapsleases")


@dataclass(frozen=True, slots=True)
class ExtenderManagedResource:
    """An extended resource the extender is responsible for."""

    name: str
    ignored_by_scheduler: bool = False


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """An extender's `tlsConfig`: paths of PEM files, or their content, which comes first."""

    insecure: bool = False
    ca_file: str = ""
    cert_file: str = ""
    ca_data: str = ""
    cert_data: str = ""

    @property
    def has_ca(self) -> bool:
        """Whether it names whom to trust."""
        return bool(self.ca_file or self.ca_data)


OUTWEIGHED = 140
"""All in-tree scores together are 1400 at most; a point of an extender's is 10 x weight."""


@dataclass(frozen=True, slots=True)
class ExtenderConfig:
    """One entry of `extenders`. An empty verb is not called."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    preempt_verb: str = ""
    weight: int = 0
    enable_https: bool = False
    http_timeout: float = DEFAULT_TIMEOUT
    """Seconds."""
    node_cache_capable: bool = False
    ignorable: bool = False
    managed_resources: tuple[ExtenderManagedResource, ...] = ()
    tls: TlsConfig | None = None
    binds_every_pod: bool = False
    """Its bindVerb and httpTimeout are of another entry with the same URL, without managedResources
    (see `our_entry`): pods that name none of these are bound here, too."""

    @property
    def order_decides(self) -> bool:
        """Whether one point of the extender's counts more than all in-tree scores together."""
        return bool(self.prioritize_verb) and self.weight > OUTWEIGHED


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The content of the file.

    Backoffs in seconds.
    """

    api_version: str
    extenders: tuple[ExtenderConfig, ...] = ()
    profiles: tuple[Profile, ...] = (Profile(),)
    pod_initial_backoff: float = 1.0
    pod_max_backoff: float = 10.0
    warnings: tuple[str, ...] = ()
    """Legal, but hardly meant; for a log."""
    lease: tuple[str, str] | None = DEFAULT_LEASE
    """(namespace, name) of the Lease that the leader holds; None if kube-scheduler elects none."""

    @property
    def percentage_of_nodes_to_score(self) -> int:
        """The least of all profiles; 0 means adaptive."""
        return min(profile.percentage for profile in self.profiles)

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """One for each profile."""
        return tuple(profile.scheduler_name for profile in self.profiles)


def decode_scheduler_config(document: object, release: int = 0) -> SchedulerConfig:
    """Return the configuration in a parsed file. Raises SettingsError naming the fault.

    release: the minor release of kube-scheduler that reads it, 0 if that is not known.
    """
    top = fields_of(document, "scheduler configuration")
    kind, version = text(top, "kind"), text(top, "apiVersion")
    if kind == "Policy" and version == "v1":
        policy = lenient(top)
        warnings = check_keys(top) + check_priorities(policy.fields)
        extenders = _extenders(policy.fields, warnings)
        profile = policy_profile(policy.fields)
        unknown = [f"{_listed(policy.unknown)}: unknown, and not read"] if policy.unknown else []
        warned = (*unknown, *policy.remarks, *warnings)
        return SchedulerConfig("v1", extenders, (profile,), warnings=warned)
    group, _, short = version.partition("/")
    if kind != "KubeSchedulerConfiguration" or group != GROUP or short not in VERSIONS:
        raise SettingsError(
            f"apiVersion {version[:80]!r}, kind {kind[:40]!r}: expected kind Policy of v1, or kind"
            f" KubeSchedulerConfiguration of {GROUP}/{{{','.join(VERSIONS)}}}"
        )
    return _component_config(top, version, release)


def _component_config(document: Fields, version: str, release: int) -> SchedulerConfig:
    short = version.partition("/")[2]
    read = strict(document, short, release)
    top, warnings = read.fields, []
    if read.unknown:
        warnings.append(
            f"{_listed(read.unknown)}: unknown; kube-scheduler up to 1.37 does not start with a key"
            " it does not know"
        )
    initial = number(top, "podInitialBackoffSeconds", default=1)
    longest = number(top, "podMaxBackoffSeconds", default=10)
    if initial <= 0 or longest < initial:
        raise SettingsError(
            "podInitialBackoffSeconds, podMaxBackoffSeconds: must be positive and in this order"
        )
    if number(top, "parallelism", default=16) <= 0:
        raise SettingsError("parallelism: must be positive")
    if number(fields_of(top.get("clientConnection"), ""), "burst") < 0:
        raise SettingsError("clientConnection.burst: must not be negative")
    for key in ("healthzBindAddress", "metricsBindAddress"):
        if _ADDRESS.fullmatch(text(top, key)) is None:
            raise SettingsError(f"{key}: must be an IP address and a port, as 0.0.0.0:10251")
    lease = _leader_election(top, short, release, warnings)
    profiles = read_profiles(top, short, release)
    extenders = _extenders(top, warnings)
    return SchedulerConfig(
        api_version=version,
        extenders=extenders,
        profiles=profiles,
        pod_initial_backoff=float(initial),
        pod_max_backoff=float(longest),
        warnings=tuple(warnings),
        lease=lease,
    )


def _leader_election(
    top: Fields, short: str, release: int, warnings: list[str]
) -> tuple[str, str] | None:
    """Return (namespace, name) of the Lease that the leader holds, None if none is elected."""
    where = "leaderElection"
    election = fields_of(top.get(where), where)
    lock = text(election, "resourceLock", where, "leases")
    elects = flag(election, "leaderElect", where) or election.get("leaderElect") is None
    if elects and lock != "leases":
        shown = f"{where}.resourceLock: {lock[:40]!r}"
        if lock not in _LOCKS or release >= 27:
            raise SettingsError(f"{shown}: must be leases; kube-scheduler does not start otherwise")
        if short in ("v1beta3", "v1"):
            warnings.append(f"{shown}; kube-scheduler from 1.27 on takes leases alone")
    namespace, name = (
        text(election, f"resource{part}", where) or default
        for part, default in zip(("Namespace", "Name"), DEFAULT_LEASE, strict=True)
    )
    for part, value in (("Namespace", namespace), ("Name", name)):
        if NAME.fullmatch(value) is None:
            raise SettingsError(f"{where}.resource{part}: {value[:80]!r} is no name")
    if not elects:
        return None
    times = (election.get(key) for key in ("leaseDuration", "renewDeadline", "retryPeriod"))
    duration, deadline, retry = (
        value if isinstance(value, float) and value else default
        for value, default in zip(times, _LEASE_TIMES, strict=True)
    )
    if not retry * _JITTER < deadline < duration:
        raise SettingsError(
            f"{where}: leaseDuration must be greater than renewDeadline, and that greater than"
            f" {_JITTER} times retryPeriod"
        )
    return namespace, name


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")


def _extenders(top: Fields, warnings: list[str]) -> tuple[ExtenderConfig, ...]:
    """Return the extenders; add to `warnings` legal settings that are probably not meant."""
    extenders = [
        _extender(fields_of(item, f"extenders[{index}]"), f"extenders[{index}]")
        for index, item in enumerate(items(top, "extenders"))
    ]
    for index, extender in enumerate(extenders):
        warnings += _warnings(extender, f"extenders[{index}]")
    _validate(extenders)
    return tuple(extenders)


def _extender(entry: Fields, where: str) -> ExtenderConfig:
    tls = fields_of(entry.get("tlsConfig"), where)
    timeout = entry.get("httpTimeout")
    return ExtenderConfig(
        url_prefix=text(entry, "urlPrefix"),
        filter_verb=text(entry, "filterVerb"),
        prioritize_verb=text(entry, "prioritizeVerb"),
        bind_verb=text(entry, "bindVerb"),
        preempt_verb=text(entry, "preemptVerb"),
        weight=number(entry, "weight"),
        enable_https=flag(entry, "enableHTTPS"),
        http_timeout=timeout if isinstance(timeout, float) and timeout else DEFAULT_TIMEOUT,
        node_cache_capable=flag(entry, "nodeCacheCapable"),
        ignorable=flag(entry, "ignorable"),
        managed_resources=tuple(
            _managed_resource(fields_of(item, where), f"{where}.managedResources[{index}]")
            for index, item in enumerate(items(entry, "managedResources"))
        ),
        tls=TlsConfig(
            flag(tls, "insecure"),
            *(text(tls, key) for key in ("caFile", "certFile", "caData", "certData")),
        )
        if tls
        else None,
    )


def _managed_resource(fields: Fields, where: str) -> ExtenderManagedResource:
    name = text(fields, "name")
    if _QUALIFIED.fullmatch(name) is None:
        raise SettingsError(f"{where}: {name[:80]!r} is no extended resource (domain/name)")
    if "kubernetes.io/" in name:
        raise SettingsError(
            f"{where}: {name[:80]!r} is no extended resource: kubernetes.io/ is Kubernetes' own"
        )
    if name.startswith("requests."):
        raise SettingsError(f"{where}: {name[:80]!r} must not begin with requests.")
    return ExtenderManagedResource(name, flag(fields, "ignoredByScheduler"))


def _validate(extenders: Sequence[ExtenderConfig]) -> None:
    """Check that kube-scheduler would start with these (its rules, the same from 1.22 to 1.35).

    Raises SettingsError.
    """
    for index, extender in enumerate(extenders):
        if extender.prioritize_verb and extender.weight <= 0:
            raise SettingsError(f"extenders[{index}].weight: must be positive to prioritize")
        if extender.tls is not None and extender.tls.insecure and extender.tls.has_ca:
            raise SettingsError(
                f"extenders[{index}].tlsConfig: insecure and a CA; kube-scheduler takes one of them"
            )
    binding = [f"extenders[{index}]" for index, item in enumerate(extenders) if item.bind_verb]
    if len(binding) > 1:
        raise SettingsError(f"{', '.join(binding)}: at most one may have a bindVerb")
    names = Counter(r.name for extender in extenders for r in extender.managed_resources)
    for name, count in names.items():
        if count > 1:
            raise SettingsError(f"extenders: managed resource {name} is named {count} times")


def _warnings(extender: ExtenderConfig, where: str) -> list[str]:
    warnings = []
    if not extender.bind_verb and "gpu-mem" in " ".join(r.name for r in extender.managed_resources):
        warnings.append(
            f"{where}.bindVerb: missing, so kube-scheduler binds pods itself, and none of them gets"
            " a device"
        )
    if not extender.url_prefix:
        warnings.append(f"{where}.urlPrefix: empty, so no call can succeed")
    if extender.ignorable and extender.bind_verb:
        warnings.append(
            f"{where}.ignorable: kube-scheduler (1.30 on) binds without the extender when a bind"
            " fails, and pods then run without an allocation"
        )
    if extender.filter_verb and not extender.node_cache_capable:
        warnings.append(f"{where}.nodeCacheCapable: false sends whole nodes with every call")
    if extender.enable_https and extender.tls is None:
        warnings.append(f"{where}.tlsConfig: without a CA the certificate is not verified")
    if extender.filter_verb and not extender.ignorable and not extender.managed_resources:
        warnings.append(
            f"{where}.managedResources: empty, so every pod of the cluster waits for the extender"
        )
    return warnings
