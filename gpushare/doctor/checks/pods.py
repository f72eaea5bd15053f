"""Checks of the pods: what they ask for must make sense, bound ones must name their devices.

Pure.
"""

from collections.abc import Iterator
from functools import partial

from gpushare.core.model import NodeSpec
from gpushare.doctor.facts import Facts, NodeSeen, PodSeen, PodsSeen, SchedulerFile, Unread
from gpushare.doctor.finding import Finding, fail, grouped, ok, skip, some, warn
from gpushare.wire.request_mistakes import wrong_unit

_SERVED = 300.0
"""Seconds within which a bound pod is served: the kubelet asks the device plug-in when it admits
the pod, before it pulls an image.
"""


def check_pods(facts: Facts) -> Iterator[Finding]:
    """Yield findings about pods that ask for the resource."""
    pods = facts.pods
    if isinstance(pods, Unread):
        yield pods.finding("pods")
        return
    yield from _amounts(pods, facts)
    yield from _misplaced_requests(pods)
    yield _schedulers(facts, pods)
    yield _unplaced(pods, facts.nodes)
    yield _moved(pods, facts.nodes)
    yield _unserved(pods, facts)


def mistake(pod: PodSeen, facts: Facts) -> str:
    """Return what is wrong with what the pod asks for, and what to write; "" if nothing is."""
    return pod.broken or wrong_unit(
        pod.request, facts.names, facts.unit, partial(_largest, facts.nodes)
    )


def _amounts(pods: PodsSeen, facts: Facts) -> Iterator[Finding]:
    wrong = [(pod.name, why) for pod in pods.gpu if (why := mistake(pod, facts))]
    if not wrong:
        yield ok("pods", f"{len(pods.gpu)} that have not ended ask for GPU memory")
    todo = "create it again with an amount that is right"
    yield from grouped((name, fail("pods", why, todo)) for name, why in wrong)


def _misplaced_requests(pods: PodsSeen) -> Iterator[Finding]:
    """Yield findings about what does not go with device memory, of pods that wait and that run."""
    name, todo = "pod-extras", "correct it, and create the pod again"
    told = [(pod.name, pod.misplaced) for pod in pods.gpu if pod.misplaced]
    told += pods.counting
    if not told:
        yield ok(name, "none asks for, or sets, what does not go with device memory")
    yield from grouped((pod, warn(name, why, todo)) for pod, why in told)


def _largest(nodes: tuple[NodeSeen, ...] | Unread) -> int:
    seen = () if isinstance(nodes, Unread) else nodes
    return max((units for node in seen for units in node.spec.capacity), default=0)


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
