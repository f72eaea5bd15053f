"""A thread that has answered awaits the client's next request, unless threads are scarce."""

import socket
import textwrap
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.errors import InvalidRequestLine

from gpushare.extender.door.connection import Connection
from gpushare.extender.door.worker import BufferedThreadWorker

REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
FOR_EVER = 600.0
THREADS = 4


class World:
    """A worker in this process with one connection to it and its first request."""

    def __init__(self) -> None:
        config = Config()
        config.set("threads", THREADS)
        config.set("http_parser", "python")
        self.worker = BufferedThreadWorker(1, 1, [], None, 30, config, Logger(config))
        self.worker.wsgi = _app  # type: ignore[assignment]
        server_end, self.client = socket.socketpair()
        self.client.settimeout(60)
        self.connection = Connection(config, server_end, ("127.0.0.1", 4), ("127.0.0.1", 5))
        self.client.sendall(REQUEST)
        assert self.connection.receive()

    def busy(self, threads: int) -> None:
        """Have so many threads taken."""
        remaining_items = self.worker._pending_since  # noqa: SLF001 -- else it takes as many real clients
        remaining_items.update((Connection.__new__(Connection), 0.0) for _ in range(threads))

    def answered(self) -> None:
        """Read one answer."""
        data = b""
        while not data.endswith(b"\r\n\r\nx"):
            data += self.client.recv(4096)


def _app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "1")])
    return [environ["wsgi.input"].read()]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.connection.close()
    world.client.close()
    world.worker.tmp.close()


def test_requests_that_follow_each_other_are_served_by_one_thread(world: World) -> None:
    world.worker.linger, world.worker.linger_crowded = FOR_EVER, 0
    world.busy(THREADS // 2)
    thread = threading.Thread(target=world.worker.handle, args=(world.connection,), daemon=True)
    thread.start()
    world.answered()
    world.client.sendall(REQUEST)
    world.answered()
    world.client.close()
    thread.join(60)
    assert not thread.is_alive()


def test_where_threads_are_scarce_none_waits_for_long(world: World) -> None:
    world.worker.linger, world.worker.linger_crowded = FOR_EVER, 0
    world.busy(THREADS // 2 + 1)
    assert world.worker.handle(world.connection)
    world.answered()


@pytest.mark.parametrize("dedent", [textwrap.dedent, None], ids=["this Python", "from 3.14 on"])
def test_the_page_for_a_bad_head_ends_its_own_head(
    world: World, monkeypatch: pytest.MonkeyPatch, dedent: Callable[[str], str] | None
) -> None:
    def without_cr(text: str) -> str:
        return textwrap.dedent(text).replace("\n\r\n", "\n\n")

    monkeypatch.setattr("gunicorn.util.textwrap", SimpleNamespace(dedent=dedent or without_cr))
    invalid_request_line = InvalidRequestLine("\x16\x03")
    world.worker.handle_error(None, world.connection.sock, ("127.0.0.1", 4), invalid_request_line)
    assert world.connection.outbox.flush()
    head, end, page = world.client.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert end
    assert f"Content-Length: {len(page)}".encode() in head.split(b"\r\n")
