"""Checks of the pods: valid requests, known devices of bound pods, reasons of pending pods.

Pure. The reason is read from the condition PodScheduled. Events have the same text, but end after
an hour and need a right of their own.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from textwrap import shorten

from gpushare.core.model import NodeSpec, Reason
from gpushare.doctor.facts import Facts, ListedNode, ListedPod, ListedPods, SchedulerFile, Unread
from gpushare.doctor.finding import Check, Finding, grouped, some
from gpushare.wire.conditions import counted
from gpushare.wire.request_mistakes import wrong_unit

_SERVED = 300.0
"""Seconds until a bound pod is served: the kubelet calls the device plug-in when it admits the pod,
before it pulls an image.
"""
_PENDING = Check("pending-pods")
_GRACE = 30.0
"""Seconds until some scheduler looks at a new pod."""
_BURST = 300.0
"""Seconds until a pod of a burst is bound."""
_MAX_SHOWN = 200
"""The most characters of a scheduler's message in a finding."""


def check_pods(facts: Facts) -> Iterator[Finding]:
    """Yield findings about pods that ask for the resource."""
    pods = facts.pods
    if isinstance(pods, Unread):
        yield pods.finding("pods")
        return
    wrong = [(pod.name, problem) for pod in pods.gpu if (problem := mistake(pod, facts))]
    if not wrong:
        yield Check("pods").ok(f"{len(pods.gpu)} that have not ended ask for GPU memory")
    todo = "create it again with an amount that is right"
    yield from grouped((name, Check("pods").fail(problem, todo)) for name, problem in wrong)
    # Pending and running pods alike.
    misplaced = [(pod.name, pod.misplaced) for pod in pods.gpu if pod.misplaced]
    misplaced += pods.without_memory
    nodes = () if isinstance(facts.nodes, Unread) else facts.nodes
    offered = {name for node in nodes for name in (node.state and node.state.allocatable) or ()}
    misplaced += [(pod.name, pod.mistake) for pod in pods.strays if not pod.resources & offered]
    if not misplaced:
        yield Check("pod-extras").ok("none asks for, or sets, what does not go with device memory")
    todo = "correct it, and create the pod again"
    yield from grouped(
        (name, Check("pod-extras").warn(problem, todo)) for name, problem in misplaced
    )
    yield _schedulers(facts, pods)
    yield _unplaced(pods, facts.known_nodes)
    yield _moved(pods, facts.nodes)
    yield _unserved(pods, facts)
    yield _limits(pods, facts)


def mistake(pod: ListedPod, facts: Facts) -> str:
    """Return the mistake in the pod's request, with a correction; "" if there is none."""
    return pod.broken or wrong_unit(
        pod.request, facts.names, facts.unit, partial(_largest, facts.known_nodes)
    )


def _largest(nodes: tuple[ListedNode, ...]) -> int:
    return max((units for node in nodes for units in node.spec.capacity), default=0)


def _schedulers(facts: Facts, pods: ListedPods) -> Finding:
    name = Check("scheduler-names")
    if not isinstance(facts.scheduler, SchedulerFile):
        return name.skip("which names kube-scheduler goes by is in its file (--scheduler-config)")
    scheduler_names = facts.scheduler.config.scheduler_names
    pods_of_others = [
        pod
        for pod in pods.gpu
        if pod.scheduler not in scheduler_names and not (pod.node and pod.placement is not None)
    ]
    if pods_of_others:
        return name.fail(
            f"{some(pod.name for pod in pods_of_others)}: schedulerName"
            f" {some({pod.scheduler for pod in pods_of_others})}, so they never come to the"
            " extender",
            f"write schedulerName: {scheduler_names[0]} into them",
        )
    return name.ok(f"GPU pods go by {', '.join(scheduler_names)}")


def _unplaced(pods: ListedPods, nodes: tuple[ListedNode, ...]) -> Finding:
    devices = {node.name: len(node.spec.capacity) for node in nodes}
    unplaced = [pod.name for pod in pods.gpu if pod.node and not _placed(pod, devices)]
    if unplaced:
        return Check("unplaced-pods").warn(
            f"{some(unplaced)}: run on devices nobody knows, so they count on every device of their"
            " node",
            "delete them, so that they are bound through the extender when created again",
        )
    return Check("unplaced-pods").ok("none: every running GPU pod is on known devices")


def _moved(pods: ListedPods, nodes: tuple[ListedNode, ...] | Unread) -> Finding:
    name = Check("moved-devices")
    if isinstance(nodes, Unread):
        return name.skip("which cards are where is told by the nodes")
    specs = {node.name: node.spec for node in nodes}
    moved_pods = [
        pod.name for pod in pods.gpu if pod.node in specs and _misplaced(pod, specs[pod.node])
    ]
    if moved_pods:
        return name.warn(
            f"{some(moved_pods)}: bound to cards that are not at their indices now (one has died,"
            " or was moved), and charged wherever they may run",
            "delete them, first those that have not started, so that they are created again on"
            " cards that are there",
        )
    return name.ok("none: every card named by a pod is at its index")


def _misplaced(pod: ListedPod, spec: NodeSpec) -> bool:
    """Return whether a card of the pod has another index now, or is gone."""
    uuids = spec.uuids + ("",) * len(pod.uuids)
    shares_and_uuids = zip(pod.placement or (), pod.uuids, strict=False)
    return bool(spec.capacity) and any(
        uuid and (index >= len(uuids) or uuids[index] != uuid)
        for (index, _), uuid in shares_and_uuids
    )


def _unserved(pods: ListedPods, facts: Facts) -> Finding:
    name = Check("unserved-pods")
    if isinstance(facts.nodes, Unread):
        return name.skip("which device plug-ins mark the pods they serve is told by the nodes")
    marking = {node.name for node in facts.nodes if node.spec.marks_served}
    unserved = {
        pod.name: pod
        for pod in pods.gpu
        if pod.node in marking and pod.placement is not None and not pod.assigned
        if pod.bound_at and facts.now_there - pod.bound_at > _SERVED
    }
    if not unserved:
        return name.ok("none: device plug-ins have marked what has been bound for minutes")
    nodes = some({pod.node for pod in unserved.values()})
    return name.warn(
        f"{some(unserved)}: bound for over {_SERVED / 60:.0f} minutes, and no device plug-in has"
        f" marked them served, so they wait, or run without their device ({nodes})",
        "look into the logs of the device plug-in and the kubelet there; then delete the pods that"
        " run, so that they are created again",
    )


def _limits(pods: ListedPods, facts: Facts) -> Finding:
    """Return the devices of which the pods may use more than there is, by limits above requests."""
    name = Check("memory-limits")
    if isinstance(facts.nodes, Unread):
        return name.skip("the memory of devices is told by the nodes")
    capacities = {node.name: node.spec.capacity for node in facts.nodes}
    charges, limits = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for pod in pods.gpu:
        shares, capacity = pod.placement or (), capacities.get(pod.node, ())
        for sums, of_pod in (
            (charges, pod.request.charges_on(shares, capacity)),
            (limits, pod.request.limits_on(shares, capacity)),
        ):
            sums.update({(pod.node, device): units for device, units in of_pod})
    over = [
        f"device {device} of node {node}: limits of {limits[node, device]} on {units}"
        for node, capacity in capacities.items()
        for device, units in enumerate(capacity)
        if limits[node, device] > max(units, charges[node, device])
    ]
    if not over:
        return name.ok("every device has the memory that its pods may use together")
    return name.warn(
        f"{some(over)} ({facts.unit}): a program may find no memory there within its limit, and so"
        " may its neighbours within their requests",
        "lower the limits, or take the label gpushare.io/memory-limits off some nodes",
    )


def _placed(pod: ListedPod, devices: dict[str, int]) -> bool:
    if pod.placement is None:
        return False
    number = devices.get(pod.node)
    return not number or all(index < number for index, _ in pod.placement)


def check_pending(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each group of pending pods with the same answer of schedulers.

    What would help is for `gpushare explain` to say: the doctor keeps no books.

    Pods with a mistake in their request have a finding of their own (`check_pods`).
    """
    if isinstance(facts.pods, Unread):
        return
    pending_pods = [
        pod for pod in facts.pods.gpu if not (pod.node or pod.gated or mistake(pod, facts))
    ]
    if pending_pods:
        yield from grouped((pod.name, _verdict(pod, facts)) for pod in pending_pods)
    else:
        yield _PENDING.ok("none")


def _verdict(pod: ListedPod, facts: Facts) -> Finding:
    file = facts.scheduler
    scheduler_names = (
        file.config.scheduler_names if isinstance(file, SchedulerFile) else (pod.scheduler,)
    )
    if pod.reason is None:
        if pod.age <= _GRACE:
            return _PENDING.ok("waits since a moment ago")
        todo = f"look whether a scheduler named {pod.scheduler} runs"
        return _PENDING.fail("no scheduler has looked so far", todo)
    message = shorten(pod.message, _MAX_SHOWN, placeholder=" ...")
    if pod.scheduler not in scheduler_names:
        todo = f"write schedulerName: {scheduler_names[0]}, whose pods come to the extender"
        return _PENDING.warn(f"refused by another scheduler, {pod.scheduler}: {message}", todo)
    # In a burst the extender refuses one of several binds.
    if "binding rejected: gpushare: " in pod.message.lower() and pod.age <= _BURST:
        return _PENDING.ok(f"its bind came too late, and is tried again: {message}")
    if pod.reason == "SchedulerError":
        todo = "a text about the extender means that urlPrefix is wrong or that it does not answer"
        return _PENDING.fail(f"scheduling fails: {message}", todo)
    if any(reason.value in pod.message for reason in Reason if reason.resolvable):
        return _PENDING.ok(f"waits for room, as the extender has said: {message}")
    if _is_ours(pod, facts):
        todo = "gpushare explain POD says what would help"
        return _PENDING.warn(f"refused by the extender: {message}", todo)
    if is_left_out(pod):
        return _PENDING.ok(f"waits, as kube-scheduler's own filters leave no node: {message}")
    todo = "either kube-scheduler's own filters leave no node, or it does not call the extender"
    return _PENDING.warn(f"refused without a word of the extender: {message}", todo)


def is_left_out(pod: ListedPod) -> bool:
    """Return whether kube-scheduler's own filters left no node, so that it called no extender."""
    nodes, scheduler_reasons, extender_reasons = counted(" ".join(pod.message.split()))
    return bool(nodes and scheduler_reasons and not extender_reasons)


def _is_ours(pod: ListedPod, facts: Facts) -> bool:
    """Return whether the extender has refused the pod, for the nodes or for a mistake of the pod.

    kube-scheduler itself names the resource only in one text.
    """
    names = facts.names
    message = pod.message.replace(f"Insufficient {names.resource}", "")
    texts = [reason.value for reason in Reason]
    texts += [names.resource, names.count, names.policy]
    return any(text in message for text in texts)
