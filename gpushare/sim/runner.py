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
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from gpushare.errors import GpuShareError

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class RunLost(GpuShareError):
    """A process ended without a result."""


def run_all(
    run: Callable[[_Job], _Result], jobs: Sequence[_Job], processes: int
) -> Generator[_Result]:
    """The result of each job, as they come; to be closed where it is left before its end.

    `run` and what it takes and gives travel between processes. Raises RunLost where a process was
    killed, and whatever `run` raises; then and when closed early no process of it is left.
    """
    if processes == 1 or len(jobs) == 1:
        yield from map(run, jobs)
        return
    # A fresh process has no threads and locks of ours.
    with _safe_path():
        pool = ProcessPoolExecutor(
            min(processes, len(jobs)),
            multiprocessing.get_context("spawn"),
            initializer=_begin,
        )
    others = set(multiprocessing.active_children())
    try:
        with _safe_path():
            submitted = [pool.submit(run, job) for job in jobs]  # the first starts all processes
        for done in as_completed(submitted):
            yield done.result()
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


def _begin() -> None:
    """Make this process one that ends with the one that made it, and not before."""
    # Ctrl-C, which a terminal sends to all of them, is for the parent to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent ends nobody, and its pool would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
