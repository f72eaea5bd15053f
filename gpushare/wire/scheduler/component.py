"""A KubeSchedulerConfiguration around its extenders: the checks kube-scheduler makes at its start.

Knows back-offs and leader election as far as a file can be wrong there; not the extenders, and not
the profiles, which profiles.py reads.

Tested in `tests/unit/wire/scheduler/test_config.py`.
"""

from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.fields import NAME, Fields, fields_of, flag, number, text
from gpushare.wire.scheduler.dialects import (
    CLIENT_KEYS,
    COMPONENT_KEYS,
    LEADER_KEYS,
    Strict,
)
from gpushare.wire.scheduler.profiles import Profile, read_profiles

DEFAULT_LEASE = ("kube-system", "kube-scheduler")
DEFAULT_LEASE_TIMES = (15.0, 10.0, 2.0)
_JITTER = 1.2
"""By how much client-go spreads the retries."""


@dataclass(frozen=True, slots=True)
class Component:
    """What such a file says besides extenders; fields as of SchedulerConfig."""

    profiles: tuple[Profile, ...]
    initial_backoff: float
    max_backoff: float
    lease: tuple[str, str] | None
    lease_times: tuple[float, float, float]


def read_component(dialect: Strict, document: Fields, short: str) -> Component:
    """Return what the file says besides extenders. `short`: its version, such as v1beta3.

    Raises SettingsError naming the field that kube-scheduler would refuse; what is unknown or odd
    is left in the dialect.
    """
    top = dialect.fields(document, COMPONENT_KEYS, "")
    initial = number(top, "podInitialBackoffSeconds", default=1)
    longest = number(top, "podMaxBackoffSeconds", default=10)
    if initial <= 0 or longest < initial:
        raise SettingsError(
            "podInitialBackoffSeconds, podMaxBackoffSeconds: must be positive and in this order"
        )
    if number(top, "parallelism", default=16) <= 0:
        raise SettingsError("parallelism: must be positive")
    dialect.fields(top.get("clientConnection"), CLIENT_KEYS, "clientConnection")
    lease = _leader_election(dialect, top, short)
    profiles = read_profiles(dialect, top, short)
    times = _lease_times(dialect, top) if lease else DEFAULT_LEASE_TIMES
    return Component(profiles, float(initial), float(longest), lease, times)


def _leader_election(dialect: Strict, top: Fields, short: str) -> tuple[str, str] | None:
    """Return (namespace, name) of the Lease that the leader holds; None if none is elected."""
    where = "leaderElection"
    election = dialect.fields(top.get(where), LEADER_KEYS, where)
    elects = flag(election, "leaderElect", where) or election.get("leaderElect") is None
    lock = text(election, "resourceLock", where, "leases")
    if lock != "leases" and short in ("v1beta3", "v1"):
        dialect.remarks.append(
            f"{where}.resourceLock: {lock[:40]!r}; kube-scheduler from 1.27 on takes leases alone"
        )
    namespace, name = (
        text(election, f"resource{what}", where) or default
        for what, default in zip(("Namespace", "Name"), DEFAULT_LEASE, strict=True)
    )
    for what, found in (("Namespace", namespace), ("Name", name)):
        if NAME.fullmatch(found) is None:
            raise SettingsError(f"{where}.resource{what}: {found[:80]!r} is no name")
    return (namespace, name) if elects else None


def _lease_times(dialect: Strict, top: Fields) -> tuple[float, float, float]:
    """Return leaseDuration, renewDeadline and retryPeriod in seconds."""
    where = "leaderElection"
    election = fields_of(top.get(where), where)
    duration, deadline, retry = (
        dialect.seconds(election.get(key), f"{where}.{key}", default)
        for key, default in zip(
            ("leaseDuration", "renewDeadline", "retryPeriod"), DEFAULT_LEASE_TIMES, strict=True
        )
    )
    if not retry * _JITTER < deadline < duration:
        raise SettingsError(
            f"{where}: leaseDuration must be greater than renewDeadline, and that greater than"
            f" {_JITTER} times retryPeriod"
        )
    return duration, deadline, retry
