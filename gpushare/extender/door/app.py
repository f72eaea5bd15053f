"""HTTP: the routes, and what people read there. The verbs are answered in front (verbs.py)."""

from dataclasses import dataclass

from flask import Flask, Response, json, request
from werkzeug.exceptions import HTTPException

from gpushare import __version__
from gpushare.daemon.callers import Callers
from gpushare.errors import GpuShareError, MessageError, NotReady, UnknownNode
from gpushare.extender.door.access_control import AccessControl
from gpushare.extender.door.openapi import openapi_document
from gpushare.extender.door.verbs import Verbs, error_document, verbs_of
from gpushare.extender.service import Service

_VERBS = ("filter", "filter_dryrun", "prioritize", "bind", "preempt")
_SERVICE_UNAVAILABLE = 503
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
    # A path is served as it is, or not: a redirect would keep its request as _forget_no_route says.
    app.url_map.merge_slashes = False
    prefix = routes.prefix
    paths = {
        # No kube-scheduler calls it, so no configuration names it.
        "filter_dryrun": f"{prefix}/filter-dryrun",
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
    access = AccessControl(callers)

    def check_access() -> Response | None:
        refusal = access.refusal(request.environ)
        return _failure(refusal, 403) if refusal else None

    app.before_request(check_access)
    app.teardown_request(_forget_no_route)
    for operation, path in paths.items():
        rule = path.replace("{", "<").replace("}", ">")
        if operation in _VERBS:
            app.add_url_rule(rule, operation, methods=["POST"])  # any other method is a 405
        else:
            app.add_url_rule(rule, operation, getattr(views, operation))
    verbs = verbs_of(service, paths)
    app.wsgi_app = Verbs(verbs, app.wsgi_app, access, body_limit)  # type: ignore[method-assign]
    app.register_error_handler(GpuShareError, _refuse)
    app.register_error_handler(HTTPException, _http_error)
    return app


class _Views:
    """The views: one method for each route that is read."""

    def __init__(self, service: Service, document: bytes) -> None:
        self._service = service
        self._document = document

    def inspect(self) -> Response:
        return self.inspect_node(None)

    def inspect_node(self, node: str | None) -> Response:
        return _json(self._service.inspect(node, request.args.get("resource")))

    def version(self) -> Response:
        return _json(json.dumps({"version": __version__}).encode())

    def openapi(self) -> Response:
        return _json(self._document)


def _refuse(error: GpuShareError) -> Response:
    return _failure(str(error), _STATUS.get(type(error), 500))


def _http_error(error: HTTPException) -> Response:
    return _failure(error.description or error.name, error.code or 500)


def _forget_no_route(_error: BaseException | None) -> None:
    """Remove from the request the error that no route fits, which flask keeps there.

    The error's traceback leads back to the request: in that cycle connection and body would stay
    until the next search for garbage, hundreds of requests later.
    """
    request.routing_exception = None


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, mimetype="application/json")


def _failure(text: str, status: int) -> Response:
    answer = _json(error_document(text), status)
    if status == _SERVICE_UNAVAILABLE:
        answer.headers["Retry-After"] = "1"
    return answer
