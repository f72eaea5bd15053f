"""A document that anybody may ask for: what it costs, and whom it holds up."""

import threading
import time

import pytest

from gpushare.errors import NotReady
from gpushare.extender.door.document_cache import DocumentCache


def spend(seconds: float) -> bytes:
    """Compute for so long; what comes is another document each time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return str(end).encode()


def test_a_costly_document_is_made_once_for_all_who_ask() -> None:
    kept, made = DocumentCache(), list[int]()

    def make() -> bytes:
        made.append(1)
        return spend(0.2)

    first = kept.get("a", make)
    end = time.monotonic() + 0.5  # it is kept for six seconds
    asked = 0
    while asked < 10_000 and time.monotonic() < end:
        assert kept.get("a", make) is first
        asked += 1
    assert asked > 10
    assert len(made) == 1
    kept.get("b", make)
    assert len(made) == 2


def test_a_cheap_document_is_always_as_things_are() -> None:
    kept = DocumentCache()
    assert [kept.get("a", str(n).encode) for n in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_document_takes_a_thirtieth_of_the_time_however_often_it_is_asked_for() -> None:
    kept, cost = DocumentCache(), 0.02
    begin = time.monotonic()
    first = kept.get("a", lambda: spend(cost))
    end = begin + 20
    while kept.get("a", lambda: spend(0.006)) is first:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert time.monotonic() - begin > 30 * cost


def test_few_wait_for_a_document_and_the_others_are_told_to_come_again() -> None:
    kept, go, threads = DocumentCache(), threading.Event(), list[threading.Thread]()

    def make() -> bytes:
        go.wait(20)
        return spend(0.01)

    def ask() -> None:
        try:
            kept.get("a", make)
        except NotReady:
            refused.append(1)

    refused: list[int] = []
    for _ in range(40):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    end = time.monotonic() + 20
    while len(refused) < 36:
        assert time.monotonic() < end
        time.sleep(0.005)
    with pytest.raises(NotReady, match="too many"):
        kept.get("a", make)
    go.set()
    for thread in threads:
        thread.join(20)
    assert len(refused) == 36
    assert kept.get("a", make)
