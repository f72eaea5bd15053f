"""The interface of an API server: one call and one stream; and a list by such calls, page by page.

The real one is `gpushare.kube.client.KubeClient`; a simulation has another. It knows not what the
objects of a list mean.

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
    """An open watch: its lines as they come."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the lines; ends when the server ends cleanly, raises ApiUnavailable when cut."""
        ...

    def close(self) -> None:
        """End the iteration at once; may be called by any thread, and twice."""
        ...


class Getter(Protocol):
    """What gets objects and lists from the API server."""

    def request(self, method: str, path: str, *, query: Mapping[str, str], timeout: float) -> bytes:
        """Return the body of a 2xx answer. Raises ApiError."""
        ...


class Calls(Protocol):
    """HTTP calls whose failures are `gpushare.errors.ApiError`, and nothing else."""

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
        ...


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
        """Return an open watch; time-outs: seconds until the answer, and of silence after it."""
        ...


class Part(Protocol):
    """A page as far as it says how to go on."""

    @property
    def continue_token(self) -> str:
        """The token that asks for the next page; empty: this was the last."""
        ...


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
    """Yield the pages; one that has too many bytes is asked for again with half as many objects.

    For who reads once; a reflector has its own (listwatch.py), which goes on where a page failed.
    timeout: seconds for one page. Raises ApiError, ApiTooLarge for an object too large by itself;
    and what decode raises.
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
