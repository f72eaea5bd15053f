"""Expectations of a scenario, compared with pods and the extender's books.

Pure: an expectation and facts in, a complaint (or none) out. The facts come from the API server and
the extender, never from the memory of this program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpushare_localcluster.demo.board import PodState, told_of
from gpushare_localcluster.demo.plan import Expect, devices_words, several
from gpushare_localcluster.scheduler.objects import Json, read_amounts, read_pod, subtract
from gpushare_localcluster.scheduler.trace import CycleTrace


@dataclass(frozen=True)
class Facts:
    """The current facts: pods by name, raw nodes, and the nodes of the inspect document. cycles:
    ended cycles of the small scheduler, in order.
    """

    pods: Mapping[str, PodState]
    nodes: Sequence[Json]
    books: Sequence[Json]
    cycles: Sequence[CycleTrace] = ()


def complaint(expect: Expect, facts: Facts) -> str | None:
    """Return the differing fact, or None if the expectation holds."""
    if expect.trace or expect.cycles is not None:
        return _traced(expect, [cycle for cycle in facts.cycles if cycle.pod.name == expect.pod])
    if expect.pod:
        return _about_pod(expect, facts.pods.get(expect.pod))
    if expect.device:
        return _device_used(expect, facts)
    if expect.bound is not None:
        pods = [pod for name, pod in facts.pods.items() if fnmatchcase(name, expect.pods)]
        count = sum(bool(pod.node) for pod in pods)
        return None if count == expect.bound else f"{count} are bound{told_of(pods)}"
    if expect.allocated is not None:
        devices = [device for node in facts.books for device in node["devs"]]
        used, total = (sum(device[key] for device in devices) for key in ("usedGPU", "totalGPU"))
        percent = 100 * used // total if total else 0
        return None if percent == expect.allocated else f"{percent} % is: {used} of {total} GiB"
    return _over_capacity(facts) or _would_fit(facts)


def _about_pod(expect: Expect, pod: PodState | None) -> str | None:
    if pod is None:
        return "there is no such pod"
    place = f"it is on {pod.node} {devices_words(pod.devices)}"
    if expect.pending is not None:
        if pod.node:
            return place
        held = expect.pending in pod.reason
        return None if held else f"its reason is: {pod.reason or '(none yet)'}"
    if not pod.node:
        return f"it is pending: {pod.why or 'not looked at yet'}"
    devices = pod.devices if expect.devices is None else several(expect.devices)
    return None if (expect.node or pod.node, devices) == (pod.node, pod.devices) else place


def _device_used(expect: Expect, facts: Facts) -> str | None:
    for node in facts.books:
        for device in node["devs"]:
            if f"{node['name']}/{device['id']}" == expect.device:
                used = device["usedGPU"]
                return None if used == expect.used else f"{used} units are in use"
    return "the extender does not know this device"


def _traced(expect: Expect, cycles: Sequence[CycleTrace]) -> str | None:
    if expect.cycles is not None:
        return None if len(cycles) == expect.cycles else f"{len(cycles)} times"
    lines = [" ".join(line.split()) for cycle in cycles for line in cycle.lines()]
    if any(expect.trace in line for line in lines):
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
    """Return the first pending pod without claims that a schedulable node has room for."""
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
