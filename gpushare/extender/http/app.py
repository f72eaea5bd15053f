"""HTTP: routes, sizes, status codes; nothing else.

kube-scheduler drops the body of every answer that is not 200, so filter and bind answer 200 and say
what was wrong in `Error`; prioritize and inspect have no such field and use 4xx and 503.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import Flask, Response, current_app, json, request
from werkzeug.exceptions import HTTPException

from gpushare import __version__
from gpushare.daemon.logs.formatters import Line
from gpushare.errors import GpuShareError, MessageError, NotReady, UnknownNode
from gpushare.extender.http.callers import Callers, browser_header, names_of
from gpushare.extender.http.openapi import openapi_document
from gpushare.extender.service import Service
from gpushare.wire.extender import encode_bind, encode_filter

log = logging.getLogger("gpushare.serve")

_METHODS = dict.fromkeys(("filter", "prioritize", "bind", "preempt"), "POST")
_SAFE_METHODS = ("GET", "HEAD")
_SERVICE_UNAVAILABLE = 503
_MAX_LOGGED_CALLERS = 64
"""Refused callers that are logged."""
_MAX_LOGGED_NAMES = 500
"""Characters of the names in a certificate that are logged."""
_TOO_LARGE = (
    "body: larger than --body-limit; with nodeCacheCapable: true in its file kube-scheduler sends"
    " the names of nodes, and not the nodes"
)
_STATUS: dict[type[GpuShareError], int] = {MessageError: 400, UnknownNode: 404, NotReady: 503}


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the verbs are served: what the scheduler's configuration calls."""

    prefix: str = "/gpushare-scheduler"
    filter: str = "filter"
    prioritize: str = "prioritize"
    bind: str = "bind"
    preempt: str = "preempt"


def build_app(service: Service, routes: Routes, body_limit: int, callers: Callers) -> Flask:
    """Return the WSGI application. callers: who is let in."""
    app = Flask("gpushare", static_folder=None)
    app.config["BODY_LIMIT"] = body_limit
    # A path is served as it is, or not: a redirect would keep its request as _forget_no_route says.
    app.url_map.merge_slashes = False
    prefix = routes.prefix
    paths = {
        "filter": f"{prefix}/{routes.filter}",
        "prioritize": f"{prefix}/{routes.prioritize}",
        "bind": f"{prefix}/{routes.bind}",
        "preempt": f"{prefix}/{routes.preempt}",
        "inspect": f"{prefix}/inspect",
        "inspect_node": f"{prefix}/inspect/{{node}}",
        "version": "/version",
        "openapi": "/openapi.json",
    }
    views = _Views(service, openapi_document(paths))

    app.before_request(_AccessControl(callers).check)
    app.teardown_request(_forget_no_route)
    for operation, path in paths.items():
        rule, method = path.replace("{", "<").replace("}", ">"), _METHODS.get(operation, "GET")
        app.add_url_rule(rule, operation, getattr(views, operation), methods=[method])
    app.register_error_handler(GpuShareError, _refuse)
    app.register_error_handler(HTTPException, _http_error)
    return app


class _Views:
    """The views: one method for each route."""

    def __init__(self, service: Service, document: bytes) -> None:
        self._service = service
        self._document = document

    def filter(self) -> Response:
        try:
            return _json(self._service.filter(_body()))
        except MessageError as error:
            return _json(encode_filter(None, error=f"gpushare: {error}"))

    def prioritize(self) -> Response:
        return _json(self._service.prioritize(_body()))

    def bind(self) -> Response:
        try:
            return _json(self._service.bind(_body()))
        except MessageError as error:
            return _json(encode_bind(f"gpushare: {error}"))

    def preempt(self) -> Response:
        return _json(self._service.preempt(_body()))

    def inspect(self) -> Response:
        return self.inspect_node(None)

    def inspect_node(self, node: str | None) -> Response:
        return _json(self._service.inspect(node, request.args.get("resource")))

    def version(self) -> Response:
        return _json(json.dumps({"version": __version__}).encode())

    def openapi(self) -> Response:
        return _json(self._document)


class _AccessControl:
    """Refuses callers that `callers` does not allow, and logs each once."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._logged: set[str] = set()

    def check(self) -> Response | None:
        """Return the answer to a caller that may not call; None for one that may."""
        callers = self._callers
        if callers.names and not callers.allows_certificate(names := names_of(_certificate())):
            refused = ", ".join(sorted(names))[:_MAX_LOGGED_NAMES] or "nobody"
            self._log_once(certificate=refused, wanted=", ".join(sorted(callers.names)))
            return _failure(f"a certificate of {refused} may not call (--tls-client-names)", 403)
        host = request.headers.get("Host", "")
        if not callers.allows_host(host):
            self._log_once(host=host)
            return _failure(
                f"Host: {host[:80]!r} is no name of loopback, where this listens: call 127.0.0.1,"
                " or what urlPrefix names",
                403,
            )
        # What is only read no page can read either: nothing here allows it to.
        header = browser_header(request.environ) if request.method not in _SAFE_METHODS else ""
        if header:
            self._log_once(header=header)
            return _failure(f"{header}: a page in a browser may not call", 403)
        return None

    def _log_once(self, **values: str) -> None:
        """Log it once: kube-scheduler drops the answer's text, and calls for each pod."""
        line = Line("caller refused", **values)
        if str(line) not in self._logged and len(self._logged) < _MAX_LOGGED_CALLERS:
            self._logged.add(str(line))
            log.warning(line)


def _certificate() -> Mapping[str, Any] | None:
    """Return the peer's certificate.

    Where one CA signs everything, as with kubeadm, its signature alone lets every kubelet in.
    """
    found: Mapping[str, Any] | None = request.environ["gunicorn.socket"].getpeercert()
    return found


def _refuse(error: GpuShareError) -> Response:
    return _failure(str(error), _STATUS.get(type(error), 500))


def _http_error(error: HTTPException) -> Response:
    return _failure(error.description or error.name, error.code or 500)


def _forget_no_route(_error: BaseException | None) -> None:
    """Take from the request the error that no route fits, which flask keeps there.

    The error's traceback leads back to the request: in that cycle connection and body would stay
    until the next search for garbage, hundreds of requests later.
    """
    request.routing_exception = None


def _body() -> bytes:
    """Return the request's body.

    Raises MessageError where it is too large or says it is not JSON.
    """
    # Read whole whatever is wrong with it: of a body left unread gunicorn closes the connection,
    # and the caller's next request on it is lost. The worker has it already, and bounds it.
    body = request.get_data(cache=False)
    if len(body) > current_app.config["BODY_LIMIT"]:
        raise MessageError(_TOO_LARGE)
    # A page can have a browser send a body without a type; for this one it must ask before.
    kind = request.mimetype
    if kind != "application/json":
        raise MessageError(f"Content-Type: {kind[:80] or 'none'} is not application/json")
    if request.content_encoding not in (None, "identity"):
        raise MessageError("Content-Encoding: the body must not be compressed")
    return body


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, mimetype="application/json")


def _failure(text: str, status: int) -> Response:
    answer = _json(json.dumps({"error": text}).encode(), status)
    if status == _SERVICE_UNAVAILABLE:
        answer.headers["Retry-After"] = "1"
    return answer
