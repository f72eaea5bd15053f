"""A KubeSchedulerConfiguration around its extenders: the checks kube-scheduler makes at its start.

Knows profiles, back-offs, percentages and leader election as far as a file can be wrong there; not
the extenders, and not what a plug-in makes of its arguments.
"""

from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.fields import NAME, Fields, fields_of, flag, items, number, text
from gpushare.wire.scheduler.dialects import (
    CLIENT_KEYS,
    COMPONENT_KEYS,
    LEADER_KEYS,
    PROFILE_KEYS,
    V1ALPHA1_KEYS,
    V1ALPHA2_KEYS,
    Strict,
)

DEFAULT_SCHEDULER = "default-scheduler"
DEFAULT_LEASE = ("kube-system", "kube-scheduler")


@dataclass(frozen=True, slots=True)
class Component:
    """What such a file says besides extenders; fields as of SchedulerConfig."""

    percentage: int
    names: tuple[str, ...]
    initial_backoff: float
    max_backoff: float
    lease: tuple[str, str] | None


def read_component(dialect: Strict, document: Fields, short: str) -> Component:
    """Return what the file says besides extenders. `short`: its version, such as v1beta3.

    Raises SettingsError naming the field that kube-scheduler would refuse; what is unknown or odd
    is left in the dialect.
    """
    known = {"v1alpha1": V1ALPHA1_KEYS, "v1alpha2": V1ALPHA2_KEYS}.get(short, COMPONENT_KEYS)
    top = dialect.fields(document, known, "")
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
    names = (
        (text(top, "schedulerName") or DEFAULT_SCHEDULER,)
        if short == "v1alpha1"
        else _scheduler_names(dialect, top)
    )
    return Component(_least_percentage(top), names, float(initial), float(longest), lease)


def _least_percentage(top: Fields) -> int:
    """Return the least percentageOfNodesToScore of all profiles; a profile's own goes before the
    file's.
    """
    general = _percentage(top, "")
    named = [(f"profiles[{index}]", item) for index, item in enumerate(items(top, "profiles"))]
    own = (_percentage(fields_of(item, where), where, general) for where, item in named)
    return min(own, default=general)


def _percentage(fields: Fields, where: str, default: int = 0) -> int:
    percentage = number(fields, "percentageOfNodesToScore", where, default)
    if not 0 <= percentage <= 100:
        path = f"{where}.percentageOfNodesToScore" if where else "percentageOfNodesToScore"
        raise SettingsError(f"{path}: must be from 0 to 100")
    return percentage


def _leader_election(dialect: Strict, top: Fields, short: str) -> tuple[str, str] | None:
    """Return (namespace, name) of the Lease that the leader holds; None where none is elected."""
    where = "leaderElection"
    election = dialect.fields(top.get(where), LEADER_KEYS, where)
    elects = flag(election, "leaderElect", where) or election.get("leaderElect") is None
    lock = text(election, "resourceLock", where, "leases")
    if lock != "leases" and short in ("v1beta3", "v1"):
        dialect.remarks.append(
            f"{where}.resourceLock: {lock[:40]!r}; kube-scheduler from 1.27 on takes leases alone"
        )
    namespace, name = (
        # v1alpha1 has two names for it.
        text(election, f"resource{what}", where)
        or text(election, f"lockObject{what}", where)
        or default
        for what, default in zip(("Namespace", "Name"), DEFAULT_LEASE, strict=True)
    )
    for what, found in (("Namespace", namespace), ("Name", name)):
        if NAME.fullmatch(found) is None:
            raise SettingsError(f"{where}.resource{what}: {found[:80]!r} is no name")
    return (namespace, name) if elects else None


def _scheduler_names(dialect: Strict, top: Fields) -> tuple[str, ...]:
    profiles = items(top, "profiles")
    # kube-scheduler fills in a name where there is one profile, and wants one in each of several.
    default = DEFAULT_SCHEDULER if len(profiles) == 1 else ""
    names, sorts = [], set()
    for index, item in enumerate(profiles):
        where = f"profiles[{index}]"
        profile = dialect.fields(item, PROFILE_KEYS, where)
        names.append(text(profile, "schedulerName", where, default))
        sorts.add(_queue_sort(profile, f"{where}.plugins"))
        if not names[-1]:
            raise SettingsError(f"{where}.schedulerName: missing")
    if len(set(names)) != len(names):
        raise SettingsError("profiles: each needs a schedulerName of its own")
    if len(sorts) > 1:
        raise SettingsError("profiles: all share one queue, so their queueSort plugin must be one")
    return tuple(names) or (DEFAULT_SCHEDULER,)


def _queue_sort(profile: Fields, where: str) -> tuple[str, ...]:
    plugins = fields_of(profile.get("plugins"), where)
    where = f"{where}.queueSort"
    enabled = items(fields_of(plugins.get("queueSort"), where), "enabled", where)
    names = (text(fields_of(item, where), "name", where) for item in enabled)
    return tuple(names) or ("PrioritySort",)
