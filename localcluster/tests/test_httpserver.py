"""The API server's HTTP: accepted and refused heads."""

import socket
from collections.abc import Iterable, Iterator

import pytest

from gpushare_localcluster.api.httpserver import Environ, HttpServer, StartResponse

FIELDS = ("HTTP_ACCEPT", "HTTP_X_ODD", "CONTENT_TYPE")


def told(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    body = repr([environ.get(name) for name in FIELDS]).encode() + environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, told)
    server.start()
    yield server
    server.stop()


def answers(server: HttpServer, request: bytes) -> bytes:
    """The bytes from the server until it closes the connection."""
    with socket.create_connection(
        ("127.0.0.1", server.server_address[1]), timeout=60
    ) as connection:
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


def test_names_of_fields_have_no_case_and_repeated_ones_all_values(server: HttpServer) -> None:
    head = b"GET / HTTP/1.1\r\nACCEPT: a\r\nx-odd:  1\r\naccept: b\r\nX-Odd: 2\r\n"
    answer = answers(server, head + b"Connection: close\r\n\r\n")
    assert answer.endswith(b"['a,b', '1,2', '']")


def test_a_connection_serves_one_request_after_another(server: HttpServer) -> None:
    one = b"PUT / HTTP/1.1\r\nContent-Type: x\r\nContent-Length: 2\r\n\r\nok"
    answer = answers(server, one + one + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert answer.count(b"200 OK") == answer.count(b"'x']ok") == 3


CHUNKED = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"


def test_a_body_may_come_in_chunks(server: HttpServer) -> None:
    body = b"2\r\nok\r\n1;x=y\r\n!\r\n0\r\n\r\n"
    last = CHUNKED + b"Connection: close\r\n\r\n"
    answer = answers(server, CHUNKED + b"\r\n" + body + last + body)
    assert answer.count(b"200 OK") == answer.count(b"]ok!") == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x\r\n", b"400"),
        (b"-2\r\n", b"400"),
        (b"\r\n", b"400"),
        (b"123456789\r\n", b"400"),
        (b"ffffff\r\n", b"413"),
    ],
)
def test_chunks_of_no_size_or_too_large_are_refused(
    server: HttpServer, body: bytes, status: bytes
) -> None:
    assert answers(server, CHUNKED + b"\r\n" + body).startswith(b"HTTP/1.1 " + status)


def test_a_client_of_http_1_0_gets_an_answer_and_the_end(server: HttpServer) -> None:
    assert b"200 OK" in answers(server, b"GET / HTTP/1.0\r\n\r\n")


def test_a_client_that_waits_to_send_its_body_is_told_to(server: HttpServer) -> None:
    head = (
        b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    )
    answer = answers(server, head + b"ok")
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answer.endswith(b"ok")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nname : value\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: value\r\n\r\n",
        b"GET / HTTP/1.1\r\n: value\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"GET / HTTP/1.1\r\na: " + b"b" * (1 << 16) + b"\r\n\r\n",
    ],
)
def test_a_head_that_is_none_is_refused_and_the_connection_closed(
    server: HttpServer, head: bytes
) -> None:
    try:
        answer = answers(server, head)
    except ConnectionResetError:
        return  # unread bytes at the close cause a reset
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"200 OK" not in answer
