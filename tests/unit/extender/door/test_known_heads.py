"""A head that gunicorn has parsed before is answered as gunicorn would, and no other is taken for
it.
"""

import random
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger

from gpushare.extender.door import known_heads
from gpushare.extender.door.connection import Connection
from gpushare.extender.door.known_heads import KnownHeads
from gpushare.extender.door.worker import BufferedThreadWorker

HEAD = (
    b"POST /gpushare-scheduler/filter?a=b HTTP/1.1\r\nHost: 127.0.0.1:32766\r\n"
    b"User-Agent: Go-http-client/1.1\r\nContent-Length: %d\r\n"
    b"Content-Type: application/json\r\nX-Twice: a\r\nX-Twice: b\r\n\r\n"
)


def request(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


class World:
    """A worker in this process, with an application that answers with the body of the request."""

    def __init__(self) -> None:
        config = Config()
        for name in ("forwarded_allow_ips", "forwarder_headers"):
            config.set(name, "")
        config.set("http_parser", "python")
        self.closing = False
        config.set("pre_request", lambda _, req: req.force_close() if self.closing else None)
        self.config = config
        self.heads = KnownHeads()
        self.environs: list[dict[str, Any]] = []
        self.worker = BufferedThreadWorker(1, 1, [], None, 30, config, Logger(config))
        self.worker.linger = self.worker.linger_crowded = 0
        self.worker.wsgi = self._app  # type: ignore[assignment]
        self.sockets: list[socket.socket] = []

    def connect(self, heads: KnownHeads | None = None) -> "Client":
        server_end, theirs = socket.socketpair()
        theirs.settimeout(5)
        self.sockets += [server_end, theirs]
        port = 40000 + len(self.sockets)
        connection = Connection(
            self.config, server_end, ("10.0.0.9", port), ("127.0.0.1", 32766), heads or self.heads
        )
        return Client(self.worker, connection, theirs)

    def close(self) -> None:
        """Close all connections."""
        for item in self.sockets:
            item.close()
        self.sockets.clear()

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        self.environs.append(environ)
        if body == b"raise":
            raise ValueError
        start_response(
            "200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
        )
        return [body]


class Client:
    """One connection."""

    def __init__(
        self, worker: BufferedThreadWorker, connection: Connection, sock: socket.socket
    ) -> None:
        self._worker, self.connection, self._sock = worker, connection, sock

    def ask(self, data: bytes) -> tuple[bytes, bool]:
        """(the answer without its date, whether the connection stays); b"" without an answer."""
        self._sock.sendall(data)
        keep = self.connection.receive() and bool(self._worker.handle(self.connection))
        self._sock.setblocking(False)
        try:
            answer = self._sock.recv(1 << 20)
        except BlockingIOError:
            answer = b""
        return re.sub(rb"\r\nDate: [^\r]*", b"", answer), keep


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()
    world.worker.tmp.close()


def test_a_known_head_gives_the_application_and_the_client_what_gunicorn_gives(
    world: World,
) -> None:
    first, again, fresh = world.connect(), world.connect(), world.connect(KnownHeads())
    first.ask(request(b"1"))
    parsed = fresh.ask(request(b"0123456789"))
    assert again.ask(request(b"0123456789")) == parsed
    assert parsed[0].endswith(b"\r\n\r\n0123456789")
    assert parsed[0].count(b"Content-Length: ") == 1
    own_items = {"gunicorn.socket", "wsgi.input", "wsgi.errors", "wsgi.early_hints", "REMOTE_PORT"}
    by_gunicorn, known_items = (
        {k: v for k, v in environ.items() if k not in own_items} for environ in world.environs[1:]
    )
    assert known_items == by_gunicorn
    assert known_items["HTTP_X_TWICE"] == "a,b"
    assert world.environs[2]["REMOTE_PORT"] == "40004"


def test_a_request_with_a_known_head_is_handed_to_no_parser(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.connect()
    client.ask(request(b"1"))
    monkeypatch.setattr(BufferedThreadWorker, "handle_request", None)
    assert client.ask(request(b"22"))[0].endswith(b"22")


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"POST", b"PUT"),
        HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"),
        *(
            HEAD.replace(b"X-Twice: a\r\n", line)
            for line in (
                b"Connection: close\r\n",
                b"Connection: keep-alive\r\n",
                b"Expect: 100-continue\r\n",
                b"Upgrade: h2c\r\n",
                b"X: " + b"x" * 2048 + b"\r\n",
            )
        ),
        HEAD.replace(b"Content-Length: ", b"content-length: "),
        HEAD.replace(b"Content-Length: ", b"Content-Length:  "),
        HEAD.replace(b"Content-Length: %d", b"Content-Length: 0%d "),
    ],
)
def test_only_a_plain_post_on_a_connection_that_stays_is_remembered(
    world: World, head: bytes
) -> None:
    world.connect().ask(request(b"hello", head))
    assert len(world.environs) == 1
    assert len(world.heads.environs) == 0


def test_a_head_that_differs_in_any_byte_is_judged_as_if_none_were_known(world: World) -> None:
    world.connect().ask(request(b"hello"))
    dice = random.Random(7)
    head = HEAD % 5
    for _ in range(3000):
        at = dice.randrange(len(head))
        byte = dice.choice(
            [bytes([dice.randrange(256)]), b"\r\n", b"Content-Length: 5\r\n", b"5", b""]
        )
        odd = head[:at] + byte + head[at + dice.randrange(3) :]
        connect_result, fresh = world.connect(), world.connect(KnownHeads())
        outcomes = []
        for client in (connect_result, fresh):
            count = len(world.environs)
            try:
                outcome: object = client.ask(odd + b"hello")
            except (OSError, EOFError) as error:
                outcome = type(error)
            result = [
                (environ["RAW_URI"], environ.get("CONTENT_LENGTH"))
                for environ in world.environs[count:]
            ]
            outcomes.append((outcome, result))
        assert outcomes[0] == outcomes[1], odd
        world.close()


def test_a_length_beyond_the_limit_is_refused_as_ever(world: World) -> None:
    world.connect().ask(request(b"hello"))
    answer, _ = world.connect().ask(HEAD % (Connection.max_body + 1))
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_process_that_is_not_ready_has_the_connection_closed(world: World) -> None:
    client = world.connect()
    assert client.ask(request(b"1"))[1]
    world.closing = True
    answer, keep = client.ask(request(b"1"))
    assert b"\r\nConnection: close\r\n" in answer
    assert not keep


def test_an_application_that_fails_is_answered_with_500(world: World) -> None:
    client = world.connect()
    client.ask(request(b"1"))
    answer, keep = client.ask(request(b"raise"))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert not keep


def test_what_is_remembered_has_a_bound(world: World) -> None:
    client = world.connect()
    for number in range(known_heads.MAX_HEADS + 10):
        client.ask(request(b"1", HEAD.replace(b"X-Twice: a", b"X-Twice: %d" % number)))
    assert len(world.heads.environs) == known_heads.MAX_HEADS


def test_a_connection_that_is_idle_holds_no_body(world: World) -> None:
    client = world.connect()
    client.ask(request(b"1"))
    client.ask(request(b"22"))
    assert client.connection.environ is None


class ChangingDict(dict[bytes, dict[str, Any]]):
    """A dict that other threads change whenever somebody iterates over it."""

    def __iter__(self) -> Iterator[bytes]:
        raise RuntimeError("dictionary changed size during iteration")


def test_a_head_is_evicted_while_other_threads_add_heads(world: World) -> None:
    environs = ChangingDict({b"%d" % number: {} for number in range(known_heads.MAX_HEADS)})
    client = world.connect(KnownHeads(environs))
    assert client.ask(request(b"1"))[0].endswith(b"1")
    assert len(environs) == known_heads.MAX_HEADS
    assert b"0" not in environs
