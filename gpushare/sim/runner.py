"""Parallel runs in a pool of processes: results as they come, and a clean end when interrupted.

Independent of the work that is run. Runs share nothing, so a result depends only on the arguments,
not on the number of parallel runs.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from gpushare.errors import GpuShareError

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class RunLost(GpuShareError):
    """A process ended without a result."""


def run_all(
    run: Callable[[_Job], _Result], jobs: Sequence[_Job], processes: int
) -> Generator[_Result]:
    """Yield the results of the jobs as they finish; a caller that stops early closes the generator.

    `run`, argument and result are sent between processes. Raises RunLost if a process was killed,
    and any error of `run`. Afterwards, and after an early close, no process of the pool is left.
    """
    if processes == 1 or len(jobs) < 2:
        yield from map(run, jobs)
        return
    earlier_children = set(multiprocessing.active_children())
    # A fresh process has no threads and locks of ours.
    context = multiprocessing.get_context("spawn")
    with _safe_path():
        pool = ProcessPoolExecutor(min(processes, len(jobs)), context, initializer=_begin)
    try:
        with _safe_path():  # the first submit starts all processes
            runs = [pool.submit(run, job) for job in jobs]
        for finished in as_completed(runs):
            yield finished.result()
    except BrokenProcessPool as error:
        raise RunLost("a process was killed (out of memory?); try a smaller --jobs") from error
    finally:
        # A run takes minutes: a caller that stops early does not wait for unfinished runs.
        for child in set(multiprocessing.active_children()) - earlier_children:
            child.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _safe_path() -> Generator[None]:
    """Keep processes that start in the context from importing modules of the current folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _begin() -> None:
    """Make this process end together with the parent process, and not before."""
    # A terminal sends Ctrl-C to all processes; the parent handles the signal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the parent is killed; otherwise it would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
