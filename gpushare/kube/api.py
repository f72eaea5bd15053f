"""The interface of an API server: one call and one stream; and a list by such calls, page by page.

`gpushare.kube.client.KubeClient` implements the interface; simulations have other implementations.
Knows nothing of the meaning of objects.

Tested in `tests/unit/kube/test_reflector.py` and `tests/unit/kube/test_pages.py`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from gpushare.errors import ApiTooLarge

LIMIT = 500
"""Objects on a page."""


class Lines(Protocol):
    """An open watch: yields the lines as they come."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the lines; ends when the server ends cleanly, raises ApiUnavailable when cut."""

    def close(self) -> None:
        """End the iteration at once; may be called by any thread, and twice."""


class Getter(Protocol):
    """Gets objects and lists from the API server."""

    def request(self, method: str, path: str, *, query: Mapping[str, str], timeout: float) -> bytes:
        """Return the body of a 2xx answer. Raises ApiError."""


class Calls(Protocol):
    """HTTP calls; each failure is a `gpushare.errors.ApiError`."""

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        """Return the body of a 2xx answer; `timeout` is seconds for the whole call.

        ApiUnreachable says that nothing was sent. Nothing is sent after `not_after`, by the
        caller's clock (time.monotonic, except in a simulation).
        """


class Api(Calls, Protocol):
    """Such calls, and watches."""

    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> AbstractContextManager[Lines]:
        """Return an open watch; time-outs: seconds until the answer, and of silence afterwards."""


def merge_patch(api: Calls, path: str, change: bytes, timeout: float) -> bytes:
    """Change an object by a JSON merge patch; return the body of the answer. Raises ApiError."""
    kind = "application/merge-patch+json"
    return api.request("PATCH", path, body=change, content_type=kind, timeout=timeout)


class Part(Protocol):
    """The continue token of a page."""

    @property
    def continue_token(self) -> str:
        """The token that asks for the next page; empty: this was the last."""


_PartT = TypeVar("_PartT", bound=Part)


def pages(
    api: Getter,
    path: str,
    decode: Callable[[bytes], _PartT],
    query: Mapping[str, str] | None = None,
    *,
    timeout: float,
    limit: int = LIMIT,
) -> Iterator[_PartT]:
    """Yield the pages; request a page with too many bytes again, with half as many objects.

    For a single list; a reflector has other pages (listwatch.py), which go on after a failed page.
    timeout: seconds for one page. Raises ApiError, ApiTooLarge for a single object that is too
    large, and the errors of decode.
    """
    token: dict[str, str] = {}
    while True:
        page_query = {**(query or {}), "limit": str(limit), **token}
        try:
            body = api.request("GET", path, query=page_query, timeout=timeout)
        except ApiTooLarge:
            if limit == 1:
                raise
            limit //= 2
            continue
        page = decode(body)
        yield page
        if not page.continue_token:
            return
        token = {"continue": page.continue_token}
