"""A small experiment with expected figures: the policies allocate as published.

A twentieth of the published cluster, so the test takes seconds. The expected means and spreads are
those of the seeds 42 to 51 on the same nodes, by policies that know the pods; five of these seeds
are run here.
"""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.main import main
from gpushare.sim.inputs import OPENB_NODES
from gpushare.trace.nodes_and_pods import read_nodes

EXPECTED = {
    "random": (86.7, 2.1),
    "device-bestfit": (94.4, 0.6),
    "fgd": (94.9, 1.0),
    "shadow-price": (96.0, 0.5),
}
"""GPU allocated at 100 % of load, in percent, and its standard deviation over seeds."""

SEEDS = 5


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The mean allocation at 100 over all runs, by policy."""
    folder = tmp_path_factory.mktemp("figures")
    nodes, out = folder / "nodes.csv", folder / "out.json"
    _write_a_twentieth(nodes)
    words = ["--nodes", str(nodes), "--policy", "fgd,random,device-bestfit,shadow-price"]
    words += ["--seeds", f"42-{41 + SEEDS}", "--jobs", "1", "--json", str(out)]
    words += ["--workload", "known"]
    assert main(["simulate", "inflation", *words]) == 0
    document = json.loads(out.read_text())["summary"]
    return {line["policy"]: line for line in document if line["measure"] == "allocated_100"}


def _write_a_twentieth(path: Path) -> None:
    all_items = sorted(
        read_nodes(OPENB_NODES), key=lambda node: (node.model, node.devices, node.name)
    )
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["name", "cpu_milli", "memory_mib", "gpu", "model"])
        for node in all_items[::20]:
            writer.writerow([node.name, node.cpu, node.memory, node.devices, node.model])


@pytest.mark.parametrize("policy", EXPECTED)
def test_a_policy_allocates_what_is_expected(summary: dict[str, Any], policy: str) -> None:
    mean, spread = EXPECTED[policy]
    line = summary[policy]
    assert line["seeds"] == SEEDS
    assert line["mean"] == pytest.approx(mean, abs=2.5 * spread / math.sqrt(SEEDS))


def test_shadow_price_allocates_more_than_the_others_of_the_same_seeds(
    summary: dict[str, Any],
) -> None:
    own_result = summary["shadow-price"]
    assert own_result["difference"] > 2 * own_result["error"] > 0
    assert own_result["mean"] > max(
        line["mean"] for name, line in summary.items() if line is not own_result
    )
