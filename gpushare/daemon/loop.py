"""A thread that does one step again and again, whatever goes wrong in one of them."""

import logging
import threading
from collections.abc import Callable

from gpushare.errors import GpuShareError
from gpushare.logline import Line


class Loop:
    """Calls `step` in a thread, from `start` to `stop`.

    step: may return the seconds until it is called next; else these are `every`, as after a step
    that failed. failed: what `log` says then. at_once: whether the first step is done at once, and
    not after `every`. `wake` has the next step done now.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        every: float,
        *,
        log: logging.Logger,
        failed: str,
        at_once: bool = False,
    ) -> None:
        self._step = step
        self._every = every
        self._log = log
        self._failed = failed
        self._at_once = at_once
        self._woken = threading.Event()
        self._stopping = False
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        # Made here: Python 3.13 starts no thread that was made before a fork.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have the next step done now; the one after it, if one is under way."""
        self._woken.set()

    def stop(self, seconds: float = 0.0) -> None:
        """Do no further step; wait at most these seconds for the end of one that is under way."""
        self._stopping = True
        self._woken.set()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(seconds)

    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        pause = 0.0 if self._at_once else self._every
        while True:
            self._woken.wait(pause)
            self._woken.clear()
            if self._stopping:
                return
            wanted = None
            try:
                wanted = self._step()
            except GpuShareError as error:
                self._log.warning(Line(self._failed, error=error))
            except Exception:  # the thread must go on
                self._log.exception(self._failed)
            pause = self._every if wanted is None else wanted
