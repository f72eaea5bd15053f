"""A small listener for probes and metrics, so that slow callers of the verbs cannot block it.

Standard library only. A silent connection is closed after a few seconds. Explanations and holds
name pods, so only callers on this machine get these: `kubectl port-forward` to the pod makes such
a caller, and no other pod of the cluster is one.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial

from gpushare.daemon.listener import Handler, Listener

Checks = Callable[[], Mapping[str, str]]
"""Returns the problem of each check by name, "" if there is none."""


Explain = Callable[[str, str], tuple[int, bytes]]
"""Returns (status, JSON) for a namespace and the name of a pod."""

Held = Callable[[], tuple[int, bytes]]
"""Returns (status, JSON) of the holds by pod."""

_HELD = "/apis/v1/held"
_EXPLAIN = re.compile(r"/apis/v1/explain/([^/]+)/([^/]+)")
_FAR = b"""{"error": "explanations and held places are answered on loopback alone: run kubectl \
port-forward to the extender's pod, or ask on its host"}
"""


class HealthServer(Listener):
    """Serves /livez, /readyz, /healthz (as /livez), /metrics, /apis/v1/explain, /apis/v1/held."""

    def __init__(
        self,
        host: str,
        port: int,
        live: Checks,
        ready: Checks,
        metrics: Callable[[], bytes],
        *,
        explain: Explain | None = None,
        held: Held | None = None,
    ) -> None:
        """Bind the socket: an address in use fails here.

        explain, held: None if there is nothing to say.
        """
        pages = {"/livez": live, "/healthz": live, "/readyz": ready}

        class Probes(Handler):
            def page(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, str, bytes]:
                if path == "/metrics":
                    return 200, "text/plain; version=0.0.4; charset=utf-8", metrics()
                explained_pod = _EXPLAIN.fullmatch(path)
                naming = held if path == _HELD else None
                if explain and explained_pod:
                    naming = partial(explain, *explained_pod.groups())
                if naming:
                    status, body = naming() if self.is_near() else (403, _FAR)
                    return status, "application/json", body
                if path not in pages:
                    return 404, "text/plain", b"there are /livez, /readyz, /healthz, /metrics\n"
                failing, text = _report(pages[path](), query)
                return 503 if failing else 200, "text/plain", text.encode()

        super().__init__(host, port, Probes, "health")


def _report(checks: Mapping[str, str], query: Mapping[str, list[str]]) -> tuple[bool, str]:
    """Return (whether a check fails, the text): "ok", or a line for each check, as Kubernetes
    writes.
    """
    excluded = set(query.get("exclude", ()))
    included = {name: wrong for name, wrong in checks.items() if name not in excluded}
    failing = any(included.values())
    if not failing and "verbose" not in query:
        return False, "ok\n"
    lines = (f"[-]{name} {wrong}" if wrong else f"[+]{name} ok" for name, wrong in included.items())
    return failing, "\n".join(lines) + "\n"
