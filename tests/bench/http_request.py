"""The cost of HTTP for a verb: CPU of one request through the worker, beside a bare flask view.

One connection in one process: bytes in, the worker's parser, the application, bytes out. The verb
itself does nothing. Figures are for comparing within one run.
Run as `python -m tests.bench.http_request`; ten seconds.
"""

import socket
import time
from collections.abc import Callable
from typing import Any

import flask
from gunicorn.config import Config
from gunicorn.glogging import Logger

from gpushare.daemon.callers import Callers
from gpushare.extender.door.app import AccessControl, Verb, Verbs
from gpushare.extender.door.connection import Connection
from gpushare.extender.door.worker import BufferedThreadWorker

_PATH = "/gpushare-scheduler/filter"
_BODY = b"{}" * 200
_REQUEST = (
    f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1:32766\r\nUser-Agent: Go-http-client/1.1\r\n"
    f"Content-Length: {len(_BODY)}\r\nContent-Type: application/json\r\n"
    "Accept-Encoding: gzip\r\n\r\n"
).encode() + _BODY
_CALLS, _ROUNDS = 2000, 5


def _flask() -> flask.Flask:
    app = flask.Flask("bench", static_folder=None)

    @app.post(_PATH)
    def echo() -> flask.Response:
        return flask.Response(flask.request.get_data(cache=False), mimetype="application/json")

    return app


class _WorkerClient:
    """A connection to a worker in this process that serves the application."""

    def __init__(self, app: Any) -> None:
        config = Config()
        for name in ("forwarded_allow_ips", "forwarder_headers"):
            config.set(name, "")
        config.set("http_parser", "python")
        config.set("pre_request", lambda _worker, _request: None)
        self._worker = BufferedThreadWorker(1, 1, [], None, 30, config, Logger(config))
        self._worker.wsgi = app
        self._worker.linger = self._worker.linger_crowded = 0
        server_end, self._sock = socket.socketpair()
        address = ("127.0.0.1", 40000)
        self._connection = Connection(config, server_end, address, ("127.0.0.1", 32766))

    def call(self) -> None:
        """Send one request, and read the answer."""
        self._sock.send(_REQUEST)
        self._connection.receive()
        self._worker.handle(self._connection)
        answer = self._sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 OK"), answer
        assert answer.endswith(_BODY), answer


def _cpu_us(call: Callable[[], None]) -> float:
    start = time.process_time()
    for _ in range(_CALLS):
        call()
    return (time.process_time() - start) / _CALLS * 1e6


def main() -> None:
    """Print the least of several rounds, taken in turn."""
    verbs = Verbs({_PATH: Verb(bytes)}, _flask(), AccessControl(Callers()), len(_BODY))
    clients = {"a flask view": _WorkerClient(_flask()), "a verb of ours": _WorkerClient(verbs)}
    rounds = [
        {name: _cpu_us(client.call) for name, client in clients.items()} for _ in range(_ROUNDS)
    ]
    fastest = {name: min(times[name] for times in rounds) for name in clients}
    for name, micros in fastest.items():
        print(f"{name:<16} {micros:7.0f} us of CPU")
    print(f"ratio {fastest['a verb of ours'] / fastest['a flask view']:.2f}")


if __name__ == "__main__":
    main()
