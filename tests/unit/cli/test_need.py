"""`gpushare whatif --need`: how many more nodes, of a cluster, a saved report or tables."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli.listed_cluster import ListedResource
from gpushare.cli.plans import shape_of_words
from gpushare.cli.whatif import main
from gpushare.core.model import NodeSpec
from gpushare.errors import SettingsError
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from tests.support.figures import ROOT, renew, shown
from tests.support.terminal import on_terminal
from tests.unit.cli.fake_kubectl import FakeKubectl, node, pending, pod
from tests.unit.cli.whatif_codes import exit_code

Inspect = Callable[..., tuple[int, str, str]]
Capsys = pytest.CaptureFixture[str]

NODES = """\
name,cpu_milli,memory_mib,gpu,units,model
a100-1,96000,786432,8,80,A100
a10-1,64000,262144,4,24,A10
cpu-1,8000,1024,0,,
"""
PODS = "name,cpu_milli,memory_mib,gpu,units,models\n"


PAGE = ROOT / "docs" / "explain.md"
OF = "how many more nodes"


def need(capsys: Capsys, *words: str) -> tuple[int, str, str]:
    code = main(["--need", *words])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: Capsys, *words: str) -> dict[str, Any]:
    code, out, err = need(capsys, *words, "-o", "json")
    answer: dict[str, Any] = json.loads(out)
    assert (code, err) == (exit_code(answer), "")
    return answer


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    """Two GPU nodes; pods that fit there, and that do not."""
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    rows = [f"train-{n},64000,1024,8,80,A100" for n in range(3)]
    rows += ["other,1,1,1,4,H100", "giant,1,1,1,100,", "plain,4000,1,0,,"]
    pods.write_text(PODS + "\n".join(rows) + "\n")
    return ["--nodes", str(nodes), "--pods", str(pods)]


def test_tables_of_nodes_and_pods_are_answered(tables: list[str], capsys: Capsys) -> None:
    code, out, err = need(capsys, *tables)
    assert (code, err) == (1, "")
    assert out.splitlines()[:-5] == [
        "Now:      736 units of 736 units free on 12 devices of 2 nodes (aliyun.com/gpu-mem)",
        "Need:     2 nodes: 2 x like a100-1 (8 x 80 units); with one node fewer the pods do not all"
        " fit",
        "Pods:     4 of 6 fit (6 are asked for): 2 on nodes that are there, 2 on new ones",
        "Left out: 2 pods that no node of these shapes takes, and no other has room for",
        "          other: 1: another GPU model than the pod accepts",
        "          giant: 1: GPU Memory request is larger than any healthy device",
        "Then:     96 units of 2016 units free on 28 devices of 4 nodes; the largest pod that still"
        " fits: 24 units on each of 4",
    ]
    head, first, _ = out.splitlines()[-3:]
    assert head.split() == ["NODE", *(f"GPU{n}" for n in range(8)), "SHAPE"]
    assert first.split() == ["new-1", *["80/80"] * 8, "like", "a100-1"]


def test_a_document_says_all_of_it(tables: list[str], capsys: Capsys) -> None:
    shape = "8x80,cpu=96,memory=768Gi,model=A100"
    answer = document(capsys, *tables, "--shape", shape)
    assert answer["needed"] == 2
    assert answer["shapes"] == [
        {
            "name": "8x80,cpu=96,memory=768Gi,model=A100",
            "devices": [80] * 8,
            "model": "A100",
            "cpu": 96_000,
            "memory": 768 * 2**30,
            "nodes": 2,
        }
    ]
    assert [item["name"] for item in answer["nodes"]] == ["new-1", "new-2"]
    full = {"index": 7, "total": 80, "allocated": 80, "free": 0}
    assert answer["nodes"][1]["devices"][7] == full
    assert [(item["name"], item["pods"]) for item in answer["podsLeftOut"]] == [
        ("other", 1),
        ("giant", 1),
    ]
    assert sum(item["fit"] for item in answer["pods"]) == 4
    assert answer["largest"] == [{"devices": n, "units": 24} for n in range(1, 5)]


def test_what_compute_strands_on_new_nodes_is_not_free(tables: list[str], capsys: Capsys) -> None:
    words = (*tables[:2], "--pods", "20 + 100% x 13", "--pods", "4 + 30% x 2", "--shape", "4x24")
    answer = document(capsys, *words)
    # Each of the 12 existing devices takes one of the 13 pods, the smallest devices first.
    assert answer["needed"] == 1
    (new,) = answer["nodes"]
    keys = ("allocated", "free", "strandedByCores", "coresAllocated")
    text = sorted([device[key] for key in keys] for device in new["devices"])
    assert [20, 0, 4, 100] in text
    assert all(sum(device[:3]) == 24 for device in text)
    assert answer["after"]["strandedByCores"] == 8 * 4 + 5 * 60
    _, out, _ = need(capsys, *words)
    assert "; the largest pod without compute that still fits: 80 units on " in out


def test_the_page_shows_an_answer_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys, pytestconfig: pytest.Config
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes.csv").write_text(NODES.replace("cpu-1,8000,1024,0,,\n", ""))
    rows = [f"notebook-{n},4000,16384,1,10," for n in range(60)]
    rows += [f"training-{n},64000,262144,8,80,A100" for n in range(2)]
    Path("pods.csv").write_text(PODS + "\n".join([*rows, "new,4000,16384,1,80,H100"]) + "\n")
    words = "--nodes nodes.csv --pods pods.csv --unit GiB --shape 4x24GiB,cpu=64"
    words += " --shape a100-1"
    _, out, _ = need(capsys, *words.split())
    lines = [line for line in out.splitlines() if not line.startswith("Judged:")]
    command = words.replace(" --shape", " \\\n    --shape", 1)
    text = "\n".join(["```text", f"$ gpushare whatif --need {command}", *lines, "```"])
    if pytestconfig.getoption("--regenerate-scenarios"):
        renew(PAGE, OF, text)
    assert shown(PAGE, OF) == text, "run this test with --regenerate-scenarios"


def test_what_if_counts_the_pods_of_which_no_node_has_the_model(
    tables: list[str], capsys: Capsys
) -> None:
    assert main([*tables]) == 1
    out = capsys.readouterr().out
    assert "Left out: 1 pod: only a model that no node has would do: H100\n" in out
    reason = "2 another GPU model than the pod accepts, 1 no shared GPU"
    assert f"Pods:     other: 0 of 1 fit; then: {reason}\n" in out
    assert main([*tables, "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["unknownModels"] == {"H100": 1}
    assert [item["fit"] for item in answer["pods"]] == [1, 0, 0, 0, 0, 1]


def test_many_equal_rows_are_told_together(
    tables: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    pods = tmp_path / "many.json"
    item = {"cpu_milli": 1, "memory_mib": 1, "gpu": 1, "units": 20}
    pods.write_text(json.dumps([{"name": f"p{n}", **item} for n in range(50)]))
    assert main([*tables[:2], "--pods", str(pods)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Pods:")]
    assert lines[0] == "Pods:     36 of 50 fit"
    assert lines[1].startswith("Pods:     p0 and 49 like it: 36 of 50 fit (4 on a10-1, 32 on a100")


def test_what_waits_is_taken_and_more_of_what_runs(kubectl: FakeKubectl, capsys: Capsys) -> None:
    running = [pod(f"r{n}", "a", 8, idx=str(n // 2)) for n in range(4)]
    kubectl.cluster([node("a")], [*running, pending("w1", 8), pending("w2", 16)], page=500)
    answer = document(capsys)
    assert answer["needed"] == 1
    assert [item["name"] for item in answer["waiting"]] == ["default/w1", "default/w2"]
    answer = document(capsys, "--more", "60%", "--pods", "16GiB x 2")
    # 3 of 8 and 3 of 16 beside one of 8 that waits: 80 of 32 each.
    assert answer["needed"] == 3
    assert [(item["name"], item["wanted"]) for item in answer["pods"]] == [
        ("16GiB x 2", 2),
        ("more like default/r0", 3),
    ]
    _, out, _ = need(capsys, "--more", "0.1%", "--without", "a")
    assert "Pods:     7 of 7 fit (2 wait already, 4 are of nodes that go, 1 are asked for)" in out


def test_a_saved_report_is_as_good_as_the_cluster(
    kubectl: FakeKubectl, inspect: Inspect, tmp_path: Path, capsys: Capsys
) -> None:
    wide = pending("wide", 24)
    wide["metadata"]["annotations"]["aliyun.com/gpu-count"] = "2"
    pods = [pod("p1", "a"), pending("late", 9), wide]
    kubectl.cluster([node("a")], pods, page=5)
    file = tmp_path / "saved.json"
    file.write_text(inspect("-o", "json")[1])
    options = ("--shape", "2x16GiB", "--more", "100%")
    saved = document(capsys, "--snapshot", str(file), *options)
    live = document(capsys, *options)
    assert saved.pop("notes") != live.pop("notes")
    assert saved == live
    assert [(item["units"], item["devices"]) for item in live["waiting"]] == [(9, 1), (12, 2)]


def test_new_nodes_have_the_daemons_of_those_like_them(
    kubectl: FakeKubectl, capsys: Capsys
) -> None:
    daemon = pod("daemon", "a", 0)
    daemon["metadata"]["labels"] = {"pod-template-generation": "1"}
    daemon["spec"]["containers"] = [{"resources": {"requests": {"cpu": "5"}}}]
    pending_pods = [pending(f"w{n}") for n in range(4)]
    for pending_pod in pending_pods:
        pending_pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "2"
    kubectl.cluster([node("a")], [daemon, *pending_pods], page=500)
    # Of 8 CPU a node has 3 left: one pod each.
    answer = document(capsys)
    assert (answer["needed"], answer["shapes"][0]["cpu"]) == (3, 3000)


def test_shapes_differ_by_the_labels_that_pods_name(kubectl: FakeKubectl, capsys: Capsys) -> None:
    nodes = [node(name) for name in ("a1", "a2", "b1")]
    for item in nodes:
        item["metadata"]["labels"] = {"zone": item["metadata"]["name"][0]}
    full = [pod(f"r{n}", name, 16, idx=str(n)) for name in ("a1", "a2", "b1") for n in range(2)]
    for number, item in enumerate(full):
        item["metadata"]["uid"] = str(number)
    late = pending("late", 8)
    kubectl.cluster(nodes, [*full, late], page=500)
    assert [item["name"] for item in document(capsys)["shapes"]] == ["like a1"]
    late["spec"]["nodeSelector"] = {"zone": "b"}
    kubectl.cluster(nodes, [*full, late], page=500)
    shapes = document(capsys)["shapes"]
    assert [(item["name"], item["nodes"]) for item in shapes] == [("like a1", 0), ("like b1", 1)]


def test_nothing_is_needed_where_nothing_waits(kubectl: FakeKubectl, capsys: Capsys) -> None:
    kubectl.cluster([node("a")], [], page=500)
    _, out, _ = need(capsys)
    assert "Need:     0 nodes: what is there has room\n" in out
    assert "Pods:     none wait; --pods and --more say which would come\n" in out


def test_on_a_terminal_devices_have_bars_and_tries_are_shown(tables: list[str]) -> None:
    words = [sys.executable, "-m", "gpushare.cli.main", "whatif", "--need", *tables]
    facts = on_terminal([*words, "--shape", "2x100"], os.environ | {"NO_COLOR": "1"}, 90)
    assert "\rwhatif: try 1, of 0 more nodes [00:00]" in facts
    assert "more nodes" not in facts.rpartition("\r")[2]
    assert "######## 100/100  ........ 0/100  2x100\n" in facts


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--pods", "8"), "--need: '8': how many? write '8 x 3'"),
        (("--pods", "8GiB x 3"), "counts in units of its own: leave out GiB, or say --unit"),
        (("--more", "20"), "--more: '20' is not like 20%"),
        (("--more", "0%"), "--more: '0%' is not like 20%"),
        (("--more", "20%"), "--more: no pod runs there"),
        (("--shape", "a10-1,cpu=3"), "nothing goes after the name of a node"),
        (("--shape", "8x80,gpu=3"), "'gpu' is not one of cpu=..., memory=..., model=..."),
        (("--shape", "8x80,price=1"), "'price' is not one of cpu="),
        (("--shape", "8x80,cpu=3,cpu=4"), "has something twice"),
        (("--shape", "8x80,cpu=many"), "cpu: "),
        (("--shape", "8x80,cpu=0"), "cpu=0 is no amount that a node has"),
        (("--shape", "lots"), "there is no node 'lots', nor is it as 8x80GiB"),
        (("--snapshot", "x"), "leave one out"),
        (("--pods", "none.csv"), "'none.csv' is no file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tables: list[str], capsys: Capsys, words: tuple[str, ...], text: str
) -> None:
    code, out, err = need(capsys, *tables[:2], *words)
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.splitlines()) == 1


def test_shapes_without_the_question_are_refused(capsys: Capsys) -> None:
    assert main(["--pods", "8GiB", "--shape", "8x80GiB"]) == 2
    assert "--shape and --more go with --need" in capsys.readouterr().err


@given(
    st.text(max_size=30)
    | st.lists(
        st.sampled_from(
            ["8", "x", "80", "GiB", "MiB", ",", "=", "cpu", "memory", "model", "1e9", "-1"]
            + ["gpu-a", " ", "9" * 20, "0", ".", "٣", "\n"]
        ),
        max_size=12,
    ).map("".join)
)
def test_a_shape_that_is_none_is_one_clear_line(text: str) -> None:
    books = ListedResource(ALIYUN, Ledger(), "GiB")
    books.ledger.node_changed(NodeSpec("gpu-a", (16,), (True,), ("",), ("",)))
    message = ""
    try:
        shape = shape_of_words(text, "--shape", books)
    except SettingsError as error:
        message = str(error)
    else:
        assert shape.units > 0
    assert "\n" not in message
    assert len(message) < 300


def test_no_node_is_needed_for_pods_that_no_shape_takes(
    tables: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = need(capsys, *tables[:2], "--pods", "100 x 3")
    assert code == 1
    assert "Need:     0 nodes: more of these shapes take none of the pods that are left out" in out
    assert "Pods:     0 of 3 fit" in out


def test_new_nodes_like_tainted_ones_take_pods_in_words(
    kubectl: FakeKubectl, tmp_path: Path, capsys: Capsys
) -> None:
    """And without tolerations no line says that there is room."""
    tainted = node("a")
    tainted["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    kubectl.cluster([tainted], [], page=500)
    code, out, _ = need(capsys, "--pods", "16GiB x 3")
    assert code == 0
    assert "Need:     1 node: 1 x like a (2 x 16 GiB); with one" in out
    assert "Pods:     3 of 3 fit (3 are asked for): 2 on nodes that are there, 1 on new ones" in out
    assert "; the largest pod that still fits: 16 GiB on one device" in out
    code, out, _ = need(capsys, "--pods", "16GiB x 3", "--tolerate", "none")
    assert code == 1
    assert "Need:     0 nodes: more of these shapes take none of the pods that are left out" in out
    assert "16GiB x 3: 3: untolerated taint nvidia.com/gpu" in out
