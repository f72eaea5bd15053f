"""Parallel runs in a pool of processes: results as they come, a progress bar, and a clean end when
interrupted.

Independent of the work that is run. Runs share nothing but the progress and the request to stop, so
a result depends only on the arguments, not on the number of parallel runs.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

from gpushare.errors import GpuShareError

GoOn = Callable[[float], bool]
"""Share of the run that is done, from 0 to 1 -> whether the run should go on."""

PATIENCE = 5.0
"""Seconds that runs have to end by themselves after a stop."""

_REDRAWN = 0.2
_FORMAT = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}, {rate_fmt}]"

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
_LOOK = 0.2
"""Seconds between two checks whether the runs should end."""


class Progress:
    """The share of each run that is done, and whether runs should end.

    Can be passed to a process only at the start of the process.
    """

    def __init__(self, runs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._shares = context.RawArray("d", runs)
        self._stopped_at = context.RawValue("d", 0.0)
        self.runs = runs

    def stop(self) -> None:
        """Ask all runs to end soon."""
        self._stopped_at.value = time.monotonic()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return bool(self._stopped_at.value)

    @property
    def overdue(self) -> bool:
        """Whether `stop` was called so long ago that remaining runs will not end by themselves."""
        return self.stopping and time.monotonic() - self._stopped_at.value > PATIENCE

    @property
    def finished(self) -> int:
        """How many runs are done."""
        return sum(share >= 1 for share in self._shares)

    @property
    def done(self) -> float:
        """Number of finished runs, plus the shares of unfinished runs."""
        return float(sum(self._shares))

    @property
    def description(self) -> str:
        """The text of the bar."""
        text = f"simulate {self.finished}/{self.runs} runs"
        return f"{text}, ending (Ctrl-C: at once)" if self.stopping else text

    def tell(self, number: int, share: float) -> bool:
        """Record the share of a run that is done; return whether the run should go on."""
        self._shares[number] = share
        return not self.stopping


_current_run: tuple[Progress, int] | None = None


def go_on(share: float) -> bool:
    """Report the progress of this process's run; return whether the run should go on."""
    return _current_run is None or _current_run[0].tell(_current_run[1], share)


def always(_share: float) -> bool:
    """Return True, for a run without Progress."""
    return True


@contextmanager
def bar(progress: Progress) -> Iterator[None]:
    """Show on stderr, while the context is open, finished runs, rate and remaining time.

    Only if stderr is a terminal. Runs may take minutes, so the bar moves with the shares of
    unfinished runs.
    """
    # disable=None: the bar is shown only if stderr is a terminal.
    with tqdm(
        total=progress.runs,
        desc=progress.description,
        unit="run",
        disable=None,
        leave=False,
        bar_format=_FORMAT,
    ) as progress_bar:
        ended = threading.Event()
        drawer = threading.Thread(target=_draw, args=(progress_bar, progress, ended), daemon=True)
        if not progress_bar.disable:
            drawer.start()
        try:
            yield
        finally:
            ended.set()
            if not progress_bar.disable:
                drawer.join()


def _draw(progress_bar: "tqdm[None]", progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(_REDRAWN):
        progress_bar.n = progress.done
        progress_bar.set_description_str(progress.description, refresh=False)
        progress_bar.refresh()


class _NotBegun(Exception):
    """`stop` was called before the run began in a process."""


class RunLost(GpuShareError):
    """A process ended without a result."""


def run_all(
    run: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    processes: int,
    progress: Progress | None = None,
) -> Generator[_Result]:
    """Yield the results of the jobs as they finish; a caller that stops early closes the generator.

    `run`, argument and result are sent between processes; `run` may report the progress by `go_on`.
    After `progress.stop`, unfinished runs have PATIENCE seconds to end by themselves, and no other
    run begins. Raises RunLost if a process was killed, and any error of `run`. Afterwards, and
    after an early close, no process of the pool is left.
    """
    run_progress = progress or Progress(len(jobs))
    if processes > 1 and len(jobs) > 1:
        yield from _side_by_side(run, jobs, processes, run_progress)
        return
    for number, job in enumerate(jobs):
        try:
            result = _run(run, number, job, run_progress)
        except _NotBegun:
            return
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
    earlier_children = set(multiprocessing.active_children())
    try:
        with _safe_path():
            # The first submit starts all processes.
            pending = {pool.submit(_run, run, number, job) for number, job in enumerate(jobs)}
        while pending and not progress.overdue:
            finished, pending = wait(pending, _LOOK, FIRST_COMPLETED)
            for one in finished:
                if not isinstance(one.exception(), _NotBegun):
                    yield one.result()
            if progress.stopping:
                pending = {one for one in pending if not one.cancel()}
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


_progress: Progress | None = None


def _begin(progress: Progress) -> None:
    """Make this process end together with the parent process, and not before."""
    global _progress  # noqa: PLW0603  # Progress can be passed only at the start of a process
    _progress = progress
    # A terminal sends Ctrl-C to all processes; the parent handles the signal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _run(
    run: Callable[[_Job], _Result], number: int, job: _Job, progress: Progress | None = None
) -> _Result:
    """Run the job as the current run of this process. progress: None: the one of `_begin`."""
    global _current_run  # noqa: PLW0603  # a process has one run at a time
    run_progress = progress or _progress
    assert run_progress is not None  # noqa: S101  # _begin has set it
    if run_progress.stopping:
        raise _NotBegun
    _current_run = (run_progress, number)
    result = run(job)
    run_progress.tell(number, 1.0)
    return result


def _end_with_parent() -> None:
    """End this process when the parent is killed; otherwise it would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
