"""The output of containers: written by the kubelet, read through pods/{name}/log.

Knows lines by namespace, pod and container; nothing of how containers run.
"""

import threading
from collections.abc import Iterator
from datetime import datetime

from gpushare_localcluster.api.calls import Call, Connection, Response, Target
from gpushare_localcluster.api.objects import elements, metadata, section
from gpushare_localcluster.api.pods import CONTAINER_LISTS
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.status import StatusError, bad_request

POLL = 1.0
"""Seconds between two checks of client and pod by a quiet `--follow`."""

TEXT = "text/plain"
ENDED = ("Succeeded", "Failed")


class PodLogs:
    """The output of all containers, until the kubelet removes the pod."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._printed = threading.Condition()

    def write(self, uid: str, container: str, text: str, at: datetime) -> None:
        """Add the lines that a container of the pod with this uid printed."""
        with self._printed:
            lines = self._lines.setdefault((uid, container), [])
            lines.extend((timestamp(at), line) for line in text.splitlines())
            self._printed.notify_all()

    def forget(self, uid: str) -> None:
        """Drop the output of the pod with this uid."""
        with self._printed:
            for key in [key for key in self._lines if key[0] == uid]:
                del self._lines[key]
            self._printed.notify_all()

    def wake(self) -> None:
        """Wake every follower, so that it notices the end of the server."""
        with self._printed:
            self._printed.notify_all()

    def read(self, uid: str, container: str) -> list[tuple[str, str]]:
        """Return the lines so far, each with its time."""
        with self._printed:
            return list(self._lines.get((uid, container), ()))

    def answer(self, registry: Registry, target: Target, call: Call) -> Response:
        """Return the log of a container as plain text.

        Raises StatusError: 404 without the pod, 400 for an unknown or waiting container.
        """
        pod = registry.get(target.resource, target.home, target.name).body
        main, first = (
            [str(item["name"]) for item in elements(section(pod, "spec"), field)]
            for field in CONTAINER_LISTS
        )
        container = call.query.get("container") or (main[0] if len(main) == 1 else "")
        if container not in (*main, *first):
            choices = f"choose one of: {[*main, *first]}"
            raise bad_request(
                f"container {container!r} is not valid for pod {target.name}: {choices}"
            )
        if section(pod, "status").get("phase", "Pending") == "Pending":
            raise bad_request(f'container "{container}" in pod "{target.name}" is waiting to start')
        uid = str(metadata(pod)["uid"])
        tail = call.number("tailLines") if "tailLines" in call.query else None
        lines = self.read(uid, container)
        shown_lines = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
        stamps = call.flag("timestamps")
        text = b"".join(_printed(line, stamps=stamps) for line in shown_lines)
        if not call.flag("follow"):
            return Response(200, text, TEXT)
        new_lines = self._follow(registry, target, (uid, container), len(lines), call.connection)
        return Response(200, _joined(text, new_lines, stamps=stamps), TEXT)

    def _follow(
        self,
        registry: Registry,
        target: Target,
        key: tuple[str, str],
        line_count: int,
        client: Connection,
    ) -> Iterator[tuple[str, str]]:
        while client.alive():
            ended = _ended(registry, target, key[0])
            with self._printed:
                lines = self._lines.get(key, [])[line_count:]
                if not lines and not ended and client.alive():
                    self._printed.wait(POLL)
            yield from lines
            line_count += len(lines)
            if ended and not lines:
                return


def _printed(line: tuple[str, str], *, stamps: bool) -> bytes:
    text = f"{line[0]} {line[1]}\n" if stamps else f"{line[1]}\n"
    return text.encode(errors="replace")


def _joined(first: bytes, new_lines: Iterator[tuple[str, str]], *, stamps: bool) -> Iterator[bytes]:
    if first:
        yield first
    for line in new_lines:
        yield _printed(line, stamps=stamps)


def _ended(registry: Registry, target: Target, uid: str) -> bool:
    try:
        pod = registry.get(target.resource, target.home, target.name).body
    except StatusError:
        return True
    return metadata(pod)["uid"] != uid or section(pod, "status").get("phase") in ENDED
