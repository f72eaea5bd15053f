"""A document that anybody may ask for: its cost, and the requests that wait."""

import threading
import time

import pytest

from gpushare.errors import NotReady
from gpushare.extender.door.document_cache import DocumentCache


def spend(seconds: float) -> bytes:
    """Compute for so long; return another document each time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return str(end).encode()


def test_a_costly_document_is_made_once_for_all_who_ask() -> None:
    document_cache, created = DocumentCache(), list[int]()

    def make() -> bytes:
        created.append(1)
        return spend(0.2)

    first = document_cache.get("a", make)
    end = time.monotonic() + 0.5  # the document is kept for six seconds
    request = 0
    while request < 10_000 and time.monotonic() < end:
        assert document_cache.get("a", make) is first
        request += 1
    assert request > 10
    assert len(created) == 1
    document_cache.get("b", make)
    assert len(created) == 2


def test_a_cheap_document_is_always_as_things_are() -> None:
    document_cache = DocumentCache()
    assert [document_cache.get("a", str(n).encode) for n in range(5)] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


def test_a_document_takes_a_thirtieth_of_the_time_however_often_it_is_asked_for() -> None:
    document_cache, cost = DocumentCache(), 0.02
    begin = time.monotonic()
    first = document_cache.get("a", lambda: spend(cost))
    end = begin + 20
    while document_cache.get("a", lambda: spend(0.006)) is first:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert time.monotonic() - begin > 30 * cost


def test_few_wait_for_a_document_and_the_others_are_told_to_come_again() -> None:
    document_cache, go, threads = DocumentCache(), threading.Event(), list[threading.Thread]()

    def make() -> bytes:
        go.wait(20)
        return spend(0.01)

    def ask() -> None:
        try:
            document_cache.get("a", make)
        except NotReady:
            refusals.append(1)

    refusals: list[int] = []
    for _ in range(40):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    end = time.monotonic() + 20
    while len(refusals) < 36:
        assert time.monotonic() < end
        time.sleep(0.005)
    with pytest.raises(NotReady, match="too many"):
        document_cache.get("a", make)
    go.set()
    for thread in threads:
        thread.join(20)
    assert len(refusals) == 36
    assert document_cache.get("a", make)
