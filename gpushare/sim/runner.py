"""Parallel runs in a pool of processes, results as they come, and a clean end when interrupted.

Knows processes, but not what is run. Runs share nothing, so that a result depends only on its
arguments and not on how many run at a time.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from gpushare.errors import GpuShareError
from gpushare.sim.progress import Progress, begin

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

_LOOK = 0.2
"""Seconds between two checks whether the runs should end."""


class _NotBegun(Exception):
    """A run was handed to a process, but the runs were asked to end before it began."""


class RunLost(GpuShareError):
    """A process ended without a result."""


def run_all(
    run: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    processes: int,
    progress: Progress | None = None,
) -> Generator[_Result]:
    """Yield the result of each job as they come; close the generator if you leave it early.

    `run`, its argument and its result are sent between processes; it may report its progress by
    `progress.go_on`. If progress is stopped, runs under way have some time to end by themselves,
    and no other begins. Raises RunLost if a process was killed, and whatever `run` raises. After
    that, and when closed early, none of its processes is left.
    """
    watched = progress or Progress(len(jobs))
    if processes > 1 and len(jobs) > 1:
        yield from _side_by_side(run, jobs, processes, watched)
        return
    for number, job in enumerate(jobs):
        if watched.stopping:
            return
        begin(watched, number)
        result = run(job)
        watched.tell(number, 1.0)
        yield result


def _side_by_side(
    run: Callable[[_Job], _Result], jobs: Sequence[_Job], processes: int, progress: Progress
) -> Generator[_Result]:
    # A fresh process has no threads and locks of ours.
    with _safe_path():
        pool = ProcessPoolExecutor(
            min(processes, len(jobs)),
            multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(progress,),
        )
    others = set(multiprocessing.active_children())
    try:
        with _safe_path():
            # The first starts all processes.
            pending = {pool.submit(_run, run, number, job) for number, job in enumerate(jobs)}
        while pending and not progress.overdue:
            done, pending = wait(pending, _LOOK, FIRST_COMPLETED)
            for one in done:
                if not isinstance(one.exception(), _NotBegun):
                    yield one.result()
            if progress.stopping:
                pending = {one for one in pending if not one.cancel()}
    except BrokenProcessPool as error:
        raise RunLost("a process was killed (out of memory?); try a smaller --jobs") from error
    finally:
        # A run takes minutes: a caller that leaves early does not wait for those under way.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _safe_path() -> Generator[None]:
    """Keep processes that start meanwhile from importing modules of the current folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


_progress: Progress | None = None


def _begin(progress: Progress) -> None:
    """Make this process end with its parent, and not before."""
    global _progress  # noqa: PLW0603  # it can be handed to a process only when that is started
    _progress = progress
    # A terminal sends Ctrl-C to all of them; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _run(run: Callable[[_Job], _Result], number: int, job: _Job) -> _Result:
    """Run the job in this process, which is one of several."""
    assert _progress is not None  # noqa: S101  # _begin has set it
    if _progress.stopping:
        raise _NotBegun
    begin(_progress, number)
    result = run(job)
    _progress.tell(number, 1.0)
    return result


def _end_with_parent() -> None:
    """End if the parent is killed; else this process of its pool would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
