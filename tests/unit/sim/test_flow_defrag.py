"""Moves for waiting pods in a small cluster where pods come and go."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import ranking
from gpushare.core.policies.binpack import Binpack
from gpushare.errors import SettingsError
from gpushare.sim.engine import Cluster
from gpushare.sim.experiments import churn
from gpushare.sim.flow import Defragmenter, Running
from gpushare.sim.main import main
from gpushare.sim.options import Defrag, Parameters, moves, read_options
from gpushare.trace.nodes_and_pods import TraceNode
from tests.bench.small_clusters import still

NODES = [TraceNode(f"n-{at}", 16_000, 2**16, 2, 8, "card") for at in range(2)]


def test_the_oldest_gets_the_place_that_moves_open() -> None:
    cluster = Cluster(NODES, ranking(Binpack(), 2))
    running = {
        number: Running(cluster.put(row, ((device, units),), Request(units, 1)), began)
        for number, (row, device, units, began) in enumerate(
            [(0, 0, 2, 1.0), (0, 1, 8, 0.0), (1, 0, 6, 0.0), (1, 1, 5, 0.0)]
        )
    }
    defrag = Defragmenter(cluster, Defrag(k=1, every=2), 0.5)
    assert [defrag.is_due() for _ in range(4)] == [False, True, False, True]
    hole = defrag.make_room(Request(8, 1), running, 3.0)
    assert hole is not None
    assert (hole.row, hole.devices) == (0, (0,))
    assert (running[0].placement.row, running[0].began) == (1, 3.0)
    assert (defrag.moves, defrag.lost) == (1, 2 * 2.0)
    assert cluster.allocated == int(cluster.view.used.sum()) == 29
    assert (cluster.view.used <= cluster.view.capacity).all()
    assert defrag.make_room(Request(8, 1), running, 4.0) is None


@pytest.mark.parametrize("policy", ["binpack", "fgd", "auto"])
def test_a_run_with_moves_is_told_beside_the_same_run_without(policy: str) -> None:
    nodes, pods = still("whole", 3)
    options = Parameters(load=1.1, life=3.0, warmup=1.0, wait=True)
    without = churn(nodes, pods, policy, 7, options)
    moving = Parameters(load=1.1, life=3.0, warmup=1.0, wait=True, defrag=Defrag(3, 5))
    record = churn(nodes, pods, policy, 7, moving)
    alloc, before, lost = record["alloc"], without["alloc"], record["lost"]
    assert isinstance(alloc, float)
    assert isinstance(before, float)
    assert isinstance(lost, float)
    assert record["gained"] == pytest.approx(alloc - before)
    assert record["defrag"] == "k=3,every=5"
    assert record["moves"] != 0
    assert 0 < lost < 100
    assert not {"gained", "wait_before", "moves", "lost", "defrag"} & without.keys()


@pytest.mark.parametrize("policy", ["binpack", "fgd"])
def test_the_same_seed_gives_the_same_moves(policy: str) -> None:
    nodes, pods = still("whole", 3)
    moving = Parameters(load=1.1, life=3.0, warmup=1.0, wait=True, defrag=Defrag(3, 5))
    one, two = (churn(nodes, pods, policy, 7, moving) for _ in range(2))
    assert one == two


def test_the_waits_without_moves_are_told_beside_those_with_them() -> None:
    nodes, pods = still("whole", 3)
    options = Parameters(load=1.2, life=4.0, warmup=1.0, wait=True)
    without = churn(nodes, pods, "binpack", 7, options)
    record = churn(nodes, pods, "binpack", 7, replace(options, defrag=Defrag(3, 5)))
    assert record["wait_before"] == without["wait_mean"] != record["wait_mean"]


@pytest.mark.parametrize("text", ["k=3,every=20", "every=20,k=3", " k=3 "])
def test_how_pods_are_moved_is_said_in_words(text: str) -> None:
    assert moves(text) == Defrag(3, 20)


@pytest.mark.parametrize("text", ["", "3", "k=0", "k=9", "every=0", "k=1,k=2", "k=3,often=1"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not like k=3,every=20"):
        moves(text)


def test_nobody_is_moved_for_pods_that_do_not_wait() -> None:
    with pytest.raises(SettingsError, match="add --wait"):
        read_options(["churn", "--defrag", "k=3"])


def test_the_table_tells_what_moves_bring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("name,cpu_milli,memory_mib,gpu,units\na,64000,65536,4,8\nb,64000,65536,4,8\n")
    pods.write_text("name,cpu_milli,memory_mib,gpu,units\nx,1,1,1,8\ny,1,1,1,2\nz,1,1,1,3\n")
    words = f"churn --nodes {nodes} --pods {pods} --policy binpack --seeds 1-2 --wait --jobs 1"
    words += f" --life 3 --warmup 1 --defrag k=2,every=3 --json {tmp_path / 'out.json'}"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert {"GAINED", "MOVES", "LOST"} <= {*out.split()}
    about = json.loads((tmp_path / "out.json").read_text())
    assert about["parameters"]["defrag"] == {"k": 2, "every": 3}
    assert {row["measure"] for row in about["summary"]} >= {"gained", "moves", "lost"}
