"""Checks of the extender: it must answer, be ready, and be called by kube-scheduler.

Pure.
"""

import re
from collections.abc import Iterator

from gpushare import __version__
from gpushare.doctor.checks.claims import served_alone
from gpushare.doctor.checks.pods import is_left_out
from gpushare.doctor.facts import ExtenderSeen, Facts, PodSeen, Unread
from gpushare.doctor.finding import Finding, count, fail, ok, skip, some, warn
from gpushare.wire.metrics import ranking_policies, total

_PENDING_GRACE = 60.0
"""Seconds a GPU pod may wait without a filter call."""
_RETRIED = 300.0
"""Seconds within which kube-scheduler tries every pod again, whatever it waits for."""
_OK = 200


def check_extender(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the process at --extender."""
    seen = facts.extender
    if seen is None:
        yield skip(
            "extender",
            "not asked, so whether kube-scheduler calls it is not known",
            "give --extender http://HOST:PORT, its health listener (kubectl port-forward helps)",
        )
        return
    if isinstance(seen, Unread):
        yield seen.finding("extender")
        return
    yield _alive(seen)
    yield _version(seen)
    yield from _policies(seen)
    yield _calls(seen, facts)


def _alive(seen: ExtenderSeen) -> Finding:
    if seen.live != _OK:
        return fail("extender", f"/livez says {seen.live}", "restart it, and keep its log")
    if _stands_by(seen):
        return warn(
            "extender",
            "does not lead, and is well otherwise",
            "ask the one that leads; if none of them does, look into their logs",
        )
    if seen.ready != _OK:
        problem = "; ".join(_failing(seen)) or f"/readyz says {seen.ready}"
        return fail(
            "extender",
            f"is not ready: {problem}",
            "look into its log; missing rights are the usual reason",
        )
    return ok("extender", "alive and ready")


def _failing(seen: ExtenderSeen) -> list[str]:
    return [line[3:] for line in seen.ready_text.splitlines() if line.startswith("[-]")]


def _stands_by(seen: ExtenderSeen) -> bool:
    """Return whether it is not ready only because another process leads."""
    failing = _failing(seen)
    return bool(failing) and all(line.startswith("leadership ") for line in failing)


def _version(seen: ExtenderSeen) -> Finding:
    for sample in seen.samples:
        match = re.fullmatch(r'gpushare_build_info\{version="([^"]{1,64})"\}', sample)
        if match and match[1] != __version__:
            return warn(
                "extender-version",
                f"it is {match[1]}, this command is {__version__}",
                "use the command of the same version, or update the extender",
            )
        if match:
            return ok("extender-version", match[1])
    return warn(
        "extender-version",
        "its metrics name no version: is it another program?",
        "give --extender the address of its --health-listen",
    )


def _policies(seen: ExtenderSeen) -> Iterator[Finding]:
    """Yield which policy ranks for each resource, and what the last trial of `auto` measured."""
    for resource, policy in ranking_policies(seen.samples).items():
        tried = [f"{name} {allocated:.1f}" for name, allocated in policy.allocated.items()]
        last = f"; % of the memory allocated in the last trial: {', '.join(tried)}" * bool(tried)
        yield ok("policy", f"pods of {resource} are ranked by {policy}{last}")


def _calls(seen: ExtenderSeen, facts: Facts) -> Finding:
    name = "filter-calls"
    if _stands_by(seen):
        return skip(name, "nobody needs to call one that does not lead", "ask the one that leads")
    if served_alone(facts):
        return _alone(facts)
    waiting = total(seen.samples, "gpushare_pending_without_call_seconds") or 0.0
    todo = (
        "look whether kube-scheduler runs with the file (its flag --config), reaches urlPrefix,"
        " and manages the resource"
    )
    if waiting > _PENDING_GRACE:
        problem = (
            f"a GPU pod that has room has been waiting for {waiting:.0f} s without a filter call"
        )
        if waiting > _RETRIED:
            return fail(name, problem, todo)
        return warn(name, problem, f"if that goes on for {_RETRIED / 60:.0f} minutes, {todo}")
    calls = total(seen.samples, "gpushare_requests_total", verb="filter") or 0.0
    if calls:
        return ok(name, f"{count(int(calls), 'filter call')} since the extender started")
    pending = [pod for pod in _pending(facts) if not is_left_out(pod)]
    if any(pod.age > _PENDING_GRACE for pod in pending):
        waits = f"{count(len(pending), 'GPU pod')} waiting"
        return fail(name, f"none since the extender started, with {waits}", todo)
    return warn(
        name,
        "none since the extender started; no GPU pod has been waiting for one",
        "create a GPU pod and run this again",
    )


def _alone(facts: Facts) -> Finding:
    """Return the finding about an extender that serves claims and nothing else."""
    if pending := _pending(facts):
        return fail(
            "filter-calls",
            f"it serves claims alone, and {some(pod.name for pod in pending)} ask by"
            f" {facts.names.resource}: nobody gives them devices",
            "have claims made of them (docs/claims-pods.md), or serve them (docs/modes.md)",
        )
    return ok("filter-calls", "it serves claims alone (--claims-alone), so none is to come")


def _pending(facts: Facts) -> list[PodSeen]:
    return [pod for pod in facts.known_pods.gpu if not (pod.node or pod.gated)]
