"""The keys of a scenario: from placed values to a plan, with every reference checked.

Knows the keys and their meaning; knows no YAML. A pod or node in a step must exist in the scenario,
since a wait for a misspelt name would only time out.
"""

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from pathlib import Path

from gpushare_localcluster.demo.expectations import read_expectation
from gpushare_localcluster.demo.manifests import CLASS
from gpushare_localcluster.demo.placed import Fields, Placed
from gpushare_localcluster.demo.plan import (
    Apply,
    Cordon,
    Delete,
    NodePlan,
    Pause,
    PodPlan,
    Protect,
    Say,
    Scenario,
    Step,
    WaitFor,
)
from gpushare_localcluster.demo.trace import trace_nodes, trace_pods

DEFAULT_TIMEOUT = 20.0
STATES = ("bound", "pending", "settled", "done", "gone")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_UNITS_PER_DEVICE = 16
_MOST_DEVICES = 64
_MOST_REPLICAS = 10_000


def read_scenario(document: Placed, file: Path) -> Scenario:
    """Return the scenario in a document; paths in it are relative to the folder of `file`."""
    top = document.fields("name", "title", "nodes", "traceNodes", "steps")
    nodes = _nodes(top, file)
    if not nodes:
        raise document.error("nodes is missing or empty")
    by_name = {node.name: node for node in nodes}
    if len(by_name) < len(nodes):
        raise top.whole.error("two nodes have the same name")
    name = top.get("name")
    title = top.get("title")
    reader = _Steps(by_name, file)
    return Scenario(
        name=name.name() if name else file.stem,
        title=title.text() if title else file.stem,
        nodes=nodes,
        steps=tuple(reader.read(step) for step in top.need("steps").items()),
    )


def _nodes(top: Fields, file: Path) -> tuple[NodePlan, ...]:
    nodes: list[NodePlan] = []
    node_list = top.get("nodes")
    for item in node_list.items() if node_list else ():
        nodes.extend(_node(item))
    traced = top.get("traceNodes")
    if traced is not None:
        fields = traced.fields("file", "units")
        units = fields.number("units", _UNITS_PER_DEVICE, minimum=1)
        nodes.extend(trace_nodes(file.parent / fields.need("file").text(), units))
    return tuple(nodes)


def _node(item: Placed) -> list[NodePlan]:
    """Return one node, or `count` nodes named prefix1, prefix2, ..."""
    fields = item.fields(
        *("name", "prefix", "count", "gpus", "gpuMemory"),
        *("cpu", "memory", "labels", "taints", "cordoned", "driver", "nic"),
    )
    if (fields.get("name") is None) == (fields.get("prefix") is None):
        raise item.error("needs either name, or prefix and count")
    if fields.get("prefix") is None:
        names = [fields.need("name").name()]
    else:
        count = fields.need("count").whole(1, 5000)
        names = [fields.need("prefix").name(str(number)) for number in range(1, count + 1)]
    cordoned, driver, nic = (fields.get(key) for key in ("cordoned", "driver", "nic"))
    if nic and not driver:
        raise nic.error("goes with driver alone")
    return [
        NodePlan(
            name=name,
            devices=_devices(fields),
            cpu=fields.quantity("cpu", "64"),
            memory=fields.quantity("memory", "256Gi"),
            labels=fields.labels("labels"),
            taints=_taints(fields),
            cordoned=cordoned.flag() if cordoned else False,
            driver=driver.text() if driver else "",
            nic=nic.flag() if nic else False,
        )
        for name in names
    ]


def _devices(fields: Fields) -> tuple[int, ...]:
    """Return the units of each device: one number for all, or a list for mixed cards."""
    memory = fields.get("gpuMemory")
    if memory is not None and isinstance(memory.value, list):
        devices = tuple(item.whole(1) for item in memory.items())
        count = fields.number("gpus", len(devices))
        if count != len(devices) or count > _MOST_DEVICES:
            raise memory.error(f"lists {len(devices)} devices, gpus says {count}")
        return devices
    units = memory.whole(1) if memory else _UNITS_PER_DEVICE
    return (units,) * fields.number("gpus", 1, maximum=_MOST_DEVICES)


def _taints(fields: Fields) -> tuple[dict[str, str], ...]:
    taint_list = fields.get("taints")
    taints = []
    for item in taint_list.items() if taint_list else ():
        parts = item.fields("key", "value", "effect")
        effect = parts.need("effect")
        if effect.text() not in EFFECTS:
            raise effect.error(f"must be one of {', '.join(EFFECTS)}")
        value = parts.get("value")
        taint = {"key": parts.need("key").text(), "effect": effect.text()}
        taints.append({**taint, "value": value.text()} if value else taint)
    return tuple(taints)


def _tolerations(fields: Fields) -> tuple[dict[str, str], ...]:
    toleration_list = fields.get("tolerations")
    tolerations = []
    for item in toleration_list.items() if toleration_list else ():
        parts = item.fields("key", "operator", "value", "effect")
        values = {word: parts.get(word) for word in ("key", "operator", "value", "effect")}
        tolerations.append({word: part.text() for word, part in values.items() if part})
    return tuple(tolerations)


class _Steps:
    """Reads steps in order, and collects the pods applied so far."""

    def __init__(self, nodes: dict[str, NodePlan], file: Path) -> None:
        self._nodes = nodes
        self._file = file
        self._pods: dict[str, PodPlan] = {}
        self._readers: dict[str, Callable[[Placed], Step]] = {
            "say": lambda value: Say(value.text()),
            "apply": self._apply,
            "applyTrace": self._apply_trace,
            "delete": lambda value: Delete(self._patterns(value)),
            "cordon": lambda value: Cordon(self._node_names(value), unschedulable=True),
            "uncordon": lambda value: Cordon(self._node_names(value), unschedulable=False),
            "protect": _protect,
            "pause": lambda value: Pause(value.seconds()),
            "waitFor": self._wait_for,
            "expect": lambda value: read_expectation(value, self._nodes, self._pods),
        }

    def read(self, item: Placed) -> Step:
        """Return one step: a mapping with a single key."""
        entries = item.mapping()
        if len(entries) != 1:
            raise item.error(f"a step has exactly one key, of: {', '.join(self._readers)}")
        word, value = next(iter(entries.items()))
        if word not in self._readers:
            raise value.error(f"no such step; there are: {', '.join(self._readers)}")
        return self._readers[word](value)

    def _apply(self, value: Placed) -> Step:
        pods: list[PodPlan] = []
        classes = {CLASS, *(node.driver for node in self._nodes.values() if node.driver)}
        for item in value.names():
            pods.extend(_pods(item, classes))
        return self._applied(value, tuple(pods))

    def _apply_trace(self, value: Placed) -> Step:
        fields = value.fields("file", "units")
        units = fields.number("units", _UNITS_PER_DEVICE, minimum=1)
        return self._applied(
            value, trace_pods(self._file.parent / fields.need("file").text(), units)
        )

    def _applied(self, value: Placed, pods: tuple[PodPlan, ...]) -> Step:
        for pod in pods:
            if pod.name in self._pods:
                raise value.error(f"a pod {pod.name} was applied before")
            self._pods[pod.name] = pod
        return Apply(pods)

    def _wait_for(self, value: Placed) -> Step:
        fields = value.fields("pods", "is", "timeout")
        state = fields.need("is")
        if state.text() not in STATES:
            raise state.error(f"must be one of {', '.join(STATES)}")
        timeout = fields.get("timeout")
        return WaitFor(
            self._patterns(fields.need("pods")),
            state.text(),
            timeout.seconds() if timeout else DEFAULT_TIMEOUT,
        )

    def _patterns(self, value: Placed) -> tuple[str, ...]:
        """Return pod names, or patterns such as worker-*, each with a matching pod."""
        for item in value.names():
            if not any(fnmatchcase(name, item.text()) for name in self._pods):
                raise item.unknown("pod", self._pods, "was applied before this step")
        return tuple(item.text() for item in value.names())

    def _node_names(self, value: Placed) -> tuple[str, ...]:
        for item in value.names():
            if item.text() not in self._nodes:
                raise item.unknown("node", self._nodes)
        return tuple(item.text() for item in value.names())


def _pods(item: Placed, classes: Collection[str]) -> list[PodPlan]:
    """Return one pod, or `replicas` pods named name-1, name-2, ..."""
    fields = item.fields(
        *("name", "gpuMem", "gpuCount", "gpuCores", "gpuPercent", "gpuSplit", "containers"),
        *("gpuLimit", "cpu", "memory", "replicas"),
        *("labels", "priority", "nodeSelector", "tolerations", "runSeconds", "policy"),
        *("schedulerName", "claim", "nic", "spreadOver", "apart"),
    )
    base = fields.need("name")
    replicas = fields.get("replicas")
    names = [base.name()]
    if replicas is not None:
        names = [base.name(f"-{n}") for n in range(1, replicas.whole(1, _MOST_REPLICAS) + 1)]
    run_seconds = fields.get("runSeconds")
    priority = fields.get("priority")
    policy, scheduler = fields.get("policy"), fields.get("schedulerName")
    containers, cores, split = _containers(fields), fields.get("gpuCores"), fields.get("gpuSplit")
    for percent in filter(None, (cores, fields.get("gpuPercent"))):
        if not containers[0]:
            raise percent.error("asks for a percentage without memory: give gpuMem as well")
    claim = _claim(fields, classes)
    nic, spread, apart = (fields.get(key) for key in ("nic", "spreadOver", "apart"))
    if nic and not claim:
        raise nic.error("goes with claim alone")
    if spread and not fields.labels("labels"):
        raise spread.error("needs labels, which say what pods are equal")
    return [
        PodPlan(
            name=name,
            containers=containers,
            gpu_count=fields.number("gpuCount", 1, minimum=1, maximum=_MOST_DEVICES),
            gpu_cores=fields.number("gpuCores", 0),
            gpu_percent=fields.number("gpuPercent", 0),
            gpu_limit=fields.number("gpuLimit", 0),
            gpu_split=split.text() if split else "",
            cpu=fields.quantity("cpu", "100m"),
            memory=fields.quantity("memory", "64Mi"),
            labels=fields.labels("labels"),
            priority=priority.whole(-1_000_000, 1_000_000_000) if priority else 0,
            node_selector=fields.labels("nodeSelector"),
            tolerations=_tolerations(fields),
            run_seconds=run_seconds.seconds() if run_seconds else None,
            policy=policy.text() if policy else "",
            scheduler_name=scheduler.text() if scheduler else "",
            claim_class=claim,
            nic=nic.flag() if nic else False,
            spread_over=spread.text() if spread else "",
            apart=apart.text() if apart else "",
        )
        for name in names
    ]


def _claim(fields: Fields, classes: Collection[str]) -> str:
    """Return the device class of the claim for the pod's memory, "" for no claim."""
    claim = fields.get("claim")
    if claim is None:
        return ""
    if claim.text() not in classes:
        raise claim.unknown("device class", sorted(classes))
    for key in ("gpuCores", "gpuPercent", "gpuLimit", "gpuSplit", "containers", "policy"):
        if (value := fields.get(key)) is not None:
            raise value.error("goes with device plug-ins alone, not with a claim")
    if not fields.number("gpuMem", 0) or fields.number("gpuMem", 0) % fields.number("gpuCount", 1):
        raise claim.error("needs gpuMem, which gpuCount divides")
    return claim.text()


def _protect(value: Placed) -> Step:
    fields = value.fields("name", "labels", "allowed")
    labels = fields.need("labels").labels()
    if not labels:
        raise fields.need("labels").error("must name at least one label")
    return Protect(fields.need("name").name(), labels, fields.number("allowed", 0))


def _containers(fields: Fields) -> tuple[int, ...]:
    """Return the units of each container: gpuMem for a single one, or a list."""
    container_list = fields.get("containers")
    if container_list is None:
        return (fields.number("gpuMem", 0),)
    if fields.get("gpuMem") is not None:
        raise container_list.error("give either gpuMem or containers")
    units = tuple(item.whole() for item in container_list.items())
    if not units:
        raise container_list.error("must list at least one container")
    return units
