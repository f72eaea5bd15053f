"""A file of scheduling cycles: one JSON object a line, in the order in which they ended.

Tested in `tests/unit/localcluster/test_scheduler_trace.py`.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.localcluster.scheduler.schedule_one import Tracer
from gpushare.localcluster.scheduler.trace import CycleTrace


@contextlib.contextmanager
def cycle_log(file: Path | None) -> Iterator[Tracer]:
    """Yield what writes a cycle, from any thread; nothing is written where there is no file.

    Raises SettingsError for a file that cannot be written.
    """
    if file is None:
        yield lambda _cycle: None
        return
    lock = threading.Lock()
    try:
        out = file.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error

    def write(cycle: CycleTrace) -> None:
        with lock:
            print(json.dumps(cycle.document()), file=out, flush=True)

    with out:
        yield write
