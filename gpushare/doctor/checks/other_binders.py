"""Checks for other binders of GPU pods, and for a leader: two binders give a device out twice.

Pure.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator

from gpushare.doctor.checks.server import is_follower
from gpushare.doctor.facts import Facts, ListedLease, ListedPods, Unread
from gpushare.doctor.finding import Check, Finding, some
from gpushare.wire.metrics import total

_NAME = Check("two-binders")
_GRACE = 15.0
"""Seconds after a change of leader until the last bind of the earlier leader has landed."""
_SLACK = 5.0
"""Seconds that the clocks of a leader and the API server may differ."""


def check_other_binders(facts: Facts) -> Iterator[Finding]:
    """Yield findings about other binders and about leadership."""
    yield _rivals(facts)
    yield _leadership(facts)


def _rivals(facts: Facts) -> Finding:
    pods = facts.known_pods
    if pods.originals:
        return _NAME.fail(
            f"the original extender runs too: {some(pods.originals)}",
            "scale its Deployment to 0 and delete its Service, whose node port 32766 takes the"
            " calls meant for us; the pods it has bound are taken over as they are",
        )
    leases = () if isinstance(facts.leases, Unread) else facts.leases
    leading = [lease for lease in leases if _fresh(lease, facts)]
    if len(leading) > 1:
        return _NAME.fail(
            f"extenders lead in {some(lease.namespace for lease in leading)} at once, each with"
            " books of its own",
            "leave one of them",
        )
    foreign = _foreign(pods, leading[0]) if leading else []
    if foreign:
        return _NAME.fail(
            f"{some(foreign)}: given devices by somebody else while our extender leads",
            "look which other extender or scheduler binds GPU pods, and stop it",
        )
    rival_binds = total(facts.samples, "gpushare_alarms_total", kind="bound_by_another")
    if rival_binds:
        return _NAME.warn(
            f"the extender has seen {rival_binds:.0f} pods bound by another while it bound them",
            "look which other extender or scheduler binds GPU pods, and stop it",
        )
    if isinstance(facts.pods, Unread):
        return _NAME.skip("pods were not read")
    if pods.alike:
        return _NAME.warn(
            "called like the original extender, but made by a node or outside kube-system:"
            f" {some(pods.alike)}",
            "look whose pods these are: anybody can give a pod that name; does kube-scheduler's"
            " file call them?",
        )
    return _NAME.ok("no sign of another extender")


def _foreign(pods: ListedPods, lease: ListedLease) -> list[str]:
    """Return the pods that were bound in our leader's term without our map of containers.

    Only our extender always writes the map. The time in the annotations is no time of a bind: the
    original's device plug-in overwrites it when it serves the pod.
    """
    if not lease.acquired:
        return []
    since = lease.acquired + _GRACE
    return [pod.name for pod in pods.gpu if pod.assumed and not pod.mapped and pod.bound_at > since]


def _fresh(lease: ListedLease, facts: Facts) -> bool:
    """Return whether the Lease is fresh by the API server's clock: holders' clocks are checked
    elsewhere.
    """
    return bool(lease.holder) and facts.now_there < lease.renewed + lease.duration + _SLACK


def _leadership(facts: Facts) -> Finding:
    name = Check("leadership")
    if isinstance(facts.leases, Unread):
        if is_follower(facts):
            return name.skip("this account follows kube-scheduler's Lease, and has none of its own")
        return facts.leases.finding(name)
    own_leases = [lease for lease in facts.leases if lease.namespace == facts.namespace]
    if not own_leases:
        return name.skip(
            f"no Lease in {facts.namespace}: never started there, or --leadership is another",
            "give --namespace that of the extender",
        )
    if _fresh(own_leases[0], facts):
        return name.ok(f"{own_leases[0].holder} leads")
    if facts.leader:
        return name.warn(
            f"the extender leads, but nobody has lately renewed the Lease in {facts.namespace}",
            "compare the clocks; the Lease of an extender that is no more, or whose --leadership"
            " is another now, may be deleted",
        )
    return name.fail(
        "nobody leads: the Lease is "
        + (f"no longer renewed by {own_leases[0].holder}" if own_leases[0].holder else "free"),
        "start the extender, or look into its log",
    )
