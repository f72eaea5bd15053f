"""The end of a request is found where gunicorn's parser sees it, at no more than linear cost."""

import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from gunicorn.config import Config
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser

from gpushare.extender.door.connection import (
    BAD_REQUEST,
    CHUNK,
    LENGTH_REQUIRED,
    TOO_LARGE,
    Connection,
    FramingError,
    body_length,
)
from tests.support.growth import assert_linear

PEER = ("127.0.0.1", 1)
CONFIG = Config()


def head(*lines: bytes) -> bytes:
    return b"\r\n".join((b"POST / HTTP/1.1", *lines, b"", b""))


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        ((), 0),
        ((b"Host: x",), 0),
        ((b"Content-Length: 5",), 5),
        ((b"content-LENGTH:5",), 5),
        ((b"Content-Length: \t 005 \t",), 5),
        ((b"A: Content-Length: 7", b"Content-Length: 0"), 0),
        ((b"Content_Length: 7",), 0),
        ((b"X-Content-Length: 7",), 0),
        ((b"Content-Length: " + b"0" * 20_000 + b"12",), 12),
    ],
)
def test_the_length_of_the_body_is_what_the_head_says(
    lines: tuple[bytes, ...], length: int
) -> None:
    assert body_length(head(*lines)) == length


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((b"Content-Length: 5", b"Content-Length: 5"), BAD_REQUEST),
        ((b"Content-Length: 5", b"content-length: 6"), BAD_REQUEST),
        *(
            ((b"Content-Length:" + value,), BAD_REQUEST)
            for value in (
                b"",
                b" +5",
                b" -5",
                b" 5, 5",
                b" 5 5",
                b" 0x5",
                b" 5_0",
                b" 1e1",
                b" \xb2",
            )
        ),
        ((b"Content-Length: 5\x00",), BAD_REQUEST),
        ((b"Content-Length: \x0b5",), BAD_REQUEST),
        ((b"Content-Length : 5",), BAD_REQUEST),
        ((b" Content-Length: 5",), BAD_REQUEST),
        ((b"A: b", b"\tContent-Length: 5"), BAD_REQUEST),
        ((b"Content-Length:", b" 5"), BAD_REQUEST),
        ((b"A: b\nContent-Length: 5",), BAD_REQUEST),
        ((b"A: b\rContent-Length: 5",), BAD_REQUEST),
        ((b"A: b\x00",), BAD_REQUEST),
        ((b"A: b\x7f",), BAD_REQUEST),
        ((b"no colon",), BAD_REQUEST),
        ((b": no name",), BAD_REQUEST),
        ((b"A\xdf: b",), BAD_REQUEST),
        ((b"Transfer-Encoding: chunked",), LENGTH_REQUIRED),
        ((b"tRANSFER-eNCODING:x",), LENGTH_REQUIRED),
        ((b"Content-Length: 5", b"Transfer-Encoding: identity"), LENGTH_REQUIRED),
        ((b"Transfer-Encoding : chunked",), BAD_REQUEST),
        ((b"Transfer-Encoding\x0b: chunked",), BAD_REQUEST),
        ((b"Content-Length: " + b"9" * 30,), TOO_LARGE),
        ((b"Content-Length: 00" + b"9" * 9000,), TOO_LARGE),
    ],
)
def test_what_two_readers_could_read_in_two_ways_is_refused(
    lines: tuple[bytes, ...], status: bytes
) -> None:
    with pytest.raises(FramingError) as raises:
        body_length(head(*lines))
    assert raises.value.status == status


@pytest.mark.parametrize("start", [b"\r\n", b"\r\n\r\n", b"\n", b"\rPOST / HTTP/1.1\r\n\r\n"])
def test_nothing_may_stand_before_the_request_line(start: bytes) -> None:
    with pytest.raises(FramingError):
        body_length(start + b"\r\n\r\n")


class SocketPair:
    """A connection of ours, and the client's end of it."""

    def __init__(self, kind: type[Connection] = Connection) -> None:
        server_end, self.client = socket.socketpair()
        self.conn = kind(CONFIG, server_end, PEER, PEER)
        self.client.setblocking(False)

    def send(self, data: bytes) -> bool:
        """Whether a request is whole after this."""
        whole = False
        view = memoryview(data)
        while view:
            view = view[self.client.send(view) :]
            whole = self.conn.receive()
        return whole

    def close(self) -> None:
        self.client.close()
        self.conn.close()


@pytest.fixture
def pair() -> Iterator[SocketPair]:
    pair = SocketPair()
    yield pair
    pair.close()


def body_of(request: Request) -> bytes:
    assert request.body is not None
    return bytes(request.body.read())


def parsed(conn: Connection) -> tuple[Request, bytes]:
    """The request as gunicorn reads these bytes, with nothing behind the request."""
    parser = conn.parser
    assert isinstance(parser, RequestParser)
    request = next(parser)
    body = body_of(request)
    assert parser.unreader.read() == b""
    return request, body


def test_what_comes_behind_a_request_is_one_of_its_own_whenever_its_body_comes(
    pair: SocketPair,
) -> None:
    hidden = head(b"Content-Length: 0")
    assert pair.send(
        head(b"Content-Length: 5") + b"hello" + head(b"Content-Length: %d" % len(hidden))
    )
    assert parsed(pair.conn)[1] == b"hello"
    assert not pair.conn.receive()
    assert pair.send(hidden)
    assert parsed(pair.conn)[1] == hidden
    assert not pair.conn.received


def test_a_request_behind_another_is_judged_as_the_first_is(pair: SocketPair) -> None:
    assert pair.send(head(b"Content-Length: 1") + b"x" + head(b"Transfer-Encoding: chunked") + b"0")
    assert parsed(pair.conn)[1] == b"x"
    assert not pair.conn.receive()
    assert pair.conn.refused
    assert pair.client.recv(1000).startswith(b"HTTP/1.1 411")


def test_a_request_behind_another_is_read_though_the_client_sends_no_more(
    pair: SocketPair,
) -> None:
    assert pair.send(2 * (head(b"Content-Length: 1") + b"x"))
    pair.client.shutdown(socket.SHUT_WR)
    assert pair.conn.receive(patience=600)
    assert parsed(pair.conn)[1] == b"x"
    with pytest.raises(EOFError):
        pair.conn.receive(patience=600)


def test_a_thread_that_waits_takes_a_body_in_pieces_and_not_for_longer(pair: SocketPair) -> None:
    request = head(b"Content-Length: 5")
    pair.client.sendall(request + b"he")
    rest = threading.Timer(0.1, pair.client.sendall, (b"llo",))
    rest.start()
    assert pair.conn.receive(patience=600)
    assert parsed(pair.conn)[1] == b"hello"
    rest.join()
    pair.client.sendall(request + b"he")
    assert not pair.conn.receive(patience=0.01)
    assert pair.conn.held_bytes == len(request) + 2


def test_a_large_body_goes_back_to_the_loop_which_counts_what_all_hold(pair: SocketPair) -> None:
    request = head(b"Content-Length: %d" % (4 * CHUNK))
    pair.client.setblocking(True)
    sender = threading.Thread(target=pair.client.sendall, args=(request + b"x" * 2 * CHUNK,))
    sender.start()
    assert not pair.conn.receive(patience=600)
    assert CHUNK <= pair.conn.held_bytes < 2 * CHUNK
    while sender.is_alive():
        pair.conn.receive()
    sender.join()


LINES = (
    *(b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: 3", b"content-length:  4 "),
    *(b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: 05", b"Content-Length:"),
    *(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding : chunked",
    ),
    *(b"Host: x", b"A: b", b"A:", b"A : b", b" folded", b"\tfolded", b"no colon", b": nothing"),
    *(b"A: b\nContent-Length: 2", b"A: b\rContent-Length: 2", b"A: \x00", b"A: \xff", b"B: \x7f"),
    *(
        b"Expect: 100-continue",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Content_Length: 9",
    ),
    *(b"Upgrade: h2c", b"Content-Length: \xb2", b"Content-Length: 1_0", b"X-Content-Length: 7"),
)
STARTS = (
    *(b"POST / HTTP/1.1", b"GET / HTTP/1.1", b"GET / HTTP/1.0", b"HEAD / HTTP/1.1"),
    *(b"PUT /a?b HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"\r\nPOST / HTTP/1.1", b"OPTIONS * HTTP/1.1"),
)
BODIES = (b"", b"hello", b"0\r\n\r\n", b"\r\n", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"a\r\n\r\nb")


def stream(rng: random.Random) -> bytes:
    """One or two requests in one piece, framed in an odd way more often than not."""
    parts = []
    for _ in range(rng.randint(1, 2)):
        lines = [rng.choice(STARTS), *rng.choices(LINES, k=rng.randint(0, 3))]
        end = rng.choice((b"\r\n",) * 9 + (b"\n",))
        parts.append(end.join(lines) + rng.choice((b"\r\n\r\n",) * 9 + (b"\n\n",)))
        parts.append(b"".join(rng.choices(BODIES, k=rng.randint(0, 2))))
    return b"".join(parts)


def test_no_request_ends_elsewhere_for_gunicorn_than_for_us() -> None:
    rng, observed = random.Random(18), Counter[str]()
    for _ in range(6000):
        data = stream(rng)
        pair = SocketPair()
        try:
            whole = pair.send(data)
            theirs = RequestParser(CONFIG, iter((data,)), PEER)
            try:
                second = next(theirs)
                body = body_of(second)
            except Exception:
                observed["refused by gunicorn"] += whole
                continue
            if not whole:
                observed["refused by us alone"] += pair.conn.refused
                continue
            observed["read by both"] += 1
            request, request_body = parsed(pair.conn)
            assert (request.method, request.uri, request.headers, request_body) == (
                *(second.method, second.uri, second.headers, body),
            ), data
            assert bytes(pair.conn.received) == theirs.unreader.read(), data
        finally:
            pair.close()
    assert observed["read by both"] > 1000, observed
    assert observed["refused by us alone"] > 100, observed


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "zeros": lambda size: b"Content-Length: " + b"0" * size + b"x",
    "zeros that end": lambda size: b"Content-Length: " + b"0" * size,
    "digits": lambda size: b"Content-Length: " + b"9" * size,
    "blanks": lambda size: b"Content-Length:" + b" \t" * (size // 2) + b"x",
    "colons": lambda size: b":" * size,
    "one long name": lambda size: b"a" * size + b": b",
    "line ends": lambda size: b"\r" * size,
    "many lines": lambda size: b"\r\n".join([b"a:b"] * (size // 5)),
    "many lengths": lambda size: b"\r\n".join([b"content-length:0"] * (size // 18)),
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_head_costs_no_more_than_its_length(line: Callable[[int], bytes]) -> None:
    def work(size: int) -> Callable[[], object]:
        head_result = head(line(size))

        def judge() -> None:
            for _ in range(10):
                try:
                    body_length(head_result)
                except FramingError:
                    continue

        return judge

    assert_linear(work, 16 * 1024)
    assert_linear(work, 128 * 1024)


class Roomy(Connection):
    max_head = 1 << 30


def test_a_head_that_drips_costs_no_more_than_one_that_comes_at_once() -> None:
    def work(size: int) -> Callable[[], object]:
        def drip() -> None:
            pair = SocketPair(Roomy)
            pair.conn.received += b"GET / HTTP/1.1\r\nA: " + b"x" * (100 * size)
            for _ in range(size):
                pair.send(b"x")
            pair.close()

        return drip

    assert_linear(work, 4000)
