"""The HTTP client: the error for each answer, and time limits on all waits."""

import contextlib
import fcntl
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiGone,
    ApiNotFound,
    ApiUnavailable,
)
from gpushare_localcluster.client import ApiClient, HttpClient, Json, _dropped
from tests.support.waiting import poll

Handle = Callable[[socket.socket, bytes], None]


@contextlib.contextmanager
def serving(handle: Handle) -> Iterator[str]:
    """The URL of a server that passes each connection's first bytes to `handle`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads: list[threading.Thread] = []

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while request := connection.recv(65536):
                    handle(connection, request)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(30)
            for thread in threads:
                thread.join(30)


def answering(data: bytes, *, close: bool = False) -> Handle:
    def handle(connection: socket.socket, request: bytes) -> None:
        connection.sendall(data)
        if close:
            connection.shutdown(socket.SHUT_RDWR)

    return handle


def reply(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def asked(handle: Handle, timeout: float = 30.0) -> Json:
    with serving(handle) as url:
        client = ApiClient(url, user_agent="test", timeout=timeout)
        try:
            return client.get("/x")
        finally:
            client.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("400 Bad", ApiError),
        ("404 Not Found", ApiNotFound),
        ("409 Conflict", ApiConflict),
        ("410 Gone", ApiGone),
        ("429 Slow", ApiError),
        ("500 Oops", ApiUnavailable),
        ("504 Late", ApiUnavailable),
    ],
)
def test_each_status_is_its_error_with_the_servers_message(
    status: str, kind: type[ApiError]
) -> None:
    with pytest.raises(ApiError, match="no such luck") as raised:
        asked(answering(reply(b'{"message":"no such luck"}', status)))
    assert type(raised.value) is kind
    assert raised.value.status == int(status[:3])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (reply(b"<html>"), "no JSON"),
        (reply(b"[]"), "no JSON object"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", "IncompleteRead"),
        (b"nonsense\r\n\r\n", "nonsense"),
    ],
)
def test_an_answer_that_is_none_is_an_unknown_outcome(data: bytes, text: str) -> None:
    with pytest.raises(ApiUnavailable, match=text) as raised:
        asked(answering(data, close=True))
    assert raised.value.status == 0


def test_a_server_that_is_not_there_is_an_unknown_outcome() -> None:
    client = ApiClient("http://127.0.0.1:1", user_agent="test")
    with pytest.raises(ApiUnavailable, match="refused"):
        client.get("/x")


def test_a_dripping_answer_ends_at_the_deadline() -> None:
    def drip(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:  # until the buffers are full
            connection.sendall(b" ")
            time.sleep(0.02)

    with pytest.raises(ApiUnavailable, match="timed out"):
        asked(drip, timeout=0.3)


def test_a_connection_the_server_closed_meanwhile_is_not_used_again() -> None:
    closed_nodes = threading.Event()

    def answer_and_close(connection: socket.socket, request: bytes) -> None:
        connection.sendall(reply(b"{}"))
        connection.shutdown(socket.SHUT_RDWR)
        closed_nodes.set()

    with serving(answer_and_close) as url:
        client = HttpClient(url)
        for _ in range(3):
            assert client.call("POST", "/x", b"{}", timeout=30).status == 200
            assert closed_nodes.wait(30)
            closed_nodes.clear()
        client.close()


def test_closing_a_watch_wakes_its_reader_at_once() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    event = b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'
    with serving(answering(head + event)) as url:
        client = ApiClient(url, user_agent="test")
        watch = client.watch("/pods", {}, read_timeout=30)
        collected: list[str] = []

        def read() -> None:
            collected.extend(kind for kind, _ in watch)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        poll(lambda: collected)
        watch.close()
        reader.join(20)
        assert collected == ["ADDED"]
        assert not reader.is_alive()
        client.close()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (reply(b'{"message":"too old"}', "410 Gone"), ApiGone),
        (
            b'HTTP/1.1 200 OK\r\n\r\n{"type":"ERROR","object":{"code":410,"message":"too old"}}\n',
            ApiGone,
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nnonsense\n", ApiUnavailable),
    ],
)
def test_a_watch_that_cannot_go_on_says_so(data: bytes, kind: type[ApiError]) -> None:
    with serving(answering(data, close=True)) as url:
        client = ApiClient(url, user_agent="test")
        with pytest.raises(kind):
            list(client.watch("/pods", {"resourceVersion": "1"}, read_timeout=30))
        client.close()


def test_a_truncated_last_line_is_not_delivered() -> None:
    whole = b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'
    data = b"HTTP/1.1 200 OK\r\n\r\n" + whole + whole[:20]
    with serving(answering(data, close=True)) as url:
        client = ApiClient(url, user_agent="test")
        assert len(list(client.watch("/pods", {}, read_timeout=30))) == 1
        client.close()


def test_a_line_may_come_in_parts_and_a_part_may_have_several_lines() -> None:
    one = b'{"type":"ADDED","object":{"n":"\xc3\xa4"}}\n'
    cut = one.index(b"\xa4")
    parts = (one + one[:cut], one[cut:] + one[:5], one[5:])
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(answering(head + chunks + b"0\r\n\r\n")) as url:
        api = ApiClient(url, user_agent="test")
        assert list(api.watch("/x", {}, read_timeout=30)) == [("ADDED", {"n": "ä"})] * 3


def test_a_request_leaves_in_one_write() -> None:
    bodies: list[bytes] = []

    def handle(connection: socket.socket, request: bytes) -> None:
        bodies.append(request.partition(b"\r\n\r\n")[2])
        connection.sendall(reply(b"{}"))

    with serving(handle) as url:
        client = ApiClient(url, user_agent="test")
        client.create("/x", {"a": 1})
        client.close()
    assert bodies == [b'{"a":1}']


def test_a_connection_is_kept_whatever_the_number_of_its_descriptor() -> None:
    """With many nodes descriptors exceed 1023, the limit of select."""
    our_value, theirs = socket.socketpair()
    with (
        our_value,
        theirs,
        socket.socket(fileno=fcntl.fcntl(our_value, fcntl.F_DUPFD, 1500)) as high,
    ):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = high
        assert not _dropped(connection)
        theirs.close()
        assert _dropped(connection)
