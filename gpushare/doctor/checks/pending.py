"""Checks of the pods that wait, each by its condition PodScheduled.

Pure. Events are not read: they end after an hour and need a right of their own, and kube-scheduler
writes the same text to the condition.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator

from gpushare.core.model import Reason
from gpushare.doctor.checks.pods import mistake
from gpushare.doctor.facts import Facts, PodSeen, SchedulerFile, Unread
from gpushare.doctor.finding import Finding, fail, grouped, ok, warn
from gpushare.wire.conditions import counted

_NAME = "pending-pods"
_GRACE = 30.0
"""Seconds within which some scheduler looks at a pod."""
_BURST = 300.0
"""Seconds within which a pod that comes with many others is bound."""
_MAX_SHOWN = 200


def check_pending(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for all pods that wait in the same way.

    Those that ask for what makes no sense have a line of their own (checks/pods.py).
    """
    if isinstance(facts.pods, Unread):
        return
    waiting = [pod for pod in facts.pods.gpu if not (pod.node or pod.gated or mistake(pod, facts))]
    if waiting:
        yield from grouped((pod.name, _verdict(pod, facts)) for pod in waiting)
    else:
        yield ok(_NAME, "none")


def _verdict(pod: PodSeen, facts: Facts) -> Finding:
    file = facts.scheduler
    known = file.config.scheduler_names if isinstance(file, SchedulerFile) else (pod.scheduler,)
    if pod.reason is None:
        if pod.age <= _GRACE:
            return ok(_NAME, "waits since a moment ago")
        todo = f"look whether a scheduler named {pod.scheduler} runs"
        return fail(_NAME, "no scheduler has looked so far", todo)
    said = " ".join(pod.message.split())[:_MAX_SHOWN]
    if pod.scheduler not in known:
        todo = f"write schedulerName: {known[0]}, whose pods come to the extender"
        return warn(_NAME, f"refused by another scheduler, {pod.scheduler}: {said}", todo)
    if _is_refused_bind(pod.message) and pod.age <= _BURST:
        return ok(_NAME, f"its bind came too late, and is tried again: {said}")
    if pod.reason == "SchedulerError":
        todo = "a text about the extender means that urlPrefix is wrong or that it does not answer"
        return fail(_NAME, f"scheduling fails: {said}", todo)
    if any(reason.value in pod.message for reason in Reason if reason.resolvable):
        return ok(_NAME, f"waits for room, as the extender has said: {said}")
    if _is_ours(pod, facts):
        todo = "change what the pod asks for, or the nodes: other pods that end do not help"
        return warn(_NAME, f"refused by the extender: {said}", todo)
    if is_left_out(pod):
        return ok(_NAME, f"waits, as kube-scheduler's own filters leave no node: {said}")
    todo = "either kube-scheduler's own filters leave no node, or it does not call the extender"
    return warn(_NAME, f"refused without a word of the extender: {said}", todo)


def is_left_out(pod: PodSeen) -> bool:
    """Return whether kube-scheduler's own filters left no node for it, so that it asked nobody."""
    nodes, own, ours = counted(" ".join(pod.message.split()))
    return bool(nodes and own and not ours)


def _is_refused_bind(message: str) -> bool:
    """Return whether the extender has refused a bind of the pod: in a burst one of several is."""
    return "binding rejected: gpushare: " in message.lower()


def _is_ours(pod: PodSeen, facts: Facts) -> bool:
    """Return whether the extender has refused the pod: for the nodes, or for what the pod says.

    kube-scheduler itself names the resource in one text alone.
    """
    names = facts.names
    own = pod.message.replace(f"Insufficient {names.resource}", "")
    texts = [reason.value for reason in Reason]
    texts += [names.resource, names.count, names.policy]
    return any(text in own for text in texts)
