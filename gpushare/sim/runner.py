"""Runs side by side: one process a run, results as they come, and a clean end when interrupted.

Knows processes; not what is run. Runs share nothing, so that a result depends on its arguments
alone and not on how many go on at a time.
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
"""Seconds after which is looked whether the end was asked for."""


class _NotBegun(Exception):
    """A process was handed a run, and the end was asked for before the run began."""


class RunLost(GpuShareError):
    """A process ended without a result."""


def run_all(
    run: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    processes: int,
    progress: Progress | None = None,
) -> Generator[_Result]:
    """Yield the result of each job, as they come; to be closed where it is left before its end.

    `run` and what it takes and gives travel between processes; it may say by `progress.go_on` how
    far it is. Where progress asks for the end, runs under way may end by themselves for a while,
    and no other begins. Raises RunLost where a process was killed, and whatever `run` raises; then
    and when closed early no process of it is left.
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
        # A run takes minutes: whoever leaves early does not wait for those under way.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _safe_path() -> Generator[None]:
    """Nothing: processes begun meanwhile import nothing from the folder that we were called in."""
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
    """Make this process one that ends with the one that made it, and not before."""
    global _progress  # noqa: PLW0603  # it can be handed to a process only when that is started
    _progress = progress
    # Ctrl-C, which a terminal sends to all of them, is for the parent to answer.
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
    """A killed parent ends nobody, and its pool would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
