"""The output of containers: written by the kubelet, read through pods/{name}/log.

Knows lines by namespace, pod and container; nothing of how containers run.
"""

import threading
from datetime import datetime

from gpushare_localcluster.api.calls import Call, Response, Target
from gpushare_localcluster.api.objects import elements, metadata, section
from gpushare_localcluster.api.pods import CONTAINER_LISTS
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.status import bad_request

TEXT = "text/plain"


class PodLogs:
    """The output of all containers, until the kubelet removes the pod."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._lock = threading.Lock()

    def write(self, uid: str, container: str, text: str, at: datetime) -> None:
        """Add the lines that a container of the pod with this uid printed."""
        with self._lock:
            lines = self._lines.setdefault((uid, container), [])
            lines.extend((timestamp(at), line) for line in text.splitlines())

    def forget(self, uid: str) -> None:
        """Drop the output of the pod with this uid."""
        with self._lock:
            for key in [key for key in self._lines if key[0] == uid]:
                del self._lines[key]

    def read(self, uid: str, container: str) -> list[tuple[str, str]]:
        """Return the lines so far, each with its time."""
        with self._lock:
            return list(self._lines.get((uid, container), ()))

    def answer(self, registry: Registry, target: Target, call: Call) -> Response:
        """Return the log of a container as plain text; `follow` ends with the lines so far.

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
        return Response(200, text, TEXT)


def _printed(line: tuple[str, str], *, stamps: bool) -> bytes:
    text = f"{line[0]} {line[1]}\n" if stamps else f"{line[1]}\n"
    return text.encode(errors="replace")
