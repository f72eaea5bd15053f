"""The API server of the local cluster over HTTP: a Flask application on a server of its own.

Routes, codes and the life of the server; nothing else. What requests mean is `rest.py`'s.
"""

import json
import logging
from collections import deque
from collections.abc import Iterable

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from gpushare.localcluster.calls import Answer, Call
from gpushare.localcluster.faults import FaultInjector, Hook
from gpushare.localcluster.httpserver import CONNECTION, Environ, HttpServer, StartResponse
from gpushare.localcluster.podlogs import PodLogs
from gpushare.localcluster.registry import Registry
from gpushare.localcluster.rest import Rest
from gpushare.localcluster.status import StatusError, no_such_path
from gpushare.localcluster.store import Store

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REQUESTS_KEPT = 100_000

_log = logging.getLogger(__name__)


class ApiServer:
    """Serves a store at `url` from `start` to `stop`.

    Attributes:
        requests: method and path of each request, oldest first, without the query.
        logs: what containers printed; the kubelet writes it.
        registry: the verbs without HTTP.

    """

    def __init__(
        self,
        store: Store,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        fault: Hook | None = None,
        bookmark_every: float = 60.0,
    ) -> None:
        """Listen at once (port 0: any free one); `fault` is asked about every request."""
        self.store = store
        self.registry = Registry(store)
        self.logs = PodLogs()
        self.requests: deque[tuple[str, str]] = deque(maxlen=REQUESTS_KEPT)
        self._app = _application(Rest(self.registry, self.logs, bookmark_every))
        self._faults = FaultInjector(self._app, fault)
        self._server = HttpServer(host, port, self._record)

    @property
    def url(self) -> str:
        """Where it listens, without a trailing slash."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        """Serve, in threads of the server's own."""
        self._server.start()

    def stop(self) -> None:
        """End all watches, close all connections, and return when all threads have ended."""
        self._server.closing.set()
        self._faults.stop()
        self.store.wake()
        self.logs.wake()
        self._server.stop()

    def kubeconfig(self) -> str:
        """Return the text of a kubeconfig for this server, without a user."""
        return _KUBECONFIG.format(url=self.url)

    def _record(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        return self._faults(environ, start_response)


_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: {url}
contexts:
- name: local
  context:
    cluster: local
    namespace: default
    user: ""
current-context: local
users: []
"""


def _call() -> Call:
    return Call(
        method=request.method,
        query=request.args.to_dict(),
        accept=request.headers.get("Accept", ""),
        content_type=request.headers.get("Content-Type", ""),
        body=request.get_data(),
        connection=request.environ[CONNECTION],
    )


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, content_type=answer.content_type)


def _refusal(error: StatusError) -> Response:
    body = json.dumps(error.body())
    response = Response(body, error.code, content_type="application/json")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _application(rest: Rest) -> Flask:
    """Return the Flask application over the resource paths."""
    app = Flask("gpushare.localcluster", static_folder=None)
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = False

    def core(version: str, path: str) -> Response:
        return _response(rest.answer("", version, path, _call()))

    def grouped(group: str, version: str, path: str) -> Response:
        return _response(rest.answer(group, version, path, _call()))

    def ready() -> Response:
        return Response("ok", content_type="text/plain")

    verbs = list(METHODS)
    app.add_url_rule("/api/<version>/<path:path>", "core", core, methods=verbs)
    app.add_url_rule("/apis/<group>/<version>/<path:path>", "grouped", grouped, methods=verbs)
    for path in ("healthz", "livez", "readyz"):
        app.add_url_rule(f"/{path}", path, ready)
    app.register_error_handler(StatusError, _refusal)
    app.register_error_handler(HTTPException, _http_refusal)
    app.register_error_handler(Exception, _bug)
    return app


def _http_refusal(error: HTTPException) -> Response:
    if error.code == 404:
        return _refusal(no_such_path())
    reason = str(error.name).replace(" ", "")
    return _refusal(StatusError(error.code or 500, reason, str(error.description)))


def _bug(error: Exception) -> Response:
    _log.error("request failed", exc_info=error)
    return _refusal(StatusError(500, "InternalError", f"Internal error occurred: {error}"))
