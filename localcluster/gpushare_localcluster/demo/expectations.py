"""Expectations: read from a scenario, and compared with pods and the extender's books.

Pure: documents in, a complaint (or none) out. The facts come from the API server and the extender,
never from the memory of this program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpushare_localcluster.demo.board import PodState, told_of
from gpushare_localcluster.demo.placed import Fields, Placed
from gpushare_localcluster.demo.plan import (
    Allocated,
    BoundCount,
    Check,
    CycleCount,
    DeviceUsed,
    Expect,
    NodePlan,
    Packed,
    PodOn,
    PodPending,
    PodPlan,
    Traced,
)
from gpushare_localcluster.scheduler.objects import Json, read_amounts, read_pod, subtract
from gpushare_localcluster.scheduler.trace import CycleTrace

_KINDS = ("pod", "device", "bound", "allocated", "packed")


@dataclass(frozen=True)
class Facts:
    """The current facts: pods by name, raw nodes, and the nodes of the inspect document. cycles:
    ended cycles of the small scheduler, in order.
    """

    pods: Mapping[str, PodState]
    nodes: Sequence[Json]
    books: Sequence[Json]
    cycles: Sequence[CycleTrace] = ()


def read_expectation(
    value: Placed, nodes: Mapping[str, NodePlan], pods: Mapping[str, PodPlan]
) -> Expect:
    """Return the expectation of an `expect` step. Raises ScenarioError."""
    fields = value.fields(
        *("pod", "node", "devices", "pending", "trace", "cycles"),
        *("device", "used", "bound", "pods", "allocated", "packed"),
    )
    kinds = [kind for kind in _KINDS if fields.get(kind) is not None]
    if len(kinds) != 1:
        raise value.error(f"states exactly one of: {', '.join(_KINDS)}")
    if kinds[0] == "pod":
        return _about_pod(fields, nodes, pods)
    if kinds[0] == "device":
        return _about_device(fields, nodes)
    if kinds[0] == "bound":
        return _about_count(fields, pods)
    if kinds[0] == "allocated":
        percent = fields.need("allocated").whole(0, 100)
        return Expect(Allocated(percent), f"{percent} % of the GPU memory is allocated")
    if not fields.need("packed").flag():
        raise fields.need("packed").error("can only be true")
    return Expect(Packed(), "no device is over its capacity, and no pending pod would fit")


def complaint(check: Check, facts: Facts) -> str | None:
    """Return the differing fact, or None if the check holds."""
    if isinstance(check, PodOn):
        return _pod_on(check, facts)
    if isinstance(check, PodPending):
        return _pod_pending(check, facts)
    if isinstance(check, DeviceUsed):
        return _device_used(check, facts)
    if isinstance(check, BoundCount):
        return _bound_count(check, facts)
    if isinstance(check, Allocated):
        return _allocated(check, facts)
    if isinstance(check, Traced | CycleCount):
        return _traced(check, [cycle for cycle in facts.cycles if cycle.pod.name == check.pod])
    return _over_capacity(facts) or _would_fit(facts)


def _about_pod(
    fields: Fields, nodes: Mapping[str, NodePlan], pods: Mapping[str, PodPlan]
) -> Expect:
    pod = fields.need("pod")
    if pod.text() not in pods:
        raise pod.unknown("pod", pods, "was applied before this step")
    reason = fields.get("pending")
    if reason is not None:
        words = f'{pod.text()} is pending because of "{reason.text()}"'
        return Expect(PodPending(pod.text(), reason.text()), words)
    traced, cycles = fields.get("trace"), fields.get("cycles")
    if traced is not None:
        return Expect(Traced(pod.text(), traced.text()), f"{pod.text()}: {traced.text()}")
    if cycles is not None:
        count = cycles.whole(1)
        words = f"{pod.text()} has been tried {'once' if count == 1 else f'{count} times'}"
        return Expect(CycleCount(pod.text(), count), words)
    node = fields.get("node")
    if node is not None and node.text() not in nodes:
        raise node.unknown("node", nodes)
    device_list = fields.get("devices")
    devices = None if device_list is None else tuple(item.whole() for item in device_list.names())
    words = f"{pod.text()} is on {node.text() if node else 'some node'}"
    if devices is not None:
        words += f" {_devices_words(devices)}"
    return Expect(PodOn(pod.text(), node.text() if node else None, devices), words)


def _about_device(fields: Fields, nodes: Mapping[str, NodePlan]) -> Expect:
    device = fields.need("device")
    name, slash, number = device.text().rpartition("/")
    if not slash or name not in nodes or not number.isascii() or not number.isdigit():
        raise device.error("must be NODE/INDEX of a node of this scenario")
    if int(number) >= len(nodes[name].devices):
        raise device.error(f"node {name} has {len(nodes[name].devices)} devices")
    used = fields.need("used").whole()
    return Expect(
        DeviceUsed(name, int(number), used), f"device {number} of {name}: {used} units are in use"
    )


def _about_count(fields: Fields, pods: Mapping[str, PodPlan]) -> Expect:
    pod_pattern = fields.get("pods")
    pattern = pod_pattern.text() if pod_pattern else "*"
    if pod_pattern is not None and not any(fnmatchcase(name, pattern) for name in pods):
        raise pod_pattern.unknown("pod", pods, "was applied before this step")
    count = fields.need("bound").whole()
    some = f"of the pods {pattern}" if pod_pattern else f"pod{'s' * (count != 1)}"
    words = f"{count} {some} {'is' if count == 1 else 'are'} bound"
    return Expect(BoundCount(pattern, count), words)


def _pod_on(check: PodOn, facts: Facts) -> str | None:
    pod = facts.pods.get(check.pod)
    if pod is None:
        return "there is no such pod"
    if not pod.node:
        return f"it is pending: {pod.why or 'not looked at yet'}"
    if check.node not in (None, pod.node) or check.devices not in (None, pod.devices):
        return f"it is on {pod.node} {_devices_words(pod.devices)}"
    return None


def _pod_pending(check: PodPending, facts: Facts) -> str | None:
    pod = facts.pods.get(check.pod)
    if pod is None:
        return "there is no such pod"
    if pod.node:
        return f"it is on {pod.node} {_devices_words(pod.devices)}"
    if check.reason not in pod.reason:
        return f"its reason is: {pod.reason or '(none yet)'}"
    return None


def _device_used(check: DeviceUsed, facts: Facts) -> str | None:
    for node in facts.books:
        for device in node["devs"] if node["name"] == check.node else ():
            if device["id"] == check.device:
                used = device["usedGPU"]
                return None if used == check.used else f"{used} units are in use"
    return "the extender does not know this device"


def _bound_count(check: BoundCount, facts: Facts) -> str | None:
    matching = [pod for name, pod in facts.pods.items() if fnmatchcase(name, check.pattern)]
    bound_count = sum(bool(pod.node) for pod in matching)
    return None if bound_count == check.count else f"{bound_count} are bound{told_of(matching)}"


def _allocated(check: Allocated, facts: Facts) -> str | None:
    devices = [device for node in facts.books for device in node["devs"]]
    used, total = (sum(device[key] for device in devices) for key in ("usedGPU", "totalGPU"))
    percent = 100 * used // total if total else 0
    return None if percent == check.percent else f"{percent} % is: {used} of {total} GiB"


def _traced(check: Traced | CycleCount, cycles: Sequence[CycleTrace]) -> str | None:
    if isinstance(check, CycleCount):
        return None if len(cycles) == check.count else f"{len(cycles)} times"
    lines = [" ".join(line.split()) for cycle in cycles for line in cycle.lines()]
    if any(check.text in line for line in lines):
        return None
    return f"its trace is: {'; '.join(lines) or '(none yet)'}"


def _over_capacity(facts: Facts) -> str | None:
    for node in facts.books:
        if node.get("unplaced"):
            return f"node {node['name']} has pods without a device"
        for device in node["devs"]:
            if device["usedGPU"] > device["totalGPU"]:
                text = f"{device['usedGPU']} of {device['totalGPU']} units are in use"
                return f"device {device['id']} of {node['name']}: {text}"
    return None


def _would_fit(facts: Facts) -> str | None:
    """Return the first pending pod with room (cpu, memory, free devices) on a schedulable node.

    Pods with claims are skipped.
    """
    devices = {node["name"]: node["devs"] for node in facts.books}
    rooms = {
        str(node["metadata"]["name"]): _free(node, facts.pods)
        for node in facts.nodes
        if not node["spec"].get("unschedulable") and not node["spec"].get("taints")
    }
    for pod in facts.pods.values():
        if pod.node or pod.ended or pod.raw["spec"].get("resourceClaims"):
            continue
        for node_name, free in rooms.items():
            if _has_room(pod, free, devices.get(node_name, ())):
                reason = f": {pod.why}" if pod.why else ""
                return f"pod {pod.name} is pending although node {node_name} has room{reason}"
    return None


def _free(node: Json, pods: Mapping[str, PodState]) -> dict[str, int]:
    """Return the free amount of each resource of a node."""
    free = read_amounts(node["status"]["allocatable"])
    for pod in pods.values():
        if pod.node == node["metadata"]["name"] and not pod.ended:
            free = subtract(free, read_pod(pod.raw).requests)
    return free


def _has_room(pod: PodState, free: Mapping[str, int], devices: Sequence[Json]) -> bool:
    requests = read_pod(pod.raw).requests
    if any(amount > free.get(resource, 0) for resource, amount in requests.items()):
        return False
    share = pod.units // pod.gpu_count
    roomy = sum(1 for device in devices if device["totalGPU"] - device["usedGPU"] >= share)
    return pod.units == 0 or roomy >= pod.gpu_count


def _devices_words(devices: tuple[int, ...]) -> str:
    if not devices:
        return "without a device"
    word = "device" if len(devices) == 1 else "devices"
    return f"{word} {', '.join(str(index) for index in devices)}"
