"""Errors of unsuccessful responses: status and body in, `gpushare.errors.Api*` out. Pure.

Knows the Status document of the API server and no sockets. Only a Status is the API server's own
word: whatever else comes with a status of 4xx may be a proxy's, and says nothing of what was done.
Which class a Status becomes is decided by the HTTP status alone; its words are for people to read.

Tested in `tests/unit/kube/test_client.py`.
"""

import json

from gpushare.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable

TEXT_LIMIT = 500
# A Status fits easily; a proxy's error page need not be read whole.
BODY_LIMIT = 64 << 10
_BY_STATUS = {404: ApiNotFound, 409: ApiConflict, 410: ApiGone}
_TOO_MANY_REQUESTS = 429
"""kube-apiserver says this in plain text (its filters for requests in flight), before it begins."""


def response_error(where: str, status: int, body: bytes) -> ApiError:
    """Return the error for an answer with `status`: ApiNotFound, ApiConflict, ApiGone, and plain
    ApiError for any other definite refusal.

    The outcome is unknown (ApiUnavailable) for 5xx, for a redirect, and for 4xx without a Status.
    """
    message = _message(body)
    text = body[:TEXT_LIMIT].decode(errors="replace") if message is None else message
    definite = 400 <= status < 500 and (message is not None or status == _TOO_MANY_REQUESTS)
    error_class = _BY_STATUS.get(status, ApiError) if definite else ApiUnavailable
    return error_class(f"{where}: {status} {one_line(text)}".rstrip(), status)


def _message(body: bytes) -> str | None:
    """Return the message of a Status that reports a failure; None if the body is none."""
    try:
        document = json.loads(body[:BODY_LIMIT])
        if document["kind"] != "Status" or document.get("status") == "Success":
            return None
        return str(document.get("message", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def no_response_error(where: str, cause: Exception) -> ApiUnavailable:
    """Return the error for a call that got no whole answer."""
    return ApiUnavailable(f"{where}: {one_line(cause) or type(cause).__name__}", 0)


def one_line(text: object) -> str:
    """Return a printable line of bounded length."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "?" for c in words[:TEXT_LIMIT])
