"""Checks of the API server: answers, version, clocks, and the rights of the extender's account.

Pure; the list of rights is that of docs/settings.md, "Rights".

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare.doctor.checks.scheduler_file import entry_of
from gpushare.doctor.facts import ApiServer, ExtenderAnswers, Facts, Right, SchedulerFile, Unread
from gpushare.doctor.finding import Check, Finding, some
from gpushare.wire.kept import LEASE, MOVES
from gpushare.wire.metrics import total
from gpushare.wire.scheduler.config import DEFAULT_LEASE

OLDEST_MINOR = 23
"""The first API server that honours the uid of a Binding (kubernetes #105261, #105913)."""

_LARGEST_SKEW = 5.0
"""Seconds."""

_LEASES = ("leases", "coordination.k8s.io")
_SIZE_APIS = (
    *(("podgroups", f"scheduling.{of}") for of in ("k8s.io", "x-k8s.io", "volcano.sh")),
    ("leaderworkersets", "leaderworkerset.x-k8s.io"),
    ("jobsets", "jobset.x-k8s.io"),
)
"""Plural and API group of the objects that tell the sizes of groups."""
REQUIRED = (
    *(Right(verb, "nodes") for verb in ("list", "watch")),
    *(Right(verb, "pods") for verb in ("get", "list", "watch")),
    Right("create", "pods/binding"),
)
"""Rights that the extender always needs."""

EXCESS = tuple(Right(verb, "pods") for verb in ("patch", "update"))
"""Rights that the extender never uses."""


def check_server(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the API server and the clocks."""
    api = facts.api
    if isinstance(api, Unread):
        yield api.finding("api-server")
    else:
        yield Check("api-server").ok(f"answers, {api.git_version}")
        if not api.minor:
            yield Check("api-version").skip(f"{api.git_version!r} is no version we can read")
        elif api.minor < OLDEST_MINOR:
            yield Check("api-version").fail(
                f"1.{api.minor} ignores the uid of a Binding, so a pod created again under its name"
                " can be bound with the devices of the old one",
                f"use an API server from 1.{OLDEST_MINOR} on (the scheduler may stay at 1.22)",
            )
        else:
            yield Check("api-version").ok(f"1.{api.minor} honours the uid of a Binding")
    yield _clock(facts)


def _clock(facts: Facts) -> Finding:
    skews = {}
    if isinstance(facts.api, ApiServer):
        skews["the API server"] = facts.api.ahead
    if isinstance(facts.extender, ExtenderAnswers):
        skews["the extender"] = facts.extender.ahead
    clocks = {who: ahead for who, ahead in skews.items() if ahead is not None}
    if not clocks:
        return Check("clock").skip("nobody said what time it is")
    far = [
        f"{who} is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        for who, ahead in clocks.items()
        if abs(ahead) > _LARGEST_SKEW
    ]
    if far:
        return Check("clock").warn(
            f"compared with this machine, {', and '.join(far)}",
            "set the clocks by NTP: device plug-ins serve pods in the order of their assume times",
        )
    return Check("clock").ok(
        f"{' and '.join(clocks)} and this machine agree within {_LARGEST_SKEW:.0f} s"
    )


def lease_rights(namespace: str) -> Sequence[Right]:
    """Return the rights needed with --leadership lease."""
    return (
        # RBAC cannot restrict a create to one name: the path of the request has none.
        Right("create", *_LEASES, namespace),
        *(Right(verb, *_LEASES, namespace, LEASE) for verb in ("get", "update")),
    )


def scheduler_lease_rights(scheduler: SchedulerFile | Unread | None) -> Sequence[Right]:
    """Return the rights for --leadership scheduler; none if kube-scheduler has no Lease."""
    lease = scheduler.config.lease if isinstance(scheduler, SchedulerFile) else DEFAULT_LEASE
    return () if lease is None else (Right("get", *_LEASES, *lease),)


def is_follower(facts: Facts) -> bool:
    """Return whether the account is that of a follower: with no right to a Lease of our own."""
    rights = {} if isinstance(facts.rights, Unread) else facts.rights
    leads = any(rights.get(right) for right in lease_rights(facts.namespace))
    return not leads and any(rights.get(right) for right in scheduler_lease_rights(facts.scheduler))


def move_rights(namespace: str) -> Sequence[Right]:
    """Return the rights needed with --defrag-moves-per-hour."""
    return (
        Right("list", "namespaces"),
        Right("list", "poddisruptionbudgets", "policy"),
        Right("create", "pods/eviction"),
        Right("create", "configmaps", "", namespace),
        *(Right(verb, "configmaps", "", namespace, MOVES) for verb in ("get", "update")),
    )


def optional_rights(namespace: str) -> dict[Right, str]:
    """Return the optional rights, each with the effect of its absence."""
    maps = "no ConfigMap closes devices"
    wakes = "a pod may wait 5 minutes for a device that a ConfigMap opens"
    budgets = "preemption does not spare pods under a PodDisruptionBudget"
    sizes = "groups of pods that do not say their size themselves are bound pod by pod"
    return {
        **{Right(v, "configmaps", "", namespace): maps for v in ("list", "watch")},
        Right("patch", "nodes"): wakes,
        **{Right(v, "poddisruptionbudgets", "policy"): budgets for v in ("list", "watch")},
        **{Right(v, *kind): sizes for kind in _SIZE_APIS for v in ("list", "watch")},
        **{
            Right(v, "events", "events.k8s.io"): "no events tell about decisions"
            for v in ("create", "patch")
        },
    }


def rights_to_review(namespace: str, scheduler: SchedulerFile | Unread | None) -> Sequence[Right]:
    """Return all rights to review."""
    leading = (*lease_rights(namespace), *scheduler_lease_rights(scheduler))
    rights = (*REQUIRED, *leading, *optional_rights(namespace), *EXCESS)
    return tuple(dict.fromkeys((*rights, *move_rights(namespace))))


def missing_rights(
    name: Check, lacking: Iterable[Right], todo: str, *, own_account: bool
) -> Finding:
    """Return the finding of this name about missing rights.

    own_account: the account that was used is the extender's.
    """
    rights = some(map(str, lacking))
    if own_account:
        return name.fail(f"the extender's account may not {rights}", todo)
    return name.warn(
        f"the account used here may not {rights}; whether the extender's may is not known",
        "run this as the extender: in its pod, or with its kubeconfig and --as-extender",
    )


def check_rights(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the account that was used."""
    rights = facts.rights
    if isinstance(rights, Unread):
        yield rights.finding("rights")
        return
    lacking = [right for right in REQUIRED if not rights.get(right)]
    unled = [right for right in lease_rights(facts.namespace) if not rights.get(right)]
    if not any(rights.get(right) for right in scheduler_lease_rights(facts.scheduler)):
        lacking += unled
    if lacking:
        todo = "apply the ClusterRole and Role of docs/settings.md, Rights"
        yield missing_rights(Check("rights"), lacking, todo, own_account=facts.own_account)
    elif facts.own_account and unled and not is_follower(facts):
        # As an account of a second scheduler, which may read kube-scheduler's Lease, too.
        yield Check("rights").warn(
            f"the extender's account may not {some(map(str, unled))}: it can lead only with"
            " --leadership scheduler",
            "with --leadership lease, apply the Role of docs/settings.md, Rights",
        )
    elif facts.own_account:
        only = " with --leadership scheduler" if unled else ""
        yield Check("rights").ok(f"the extender's account may do all that is needed{only}")
    else:
        yield Check("rights").ok(
            "the account used here may do all the extender needs (not its own)"
        )
    if facts.own_account:
        yield from _extras(facts, rights)


def _extras(facts: Facts, rights: Mapping[Right, bool]) -> Iterator[Finding]:
    entry = entry_of(facts)
    evicts = entry is None or bool(entry.preempt_verb)
    missed = {
        right: effect
        for right, effect in optional_rights(facts.namespace).items()
        if not rights.get(right) and (evicts or right.group != "policy")
    }
    if missed:
        whys = "; ".join(sorted(set(missed.values())))
        yield Check("rights-useful").warn(
            f"the extender's account may not {some(map(str, missed))}: {whys}",
            "grant them if that is wanted",
        )
    answers = facts.extender
    if (
        isinstance(answers, ExtenderAnswers)
        and total(answers.samples, "gpushare_moves_left") is not None
    ):
        lacking = [right for right in move_rights(facts.namespace) if not rights.get(right)]
        if lacking:
            yield Check("rights-moves").fail(
                "--defrag-moves-per-hour is on, and the extender's account may not"
                f" {some(map(str, lacking))}",
                "apply config/extender/moves, or leave the option out",
            )
        else:
            yield Check("rights-moves").ok("the extender's account may do all that moves need")
    spare = [right for right in EXCESS if rights.get(right)]
    if spare:
        yield Check("rights-to-spare").warn(
            f"the extender's account may {some(map(str, spare))}, which it never does",
            "take the right away; the annotations travel with the Binding",
        )
    else:
        yield Check("rights-to-spare").ok("the extender's account may not change pods")
