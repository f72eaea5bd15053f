"""Checks of the pods: what they ask for must make sense, bound ones must name their devices, and
those that wait have a reason in their condition PodScheduled.

Pure. Events are not read: they end after an hour and need a right of their own, and kube-scheduler
writes the same text to the condition.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator
from functools import partial

from gpushare.core.model import NodeSpec, Reason
from gpushare.doctor.facts import Facts, NodeSeen, PodSeen, PodsSeen, SchedulerFile, Unread
from gpushare.doctor.finding import Finding, fail, grouped, ok, skip, some, warn
from gpushare.wire.conditions import counted
from gpushare.wire.request_mistakes import wrong_unit

_SERVED = 300.0
"""Seconds within which a bound pod is served: the kubelet asks the device plug-in when it admits
the pod, before it pulls an image.
"""
_PENDING = "pending-pods"
_GRACE = 30.0
"""Seconds within which some scheduler looks at a pod."""
_BURST = 300.0
"""Seconds within which a pod that comes with many others is bound."""
_MAX_SHOWN = 200


def check_pods(facts: Facts) -> Iterator[Finding]:
    """Yield findings about pods that ask for the resource."""
    pods = facts.pods
    if isinstance(pods, Unread):
        yield pods.finding("pods")
        return
    wrong = [(pod.name, why) for pod in pods.gpu if (why := mistake(pod, facts))]
    if not wrong:
        yield ok("pods", f"{len(pods.gpu)} that have not ended ask for GPU memory")
    todo = "create it again with an amount that is right"
    yield from grouped((name, fail("pods", why, todo)) for name, why in wrong)
    # What does not go with device memory, of pods that wait and that run.
    misplaced = [(pod.name, pod.misplaced) for pod in pods.gpu if pod.misplaced]
    misplaced += pods.counting
    if not misplaced:
        yield ok("pod-extras", "none asks for, or sets, what does not go with device memory")
    todo = "correct it, and create the pod again"
    yield from grouped((name, warn("pod-extras", why, todo)) for name, why in misplaced)
    yield _schedulers(facts, pods)
    yield _unplaced(pods, facts.known_nodes)
    yield _moved(pods, facts.nodes)
    yield _unserved(pods, facts)


def mistake(pod: PodSeen, facts: Facts) -> str:
    """Return what is wrong with what the pod asks for, and what to write; "" if nothing is."""
    return pod.broken or wrong_unit(
        pod.request, facts.names, facts.unit, partial(_largest, facts.known_nodes)
    )


def _largest(nodes: tuple[NodeSeen, ...]) -> int:
    return max((units for node in nodes for units in node.spec.capacity), default=0)


def _schedulers(facts: Facts, pods: PodsSeen) -> Finding:
    name = "scheduler-names"
    if not isinstance(facts.scheduler, SchedulerFile):
        return skip(name, "which names kube-scheduler goes by is in its file (--scheduler-config)")
    known = facts.scheduler.config.scheduler_names
    others = [
        pod
        for pod in pods.gpu
        if pod.scheduler not in known and not (pod.node and pod.placement is not None)
    ]
    if others:
        return fail(
            name,
            f"{some(pod.name for pod in others)}: schedulerName"
            f" {some({pod.scheduler for pod in others})}, so they never come to the extender",
            f"write schedulerName: {known[0]} into them",
        )
    return ok(name, f"GPU pods go by {', '.join(known)}")


def _unplaced(pods: PodsSeen, nodes: tuple[NodeSeen, ...]) -> Finding:
    devices = {node.name: len(node.spec.capacity) for node in nodes}
    unplaced = [pod.name for pod in pods.gpu if pod.node and not _placed(pod, devices)]
    if unplaced:
        return warn(
            "unplaced-pods",
            f"{some(unplaced)}: run on devices nobody knows, so they count on every device of their"
            " node",
            "delete them, so that they are bound through the extender when created again",
        )
    return ok("unplaced-pods", "none: every running GPU pod is on known devices")


def _moved(pods: PodsSeen, nodes: tuple[NodeSeen, ...] | Unread) -> Finding:
    name = "moved-devices"
    if isinstance(nodes, Unread):
        return skip(name, "which cards are where is told by the nodes")
    specs = {node.name: node.spec for node in nodes}
    moved = [pod.name for pod in pods.gpu if pod.node in specs and _misplaced(pod, specs[pod.node])]
    if moved:
        return warn(
            name,
            f"{some(moved)}: bound to cards that are not at their indices now (one has died, or was"
            " moved), and charged wherever they may run",
            "delete them, first those that have not started, so that they are created again on"
            " cards that are there",
        )
    return ok(name, "none: every card named by a pod is at its index")


def _misplaced(pod: PodSeen, spec: NodeSpec) -> bool:
    """Return whether a card that the pod names is at another index now, or gone."""
    uuids = spec.uuids + ("",) * len(pod.uuids)
    beside = zip(pod.placement or (), pod.uuids, strict=False)
    return bool(spec.capacity) and any(
        uuid and (index >= len(uuids) or uuids[index] != uuid) for (index, _), uuid in beside
    )


def _unserved(pods: PodsSeen, facts: Facts) -> Finding:
    name = "unserved-pods"
    if isinstance(facts.nodes, Unread):
        return skip(name, "which device plug-ins mark the pods they serve is told by the nodes")
    marking = {node.name for node in facts.nodes if node.spec.marks_served}
    unserved = {
        pod.name: pod
        for pod in pods.gpu
        if pod.node in marking and pod.placement is not None and not pod.assigned
        if pod.bound and facts.now_there - pod.bound > _SERVED
    }
    if not unserved:
        return ok(name, "none: device plug-ins have marked what has been bound for minutes")
    nodes = some({pod.node for pod in unserved.values()})
    return warn(
        name,
        f"{some(unserved)}: bound for over {_SERVED / 60:.0f} minutes, and no device plug-in has"
        f" marked them served, so they wait, or run without their device ({nodes})",
        "look into the logs of the device plug-in and the kubelet there; then delete the pods that"
        " run, so that they are created again",
    )


def _placed(pod: PodSeen, devices: dict[str, int]) -> bool:
    if pod.placement is None:
        return False
    number = devices.get(pod.node)
    return not number or all(index < number for index, _ in pod.placement)


def check_pending(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for all pods that wait in the same way.

    Those that ask for what makes no sense have a line of their own (`check_pods`).
    """
    if isinstance(facts.pods, Unread):
        return
    waiting = [pod for pod in facts.pods.gpu if not (pod.node or pod.gated or mistake(pod, facts))]
    if waiting:
        yield from grouped((pod.name, _verdict(pod, facts)) for pod in waiting)
    else:
        yield ok(_PENDING, "none")


def _verdict(pod: PodSeen, facts: Facts) -> Finding:
    file = facts.scheduler
    known = file.config.scheduler_names if isinstance(file, SchedulerFile) else (pod.scheduler,)
    if pod.reason is None:
        if pod.age <= _GRACE:
            return ok(_PENDING, "waits since a moment ago")
        todo = f"look whether a scheduler named {pod.scheduler} runs"
        return fail(_PENDING, "no scheduler has looked so far", todo)
    message = " ".join(pod.message.split())[:_MAX_SHOWN]
    if pod.scheduler not in known:
        todo = f"write schedulerName: {known[0]}, whose pods come to the extender"
        return warn(_PENDING, f"refused by another scheduler, {pod.scheduler}: {message}", todo)
    # In a burst the extender refuses one of several binds.
    if "binding rejected: gpushare: " in pod.message.lower() and pod.age <= _BURST:
        return ok(_PENDING, f"its bind came too late, and is tried again: {message}")
    if pod.reason == "SchedulerError":
        todo = "a text about the extender means that urlPrefix is wrong or that it does not answer"
        return fail(_PENDING, f"scheduling fails: {message}", todo)
    if any(reason.value in pod.message for reason in Reason if reason.resolvable):
        return ok(_PENDING, f"waits for room, as the extender has said: {message}")
    if _is_ours(pod, facts):
        todo = "change what the pod asks for, or the nodes: other pods that end do not help"
        return warn(_PENDING, f"refused by the extender: {message}", todo)
    if is_left_out(pod):
        return ok(_PENDING, f"waits, as kube-scheduler's own filters leave no node: {message}")
    todo = "either kube-scheduler's own filters leave no node, or it does not call the extender"
    return warn(_PENDING, f"refused without a word of the extender: {message}", todo)


def is_left_out(pod: PodSeen) -> bool:
    """Return whether kube-scheduler's own filters left no node for it, so that it asked nobody."""
    nodes, own, ours = counted(" ".join(pod.message.split()))
    return bool(nodes and own and not ours)


def _is_ours(pod: PodSeen, facts: Facts) -> bool:
    """Return whether the extender has refused the pod: for the nodes, or for what the pod says.

    kube-scheduler itself names the resource in one text alone.
    """
    names = facts.names
    own = pod.message.replace(f"Insufficient {names.resource}", "")
    texts = [reason.value for reason in Reason]
    texts += [names.resource, names.count, names.policy]
    return any(text in own for text in texts)
