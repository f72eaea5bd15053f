"""Answers that are no success, as errors: status and body in, `gpushare.errors.Api*` out. Pure.

Knows the Status document of the API server and no sockets. Which class an answer becomes is decided
by its HTTP status alone; the server's words go into the text for people to read.
"""

import json

from gpushare.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable

TEXT_LIMIT = 500
# A Status fits easily; a proxy's error page need not be read whole.
BODY_LIMIT = 64 << 10
_BY_STATUS = {404: ApiNotFound, 409: ApiConflict, 410: ApiGone}


def refusal(where: str, status: int, body: bytes) -> ApiError:
    """Return the error for an answer with `status`: ApiUnavailable for 5xx (outcome unknown),
    ApiNotFound, ApiConflict, ApiGone, and plain ApiError for any other definite refusal.
    """
    try:
        text = str(json.loads(body[:BODY_LIMIT])["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        text = body[:TEXT_LIMIT].decode(errors="replace")
    kind = ApiUnavailable if status >= 500 else _BY_STATUS.get(status, ApiError)
    return kind(f"{where}: {status} {one_line(text)}".rstrip(), status)


def unanswered(where: str, cause: Exception) -> ApiUnavailable:
    """Return the error for a call that got no whole answer."""
    return ApiUnavailable(f"{where}: {one_line(cause) or type(cause).__name__}", 0)


def one_line(text: object) -> str:
    """Return a printable line of bounded length."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "?" for c in words[:TEXT_LIMIT])
