"""Runs side by side: results as they come, and no process left behind."""

import multiprocessing
import os
import signal
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
        deadline = time.monotonic() + 60
        while not (slow.exists() and slow.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pid = int(slow.read_text())
        assert alive(pid)
    assert not alive(pid)
