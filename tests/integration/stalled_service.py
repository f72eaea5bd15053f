"""A real gunicorn process with our worker class and a small app, for the tests of slow clients.

Run as `python stalled_service.py JSON`: `bind` (port), and optionally `worker` ("gthread" for
gunicorn's own; "patient" for one with long deadlines), `threads`, `certfile`, `keyfile` (the CA of
clients is that certificate), `connections`. Knows nothing of the extender but how it listens.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker

from gpushare.extender.door.certificates import Certificates
from gpushare.extender.door.connection import Connection
from gpushare.extender.door.worker import BufferedThreadWorker

CERTIFICATES: list[Certificates] = []
LARGE = b"0123456789abcdef" * (512 << 10)


class SmallConnection(Connection):
    max_body = 1 << 20


class QuickWorker(BufferedThreadWorker):
    """The same worker with deadlines short enough for a test."""

    connection_class = SmallConnection
    request_deadline = 1.0
    answer_deadline = 1.0
    max_held = 2 << 20


class PatientWorker(QuickWorker):
    """A connection that closes before this time was closed for another reason than its deadline."""

    request_deadline = answer_deadline = 60.0


def app(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    body = environ["wsgi.input"].read()
    if environ["PATH_INFO"] == "/slow":
        print("slow begins", file=sys.stderr, flush=True)
        time.sleep(0.5)
    if environ["PATH_INFO"] == "/pid":
        body = str(os.getpid()).encode()
    if environ["PATH_INFO"] == "/large":  # more than the sockets' buffers hold
        body = LARGE
    if environ["PATH_INFO"] == "/contexts":
        body = str([item.loads for item in CERTIFICATES]).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


class Service(BaseApplication):
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        super().__init__()

    def load_config(self) -> None:
        workers = {
            "gthread": ThreadWorker,
            "buffered": QuickWorker,
            "patient": PatientWorker,
        }
        options = self.options
        self.cfg.set("bind", options["bind"])
        self.cfg.set("worker_class", workers[options.get("worker", "buffered")])
        self.cfg.set("threads", options.get("threads", 2))
        self.cfg.set("worker_connections", options.get("connections", 64))
        self.cfg.set("keepalive", 120)
        self.cfg.set("graceful_timeout", 5)
        self.cfg.set("control_socket_disable", True)
        if "certfile" in options:
            files = options["certfile"], options["keyfile"]
            tls = Certificates(*files, options["certfile"])
            CERTIFICATES.append(tls)
            self.cfg.set("certfile", tls.certificate)
            self.cfg.set("keyfile", tls.key)
            self.cfg.set("ssl_context", lambda _config, _make: tls.context())

    def load(self) -> Any:
        return app


if __name__ == "__main__":
    Service(json.loads(sys.argv[1])).run()
