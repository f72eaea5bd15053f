"""The command line of `gpushare simulate`: options, and errors of one line."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.sim.inputs import read_inputs, shipped
from gpushare.sim.options import Parameters, read_options
from gpushare.trace.nodes_and_pods import TraceError, TraceNode, TracePod, read_pods

NINE = "cpu050 cpu250 default gpushare100 gpushare40 gpuspec10 gpuspec33 multigpu20 multigpu50"


def read(line: str) -> argparse.Namespace:
    return read_options(line.split())


def test_the_form_of_the_command_is_understood() -> None:
    options = read(
        "churn --nodes n.csv --pods p.csv --policy fgd,shadow-price,fgd --seeds 42-44,7"
        " --load 1.1 --life 12 --warmup 4 --wait --workload known"
        " --devices units:16 --json out.json --jobs 3"
    )
    assert (options.nodes, options.pods, options.devices) == ("n.csv", "p.csv", 16)
    assert options.policy == ("fgd", "shadow-price")
    assert options.seeds == (42, 43, 44, 7)
    assert options.parameters == Parameters(
        load=1.1, life=12.0, warmup=4.0, wait=True, workload="known"
    )
    neighbours = read("replay --neighbours 1 --interference services").parameters
    assert neighbours == Parameters(neighbours=1, interference="services")
    assert read("replay").parameters == Parameters() == Parameters(workload="learned")
    assert (options.json, options.jobs) == (Path("out.json"), 3)


def test_a_newcomer_gets_the_shipped_trace_and_three_policies() -> None:
    options = read("inflation")
    assert (options.nodes, options.pods, options.devices, options.output) == ("", "", 0, "table")
    assert options.policy == ("device-bestfit", "fgd", "shadow-price")
    inputs = read_inputs(options, None)
    assert (len(inputs.nodes), inputs.devices, len(inputs.pods)) == (1213, 6212, 8152)


def test_the_nine_traces_are_shipped() -> None:
    assert sorted(shipped()) == NINE.split()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "required: EXPERIMENT"),
        ("deflation", "invalid choice: 'deflation'"),
        ("inflation --seeds 9-1", "'9-1' is not 1 to 1000 seeds"),
        ("inflation --seeds 1-999999999", "is not 1 to 1000 seeds"),
        ("inflation --seeds 1-999,2000-2999", "more than 1000 seeds"),
        ("inflation --seeds -1", "--seeds"),
        ("inflation --seeds x", "'x' is not like 42-51"),
        ("inflation --policy fgd,,x", "has an empty name"),
        ("inflation --neighbours -1", "--neighbours"),
        ("inflation --neighbours 101", "'101' is no number from 0 to 100"),
        ("churn --interference all", "invalid choice: 'all'"),
        ("inflation --interference training", "unrecognized arguments: --interference"),
        ("inflation --load 0", "is no number above 0 and up to 1.3"),
        ("inflation --load nan", "is no number above 0 and up to 1.3"),
        ("inflation --wait", "unrecognized arguments: --wait"),
        ("inflation --devices units:0", "neither milli nor like units:16"),
        ("inflation --devices 16", "neither milli nor like units:16"),
        ("inflation --jobs 0", "--jobs"),
        ("inflation --jobs 1.5", "is no number from 1 to 1024"),
        ("inflation -o xml", "invalid choice: 'xml'"),
        ("churn --life inf", "is no number above 0 and up to 1000"),
        ("churn --workload none", "invalid choice: 'none'"),
        ("inflation --life 3", "unrecognized arguments: --life"),
        ("inflation --workload guessed", "invalid choice: 'guessed'"),
        ("inflation --policy fgd,,random", "has an empty name"),
    ],
)
def test_a_wrong_word_ends_with_2_and_says_where_help_is(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(line)
    output = capsys.readouterr()
    assert (ended.value.code, output.out) == (2, "")
    assert says in output.err
    assert output.err.startswith("gpushare simulate")
    assert output.err.count("\n") == 2
    assert "--help' for usage." in output.err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("churn --wait --defrag k=3 --interference training", "exclude each other"),
        ("churn --life 2 --warmup 2", "--warmup must be less than --life"),
        ("inflation --from-cluster --nodes n.csv", "leave out --nodes"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read(line)


def test_nodes_with_units_of_their_own_want_pods_that_ask_for_them(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("name,cpu_milli,memory_mib,gpu,units,model\na,1,1,1,80,A100\n")
    with pytest.raises(SettingsError, match="give --pods"):
        read_inputs(read(f"inflation --nodes {nodes}"), None)
    with pytest.raises(TraceError, match="cannot be read"):
        read_inputs(read(f"inflation --nodes {nodes} --pods {tmp_path}/none.csv"), None)


def test_ones_own_nodes_may_take_the_shipped_pods(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("name,cpu_milli,memory_mib,gpu\na,96000,786432,8\n")
    inputs = read_inputs(read(f"inflation --nodes {nodes} --pods gpuspec33"), None)
    assert (inputs.devices, len(inputs.pods) + inputs.nowhere) == (8, 8152)
    # Those that name a model of the trace fit no node here, nor do three of more than 96 cores.
    pods_with_models = sum(bool(pod.models) for pod in read_pods(shipped()["gpuspec33"]))
    assert inputs.nowhere == pods_with_models + 3


def test_sizes_are_rounded_up_to_units_of_a_device() -> None:
    inputs = read_inputs(read("inflation --devices units:16"), None)
    assert {node.capacity for node in inputs.nodes} == {16}
    exact = read_inputs(read("inflation"), None)
    for pod, before in zip(inputs.pods, exact.pods, strict=True):
        assert 0 <= pod.units / 16 - before.units / 1000 < 1 / 16


def test_devices_of_different_sizes_cannot_be_counted_anew(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("name,cpu_milli,memory_mib,gpu,units\na,1,1,1,80\nb,1,1,1,40\n")
    pods.write_text("name,cpu_milli,memory_mib,gpu,units\na,1,1,1,8\n")
    with pytest.raises(TraceError, match="different sizes"):
        read_inputs(read(f"inflation --nodes {nodes} --pods {pods} --devices units:16"), None)


NODE = TraceNode("n", 1, 1, 2, 16, "T4")
PLAIN = TracePod("a/p", 1, 1, 0, 0, (), None, None, None)


def test_a_live_cluster_comes_as_nodes_and_pods() -> None:
    arguments = []

    def listing(
        flags: Mapping[str, object], *words: str
    ) -> tuple[list[TraceNode], list[TracePod], list[str]]:
        arguments.append((flags["context"], flags["as"], *words))
        return [NODE], [replace(PLAIN, devices=1, units=4)], ["node x is left out"]

    inputs = read_inputs(read("inflation --from-cluster --context prod --as jane"), listing)
    assert arguments == [(["prod"], ["jane"], "aliyun.com/gpu-mem", "")]
    assert (inputs.nodes[0].model, inputs.pods[0].units) == ("T4", 4)
    assert inputs.notes == ("node x is left out",)


@pytest.mark.parametrize(
    ("nodes", "notes", "says"),
    [
        ([], [], "^the cluster has no nodes to simulate$"),
        ([], ["node a is left out: why"] * 4, "^the cluster has no nodes.*(; node a [^;]*why){3}$"),
        ([NODE], ["a pod is left out"], "no pods with GPU to simulate; a pod is left out$"),
    ],
)
def test_of_an_empty_cluster_it_is_told_what_was_left_out(
    nodes: list[TraceNode], notes: list[str], says: str
) -> None:
    with pytest.raises(TraceError, match=says):
        read_inputs(read("inflation --from-cluster"), lambda *_: (nodes, [PLAIN], notes))
