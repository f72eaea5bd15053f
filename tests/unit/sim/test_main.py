"""`gpushare simulate` on a small cluster: output, files and exit codes."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.cli.main import main
from gpushare.core.trial_lead import lead_text
from gpushare.sim.main import main as simulator
from gpushare.trace.nodes_and_pods import TraceNode, TracePod

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """The flags for the files of ten nodes with four devices of 16 units, and of pods."""
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    lines = [f"n{index},32000,131072,4,16,T4" for index in range(10)]
    nodes.write_text("\n".join(["name,cpu_milli,memory_mib,gpu,units,model", *lines]))
    sizes = [(1, 16), (1, 5), (1, 9), (1, 3), (2, 16), (0, 0), (1, 7), (4, 16)]
    lines = [
        f"p{index},{4000 * max(devices, 1)},4096,{devices},{units},{index},{index},{index + 20}"
        for index in range(64)
        for devices, units in [sizes[index % len(sizes)]]
    ]
    head = "name,cpu_milli,memory_mib,gpu,units,created,scheduled,deleted"
    pods.write_text("\n".join([head, *lines]))
    return ["--nodes", str(nodes), "--pods", str(pods), "--jobs", "1"]


def simulate(*words: str) -> int:
    return main(["simulate", *words])


def test_a_run_prints_a_table_and_writes_a_record_for_each_policy_and_seed(
    small: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out.json"
    words = ["--policy", "fgd,device-bestfit", "--seeds", "42-43"]
    assert simulate("inflation", *small, *words, "--json", str(out)) == 0
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0].endswith("64 pods on 10 nodes with 40 devices")
    assert lines[1].split() == ["POLICY", "SEEDS", "ALLOC@95", "ALLOC@100", "ALLOC@130", "FAILED"]
    assert [line.split()[0] for line in lines[2:5]] == ["fgd", "device-bestfit", "device-bestfit"]
    assert lines[5] == ""
    assert [line.split()[0] for line in lines[6:10]] == lines[1].split()[2:]
    assert lines[7].endswith("of them; 1 point is 6.4 units, 0.4 devices")
    assert lines[11].startswith("ALLOC@100: ")
    assert "device-bestfit and fgd" in lines[11] or "than fgd" in lines[11]
    assert len(lines) == 12
    document = json.loads(out.read_text())
    assert (document["kind"], document["complete"]) == ("SimulationReport", True)
    runs = [(one["policy"], one["seed"]) for one in document["records"]]
    assert runs == [("fgd", 42), ("fgd", 43), ("device-bestfit", 42), ("device-bestfit", 43)]
    ends = document["records"][0]["allocated"]
    assert 60 < max(ends.values()) <= 100


@pytest.mark.parametrize(("form", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_every_form_can_be_printed(small: list[str], capsys: Capsys, form: str, parse: Any) -> None:
    assert simulate("inflation", *small, "--seeds", "42", "--policy", "fgd", "-o", form) == 0
    assert parse(capsys.readouterr().out)


def test_what_auto_chose_is_told_with_its_figures(small: list[str], capsys: Capsys) -> None:
    words = ["--policy", "device-bestfit,auto", "--seeds", "42-43", "--workload", "known"]
    assert simulate("inflation", *small, *words) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("auto was")]
    assert simulate("inflation", *small, *words, "-o", "json") == 0
    simple, _, auto, again = json.loads(capsys.readouterr().out)["records"]
    assert "choices" not in simple
    assert auto["choices"] == again["choices"]
    (choice,) = auto["choices"]
    assert choice["since"] == 0
    best = choice["policy"]
    other_shares = [value for name, value in choice["allocated"].items() if name != best]
    assert choice["lead"] == pytest.approx(choice["allocated"][best] - max(other_shares))
    assert best == "device-bestfit" or choice["lead"] > choice["error"]
    lead = lead_text(choice["lead"], choice["error"], choice["second"])
    assert line == f"auto was {best}: in its trial {lead}"


def test_an_auto_that_learns_tells_each_of_its_choices(
    small: list[str], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.core.trial_streams._MAX_STREAMS", 8)
    words = ["--policy", "auto", "--seeds", "42", "-o", "json"]
    assert simulate("churn", *small, *words, "--life", "12", "--warmup", "1") == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    policies = [choice["policy"] for choice in record["choices"]]
    since = [choice["since"] for choice in record["choices"]]
    assert len(since) > 1
    assert since[0] >= 50
    for (one, two), (before, after) in zip(
        itertools.pairwise(policies), itertools.pairwise(since), strict=True
    ):
        assert (after == before) == (one == two)


def test_a_file_that_cannot_be_written_keeps_back_nothing_else(
    small: list[str], capsys: Capsys
) -> None:
    words = ["--policy", "fgd", "--seeds", "42", "--json", "/dev/full"]
    assert simulate("inflation", *small, *words) == 1
    output = capsys.readouterr()
    assert output.err == "gpushare simulate: [Errno 28] No space left on device\n"
    assert output.out.splitlines()[2].startswith("fgd")


def test_a_policy_of_another_package_that_fails_keeps_back_no_finished_run(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (tmp_path / "falling.py").write_text("def Falling(workload):\n    return object()\n")
    info = tmp_path / "falling-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: falling\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gpushare.policies]\nfalling = falling:Falling\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert simulate("inflation", *small, "--policy", "fgd,falling", "--seeds", "42-43") == 1
    output = capsys.readouterr()
    assert output.out.splitlines()[2].split()[:2] == ["fgd", "1"]
    assert output.err.endswith("TypeError: what it makes has no method score\n")


def test_the_headline_may_be_read_at_another_load(small: list[str], capsys: Capsys) -> None:
    assert simulate("inflation", *small, "--seeds", "42", "--policy", "fgd", "--load", "1.1") == 0
    assert "ALLOC@110" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_figures(small: list[str], capsys: Capsys) -> None:
    outputs = []
    for _ in range(2):
        assert simulate("inflation", *small, "--seeds", "7", "--policy", "random,fgd") == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "line", ["churn --life 3", "churn --wait", "churn --workload known", "replay"]
)
def test_pods_may_come_and_go(small: list[str], capsys: Capsys, line: str) -> None:
    words = line.split()
    assert simulate(*words, *small, "--seeds", "42", "--policy", "fgd,spread") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(words[0])
    measured = ["WAITING", "WAIT"] if "--wait" in words else ["BLOCKED", "GPU"]
    assert lines[1].split()[:5] == ["POLICY", "SEEDS", "ALLOC", *measured]
    assert lines[2].startswith("fgd")


def test_a_trace_without_times_cannot_be_replayed(capsys: Capsys) -> None:
    assert simulate("replay", "--pods", "multigpu20") == 2
    assert capsys.readouterr().err == (
        "gpushare simulate: multigpu20: replay needs the column created or creation_time\n"
    )


def test_pods_that_all_came_at_one_moment_cannot_be_replayed(
    small: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    pods = tmp_path / "at-once.csv"
    head = "name,cpu_milli,memory_mib,gpu,units,created"
    pods.write_text(f"{head}\na,1,1,1,4,5\nb,1,1,1,4,5\nc,1,1,1,4,\n")
    assert simulate("replay", *small, "--pods", str(pods)) == 2
    assert capsys.readouterr().err == (
        f"gpushare simulate: {pods}: all pods came at one moment, so none can be replayed\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "none"], "no policy is called 'none'; there are: "),
        (["--pods", "no-such-file"], "no-such-file: cannot be read"),
        (["--json", "/no/such/directory/out.json"], "there is no directory to write it to"),
        (["--json", "/"], "/: is a directory, and no file to write to"),
        (["--plot", "/dev/null"], "/dev/null: is no directory to write pictures to"),
    ],
)
def test_wrong_input_ends_with_2_and_one_line(
    small: list[str], capsys: Capsys, words: list[str], says: str
) -> None:
    assert simulate("inflation", *small, *words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("gpushare simulate: ")
    assert says in output.err
    assert output.err.count("\n") == 1


def test_a_wrong_trace_is_told_by_file_line_and_column(
    small: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text("name,cpu_milli,memory_mib,gpu,units\na,1,1,1,4\nb,-1,1,1,4\n")
    assert simulate("churn", *small, "--pods", str(broken)) == 2
    assert capsys.readouterr().err == (
        f"gpushare simulate: {broken} line 3, column cpu_milli:"
        " is no whole number from 0 to 100000000: '-1'\n"
    )


def test_a_run_that_would_not_end_is_refused(
    small: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    nodes = tmp_path / "huge.csv"
    nodes.write_text("name,cpu_milli,memory_mib,gpu,units\na,100000,100000,8,1000000000\n")
    assert simulate("inflation", *small, "--nodes", str(nodes)) == 2
    assert "pods would come in a run, more than 5e+06" in capsys.readouterr().err


def test_what_a_live_cluster_leaves_out_is_said(capsys: Capsys) -> None:
    node = TraceNode("n", 8000, 8000, 2, 16, "")
    pods = [TracePod(f"p{units}", 100, 1, 1, units, (), None, None, None) for units in (3, 5, 8)]
    listing = [node], pods, ["node x is left out: it is closed"]
    words = ["inflation", "--from-cluster", "--policy", "fgd", "--seeds", "42"]
    assert simulator(words, lambda *_: listing) == 0
    output = capsys.readouterr()
    assert output.err == "Warning: node x is left out: it is closed\n"
    assert output.out.startswith("inflation: cluster, 3 pods on 1 nodes with 2 devices\n")


def test_a_small_cluster_has_ten_runs_unless_seeds_are_named(
    small: list[str], capsys: Capsys
) -> None:
    assert simulate("inflation", *small, "--policy", "binpack") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:2] == ["binpack", "10"]


def test_pods_that_fit_nowhere_are_counted_apart(
    small: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    pods, out = tmp_path / "large.csv", tmp_path / "out.json"
    head = "name,cpu_milli,memory_mib,gpu,units,models"
    rows = ["a,1000,1,1,4,", "b,1000,1,1,17,", "c,1,1,8,1,", "d,1,1,1,4,H100", "e,99999,1,0,0,"]
    pods.write_text("\n".join([head, *rows]))
    words = ["--pods", str(pods), "--policy", "fgd", "--seeds", "42", "--json", str(out)]
    assert simulate("inflation", *small, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"inflation: {pods}, 1 pods on 10 nodes with 40 devices",
        "4 more pods fit no node even while it is empty, and are left out; 1 of these accept only"
        " a model that no node has: H100",
    ]
    document = json.loads(out.read_text())
    assert (document["fitNowhere"], document["units"]) == (4, 640)
    assert document["unknownModels"] == {"H100": 1}
    assert document["records"][0]["allocated"]["100"] == pytest.approx(100, abs=1)
    pods.write_text("\n".join([head, *rows[1:3], rows[4]]))
    assert simulate("inflation", *small, *words) == 2
    assert "no pod that asks for GPU fits any of the nodes" in capsys.readouterr().err


def test_devices_of_a_node_may_differ(small: list[str], tmp_path: Path, capsys: Capsys) -> None:
    nodes = tmp_path / "mixed.csv"
    head = "name,cpu_milli,memory_mib,gpu,units"
    nodes.write_text(f"{head}\na,96000,768000,3,16|16|8\nb,96000,768000,2,16\n")
    words = ["--nodes", str(nodes), "--policy", "shadow-price,fgd,device-bestfit", "--seeds", "42"]
    assert simulate("churn", *small, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("on 2 nodes with 5 devices")
    assert "of 72 units on 5 devices" in "".join(lines)
    nodes.write_text(f"{head}\na,96000,768000,3,16|16\n")
    assert simulate("churn", *small, *words) == 2
    assert "column units: names 2 devices where the node has 3" in capsys.readouterr().err


def test_the_nodes_of_a_live_cluster_take_the_pods_of_a_file(
    small: list[str], capsys: Capsys
) -> None:
    listing = [TraceNode("n", 64000, 80000, 4, 16, "")], list[TracePod](), list[str]()
    words = ["inflation", "--from-cluster", *small[2:], "--policy", "fgd", "--seeds", "42"]
    assert simulator(words, lambda *_: listing) == 0
    output = capsys.readouterr()
    assert output.out.startswith(f"inflation: {small[3]}, 64 pods on 1 nodes with 4 devices\n")


def test_pictures_are_drawn(small: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "pictures"
    words = ["--policy", "fgd,random", "--seeds", "42-43", "--plot", str(folder)]
    assert simulate("inflation", *small, *words) == 0
    names = ["allocated", "devices-fgd", "devices-random", "fragmentation", "refused"]
    assert sorted(file.name for file in folder.iterdir()) == [f"{name}.png" for name in names]
    for file in folder.iterdir():
        assert file.read_bytes().startswith(b"\x89PNG")
