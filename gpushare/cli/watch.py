"""Nodes and pods of a cluster as they change: watches of kubectl over what was listed.

Knows watch events as the API server writes them, a JSON object a line. If one watch ends, for
whatever reason, all end, and everything is listed again: the list is right, and its error says why
a watch does not work.
"""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Self

from gpushare.cli.facts import Fields, mapping, text
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.lister import Observed, Scope, observe
from gpushare.wire.annotations import Names

SETTLE = 0.2
"""Seconds in which changes are gathered before they are shown as one."""

RELIST_PAUSE = 1.0
"""Seconds from the end of a watch to the next list, so that a broken watch is no load."""

_WRAPPED = 1.0
"""Seconds to wait for the end of output: the real kubectl may be the child of a script."""

_Take = Callable[..., None]
_Line = tuple[_Take, bytes]
_KINDS = frozenset({"ADDED", "MODIFIED", "DELETED"})


def follow(kubectl: Kubectl, scope: Scope, names: Names) -> Iterator[Observed]:
    """Yield what the cluster shows, now and after each change, without end.

    Raises whatever `observe` raises, at the first list or a later one.
    """
    while True:
        observed, listed = observe(kubectl, scope, names)
        yield observed
        with _Streams() as streams:
            for of in listed:
                watch = kubectl.watch(of.path, **of.query, resourceVersion=of.version)
                streams.start(watch, of.take)
            while streams.gather():
                yield observed
        time.sleep(RELIST_PAUSE)


class _Streams:
    """Watches whose lines arrive in one queue; an empty line is the end of one."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[_Line] = queue.SimpleQueue()
        self._running: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []

    def start(self, process: "subprocess.Popen[bytes]", take: _Take) -> None:
        """Read the lines that this process prints; `take` gets their objects."""
        assert process.stdout is not None  # noqa: S101  # watch() asked for the pipe
        thread = threading.Thread(target=self._read, args=(process.stdout, take), daemon=True)
        self._running.append((process, thread))
        thread.start()

    def gather(self) -> bool:
        """Return whether a change was taken over (and those right after it); False at the end."""
        take, line = self._lines.get()
        until = time.monotonic() + SETTLE
        while True:
            event = _event(line)
            if event is None:
                return False
            kind, item = event
            take(item, gone=kind == "DELETED")
            try:
                take, line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _thread in self._running:
            process.kill()
        for process, thread in self._running:
            thread.join(_WRAPPED)
            if not thread.is_alive():
                with process:
                    pass  # closes the pipe and waits

    def _read(self, lines: IO[bytes], take: _Take) -> None:
        for line in lines:
            self._lines.put((take, line))
        self._lines.put((take, b""))


def _event(line: bytes) -> tuple[str, Fields] | None:
    """Return (kind, object) of a watch event; None if the watch has ended or cannot go on."""
    try:
        event = mapping(json.loads(line))
    except (ValueError, RecursionError):
        return None
    kind = text(event.get("type"))
    return (kind, mapping(event.get("object"))) if kind in _KINDS else None
