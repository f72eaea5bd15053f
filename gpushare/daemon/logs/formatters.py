"""Log lines: a constant message and key=value, in one line whatever the values hold.

Names and error texts come from outside: no value may begin a line, forge a key, or send an escape
sequence to a terminal. Knows logging only; writer.py writes the lines.
"""

import json
import logging
import re
import threading
import traceback
from datetime import UTC, datetime

from gpushare.daemon.logs.writer import LogWriter
from gpushare.logline import Line, cut

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROL_IN_LINES = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u200e\u200f\u2066-\u2069]"
)
_STDERR = 2
_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class TextFormatter(logging.Formatter):
    """One line for each record; control characters are escaped."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's own name
        """Return the line before any traceback."""
        record.message = _CONTROL.sub(_escaped, record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 -- logging's own name
        self, ei: "logging._SysExcInfoType"
    ) -> str:
        """Return the traceback; only its line ends are kept unescaped."""
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


def configure(level: str, form: str) -> LogWriter:
    """Log to stderr from that level on, as "text" or "json"; return the writer, to be started."""
    handler = LogWriter(_STDERR)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("urllib3", "kubernetes"):  # their retries log whole URLs
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler


def start_logging(writer: LogWriter) -> None:
    """Write by a thread from now on; log warnings and thread failures too, instead of stderr."""
    writer.start()
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end


def formatter(form: str) -> logging.Formatter:
    """Return the formatter of that name."""
    return JsonFormatter() if form == "json" else TextFormatter()


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    error = ended.exc_value
    name = ended.thread.name if ended.thread else "?"
    logging.getLogger("gpushare").error(Line("a thread has ended", thread=name), exc_info=error)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
