"""Log lines: a constant message and key=value, always in one line.

Names and error texts come from outside: no value may begin a line, forge a key, or send an escape
sequence to a terminal.

One thread writes the lines from a bounded queue: no caller waits for the reader. A pipe that nobody
empties (a stopped log collector, a terminal on hold) is full after a few hundred lines, and then a
write waits for ever. Lines without room are dropped and counted, and a line reports the number as
soon as the reader reads again.

Tested in `tests/unit/daemon/logs`.
"""

import contextlib
import json
import logging
import os
import queue
import re
import select
import threading
import time
import traceback
from datetime import UTC, datetime

from gpushare.logline import Line, cut

MAX_WAITING_BYTES = 4 << 20
"""Bytes that may wait: some 20,000 lines."""

_PIECE = 4096
"""Bytes that a pipe which is ready takes at once without waiting, and keeps together (PIPE_BUF)."""
_REST = 0.1
"""Seconds of rest of the thread once all lines are written: each write has the thread compete with
requests for the interpreter."""
_REPORT_EVERY = 1.0
"""Seconds from one line about dropped lines to the next: a slow reader would read little else."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROL_IN_LINES = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u200e\u200f\u2066-\u2069]"
)
_STDERR = 2
_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class TextFormatter(logging.Formatter):
    """One line for each record; control characters are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's own name
        """Return the line before any traceback."""
        record.message = _CONTROL.sub(_escaped, record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 -- logging's own name
        self, ei: "logging._SysExcInfoType"
    ) -> str:
        """Return the traceback; all but the line ends is escaped."""
        return _CONTROL_IN_LINES.sub(_escaped, super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, logger, message, the line's values, error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object; json escapes control characters."""
        line = record.msg if isinstance(record.msg, Line) else None
        document: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": line.message if line else record.getMessage(),
        }
        for key, value in line.values.items() if line else ():
            document.setdefault(key, value if isinstance(value, int | float) else cut(value))
        if record.exc_info:
            document["error"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(document)


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
        # Two counts with one writer each: the difference is the number of queued bytes.
        self._put = self._written = 0
        self._reported, self._reported_at = 0, 0.0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.dropped = 0

    def start(self) -> None:
        """Begin to write by a thread."""
        self._ending.clear()
        # Made here: one that was made before a fork counts as ended in the child.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Write the queued lines, for at most these seconds, and end the thread."""
        thread = self._thread
        if thread is not None:
            self._thread = None
            self._ending.set()
            self._waiting.put(None)
            thread.join(seconds)

    def state(self) -> dict[str, float]:
        """Return values for metrics."""
        return {"log_lines_dropped_total": self.dropped}

    def emit(self, record: logging.LogRecord) -> None:
        """Queue, write or drop the record; called under the lock of the handler."""
        if self._put - self._written >= self._max_waiting:
            self.dropped += 1
            return
        try:
            line = self._line(record)
        except Exception:
            # logging would print this, and wait for the reader.
            line = ascii(f"a line cannot be formatted: {traceback.format_exc()}").encode() + b"\n"
        if self._thread is None:
            with contextlib.suppress(OSError):  # the descriptor is closed
                for start in range(0, len(line), _PIECE):
                    if not select.select((), (self._descriptor,), (), 0)[1]:
                        self.dropped += 1
                        break
                    self._write(line[start : start + _PIECE])
        else:
            self._put += len(line)
            self._waiting.put(line)

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _run(self) -> None:
        lines = b""
        while (line := self._waiting.get()) is not None:
            if len(lines) + len(line) > _PIECE:
                self._write_queued(lines)
                lines = b""
            lines += line
            if self._waiting.empty():
                self._write_queued(lines)
                lines = b""
                self._ending.wait(_REST)
        self._write_queued(lines)

    def _write_queued(self, lines: bytes) -> None:
        """Write lines of the queue, and the number of dropped lines when that is due."""
        self._write(lines)
        self._written += len(lines)
        dropped, now = self.dropped, time.monotonic()
        soon = now < self._reported_at + _REPORT_EVERY and not self._waiting.empty()
        if dropped != self._reported and not soon:
            text = f"{dropped - self._reported} log lines dropped: they were not read in time"
            level = {"levelno": logging.WARNING, "levelname": "WARNING"}
            record = {"name": "gpushare.log", "msg": text, **level}
            self._write(self._line(logging.makeLogRecord(record)))
            self._reported, self._reported_at = dropped, now

    def _write(self, line: bytes) -> None:
        """Write the whole line, however long that takes; ignore a closed descriptor."""
        # Not by sys.stderr: the interpreter ends in an abort while a thread waits in there.
        with contextlib.suppress(OSError):
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # another process made the descriptor non-blocking
                    select.select((), (self._descriptor,), ())


def configure(level: str, form: str) -> LogWriter:
    """Log to stderr from that level on, as "text" or "json"; return the writer, to be started."""
    handler = LogWriter(_STDERR)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # No format of ours has these (Python's logging howto): a sixth of the cost of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 -- the way of the howto
    for noisy in ("urllib3", "kubernetes"):  # retries log whole URLs
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler


def start_logging(writer: LogWriter) -> None:
    """Write by a thread from now on; log warnings and thread failures too, instead of stderr."""
    writer.start()
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def formatter(form: str) -> logging.Formatter:
    """Return the formatter of that name."""
    return JsonFormatter() if form == "json" else TextFormatter(_TEXT)


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    error = ended.exc_value
    name = ended.thread.name if ended.thread else "?"
    logging.getLogger("gpushare").error(Line("a thread has ended", thread=name), exc_info=error)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
