"""Calls over a connection that an earlier call has left open; test_client.py has the rest, too."""

import gzip
import queue
import socket
from pathlib import Path

import pytest

from gpushare.errors import ApiUnavailable
from gpushare.kube.client import KubeClient, connect
from tests.unit.kube.scripted_server import (
    ScriptedServer,
    Seen,
    answer,
    chunked,
    reply,
    send,
    write_kubeconfig,
)

_TOO_MANY_HEADERS = b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"\r\n"


def post(client: KubeClient, body: bytes | None = b"{}") -> bytes:
    return client.request("POST", "/x", query={"a": "b c"}, body=body, timeout=30)


@pytest.mark.parametrize("path", ["", "/k8s/clusters/c-1", "/a b/ü"])
@pytest.mark.parametrize("body", [None, b"", b"{}"])
def test_a_later_call_says_what_the_first_one_says(
    server: ScriptedServer, tmp_path: Path, path: str, body: bytes | None
) -> None:
    user = {"token": "secret"}
    file = write_kubeconfig(tmp_path / "config", server.url + path, user)
    client = connect(file, pool_size=1, user_agent="t")
    for _ in range(3):
        post(client, body)
    first, second, third = server.seen
    assert (first, second) == (second, third)
    assert first.headers["host"] == server.url.removeprefix("http://")
    client.close()


@pytest.mark.parametrize(
    "whole",
    [
        answer(200, b"fine"),
        answer(200, b"fine", "Connection: close\r\n"),
        chunked(b"fi", b"ne"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, b"fine"),
        answer(200, gzip.compress(b"fine"), "Content-Encoding: gzip\r\n"),
        chunked(gzip.compress(b"fine")).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1),
    ],
    ids=["length", "close", "chunked", "continue", "encoded", "encoded chunks"],
)
def test_an_answer_is_read_whatever_its_form_and_so_is_the_next(
    server: ScriptedServer, client: KubeClient, whole: bytes
) -> None:
    server.script = send(whole, then_close=b"close" in whole)
    for _ in range(3):
        assert post(client) == b"fine"
    expected = 3 if b"close" in whole else 1
    assert len({request.connection for request in server.seen}) == expected


def test_a_connection_that_its_server_has_closed_costs_no_call(
    server: ScriptedServer, client: KubeClient
) -> None:
    """A call on such a connection would be in doubt; the client opens another connection."""
    closed_connections: queue.Queue[int] = queue.Queue()

    def script(connection: socket.socket, request: Seen) -> bool:
        connection.sendall(answer(200))
        connection.shutdown(socket.SHUT_RDWR)
        closed_connections.put(request.connection)
        return False

    server.script = script
    for _ in range(3):
        post(client)
        closed_connections.get(timeout=60)
    assert [seen.connection for seen in server.seen] == [0, 1, 2]


def test_what_comes_after_an_answer_is_not_taken_for_the_next_one(
    server: ScriptedServer, client: KubeClient
) -> None:
    """Two answers to one call: the client closes the connection with all unread bytes."""
    server.script = reply(200, b"first")
    assert post(client) == b"first"
    server.script = send(answer(200, b"second") + answer(200, b"nobody's"))
    assert post(client) == b"second"
    server.script = reply(200, b"third")
    assert post(client) == b"third"


def test_an_answer_that_is_no_http_is_an_unknown_outcome_and_ends_the_connection(
    server: ScriptedServer, client: KubeClient
) -> None:
    post(client)
    for nonsense in (b"what?\r\n\r\n", _TOO_MANY_HEADERS):
        server.script = send(nonsense)
        with pytest.raises(ApiUnavailable):
            post(client)
        server.script = reply(200, b"fine")
        assert post(client) == b"fine"
    assert [request.connection for request in server.seen] == [0, 0, 1, 1, 2]


def test_what_is_no_answer_leaves_no_socket_open(
    server: ScriptedServer, client: KubeClient
) -> None:
    """However long somebody holds the error."""
    seen_by_server: queue.Queue[bytes] = queue.Queue()

    def script(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(_TOO_MANY_HEADERS)
        seen_by_server.put(connection.recv(1))
        return False

    post(client)
    server.script = script
    with pytest.raises(ApiUnavailable) as caught:
        post(client)
    assert seen_by_server.get(timeout=60) == b""
    assert caught.value.status == 0


def test_a_proxy_that_forwards_is_spoken_to_as_one_at_each_call(
    server: ScriptedServer, tmp_path: Path
) -> None:
    proxy = {"proxy-url": server.url}
    path = write_kubeconfig(tmp_path / "config", "http://192.0.2.1", None, **proxy)
    client = connect(path, pool_size=1, user_agent="t")
    for _ in range(2):
        post(client)
    first, second = server.seen
    assert first == second
    assert (first.target, first.headers["host"]) == ("http://192.0.2.1/x?a=b+c", "192.0.2.1")
    client.close()
