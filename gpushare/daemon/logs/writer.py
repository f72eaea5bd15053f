"""A log handler with a bounded queue that one thread writes: no caller waits for the reader.

Knows logging and a file descriptor. A pipe that nobody empties (a stopped log collector, a terminal
on hold) is full after a few hundred lines, and a write to it then waits for ever. Lines without
room are dropped and counted, and a line reports them as soon as one can be written again.
"""

import contextlib
import logging
import os
import queue
import select
import threading
import time
import traceback

MAX_WAITING_BYTES = 4 << 20
"""Bytes that may wait: some 20,000 lines."""

_PIECE = 4096
"""Bytes that a pipe which is ready takes at once without waiting (PIPE_BUF)."""
_REPORT_EVERY = 1.0
"""Seconds from one line about dropped lines to the next: a slow reader would read little else."""


class LogWriter(logging.Handler):
    """Writes lines to a descriptor, from `start` to `stop` by a thread.

    Without that thread (before a fork, in a process that only watches another) the caller writes
    the line, as far as that is possible without waiting. `max_waiting`: bytes that may wait.
    """

    def __init__(self, descriptor: int, max_waiting: int = MAX_WAITING_BYTES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._max_waiting = max_waiting
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Two counts with one writer each: what waits is their difference.
        self._put = self._written = 0
        self._reported, self._reported_at = 0, 0.0
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def start(self) -> None:
        """Begin to write by a thread."""
        # Made here: one that was made before a fork counts as ended in the child.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Write what waits, for at most these seconds, and end the thread."""
        thread = self._thread
        if thread is not None:
            self._thread = None
            self._waiting.put(None)
            thread.join(seconds)

    def state(self) -> dict[str, float]:
        """Return values for metrics."""
        return {"log_lines_dropped_total": self.dropped}

    def emit(self, record: logging.LogRecord) -> None:
        """Queue or write the record, or count it as dropped; called with the handler's lock."""
        if self._put - self._written >= self._max_waiting:
            self.dropped += 1
            return
        try:
            line = self._line(record)
        except Exception:
            # logging would print this, and wait for the reader.
            line = ascii(f"a line cannot be formatted: {traceback.format_exc()}").encode() + b"\n"
        if self._thread is None:
            self.dropped += not self._written_at_once(line)
        else:
            self._put += len(line)
            self._waiting.put(line)

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            self._write(line)
            self._written += len(line)
            self._report_dropped()

    def _report_dropped(self) -> None:
        """Write how many lines were dropped since the last report."""
        dropped, now = self.dropped, time.monotonic()
        soon = now < self._reported_at + _REPORT_EVERY and not self._waiting.empty()
        if dropped == self._reported or soon:
            return
        text = f"{dropped - self._reported} log lines dropped: they were not read in time"
        fields = {"name": "gpushare.log", "levelno": logging.WARNING, "levelname": "WARNING"}
        self._write(self._line(logging.makeLogRecord({**fields, "msg": text})))
        self._reported, self._reported_at = dropped, now

    def _write(self, line: bytes) -> None:
        """Write it whole, however long that takes; a descriptor that is gone takes nothing."""
        # Not by sys.stderr: the interpreter ends in an abort while a thread waits in there.
        with contextlib.suppress(OSError):
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # another process made the descriptor non-blocking
                    select.select((), (self._descriptor,), ())

    def _written_at_once(self, line: bytes) -> bool:
        """Return whether the whole line was written without waiting."""
        with contextlib.suppress(OSError):  # it is closed
            for start in range(0, len(line), _PIECE):
                if not select.select((), (self._descriptor,), (), 0)[1]:
                    return False
                self._write(line[start : start + _PIECE])
        return True
