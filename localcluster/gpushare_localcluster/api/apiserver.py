"""The API server of the local cluster over HTTP: a WSGI application with an HTTP server.

`Rest` handles paths, methods and subresources without sockets, so that a simulation can send the
same requests as a client over HTTP. A web framework would take longer for a request than the API
itself.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from urllib.parse import parse_qsl

from gpushare_localcluster.api import reading, writing
from gpushare_localcluster.api.calls import Call, Response, Target, json_answer, target_of
from gpushare_localcluster.api.httpserver import (
    BODY_LIMIT,
    CONNECTION,
    Environ,
    HttpServer,
    StartResponse,
    WsgiApp,
)
from gpushare_localcluster.api.reading import PodLogs
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.resources import (
    OPENAPI_V2,
    PODS,
    core_versions,
    groups,
    resource_list,
    version_document,
)
from gpushare_localcluster.api.status import (
    StatusError,
    bad_request,
    method_not_allowed,
    no_such_path,
)
from gpushare_localcluster.api.store import Store

Verb = Callable[[Registry, Target, Call], Response]

ITEM: dict[str, Verb] = {
    "GET": reading.get,
    "PUT": writing.replace,
    "PATCH": writing.patch,
    "DELETE": writing.delete,
}
COLLECTION: dict[str, Verb] = {
    "GET": reading.listing,
    "POST": writing.create,
    "DELETE": writing.delete_collection,
}
STATUS: dict[str, Verb] = {
    "GET": reading.get,
    "PUT": writing.replace,
    "PATCH": writing.patch,
}
SCALE: dict[str, Verb] = {
    "GET": writing.get_scale,
    "PUT": writing.write_scale,
    "PATCH": writing.write_scale,
}


class Rest:
    """The resource paths of the API over a registry; `bookmark_every` is in seconds."""

    def __init__(self, registry: Registry, logs: PodLogs, bookmark_every: float) -> None:
        """Serve the objects of the registry."""
        self._registry = registry
        self._bookmark_every = bookmark_every
        self._pod_verbs: dict[str, dict[str, Verb]] = {
            **{name: {"GET": _no, "POST": _no} for name in ("attach", "exec", "portforward")},
            "ephemeralcontainers": {"GET": reading.get, "PATCH": _no},
            "binding": {"POST": writing.bind},
            "eviction": {"POST": writing.evict},
            "log": {"GET": logs.answer},
        }

    def answer(self, group: str, version: str, path: str, call: Call) -> Response:
        """Return the answer to a request for a resource. Raises StatusError: every refusal."""
        target = target_of(group, version, path)
        if call.method == "GET" and call.flag("watch") and not target.name:
            return reading.watch(self._registry, target, call, self._bookmark_every)
        verb = self._verbs(target).get(call.method)
        names = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
        is_served = target.name or names.get(call.method) in target.resource.verbs
        if verb is None or not is_served:
            raise method_not_allowed(call.method)
        return verb(self._registry, target, call)

    def _verbs(self, target: Target) -> dict[str, Verb]:
        if not target.name:
            return COLLECTION
        if not target.subresource:
            return ITEM
        if target.subresource == "status" and target.resource.status:
            return STATUS
        if target.subresource == "scale" and target.resource.scale:
            return SCALE
        if target.resource is PODS and target.subresource in self._pod_verbs:
            return self._pod_verbs[target.subresource]
        raise no_such_path()


def _no(registry: Registry, target: Target, call: Call) -> Response:
    """Refuse a subresource that needs the processes of a container."""
    del call
    registry.get(target.resource, target.home, target.name)
    reason = "its containers are not processes, they only report that they run"
    raise bad_request(f"the local cluster has no {target.subresource}: {reason}")


REQUESTS_KEPT = 100_000

_log = logging.getLogger(__name__)


class ApiServer:
    """Serves a store at `url` from `start` to `stop`.

    Attributes:
        requests: method and path of each request, oldest first, without the query.
        logs: the output of containers, written by the kubelet.
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
        """Listen at once (port 0: any free one); `wrap` may add a layer before the API, such as
        injected faults.
        """
        self.store = store
        self.registry = Registry(store)
        self.logs = PodLogs()
        self.requests: deque[tuple[str, str]] = deque(maxlen=REQUESTS_KEPT)
        self._app = wrap(_Application(Rest(self.registry, self.logs, bookmark_every)))
        self._server = HttpServer(host, port, self._record)

    @property
    def url(self) -> str:
        """The address of the server, without a trailing slash."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        """Start to serve, in threads of the server."""
        self._server.start()

    def stop(self) -> None:
        """End all watches, close all connections, and return when all threads have ended."""
        self._server.closing.set()
        self.store.wake()
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


class _Application:
    """The resource paths, and the documents that are the same for every request."""

    def __init__(self, api: Rest) -> None:
        self._rest = api

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        headers: list[tuple[str, str]] = []
        try:
            answer = self._answer(environ)
        except StatusError as error:
            answer = json_answer(error.body(), error.code)
            if error.retry_after is not None:
                headers.append(("Retry-After", str(error.retry_after)))
        except Exception as error:
            _log.exception("request failed")
            refusal = StatusError(500, "InternalError", f"Internal error occurred: {error}")
            answer = json_answer(refusal.body(), refusal.code)
        headers.append(("Content-Type", answer.content_type))
        for text in answer.warnings:
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            headers.append(("Warning", f'299 - "{quoted}"'))
        if isinstance(answer.body, bytes):
            headers.append(("Content-Length", str(len(answer.body))))
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
        return [answer.body] if isinstance(answer.body, bytes) else answer.body

    def _answer(self, environ: Environ) -> Response:
        if int(environ["CONTENT_LENGTH"]) > BODY_LIMIT:
            reason = f"Request entity too large: limit is {BODY_LIMIT}"
            raise StatusError(413, "RequestEntityTooLarge", reason)
        call = _call(environ)
        path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
        area, *parts = path.removeprefix("/").removesuffix("/").split("/")
        # Every path names the API group, except paths of the core group.
        group, *below = parts if area == "apis" and parts else ["", *parts]
        if area in ("api", "apis") and len(below) > 1 and below[1]:
            return self._rest.answer(group, below[0], "/".join(below[1:]), call)
        response = _document(area, parts, environ.get("HTTP_HOST", ""))
        if call.method != "GET":
            raise method_not_allowed(call.method)
        return response


def _call(environ: Environ) -> Call:
    query = parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)
    return Call(
        method=environ["REQUEST_METHOD"],
        # The first value of a repeated parameter counts.
        query=dict(reversed(query)),
        accept=environ.get("HTTP_ACCEPT", ""),
        content_type=environ["CONTENT_TYPE"],
        body=environ["wsgi.input"].read(),
        connection=environ[CONNECTION],
    )


def _document(area: str, parts: list[str], address: str) -> Response:
    """Return health, version, discovery or OpenAPI. Raises StatusError for other paths."""
    match [area, *parts]:
        case ["healthz" | "livez" | "readyz"]:
            return Response(200, b"ok", "text/plain")
        case ["api"]:
            return json_answer(core_versions(address))
        case ["apis"]:
            listed = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups()}
            return json_answer(listed)
        case ["api", version]:
            return json_answer(resource_list("", version))
        case ["apis", name] if found := [item for item in groups() if item["name"] == name]:
            return json_answer({"kind": "APIGroup", "apiVersion": "v1", **found[0]})
        case ["apis", group, version]:
            return json_answer(resource_list(group, version))
        case ["version"]:
            return json_answer(version_document())
        case ["openapi", "v2"]:
            # An empty schema: every object passes the validation in kubectl.
            return Response(200, b"", OPENAPI_V2)
    raise no_such_path()
