"""Answers that are made later: no thread waits, and the connection goes on afterwards."""

import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger

from gpushare.extender.door.connection import Connection
from gpushare.extender.door.deferred import DeferredBody
from gpushare.extender.door.worker import BufferedThreadWorker

REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
CLOSING = REQUEST.replace(b"Host: a", b"Host: a\r\nConnection: close")


class World:
    """A worker in this process with an application that answers later, and one connection to it."""

    def __init__(self) -> None:
        config = Config()
        config.set("threads", 2)
        config.set("http_parser", "python")
        self.worker = BufferedThreadWorker(1, 1, [], None, 30, config, Logger(config))
        self.worker.wsgi = self._app  # type: ignore[assignment]
        self.worker.poller = selectors.DefaultSelector()
        self.worker.method_queue.init()
        self.worker.nr_conns = 1
        self.answers: list[Future[bytes]] = []
        server_end, self.client = socket.socketpair()
        self.client.settimeout(60)
        self.connection = Connection(config, server_end, ("127.0.0.1", 4), ("127.0.0.1", 5))

    def _app(self, environ: dict[str, Any], start_response: Any) -> DeferredBody:
        start_response("200 OK", [("Content-Type", "application/json")])
        assert environ["wsgi.input"].read() == b"x"
        self.answers.append(Future())
        return DeferredBody(self.answers[-1])

    def ask(self, request: bytes = REQUEST) -> None:
        """Send a request, and have a thread handle it as far as it does."""
        self.client.sendall(request)
        assert self.connection.receive()
        future: Future[object] = Future()
        future.set_result(self.worker.handle(self.connection))
        self.worker.finish_request(self.connection, future)

    def loop(self) -> None:
        """The work of the loop when an answer was made."""
        self.worker.method_queue.run_callbacks(None)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.connection.close()
    world.client.close()
    world.worker.poller.close()
    world.worker.method_queue.close()
    world.worker.tmp.close()


def test_a_thread_is_free_before_the_answer_is_made(world: World) -> None:
    world.ask()
    assert world.worker.parked_conns == {world.connection}
    assert world.worker.pending_requests() == []
    world.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        world.client.recv(1)


def test_the_answer_is_sent_when_it_is_made_and_the_connection_is_kept(world: World) -> None:
    for number in range(3):
        world.ask()
        assert len(world.answers) == number + 1
        world.answers[-1].set_result(b"{}")
        world.loop()
        data = world.client.recv(4096)
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nContent-Length: 2\r\n" in data
        assert data.endswith(b"\r\n\r\n{}")
        assert not world.worker.parked_conns
        assert list(world.worker.keepalived_conns) == [world.connection]
        world.worker.poller.unregister(world.connection.sock)
        world.worker.keepalived_conns.clear()


def test_a_client_that_wants_to_close_is_answered_later_too_and_closed(world: World) -> None:
    world.ask(CLOSING)
    world.answers[-1].set_result(b"{}")
    world.loop()
    data = b""
    while more := world.client.recv(4096):
        data += more
    assert b"\r\nConnection: close\r\n" in data
    assert world.worker.nr_conns == 0


def test_a_client_that_has_gone_costs_nothing(world: World) -> None:
    world.ask()
    world.client.close()
    world.answers[-1].set_result(b"{}")
    world.loop()
    assert not world.worker.parked_conns


def test_any_server_may_wait_for_the_body() -> None:
    future: Future[bytes] = Future()
    body = DeferredBody(future)
    future.set_result(b"{}")
    assert b"".join(body) == b"{}"


def test_the_worker_is_told_once_when_it_begins_to_stop(world: World) -> None:
    result: list[int] = []
    world.worker.on_stop = lambda: result.append(1)
    world.worker._cap_keepalive(0.0)  # noqa: SLF001 -- as gunicorn's loop does
    assert result == [1]
