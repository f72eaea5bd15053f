"""A list of the API server, page by page, whatever its objects weigh.

Knows not what the objects mean. For who reads once; a reflector has its own (listwatch.py), which
goes on where a page failed.

Tested in `tests/unit/kube/test_pages.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from gpushare.errors import ApiTooLarge
from gpushare.kube.api import Getter

LIMIT = 500
"""Objects on a page."""


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

    timeout: seconds for one page. Raises ApiError, ApiTooLarge for an object too large by itself;
    and what decode raises.
    """
    token: dict[str, str] = {}
    while True:
        asked = {**(query or {}), "limit": str(limit), **token}
        try:
            body = api.request("GET", path, query=asked, timeout=timeout)
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
