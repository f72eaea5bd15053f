"""The trace of a cycle: as lines for people, and as JSON."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.cycle import CycleError, FitError, SchedulingCycle
from gpushare_localcluster.scheduler.framework import Code, Status
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.profiles import build_frameworks
from gpushare_localcluster.scheduler.trace import CycleTrace, cycle_log, decided, waiting

# The remaining scores are short enough to read.
SHORT = {"score": PluginSet(disabled=("*",), enabled=(("NodeResourcesFit", 2),))}


def pod(cpu: str) -> PodView:
    container = {"image": "app", "resources": {"requests": {"cpu": cpu, "memory": "0"}}}
    meta = {"name": "p", "uid": "u"}
    return read_pod({"metadata": meta, "spec": {"containers": [container]}})


def node(name: str, cpu: str, **spec: Any) -> NodeInfo:
    status = {"allocatable": {"cpu": cpu, "pods": "9"}}
    return NodeInfo(read_node({"metadata": {"name": name}, "spec": spec, "status": status}))


def traced(expected: PodView, outcome: Status, *nodes: NodeInfo) -> CycleTrace:
    handle = Handle()
    build_frameworks((Profile(plugins=SHORT),), handle)
    try:
        decision = SchedulingCycle(handle, Random(1)).decide(expected, Snapshot(nodes))
    except FitError as error:
        return waiting(expected, error)
    return decided(decision, outcome)


def test_each_stage_has_its_lines() -> None:
    bound_pod = Status(plugin="DefaultBinder")
    closed_nodes = node("closed", "4", unschedulable=True)
    cycle = traced(pod("1"), bound_pod, node("small", "2"), node("large", "4"), closed_nodes)
    assert list(cycle.lines()) == [
        "cycle of default/p by default-scheduler",
        "  PreFilter  not for this pod: DynamicResources, InterPodAffinity, NodeAffinity,"
        " NodePorts, PodTopologySpread",
        "  Filter     not closed: node(s) were unschedulable (NodeUnschedulable)",
        "  PreScore   not for this pod: ImageLocality, InterPodAffinity, NodeAffinity,"
        " PodTopologySpread",
        "  Score      large 150 = NodeResourcesFit 150",
        "  Score      small 100 = NodeResourcesFit 100",
        "  Chosen     large",
        "  Bind       by DefaultBinder",
    ]


def test_a_pod_that_waits_and_one_that_was_not_bound_say_why() -> None:
    error = Status(Code.ERROR, ("no longer free",), "http://x")
    assert list(traced(pod("1"), error, node("n", "2")).lines())[-2:] == [
        "  Chosen     n",
        "  http://x   no longer free",
    ]
    last = list(traced(pod("9"), error, node("n", "2")).lines())[-1]
    assert last.startswith("  Waits      0/1 nodes are available: 1 Insufficient cpu. preemption:")


def test_who_has_the_binding_wait_is_told() -> None:
    cycle = CycleTrace(pod("1"), Status(plugin="DefaultBinder"), "n", waits={"Gate": 12.5})
    assert list(cycle.lines())[1:3] == [
        "  Chosen     n",
        "  Permit     wait for Gate, at most 12.5 s",
    ]
    assert cycle.document()["permitWaits"] == {"Gate": 12.5}


def test_a_cycle_that_failed_says_with_what() -> None:
    cycle = waiting(pod("1"), CycleError("extender down"))
    assert list(cycle.lines())[-1] == "  Waits      extender down"
    assert cycle.document()["outcome"]["code"] == "Error"


def test_the_file_has_an_object_a_line(tmp_path: Path) -> None:
    file = tmp_path / "cycles"
    with cycle_log(file) as write:
        write(traced(pod("1"), Status(plugin="DefaultBinder"), node("a", "2"), node("b", "0")))
        write(traced(pod("9"), Status(), node("a", "2")))
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert (first["pod"], first["node"], first["outcome"]["by"]) == (
        "default/p",
        "a",
        "DefaultBinder",
    )
    assert first["filter"]["b"] == {
        "plugin": "NodeResourcesFit",
        "code": "UnschedulableAndUnresolvable",
        "reasons": ["Insufficient cpu"],
    }
    assert (second["node"], second["outcome"]["code"]) == (None, "Unschedulable")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere"), cycle_log(tmp_path / "nowhere" / "file"):
        pytest.fail("it was opened")
