"""Parallel runs: results as they finish, and no process left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gpushare.sim.runner import RunLost, run_all


def double(number: int) -> int:
    return number * 2


def fail(number: int) -> int:
    raise ValueError(f"cannot {number}")


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def beside(path: str) -> float:
    """The first of two comes back at once, the other waits for the end of time."""
    if path.endswith("quick"):
        return 0.0
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)
    return 1.0


PARENT = """
import sys
from gpushare.sim.runner import run_all
from tests.unit.sim.test_runner import beside
if __name__ == "__main__":
    list(run_all(beside, sys.argv[1:], 2))
"""


def test_runs_end_with_the_process_that_wanted_them(tmp_path: Path) -> None:
    program, slow = tmp_path / "parent.py", [tmp_path / "a", tmp_path / "b"]
    program.write_text(PARENT)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, str(program), *map(str, slow)], env=environ) as parent:
        pids = [int(wait_for(file)) for file in slow]
        parent.kill()
    deadline = time.monotonic() + 60
    for pid in pids:
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def wait_for(file: Path) -> str:
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return file.read_text()


def alive(pid: int) -> bool:
    return any(child.pid == pid for child in multiprocessing.active_children())


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_has_its_result(processes: int) -> None:
    assert sorted(run_all(double, [1, 2, 3], processes)) == [2, 4, 6]


@pytest.mark.parametrize("processes", [1, 2])
def test_what_a_job_raises_is_raised(processes: int) -> None:
    with pytest.raises(ValueError, match="cannot"):
        list(run_all(fail, [1, 2], processes))


def test_a_killed_process_is_told() -> None:
    with pytest.raises(RunLost, match="was killed"):
        list(run_all(die, [1, 2], 2))


def test_runs_left_early_leave_no_process(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    with closing(run_all(beside, [str(slow), str(tmp_path / "quick")], 2)) as results:
        assert next(results) == 0.0
        pid = int(wait_for(slow))
        assert alive(pid)
    assert not alive(pid)
