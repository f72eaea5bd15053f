"""Parallel runs in a pool of processes: results as they come, their progress as a bar, and a clean
end when interrupted.

Knows processes and terminals, but not what is run. Runs share nothing but their progress and the
request to stop, so that a result depends only on its arguments and not on how many run at a time.
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
"""Takes the share of a run that is done, from 0 to 1; returns whether the run should go on."""

PATIENCE = 5.0
"""Seconds that runs have to end by themselves after they were asked to."""

_REDRAWN = 0.2
_FORMAT = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}, {rate_fmt}]"

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
_LOOK = 0.2
"""Seconds between two checks whether the runs should end."""


class Progress:
    """The share of each run that is done, and whether runs should end.

    It can be handed to a process only when that is started.
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
        """Whether runs are asked to end."""
        return bool(self._stopped_at.value)

    @property
    def overdue(self) -> bool:
        """Whether runs were asked so long ago that those left will not end by themselves."""
        return self.stopping and time.monotonic() - self._stopped_at.value > PATIENCE

    @property
    def finished(self) -> int:
        """How many runs are done."""
        return sum(share >= 1 for share in self._shares)

    @property
    def done(self) -> float:
        """How many runs are done, with those under way counted by their share."""
        return float(sum(self._shares))

    @property
    def description(self) -> str:
        """What the bar says of it."""
        text = f"simulate {self.finished}/{self.runs} runs"
        return f"{text}, ending (Ctrl-C: at once)" if self.stopping else text

    def tell(self, number: int, share: float) -> bool:
        """Note the share of a run that is done; return whether the run should go on."""
        self._shares[number] = share
        return not self.stopping


_here: tuple[Progress, int] | None = None


def go_on(share: float) -> bool:
    """Report the progress of this process's run; return whether it should go on."""
    return _here is None or _here[0].tell(_here[1], share)


def always(_share: float) -> bool:
    """Return True, for a run without Progress."""
    return True


@contextmanager
def bar(progress: Progress) -> Iterator[None]:
    """Show on stderr, while open, how many runs are done, their rate and the time left.

    Only if stderr is a terminal. Runs may take minutes, so the bar moves with the shares of those
    under way.
    """
    # disable=None: the bar is shown only if stderr is a terminal.
    with tqdm(
        total=progress.runs,
        desc=progress.description,
        unit="run",
        disable=None,
        leave=False,
        bar_format=_FORMAT,
    ) as shown:
        ended = threading.Event()
        drawer = threading.Thread(target=_draw, args=(shown, progress, ended), daemon=True)
        if not shown.disable:
            drawer.start()
        try:
            yield
        finally:
            ended.set()
            if not shown.disable:
                drawer.join()


def _draw(shown: "tqdm[None]", progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(_REDRAWN):
        shown.n = progress.done
        shown.set_description_str(progress.description, refresh=False)
        shown.refresh()


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
        try:
            result = _run(run, number, job, watched)
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


@contextmanager
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


def _run(
    run: Callable[[_Job], _Result], number: int, job: _Job, progress: Progress | None = None
) -> _Result:
    """Run the job as the current one of this process. progress: None: as _begin has set it."""
    global _here  # noqa: PLW0603  # a process has one run at a time
    watched = progress or _progress
    assert watched is not None  # noqa: S101  # _begin has set it
    if watched.stopping:
        raise _NotBegun
    _here = (watched, number)
    result = run(job)
    watched.tell(number, 1.0)
    return result


def _end_with_parent() -> None:
    """End if the parent is killed; else this process of its pool would wait for jobs for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
