"""The verbs, answered in front of flask: kube-scheduler calls them for each pod that it places.

Paths, sizes and status codes; nothing else. What a web framework does for each request takes as
long as a verb (docs/research/performance.md). All that is no POST to a verb's path is the
application's behind it.

kube-scheduler drops the body of every answer that is not 200, so filter and bind answer 200 and say
what was wrong in `Error`; prioritize and preempt have no such field and use 4xx and 503.

Tested in `tests/unit/extender/door/test_app.py`.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from gpushare.errors import MessageError, NotReady
from gpushare.extender.door.access_control import AccessControl
from gpushare.extender.service import Service
from gpushare.logline import Line
from gpushare.wire.extender import encode_bind, encode_filter

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("gpushare.serve")

_TOO_LARGE = (
    "body: larger than --body-limit; with nodeCacheCapable: true in its file kube-scheduler sends"
    " the names of nodes, and not the nodes"
)
_FAILED = "The extender failed to answer; its log says why"


@dataclass(frozen=True, slots=True)
class Verb:
    """The handler of a path: from the body of a request to the body of its answer.

    answer: raises MessageError or NotReady. malformed: returns an answer with this error; None if
    the verb's answer has no field for errors.
    """

    answer: Callable[[bytes], bytes]
    malformed: Callable[[str], bytes] | None = None


class Verbs:
    """A WSGI application for the verbs, and for all else the one behind it.

    verbs: by path. app: the application behind. body_limit: bytes of a request.
    """

    def __init__(
        self,
        verbs: Mapping[str, Verb],
        app: "WSGIApplication",
        access: AccessControl,
        body_limit: int,
    ) -> None:
        self._verbs = verbs
        self._app = app
        self._access = access
        self._body_limit = body_limit

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request."""
        verb = self._verbs.get(environ.get("PATH_INFO", ""))
        if verb is None or environ["REQUEST_METHOD"] != "POST":
            return self._app(environ, start_response)
        status, body = self._answer(verb, environ)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", "1"))
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    def _answer(self, verb: Verb, environ: "WSGIEnvironment") -> tuple[HTTPStatus, bytes]:
        refusal = self._access.refusal(environ)
        if refusal:
            return HTTPStatus.FORBIDDEN, error_document(refusal)
        try:
            return HTTPStatus.OK, verb.answer(self._body(environ))
        except MessageError as error:
            if verb.malformed is not None:
                return HTTPStatus.OK, verb.malformed(f"gpushare: {error}")
            return HTTPStatus.BAD_REQUEST, error_document(str(error))
        except NotReady as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, error_document(str(error))
        except Exception:
            log.exception(Line("a verb failed", path=environ["PATH_INFO"]))
            return HTTPStatus.INTERNAL_SERVER_ERROR, error_document(_FAILED)

    def _body(self, environ: "WSGIEnvironment") -> bytes:
        """Return the request's body.

        Raises MessageError if it is too large or says it is not JSON.
        """
        # Read the whole body even if it is refused: gunicorn closes a connection with an unread
        # body, and the caller's next request on it is lost. The worker has the body already, and
        # limits its size.
        whole = environ.get("wsgi.input_terminated")
        size = -1 if whole else int(environ.get("CONTENT_LENGTH") or 0)
        body: bytes = environ["wsgi.input"].read(size)
        if len(body) > self._body_limit:
            raise MessageError(_TOO_LARGE)
        # A page can make a browser send a body without a type; for JSON the browser asks first.
        kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise MessageError(f"Content-Type: {kind[:80] or 'none'} is not application/json")
        if environ.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
            raise MessageError("Content-Encoding: the body must not be compressed")
        return body


def verbs_of(service: Service, paths: Mapping[str, str]) -> dict[str, Verb]:
    """Return the verbs by path; paths: by the name of the verb."""
    return {
        paths["filter_dryrun"]: Verb(
            service.filter_dryrun, lambda text: encode_filter(None, error=text)
        ),
        paths["filter"]: Verb(service.filter, lambda text: encode_filter(None, error=text)),
        paths["prioritize"]: Verb(service.prioritize),
        paths["bind"]: Verb(service.bind, encode_bind),
        paths["preempt"]: Verb(service.preempt),
    }


def error_document(text: str) -> bytes:
    """Return the body of an answer that is an error."""
    return json.dumps({"error": text}).encode()
