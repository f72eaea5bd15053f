"""The API server of the local cluster over HTTP: a Flask application on a server of its own.

Routes, codes and the life of the server; nothing else. What requests mean is `rest.py`'s.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from gpushare.localcluster.api import discovery
from gpushare.localcluster.api.calls import Answer, Call, json_answer
from gpushare.localcluster.api.httpserver import (
    BODY_LIMIT,
    CONNECTION,
    Environ,
    HttpServer,
    StartResponse,
    WsgiApp,
)
from gpushare.localcluster.api.objects import Object, to_json
from gpushare.localcluster.api.podlogs import PodLogs
from gpushare.localcluster.api.registry import Registry
from gpushare.localcluster.api.rest import Rest
from gpushare.localcluster.api.status import StatusError, no_such_path
from gpushare.localcluster.api.store import Store

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
        wrap: Callable[[WsgiApp], WsgiApp] = lambda app: app,
        bookmark_every: float = 60.0,
    ) -> None:
        """Listen at once (port 0: any free one); `wrap` may put something before the
        API, such as faults on order.
        """
        self.store = store
        self.registry = Registry(store)
        self.logs = PodLogs()
        self.requests: deque[tuple[str, str]] = deque(maxlen=REQUESTS_KEPT)
        self._app = wrap(_application(Rest(self.registry, self.logs, bookmark_every)))
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
        self.store.wake()
        self.logs.wake()
        self._server.stop()

    def kubeconfig(self) -> str:
        """Return the text of a kubeconfig for this server, without a user."""
        return _KUBECONFIG.format(url=self.url)

    def _record(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        return self._app(environ, start_response)


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
    response = Response(answer.body, answer.status, content_type=answer.content_type)
    for text in answer.warnings:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def _refusal(error: StatusError) -> Response:
    body = to_json(error.body())
    response = Response(body, error.code, content_type="application/json")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _application(rest: Rest) -> Flask:
    """Return the Flask application over the resource paths."""
    app = Flask("gpushare.localcluster", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = False

    def core(version: str, path: str) -> Response:
        return _response(rest.answer("", version, path, _call()))

    def grouped(group: str, version: str, path: str) -> Response:
        return _response(rest.answer(group, version, path, _call()))

    verbs = list(METHODS)
    app.add_url_rule("/api/<version>/<path:path>", "core", core, methods=verbs)
    app.add_url_rule("/apis/<group>/<version>/<path:path>", "grouped", grouped, methods=verbs)
    _add_documents(app)
    app.register_error_handler(StatusError, _refusal)
    app.register_error_handler(HTTPException, _http_refusal)
    app.register_error_handler(Exception, _bug)
    return app


def _add_documents(app: Flask) -> None:
    """Serve what is the same for every request: health, version, discovery, OpenAPI."""

    def ready() -> Response:
        return Response("ok", content_type="text/plain")

    def groups(*, core: bool) -> Response:
        if discovery.wants_aggregated(request.headers.get("Accept", "")):
            found = json_answer(discovery.aggregated(core=core))
            return _response(replace(found, content_type=discovery.AGGREGATED))
        return _document(discovery.core_versions(request.host) if core else discovery.groups())

    def openapi_v2() -> Response:
        # An empty schema: everything passes kubectl's own validation.
        return Response(b"", content_type=discovery.OPENAPI_V2)

    documents: dict[str, Callable[..., Response]] = {
        "/healthz": ready,
        "/livez": ready,
        "/readyz": ready,
        "/version": lambda: _document(discovery.version()),
        "/api": lambda: groups(core=True),
        "/api/<version>": lambda version: _document(discovery.resource_list("", version)),
        "/apis": lambda: groups(core=False),
        "/apis/<group>": lambda group: _document(discovery.group(group)),
        "/apis/<group>/<version>": lambda group, version: _document(
            discovery.resource_list(group, version)
        ),
        "/openapi/v2": openapi_v2,
        "/openapi/v3": lambda: _document(discovery.openapi_index()),
        "/openapi/v3/<path:root>": lambda root: _document(discovery.openapi_document(root)),
    }
    for path, view in documents.items():
        app.add_url_rule(path, path, view)


def _document(body: Object) -> Response:
    return _response(json_answer(body))


def _http_refusal(error: HTTPException) -> Response:
    if error.code == 404:
        return _refusal(no_such_path())
    reason = str(error.name).replace(" ", "")
    return _refusal(StatusError(error.code or 500, reason, str(error.description)))


def _bug(error: Exception) -> Response:
    _log.error("request failed", exc_info=error)
    return _refusal(StatusError(500, "InternalError", f"Internal error occurred: {error}"))
