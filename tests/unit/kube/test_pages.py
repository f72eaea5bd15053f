"""A list comes whole, page by page, and with smaller pages where one is too large."""

import json
from collections.abc import Mapping

import pytest

from gpushare.errors import ApiTooLarge
from gpushare.kube.api import pages
from tests.unit.kube.json_codec import JsonCodec, page

PODS = "/api/v1/pods"


class Server:
    """Has objects of one byte each, but those called heavy, and answers of so many bytes."""

    def __init__(self, *items: str, max_bytes: int = 1_000) -> None:
        self.items, self.most = items, max_bytes
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def request(self, method: str, path: str, *, query: Mapping[str, str], timeout: float) -> bytes:
        assert (method, timeout) == ("GET", 7.0)
        self.asked.append((path, query))
        start, limit = int(query.get("continue", 0)), int(query["limit"])
        items = self.items[start : start + limit]
        if sum(map(len, items)) > self.most:
            raise ApiTooLarge("more than are read at once", 200)
        end = start + len(items)
        return page("7", *items, token=str(end) if end < len(self.items) else "")

    def listed(self, limit: int, **query: str) -> list[list[str]]:
        decode = JsonCodec().decode_list
        listed_pages = pages(self, PODS, decode, query, timeout=7.0, limit=limit)
        return [list(each.items) for each in listed_pages]


def test_a_list_comes_page_by_page_with_its_query() -> None:
    server = Server("a", "b", "c")
    assert server.listed(2, fieldSelector="x") == [["a", "b"], ["c"]]
    first = {"fieldSelector": "x", "limit": "2"}
    assert server.asked == [(PODS, first), (PODS, {**first, "continue": "2"})]


def test_nothing_is_asked_for_before_it_is_wanted() -> None:
    server = Server("a", "b", "c")
    listed_pages = pages(server, PODS, JsonCodec().decode_list, timeout=7.0, limit=1)
    next(listed_pages)
    assert len(server.asked) == 1


def test_a_page_that_is_too_large_comes_in_smaller_ones() -> None:
    server = Server("a", "heavy", "heavy", "b", "c", max_bytes=6)
    assert server.listed(4) == [["a", "heavy"], ["heavy", "b"], ["c"]]
    limits = [(query.get("continue"), query["limit"]) for _, query in server.asked]
    assert limits == [(None, "4"), (None, "2"), ("2", "2"), ("4", "2")]


def test_an_object_that_is_too_large_by_itself_ends_it() -> None:
    server = Server("a", "heavy", max_bytes=4)
    with pytest.raises(ApiTooLarge):
        server.listed(500)
    assert server.asked[-1] == (PODS, {"limit": "1", "continue": "1"})


def test_what_is_no_list_is_the_decoders_to_refuse() -> None:
    with pytest.raises(json.JSONDecodeError):
        list(pages(_Text(), PODS, JsonCodec().decode_list, timeout=7.0))


class _Text:
    def request(self, method: str, path: str, *, query: Mapping[str, str], timeout: float) -> bytes:
        return b"no list"
