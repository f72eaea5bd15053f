"""A file in the working directory of a process is never imported."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpushare
import gpushare_localcluster
from gpushare.extender.learning.policy_builder import make_policies
from gpushare.sim.runner import run_all
from tests.integration.cluster import Cluster
from tests.integration.process import Extender
from tests.support.waiting import poll
from tests.unit.extender.learning.test_policy_builder import WORKLOAD

_HOSTILE = ("json", "multiprocessing", "numpy", "pickle", "socket", "gpushare")


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Path]:
    """A folder of modules that leave a mark when imported; none may."""
    folder, marks = tmp_path / "hostile", tmp_path / "marks"
    folder.mkdir()
    marks.mkdir()
    for name in _HOSTILE:
        code = f"open({str(marks / name)!r}, 'w').close()\nraise SystemExit(7)\n"
        (folder / f"{name}.py").write_text(code)
    yield folder
    assert [mark.name for mark in marks.iterdir()] == []


def test_serve_and_the_process_that_makes_its_policies_import_nothing_of_their_folder(
    hostile: Path, cluster: Cluster, tmp_path: Path
) -> None:
    kubeconfig = cluster.kubeconfig(tmp_path)
    extender = Extender(tmp_path, kubeconfig, "--leadership", "off", cwd=hostile)
    try:
        extender.wait_ready()
        extender.knows(cluster.node())
        # Policies are made as soon as the devices of a node are known.
        poll(lambda: extender.figure("refits_total") > 0, lambda: extender.log, 60.0)
        assert extender.figure("refit_failures_total") == 0
    finally:
        extender.stop()


def test_policies_are_made_wherever_we_are(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    assert set(make_policies(("binpack", "fgd"), WORKLOAD)) == {"binpack", "fgd"}


def test_runs_of_the_simulator_import_nothing_of_their_folder(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    assert sorted(run_all(abs, [-1, -2, 3], 2)) == [1, 2, 3]


def test_the_demo_runs_from_the_folder_that_the_clone_is_in(tmp_path: Path) -> None:
    """The clone's folder is named like the package, so Python would take the folder for it."""
    (tmp_path / "gpushare").mkdir()
    (tmp_path / "gpushare" / "__init__.py").write_text("raise SystemExit('the clone')\n")
    file = tmp_path / "small.yaml"
    file.write_text(
        "nodes: [{name: a, gpus: 1, gpuMemory: 4}]\n"
        "steps:\n"
        "- apply: {name: p, gpuMem: 3}\n"
        "- waitFor: {pods: p, is: bound}\n"
    )
    command = [sys.executable, "-P", "-m", "gpushare.cli.main", "demo", str(file)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_wherever_we_start_python_its_folder_is_left_out() -> None:
    result = [
        (path.name, line.strip())
        for file in (gpushare.__file__, gpushare_localcluster.__file__)
        for path in Path(file).parent.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bsys\.executable\b", line)
    ]
    assert result
    assert [place for place in result if '"-P"' not in place[1]] == []
