"""What the image holds is enough for a cluster, and each command that it lacks says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpushare

PACKAGE = Path(gpushare.__file__).parent
COMMANDS = ("serve", "doctor", "inspect", "scheduler-config")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the package as .dockerignore lets it into the image."""
    folder = tmp_path_factory.mktemp("image")
    lines = (PACKAGE.parent / ".dockerignore").read_text(encoding="utf-8").split("\n")
    left_out = {line.removeprefix("gpushare/") for line in lines if line.startswith("gpushare/")}
    assert left_out == {"localcluster", "sim"}
    ignored = shutil.ignore_patterns("__pycache__", *left_out)
    shutil.copytree(PACKAGE, folder / "gpushare", ignore=ignored)
    return folder


def run(installed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    # -S: an editable installation would find what is left out where the clone is.
    paths = [str(installed), *(path for path in sys.path if path.endswith("-packages"))]
    return subprocess.run(
        [sys.executable, "-P", "-S", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_cluster_runs_is_there(installed: Path, command: str) -> None:
    done = run(installed, "-m", "gpushare.cli.main", command, "--help")
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


@pytest.mark.parametrize("command", ["demo", "simulate"])
def test_what_is_left_out_says_so_and_what_to_do(installed: Path, command: str) -> None:
    done = run(installed, "-m", "gpushare.cli.main", command, "--help")
    assert done.returncode == 1
    assert done.stderr.startswith(f"gpushare: {command} is not in this installation")
    assert "run it from a clone (see README.md)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_that_is_left_in_imports_what_is_left_out(installed: Path) -> None:
    code = (
        "import pkgutil, gpushare\n"
        "for each in pkgutil.walk_packages(gpushare.__path__, 'gpushare.'):\n"
        "    __import__(each.name)\n"
    )
    done = run(installed, "-c", code)
    assert done.returncode == 0, done.stderr
