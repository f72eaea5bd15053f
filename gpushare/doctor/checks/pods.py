"""Checks of the pods: pending ones must be looked at, bound ones must name their devices.

Pure. Instead of events, which end after an hour and need a right of their own,
the condition PodScheduled is read: kube-scheduler writes the same text there.
"""

from collections.abc import Iterator, Sequence

from gpushare.core.model import NodeSpec, Reason
from gpushare.doctor.facts import Facts, NodeSeen, PodSeen, PodsSeen, SchedulerFile, Unread
from gpushare.doctor.finding import Finding, fail, ok, skip, some, warn

_PENDING_GRACE = 30.0
"""Seconds within which some scheduler looks at a pod."""
_SERVED = 300.0
"""Seconds within which a bound pod is served: the kubelet asks the device plug-in when it admits
the pod, before it pulls an image.
"""
_MAX_SHOWN = 200


def check_pods(facts: Facts) -> Iterator[Finding]:
    """Yield findings about pods that ask for the resource."""
    pods = facts.pods
    if isinstance(pods, Unread):
        yield pods.finding("pods")
        return
    yield _amounts(pods)
    yield _pending([pod for pod in pods.gpu if not pod.node and not pod.gated])
    yield _schedulers(facts, pods)
    yield _unplaced(pods, facts.nodes)
    yield _moved(pods, facts.nodes)
    yield _unserved(pods, facts)


def _amounts(pods: PodsSeen) -> Finding:
    broken = {pod.name: pod.broken for pod in pods.gpu if pod.broken}
    if broken:
        return fail(
            "pods",
            f"{some(broken)}: what is asked for cannot be read ({broken[min(broken)]})",
            "correct and create them again",
        )
    return ok("pods", f"{len(pods.gpu)} that have not ended ask for GPU memory")


def _pending(pending: Sequence[PodSeen]) -> Finding:
    name = "pending-pods"
    if not pending:
        return ok(name, "none")
    untried = [pod for pod in pending if pod.reason is None and pod.age > _PENDING_GRACE]
    if untried:
        asked = some({pod.scheduler for pod in untried})
        return fail(
            name,
            f"{some(pod.name for pod in untried)}: no scheduler has looked at them",
            f"look whether a scheduler named {asked} runs",
        )
    failing = [pod for pod in pending if pod.reason == "SchedulerError"]
    if failing:
        return fail(
            name,
            f"{some(pod.name for pod in failing)}: scheduling fails: {_line(failing[0].message)}",
            "a text about the extender means that urlPrefix is wrong or that it does not answer",
        )
    elsewhere = [pod for pod in pending if pod.message and not _ours(pod.message)]
    if elsewhere:
        return warn(
            name,
            f"{some(pod.name for pod in elsewhere)}: refused without a word of the extender:"
            f" {_line(elsewhere[0].message)}",
            "either kube-scheduler's own filters leave no node, or it does not call the extender",
        )
    young = sum(pod.reason is None for pod in pending)
    if young:
        return ok(name, f"{len(pending)} wait, {young} of them since a moment ago")
    return ok(name, f"{len(pending)} wait, and the extender has said why")


def _ours(message: str) -> bool:
    return any(reason.value in message for reason in Reason)


def _line(message: str) -> str:
    return " ".join(message.split())[:_MAX_SHOWN]


def _schedulers(facts: Facts, pods: PodsSeen) -> Finding:
    name = "scheduler-names"
    if not isinstance(facts.scheduler, SchedulerFile):
        return skip(name, "which names kube-scheduler goes by is in its file (--scheduler-config)")
    known = facts.scheduler.config.scheduler_names
    astray = [
        pod
        for pod in pods.gpu
        if pod.scheduler not in known and not (pod.node and pod.placement is not None)
    ]
    if astray:
        return fail(
            name,
            f"{some(pod.name for pod in astray)}: schedulerName"
            f" {some({pod.scheduler for pod in astray})}, so they never come to the extender",
            f"write schedulerName: {known[0]} into them",
        )
    return ok(name, f"GPU pods go by {', '.join(known)}")


def _unplaced(pods: PodsSeen, nodes: tuple[NodeSeen, ...] | Unread) -> Finding:
    devices = {} if isinstance(nodes, Unread) else {n.name: len(n.spec.capacity) for n in nodes}
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
    moved = [pod.name for pod in pods.gpu if pod.node in specs and _astray(pod, specs[pod.node])]
    if moved:
        return warn(
            name,
            f"{some(moved)}: bound to cards that are not at their indices now (one has died, or was"
            " moved), and charged wherever they may run",
            "delete them, first those that have not started, so that they are created again on"
            " cards that are there",
        )
    return ok(name, "none: every card named by a pod is at its index")


def _astray(pod: PodSeen, spec: NodeSpec) -> bool:
    """Return whether a card that the pod names is at another index now, or gone."""
    there = spec.uuids + ("",) * len(pod.uuids)
    beside = zip(pod.placement or (), pod.uuids, strict=False)
    return bool(spec.capacity) and any(
        uuid and (index >= len(there) or there[index] != uuid) for (index, _), uuid in beside
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
    there = devices.get(pod.node)
    return not there or all(index < there for index, _ in pod.placement)
