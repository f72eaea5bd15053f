"""The pictures show the measures, also for small clusters."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from gpushare.cli.main import main

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is missing")

ORANGE = (255, 127, 14)
"""The colour of the second policy; no later line covers that one."""


def pictures(
    folder: Path, nodes: int, devices: int = 2, experiment: str = "inflation", seeds: str = "42-45"
) -> Path:
    """The folder with the pictures of so many nodes, filled by four kinds of pods."""
    lines = [f"gpu-{index},32000,131072,{devices},16" for index in range(nodes)]
    head = "name,cpu_milli,memory_mib,gpu,units"
    (folder / "nodes.csv").write_text("\n".join([head, *lines]))
    pods = ["a,2000,4096,1,6", "b,2000,4096,1,10", "c,2000,4096,1,16", "d,2000,4096,2,8"]
    (folder / "pods.csv").write_text("\n".join([head, *pods]))
    words = ["--nodes", str(folder / "nodes.csv"), "--pods", str(folder / "pods.csv")]
    words += ["--policy", "fgd,device-bestfit", "--seeds", seeds, "--jobs", "1"]
    assert main(["simulate", experiment, *words, "--plot", str(folder / "made")]) == 0
    return folder / "made"


def columns_with(colour: tuple[int, int, int], picture: Path) -> float:
    """The share of the picture's columns that have a pixel of this colour."""
    from matplotlib.image import imread

    pixels = np.rint(imread(picture)[:, :, :3] * 255).astype(int)
    return float((np.abs(pixels - colour).max(axis=2) < 8).any(axis=0).mean())


@pytest.mark.parametrize("name", ["allocated", "fragmentation"])
def test_the_lines_of_a_cluster_whose_seeds_share_no_load_go_from_side_to_side(
    tmp_path: Path, name: str
) -> None:
    assert columns_with(ORANGE, pictures(tmp_path, nodes=3) / f"{name}.png") > 0.75


@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (24, 4), (25, 4), (200, 1)])
def test_devices_of_clusters_of_any_size_are_drawn(
    tmp_path: Path, nodes: int, devices: int
) -> None:
    files = pictures(tmp_path, nodes, devices, "churn", seeds="42-43")
    assert sorted(file.name for file in files.iterdir()) == [
        "devices-device-bestfit.png",
        "devices-fgd.png",
    ]
