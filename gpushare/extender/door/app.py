"""HTTP: access control, the verbs, and the documents for people.

kube-scheduler calls the verbs for each pod, so this module answers the verbs in front of Flask: the
work of a web framework for a request takes as long as a verb (docs/research/performance.md). Every
other request goes to the Flask application.

kube-scheduler drops the body of every answer other than 200, so filter and bind answer 200 with the
error in `Error`; prioritize and preempt have no such field and use 4xx and 503.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from gpushare import __version__
from gpushare.daemon.callers import BROWSERS, Callers, is_this_machine, names_of
from gpushare.daemon.representations import Representations
from gpushare.errors import GpuShareError, MessageError, NotReady, UnknownNode
from gpushare.extender.door.deferred import DeferredBody
from gpushare.extender.service import Service
from gpushare.logline import Line
from gpushare.wire.extender import encode_bind, encode_filter

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("gpushare.serve")

_STATUS: dict[type[GpuShareError], int] = {MessageError: 400, UnknownNode: 404, NotReady: 503}
_SAFE_METHODS = ("GET", "HEAD")
_MAX_LOGGED_CALLERS = 64
"""Refused callers that are logged."""
_MAX_LOGGED_NAMES = 500
"""Characters of the names in a certificate that are logged."""
_TOO_LARGE = (
    "body: larger than --body-limit; with nodeCacheCapable: true in its file kube-scheduler sends"
    " the names of nodes, and not the nodes"
)
_FAILED = "The extender failed to answer; its log says why"


@dataclass(frozen=True, slots=True)
class Routes:
    """The paths of the verbs, as in the configuration of kube-scheduler."""

    prefix: str = "/gpushare-scheduler"
    filter: str = "filter"
    prioritize: str = "prioritize"
    bind: str = "bind"
    preempt: str = "preempt"
    rank: str = "rank"


def build_app(service: Service, routes: Routes, body_limit: int, callers: Callers) -> Flask:
    """Return the WSGI application. callers: who is let in."""
    app = Flask("gpushare", static_folder=None)
    # No redirects for doubled slashes: a redirect would create the reference cycle that
    # `_forget_no_route` breaks.
    app.url_map.merge_slashes = False
    prefix = routes.prefix
    verbs = {
        f"{prefix}/{routes.filter}": Verb(service.filter, _filter_error),
        f"{prefix}/{routes.prioritize}": Verb(service.prioritize),
        f"{prefix}/{routes.bind}": Verb(service.begin_bind, encode_bind),
        f"{prefix}/{routes.preempt}": Verb(service.preempt),
        # For a second extender entry without managedResources, for pods with claims.
        f"{prefix}/{routes.rank}": Verb(service.rank, _filter_error),
    }
    representations = Representations()

    def inspect(node: str | None = None) -> Response:
        body, path = service.inspect(node, request.args.get("resource")), request.full_path
        tag = representations.tag(path, body)
        if request.headers.get("If-None-Match") == tag:
            return Response(status=304, headers={"ETag": tag})
        accepted = request.headers.get("Accept-Encoding", "")
        payload, coding = representations.encoded(path, body, accepted)
        answer = _json(payload)
        answer.headers.update({"ETag": tag, "Vary": "Accept-Encoding"})
        if coding:
            answer.headers["Content-Encoding"] = coding
        return answer

    access = AccessControl(callers)

    def check_access() -> Response | None:
        refusal = access.refusal(request.environ)
        return _failure(refusal, 403) if refusal else None

    app.before_request(check_access)
    app.teardown_request(_forget_no_route)
    for path in verbs:
        app.add_url_rule(path, path, methods=["POST"])  # any other method is a 405
    app.add_url_rule(f"{prefix}/inspect", "inspect", inspect)
    app.add_url_rule(f"{prefix}/inspect/<node>", "inspect_node", inspect)
    version = partial(_json, json.dumps({"version": __version__}).encode())
    app.add_url_rule("/version", "version", version)
    app.wsgi_app = Verbs(verbs, app.wsgi_app, access, body_limit)  # type: ignore[method-assign]
    app.register_error_handler(GpuShareError, _refuse)
    app.register_error_handler(HTTPException, _refuse)
    return app


@dataclass(frozen=True, slots=True, eq=False)
class AccessControl:
    """Refuses callers that `callers` does not allow, and logs each once."""

    callers: Callers
    _logged: set[str] = field(default_factory=set)

    def refusal(self, environ: "WSGIEnvironment") -> str:
        """Return why the caller may not call, for an answer of 403; "" for one that may."""
        callers = self.callers
        # If one CA signs everything, as with kubeadm, the signature alone admits every kubelet.
        if callers.names and not callers.allows_certificate(
            names := names_of(environ["gunicorn.socket"].getpeercert())
        ):
            caller_names = ", ".join(sorted(names))[:_MAX_LOGGED_NAMES] or "nobody"
            self._log_once(certificate=caller_names, wanted=", ".join(sorted(callers.names)))
            return f"a certificate of {caller_names} may not call (--tls-client-names)"
        host = environ.get("HTTP_HOST", "")
        if callers.hosts is not None and not is_this_machine(host, callers.hosts):
            self._log_once(host=host)
            return (
                f"Host: {host[:80]!r} is no name of loopback, where this listens: call 127.0.0.1,"
                " or what urlPrefix names"
            )
        # A page of another site cannot read an answer either: no header here allows that.
        header = next((name for key, name in BROWSERS.items() if key in environ), "")
        if header and environ["REQUEST_METHOD"] not in _SAFE_METHODS:
            self._log_once(header=header)
            return f"{header}: a page in a browser may not call"
        return ""

    def _log_once(self, **values: str) -> None:
        """Log a refusal once: kube-scheduler drops the answer's text, and calls for each pod."""
        line = Line("caller refused", **values)
        if str(line) not in self._logged and len(self._logged) < _MAX_LOGGED_CALLERS:
            self._logged.add(str(line))
            log.warning(line)


@dataclass(frozen=True, slots=True)
class Verb:
    """The handler of a path: from the body of a request to the body of the answer."""

    answer: Callable[[bytes], bytes | Future[bytes]]
    """Returns a future for an answer that is made later. Raises MessageError or NotReady."""
    malformed: Callable[[str], bytes] | None = None
    """Returns an answer with this error; None if the verb's answer has no field for errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Verbs:
    """A WSGI application for the verbs; other requests go to the next application."""

    verbs: Mapping[str, Verb]
    """By path."""
    app: "WSGIApplication"
    """The one behind."""
    access: AccessControl
    body_limit: int
    """Bytes of a request."""

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request."""
        verb = self.verbs.get(environ.get("PATH_INFO", ""))
        if verb is None or environ["REQUEST_METHOD"] != "POST":
            return self.app(environ, start_response)
        if refusal := self.access.refusal(environ):
            return _failure(refusal, 403)(environ, start_response)
        try:
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            if len(body) > self.body_limit:
                raise MessageError(_TOO_LARGE)
            # A page can make a browser send a body without a type; for JSON the browser asks first.
            kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise MessageError(f"Content-Type: {kind[:80] or 'none'} is not application/json")
            if environ.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
                raise MessageError("Content-Encoding: the body must not be compressed")
            answer = verb.answer(body)
        except (MessageError, NotReady) as error:
            if verb.malformed is None or isinstance(error, NotReady):
                return _refuse(error)(environ, start_response)
            answer = verb.malformed(f"gpushare: {error}")
        except Exception:
            log.exception(Line("a verb failed", path=environ["PATH_INFO"]))
            return _failure(_FAILED, 500)(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return DeferredBody(answer) if isinstance(answer, Future) else [answer]


def _filter_error(text: str) -> bytes:
    return encode_filter(None, error=text)


def _refuse(error: GpuShareError | HTTPException) -> Response:
    if isinstance(error, HTTPException):
        return _failure(error.description or error.name, error.code or 500)
    return _failure(str(error), _STATUS.get(type(error), 500))


def _forget_no_route(_error: BaseException | None) -> None:
    """Remove from the request the error that no route fits, which flask keeps there.

    The error's traceback leads back to the request: in that cycle connection and body would stay
    until the next search for garbage, hundreds of requests later.
    """
    request.routing_exception = None


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, mimetype="application/json")


def _failure(text: str, status: int) -> Response:
    answer = _json(json.dumps({"error": text}).encode(), status)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        answer.headers["Retry-After"] = "1"
    return answer
