"""A thread that repeats one step, whatever a step raises."""

import logging
import threading
import time
from collections.abc import Callable

from gpushare.errors import GpuShareError
from gpushare.logline import Line


class Loop:
    """Calls `step` in a thread, from `start` to `stop`.

    step: returns the seconds until the next step, or None for `interval`. interval: seconds; also
    the pause after a failed step. failed: the message of the log line about a failed step. at_once:
    the first step begins at once, instead of after `interval`. clock: seconds, monotonic. event:
    makes the events that the thread waits with.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        interval: float,
        *,
        log: logging.Logger,
        failed: str,
        at_once: bool = False,
        clock: Callable[[], float] = time.monotonic,
        event: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        self._step = step
        self._interval = interval
        self._log = log
        self._failed = failed
        self._at_once = at_once
        self._clock = clock
        self._woken, self._stopped = event(), event()
        self._last_progress = clock()
        self._name = name
        self._thread: threading.Thread | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called: a long step ends early."""
        return self._stopped.is_set()

    def start(self) -> None:
        """Start the thread."""
        # Made here: Python 3.13 starts no thread that was made before a fork.
        self.note_progress()
        self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin the next step now, or at the end of the step under way."""
        self._woken.set()

    def rest(self, seconds: float) -> bool:
        """Sleep within a step; return whether the loop is stopping, then without a long sleep."""
        return self._stopped.wait(seconds)

    def stop(self, seconds: float = 0.0) -> None:
        """Begin no further step; wait at most `seconds` for the end of a step under way."""
        self._stopped.set()
        self._woken.set()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(seconds)

    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def seconds_since_progress(self) -> float:
        """Return the seconds since the last sign of progress: a start, a step, `note_progress`."""
        return self._clock() - self._last_progress

    def note_progress(self) -> None:
        """Note that a long step goes on."""
        self._last_progress = self._clock()

    def run(self) -> None:
        """Repeat the step in this thread, until `stop`."""
        pause = 0.0 if self._at_once else self._interval
        while True:
            self._woken.wait(pause)
            self._woken.clear()
            if self.is_stopping:
                return
            self.note_progress()
            next_pause = None
            try:
                next_pause = self._step()
            except GpuShareError as error:
                self._log.warning(Line(self._failed, error=error))
            except Exception:  # the thread must go on
                self._log.exception(self._failed)
            pause = self._interval if next_pause is None else next_pause
