"""The thread around the step machine, on a true server through the true client."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import pytest

from gpushare.kube.client import KubeClient
from gpushare.kube.listwatch import NEVER, ListWatch, Timing
from gpushare.kube.reflector import Reflector
from tests.support.waiting import poll
from tests.unit.kube.json_codec import JsonCodec, JsonEvent, JsonPage, event, page
from tests.unit.kube.scripted_server import (
    ScriptedServer,
    Seen,
    answer,
    chunked,
)


class ManagedResource:
    """An event handler that keeps all objects, and fails on demand."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.names: set[str] = set()
        self.fail_on: str = ""
        self.while_taken: Callable[[], None] = lambda: None

    def replace(self, pages: Sequence[JsonPage], started: float) -> None:
        self.told.append("replace")
        assert started <= time.monotonic()
        self.while_taken()
        self.names = {str(item) for each in pages for item in each.items}

    def apply(self, event: JsonEvent) -> None:
        self.told.append(f"{event.kind} {event.name}")
        if event.name == self.fail_on:
            self.fail_on = ""
            raise RuntimeError("the books are broken")
        change = self.names.discard if event.kind == "DELETED" else self.names.add
        change(event.name)


class Collection:
    """A list and a watch to be scripted: `lists` pages in turn (the last again and again), then
    `lines`, after which the watch stays open and silent, or ends if `watch_ends`.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self.lists = [page("7", "a")]
        self.lines: list[bytes] = []
        self.watch_ends = False
        self.refuse = 0
        self.asked: list[str] = []
        self.watched_at: list[float] = []
        self._stopped = server.stopped
        server.script = self.script

    def script(self, connection: socket.socket, request: Seen) -> bool:
        kind = "watch" if "watch=true" in request.target else "list"
        self.asked.append(kind)
        if self.refuse:
            connection.sendall(answer(self.refuse))
        elif kind == "list":
            body = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            connection.sendall(answer(200, body))
        else:
            self.watched_at.append(time.monotonic())
            return self._watch(connection)
        return True

    def _watch(self, connection: socket.socket) -> bool:
        lines, self.lines = self.lines, []
        connection.sendall(chunked(*(line + b"\n" for line in lines), end=self.watch_ends))
        if not self.watch_ends:
            self._stopped.wait(60)
        return self.watch_ends


@pytest.fixture
def collection(server: ScriptedServer) -> Collection:
    return Collection(server)


@pytest.fixture
def books() -> ManagedResource:
    return ManagedResource()


@pytest.fixture
def reflector(
    request: pytest.FixtureRequest,
    client: KubeClient,
    collection: Collection,
    books: ManagedResource,
) -> Iterator[Reflector[JsonPage, JsonEvent]]:
    """Yield a reflector that is not started; an (indirect) param sets the timing."""
    assert collection
    timing = getattr(request, "param", Timing(relist_spacing=0.1))
    machine = ListWatch[JsonPage, JsonEvent]("/api/v1/pods", JsonCodec(), timing=timing)
    new_reflector = Reflector(client, machine, books, jitter=lambda: 0.5)
    yield new_reflector
    new_reflector.stop()


def test_the_books_follow_lists_and_events(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection, books: ManagedResource
) -> None:
    collection.lists = [page("7", "a", token="t"), page("7", "b")]
    collection.lines = [
        event("ADDED", "c", "8"),
        event("BOOKMARK", "", "9"),
        event("DELETED", "a", "10"),
    ]
    reflector.start()
    poll(lambda: books.names == {"b", "c"})
    assert books.told == ["replace", "ADDED c", "DELETED a"]
    assert reflector.status.synced
    assert reflector.status.last_contact <= time.monotonic()
    assert reflector.alive(time.monotonic())
    assert not reflector.alive(time.monotonic() + 3600)


def test_a_list_counts_when_the_books_hold_it_and_no_sooner(
    reflector: Reflector[JsonPage, JsonEvent], books: ManagedResource
) -> None:
    observations: list[tuple[bool, float, int]] = []

    def look() -> None:
        status = reflector.status
        observations.append((status.synced, status.listed_at, status.relists))

    books.while_taken = look
    reflector.start()
    poll(lambda: reflector.status.synced)
    assert observations == [(False, NEVER, 0)], "a long list takes seconds to be taken over"


def test_a_blocked_watch_does_not_delay_the_end(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection
) -> None:
    reflector.start()
    poll(lambda: "watch" in collection.asked)
    assert reflector.stop(timeout=20)
    assert not reflector.alive(time.monotonic())


@pytest.mark.parametrize("reflector", [Timing(pause=60.0, longest_pause=60.0)], indirect=True)
def test_a_pause_does_not_delay_the_end(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection
) -> None:
    collection.refuse = 500
    reflector.start()
    poll(lambda: collection.asked)
    assert reflector.stop(timeout=20)


def test_a_failure_of_the_sink_has_everything_listed_anew(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection, books: ManagedResource
) -> None:
    books.fail_on = "c"
    collection.lines = [event("ADDED", "c", "8"), event("ADDED", "d", "9")]
    reflector.start()
    poll(lambda: books.told.count("replace") == 2)
    assert books.told == ["replace", "ADDED c", "replace"]
    poll(lambda: reflector.status.synced)


def test_a_relist_asked_for_interrupts_the_watch(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection, books: ManagedResource
) -> None:
    reflector.start()
    poll(lambda: "watch" in collection.asked)
    asked_at = time.monotonic()
    collection.lists = [page("20", "x")]
    reflector.request_relist()
    poll(lambda: reflector.status.listed_at >= asked_at)
    poll(lambda: books.names == {"x"})


def test_an_outage_is_survived_with_few_requests(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection, books: ManagedResource
) -> None:
    collection.refuse = 503
    reflector.start()
    poll(lambda: len(collection.asked) >= 4)
    assert not reflector.status.synced
    assert len(collection.asked) < 10
    assert reflector.alive(time.monotonic())
    collection.refuse = 0
    poll(lambda: books.names == {"a"})


@pytest.mark.parametrize("status", [403, 404])
def test_an_optional_collection_that_is_refused_is_logged_once(
    status: int,
    client: KubeClient,
    collection: Collection,
    books: ManagedResource,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gpushare.kube.reflector")
    machine = ListWatch[JsonPage, JsonEvent]("/api/v1/pods", JsonCodec())
    new_reflector = Reflector(client, machine, books, optional=True, jitter=lambda: 0.5)
    collection.refuse = status
    new_reflector.start()
    try:
        poll(lambda: len(collection.asked) >= 3)
        assert [record.levelname for record in caplog.records] == ["INFO"]
        # Other errors than refusals are logged each time.
        collection.refuse = 503
        poll(lambda: any(record.levelname == "WARNING" for record in caplog.records))
        collection.refuse = 0
        poll(lambda: books.names == {"a"})
    finally:
        new_reflector.stop()


def test_a_watch_that_always_closes_at_once_is_no_hot_loop(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection
) -> None:
    collection.watch_ends = True
    reflector.start()
    poll(lambda: len(collection.watched_at) >= 5)
    pauses = [after - before for before, after in pairwise(collection.watched_at)]
    assert min(pauses) > 0.07  # of 0.1 s, less a quarter by chance, and longer each time
    assert collection.asked.count("list") == 1


def test_a_bug_in_the_decoder_does_not_end_the_thread(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection, books: ManagedResource
) -> None:
    collection.lists = [json.dumps({"metadata": 5}).encode(), page("7", "a")]
    reflector.start()
    poll(lambda: books.names == {"a"})
    assert reflector.status.decode_errors == 1


def test_wishes_from_many_threads_are_all_served(
    reflector: Reflector[JsonPage, JsonEvent], collection: Collection
) -> None:
    assert collection
    reflector.start()
    for _ in range(3):
        threads = [threading.Thread(target=reflector.request_relist) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asked_at = time.monotonic()
        reflector.request_relist()
        poll(partial(listed_since, reflector, asked_at))


def listed_since(reflector: Reflector[JsonPage, JsonEvent], moment: float) -> bool:
    return reflector.status.listed_at >= moment
