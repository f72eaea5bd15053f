"""Plug-ins of other packages: found by entry points, as in docs/scheduler-tour.md."""

import re
import textwrap
from pathlib import Path
from random import Random

import pytest
import yaml

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare_localcluster.demo.nodenumber import PATIENCE
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.cycle import SchedulingCycle
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, CycleState
from gpushare_localcluster.scheduler.handle import Handle, WaitingPod
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.profiles import GROUP, build_frameworks, registry
from gpushare_localcluster.scheduler.runtime import Framework

_PAGE = (Path(__file__).parents[2] / "docs/scheduler-tour.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's block of code in a language."""
    (result,) = re.findall(rf"```{language}\n(.*?)```", _PAGE, re.DOTALL)
    return str(result)


def install(folder: Path, name: str, module: str, source: str) -> None:
    """Install a package that has the plug-in NAME, a class of that name."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}:{name}\n")


def pod(name: str) -> PodView:
    spec = {"containers": [{"image": "app"}]}
    return read_pod({"metadata": {"name": name, "uid": name}, "spec": spec})


def test_node_number_is_found_by_its_entry_point_scores_and_has_pods_wait() -> None:
    handle = Handle()
    on = {"multiPoint": PluginSet(enabled=(("NodeNumber", 5),))}
    build_frameworks((Profile(plugins=on),), handle)
    status = {"allocatable": {"pods": "9"}}
    snapshot = Snapshot(
        tuple(
            NodeInfo(read_node({"metadata": {"name": f"n{i}"}, "status": status})) for i in range(4)
        )
    )
    cycle = SchedulingCycle(handle, Random(1))
    decision = cycle.decide(pod("web-1"), snapshot)
    assert decision.node == "n1"
    assert decision.details["NodeNumber"] == {"n0": 0, "n1": 50, "n2": 0, "n3": 0}
    framework = handle.profiles["default-scheduler"]
    answer, waits = framework.run_permit(decision.state, decision.pod, decision.node)
    assert (answer.code, waits) == (Code.WAIT, {"NodeNumber": 1.0 + PATIENCE})
    pending = WaitingPod(decision.pod, decision.node, waits)
    handle.waiting_pods[pending.pod.uid] = pending
    assert pending.wait() is SUCCESS
    second = cycle.decide(pod("web-x"), snapshot)
    assert "NodeNumber" not in second.details
    assert framework.run_permit(second.state, second.pod, "n0") == (SUCCESS, {})


def test_a_name_in_tree_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = textwrap.dedent("class NodePorts: name = 'NodePorts'")
    install(tmp_path, "NodePorts", "otherports", source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="a plugin named NodePorts already exists"):
        registry()


def test_the_pages_file_is_read() -> None:
    handle = Handle()
    build_frameworks(decode_scheduler_config(yaml.safe_load(block("yaml"))).profiles, handle)
    assert [p.name for p in handle.profiles["images-only"].scorers] == ["ImageLocality"]
    assert handle.profiles["images-only"].weight("ImageLocality") == 3


def policy_framework(**policy: object) -> Framework:
    handle = Handle()
    document = {"kind": "Policy", "apiVersion": "v1", "priorities": [], **policy}
    build_frameworks(decode_scheduler_config(document).profiles, handle)
    return handle.profiles["default-scheduler"]


def test_a_policy_chooses_the_plug_ins_and_those_that_prepare_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    maximum = {"name": "MostRequestedPriority", "weight": 3}
    spread = {"name": "EvenPodsSpreadPriority", "weight": 2}
    framework = policy_framework(
        predicates=[{"name": "PodFitsHostPorts"}, {"name": "NoDiskConflict"}],
        priorities=[maximum, spread],
    )
    points = (framework.pre_filters, framework.filters, framework.pre_scores, framework.scorers)
    assert [[plugin.name for plugin in point] for point in points] == [
        ["NodePorts"],
        ["NodeUnschedulable", "NodePorts", "TaintToleration"],
        ["PodTopologySpread"],
        ["NodeResourcesMostAllocated", "PodTopologySpread"],
    ]
    assert framework.weight("NodeResourcesMostAllocated") == 3
    assert "not built here, and left out: VolumeRestrictions" in caplog.text


@pytest.mark.parametrize(
    ("check_all", "reasons"),
    [
        (False, ("node(s) were unschedulable",)),
        (True, ("node(s) were unschedulable", "node(s) had untolerated taint(s)", "Too many pods")),
    ],
)
def test_a_policy_can_have_all_filters_asked(check_all: bool, reasons: tuple[str, ...]) -> None:
    framework = policy_framework(
        predicates=[{"name": "PodFitsResources"}], alwaysCheckAllPredicates=check_all
    )
    taints = [{"key": "k", "effect": "NoSchedule"}]
    spec = {"unschedulable": True, "taints": taints}
    node = NodeInfo(read_node({"metadata": {"name": "n"}, "spec": spec}))
    status = framework.run_filters(CycleState(), pod("p"), node)
    assert (status.code, status.plugin) == (Code.UNRESOLVABLE, "NodeUnschedulable")
    assert set(status.reasons) == set(reasons)
