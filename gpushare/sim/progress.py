"""The progress of runs and the request to stop them, shared by all processes and shown as a bar.

Knows processes and terminals, but not what is run.

Tested in `tests/unit/sim/test_runner.py`.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

GoOn = Callable[[float], bool]
"""Takes the share of a run that is done, from 0 to 1; returns whether the run should go on."""

PATIENCE = 5.0
"""Seconds that runs have to end by themselves after they were asked to."""

_REDRAWN = 0.2
_FORMAT = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}, {rate_fmt}]"


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

    def tell(self, number: int, share: float) -> bool:
        """Note the share of a run that is done; return whether the run should go on."""
        self._shares[number] = share
        return not self.stopping


_here: tuple[Progress, int] | None = None


def begin(progress: Progress, number: int) -> None:
    """Make this run the current one of this process."""
    global _here  # noqa: PLW0603  # a process has one run at a time
    _here = (progress, number)


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
        desc=_description(progress),
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
        shown.set_description_str(_description(progress), refresh=False)
        shown.refresh()


def _description(progress: Progress) -> str:
    text = f"simulate {progress.finished}/{progress.runs} runs"
    return f"{text}, ending (Ctrl-C: at once)" if progress.stopping else text
