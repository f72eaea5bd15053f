"""gunicorn serves the application. docs/decisions/http.md has the reasons for the options.

Knows gunicorn; reads no setting and no environment.

Tested in `tests/integration/test_extender.py` and `tests/integration/test_stalled_clients.py`.
"""

import logging
import resource
import signal
from collections.abc import Callable, Iterable
from typing import Any

from gunicorn.app.base import BaseApplication

from gpushare.extender.door.certificates import Certificates
from gpushare.extender.door.worker import BufferedThreadWorker, PendingRequest

_MORE_WORKERS = (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR2)
"""Signals that make gunicorn start a second worker: two workers would keep two ledgers."""


class Server(BaseApplication):
    """One worker process of the application.

    `listen`: HOST:PORT. `drain`: seconds for requests under way at the end. `tls`: the certificates
    to listen with, None for plain HTTP. `not_ready`: why nothing can be answered now, or "". `log`:
    takes gunicorn's own lines. `start`, `stopping` and `stop` are called in the worker: after the
    fork, when the worker takes no more connections, and after the last answer. The argument of
    `start` is a function that returns the requests without an answer.
    """

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        *,
        listen: str,
        threads: int,
        drain: int,
        log: logging.Handler,
        tls: Certificates | None,
        not_ready: Callable[[], str],
        start: Callable[[Callable[[], Iterable[PendingRequest]]], None],
        stopping: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        # As many clients as the file descriptors allow, at most 2048.
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        clients = (
            2048 if hard_limit == resource.RLIM_INFINITY else max(64, min(2048, hard_limit - 256))
        )
        self._app = app
        self._options: dict[str, object] = {
            "bind": listen,
            "workers": 1,
            "worker_class": "gpushare.extender.door.worker.BufferedThreadWorker",
            "threads": threads,
            "worker_connections": clients,
            "backlog": 2048,
            # Go keeps idle connections 90 s and does not repeat a POST that meets a closed one.
            "keepalive": 120,
            "graceful_timeout": drain,
            "control_socket_disable": True,
            # gunicorn trusts callers on this host: SCRIPT_NAME, PATH_INFO and the like in a head
            # would be another path. There is no proxy before us.
            "forwarded_allow_ips": "",
            "forwarder_headers": "",
            "secure_scheme_headers": {},
            # The parser that connection.py agrees with about the end of a request.
            "http_parser": "python",
            "preload_app": False,
            "max_requests": 0,
            "loglevel": "warning",
            "accesslog": None,
            # Behind a Service another replica may be ready: only a new connection reaches that one.
            "pre_request": lambda _worker, request: request.force_close() if not_ready() else None,
            "on_starting": lambda _server: _take_over_log(log),
            "when_ready": lambda _server: _keep_one_worker(),
            "post_worker_init": lambda worker: _start_in_worker(worker, start, stopping),
            "worker_exit": lambda _server, _worker: stop(),
        }
        if tls is not None:
            self._options |= {
                "certfile": tls.certificate,
                "keyfile": tls.key,
                # gunicorn by itself makes one for each connection.
                "ssl_context": lambda _config, _make: tls.context(),
            }
        super().__init__()

    def load_config(self) -> None:
        """Set all options of gunicorn; no option comes from the environment."""
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:  # noqa: ANN401 -- as the base class
        """Return the WSGI application."""
        return self._app


def _start_in_worker(
    worker: BufferedThreadWorker,
    start: Callable[[Callable[[], Iterable[PendingRequest]]], None],
    stopping: Callable[[], None],
) -> None:
    """Start in the worker, after gunicorn has set the default signal handlers."""
    _keep_one_worker()
    worker.on_stop = stopping
    start(worker.pending_requests)


def _keep_one_worker() -> None:
    for number in _MORE_WORKERS:
        signal.signal(number, signal.SIG_IGN)


def _take_over_log(handler: logging.Handler) -> None:
    """Replace gunicorn's own log handlers, which the worker would inherit."""
    logging.getLogger("gunicorn.error").handlers = [handler]
