import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiGone,
    ApiNotFound,
    ApiTooLarge,
    ApiUnavailable,
    ApiUnreachable,
    SettingsError,
)
from gpushare.kube.client import MOST_BYTES, KubeClient, connect
from tests.unit.kube.scripted_server import (
    ScriptedServer,
    Seen,
    answer,
    chunked,
    reply,
    reset,
    send,
    write_kubeconfig,
)


@pytest.fixture(params=["first call", "kept connection"])
def client(
    request: pytest.FixtureRequest, server: ScriptedServer, tmp_path: Path
) -> Iterator[KubeClient]:
    """A client that has called nobody so far, or that has a connection from an earlier call."""
    path = write_kubeconfig(tmp_path / "config", server.url, {"token": "secret"})
    new_client = connect(path, pool_size=8, user_agent="gpushare/test")
    if request.param == "kept connection":
        get(new_client)
        server.seen.clear()
    yield new_client
    new_client.close()


def get(client: KubeClient, timeout: float = 30.0) -> bytes:
    return client.request("GET", "/api/v1/pods/p", timeout=timeout)


def watch(client: KubeClient, read_timeout: float = 30.0) -> list[bytes]:
    with client.stream(
        "/api/v1/pods", {"watch": "true"}, connect_timeout=30, read_timeout=read_timeout
    ) as lines:
        return list(lines)


def test_a_call_carries_who_asks_what_and_as_whom(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = reply(201, b"made")

    got = client.request("POST", "/api/v1/x", query={"a": "b c"}, body=b"{}", timeout=30)

    (request,) = server.seen
    assert got == b"made"
    assert (request.method, request.target, request.body) == ("POST", "/api/v1/x?a=b+c", b"{}")
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["user-agent"] == "gpushare/test"
    assert request.headers["content-type"] == "application/json"


def test_a_successful_binding_is_a_success_although_the_answer_is_a_status(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = reply(201, b'{"kind":"Status","status":"Success"}')
    assert b"Success" in client.request("POST", "/binding", body=b"{}", timeout=30)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, ApiUnavailable),
        (400, ApiError),
        (403, ApiError),
        (404, ApiNotFound),
        (409, ApiConflict),
        (410, ApiGone),
        (422, ApiError),
        (429, ApiError),
        (500, ApiUnavailable),
        (503, ApiUnavailable),
        (504, ApiUnavailable),
    ],
)
def test_a_refusal_is_told_by_its_status_and_sent_once(
    server: ScriptedServer, client: KubeClient, status: int, kind: type[ApiError]
) -> None:
    body = json.dumps({"kind": "Status", "message": "because\nof this"}).encode()
    server.script = reply(status, body, "Retry-After: 1\r\nLocation: /elsewhere\r\n")

    with pytest.raises(ApiError) as caught:
        client.request("POST", "/x", body=b"{}", timeout=30)

    assert type(caught.value) is kind
    assert caught.value.status == status
    assert str(caught.value) == f"POST /x: {status} because of this"
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [302, 307, 400, 401, 403, 404, 408, 409, 410, 422])
@pytest.mark.parametrize("body", [b"", b"<html>sign in</html>", b"{}", b"[]", b'{"kind":"Pod"}'])
def test_a_refusal_without_a_status_document_says_nothing_of_what_was_done(
    server: ScriptedServer, client: KubeClient, status: int, body: bytes
) -> None:
    """Such an answer is of a proxy: a 404 of a proxy must not free the devices of a pod."""
    server.script = reply(status, body, "Location: /login\r\n")
    with pytest.raises(ApiUnavailable) as caught:
        client.request("POST", "/x", body=b"{}", timeout=30)
    assert caught.value.status == status


def test_too_many_requests_is_a_refusal_in_plain_text(
    server: ScriptedServer, client: KubeClient
) -> None:
    """kube-apiserver answers so if it has not begun to handle the request."""
    server.script = reply(429, b"Too many requests, please try again later.")
    with pytest.raises(ApiError) as caught:
        get(client)
    assert (type(caught.value), caught.value.status) == (ApiError, 429)


def test_the_text_of_a_refusal_is_bounded_and_printable(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = reply(500, b"\x1b[31m" + b"y" * 100_000)
    with pytest.raises(ApiUnavailable) as caught:
        get(client)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


def test_after_401_the_credentials_are_read_again_once(
    server: ScriptedServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    path = write_kubeconfig(tmp_path / "config", server.url, {"tokenFile": str(token)})
    client = connect(path, pool_size=2, user_agent="t")

    def script(connection: socket.socket, request: Seen) -> None:
        token.write_text("new")
        fresh = request.headers["authorization"] == "Bearer new"
        connection.sendall(answer(200, b"welcome") if fresh else answer(401))

    server.script = script
    assert get(client) == b"welcome"
    assert get(client) == b"welcome"
    assert [s.headers["authorization"] for s in server.seen] == ["Bearer old"] + ["Bearer new"] * 2
    client.close()


def test_a_second_401_is_a_refusal(server: ScriptedServer, client: KubeClient) -> None:
    server.script = reply(401)
    with pytest.raises(ApiError) as caught:
        get(client)
    assert caught.value.status == 401
    assert len(server.seen) == 2


def test_a_stream_refused_with_401_is_opened_with_new_credentials(
    server: ScriptedServer, client: KubeClient
) -> None:
    def script(connection: socket.socket, _: Seen) -> None:
        connection.sendall(answer(401) if len(server.seen) == 1 else chunked(b"a\n"))

    server.script = script
    assert watch(client) == [b"a"]


def test_without_a_connection_nothing_was_sent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    path = write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
    client = connect(path, pool_size=1, user_agent="t")
    with pytest.raises(ApiUnreachable, match="GET /api/v1/pods/p: ") as caught:
        get(client)
    assert caught.value.status == 0
    client.close()


@pytest.mark.parametrize("length", range(len(answer(200, b"body"))))
def test_an_answer_cut_anywhere_is_an_unknown_outcome(
    server: ScriptedServer, client: KubeClient, length: int
) -> None:
    server.script = send(answer(200, b"body")[:length], then_close=True)
    with pytest.raises(ApiUnavailable):
        client.request("POST", "/x", body=b"{}", timeout=30)
    assert len(server.seen) == 1


def test_a_reset_connection_is_an_unknown_outcome_and_the_next_call_works(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = lambda connection, _: reset(connection)
    with pytest.raises(ApiUnavailable):
        get(client)
    server.script = reply(200, b"fine")
    assert get(client) == b"fine"


def test_a_server_that_stalls_or_drips_holds_no_call_beyond_its_time(
    server: ScriptedServer, client: KubeClient
) -> None:
    def stall(_: socket.socket, __: Seen) -> bool:
        server.stopped.wait(60)
        return False

    def drip(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(answer(200, b"x" * 1000)[:60])
        while not server.stopped.wait(0.05):
            connection.sendall(b"x")
        return False

    for script in (stall, drip):
        server.script = script
        started = time.monotonic()
        with pytest.raises(ApiUnavailable):
            get(client, timeout=0.3)
        assert time.monotonic() - started < 30


def test_a_large_chunked_body_comes_whole(server: ScriptedServer, client: KubeClient) -> None:
    body = bytes(range(256)) * 20_000
    pieces = [body[i : i + 70_001] for i in range(0, len(body), 70_001)]
    server.script = send(chunked(*pieces))
    assert get(client) == body


def test_connections_are_kept(server: ScriptedServer, client: KubeClient) -> None:
    for _ in range(5):
        get(client)
    assert {request.connection for request in server.seen} == {0}


def test_warm_opens_as_many_connections_as_asked_and_keeps_them(
    server: ScriptedServer, client: KubeClient
) -> None:
    assert client.warm(6) == 6
    assert client.warm(6) == 6
    assert {request.connection for request in server.seen} == set(range(6))


def test_warm_has_one_time_for_all_its_calls(server: ScriptedServer, client: KubeClient) -> None:
    """A slow API server must not hold the thread that settles doubts for the time of 64 calls."""

    def slow(connection: socket.socket, _: Seen) -> None:
        server.stopped.wait(0.4)
        connection.sendall(answer(200))

    server.script = slow
    assert 0 < client.warm(8, timeout=2.0) < 6
    server.script = reply()
    assert client.warm(6) == 6


def test_warm_counts_refusals_as_open_connections_and_tells_when_there_is_no_server(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = reply(403)
    assert client.warm(3) == 3
    server.script = lambda connection, _: reset(connection)
    with pytest.raises(ApiUnavailable):
        client.warm(3)


def test_many_threads_may_call_at_once(server: ScriptedServer, client: KubeClient) -> None:
    server.script = lambda connection, seen: connection.sendall(answer(200, seen.body))
    wrong = []

    def work(number: int) -> None:
        for turn in range(20):
            body = f"{number}-{turn}".encode()
            if client.request("POST", "/x", body=body, timeout=30) != body:
                wrong.append(body)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(server.seen) == 160


def test_a_watch_gives_its_lines_however_they_are_cut(
    server: ScriptedServer, client: KubeClient
) -> None:
    lines = b'{"a":1}\n{"b":2}\n{"c":3}\n'
    for cut in range(len(lines) + 1):
        whole = chunked(lines[:cut], lines[cut:])
        server.script = send(whole)
        assert watch(client) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


def test_a_watch_cut_at_any_byte_gives_whole_lines_and_then_the_error(
    server: ScriptedServer, client: KubeClient
) -> None:
    stream = chunked(b'{"a":1}\n', b'{"b":2}\n')
    for length in range(stream.index(b"\r\n\r\n") + 4, len(stream) - 6):
        server.script = send(stream[:length], then_close=True)
        got: list[bytes] = []
        with (
            pytest.raises(ApiUnavailable),
            client.stream("/w", {}, connect_timeout=30, read_timeout=30) as lines,
        ):
            got.extend(lines)
        assert got == [b'{"a":1}', b'{"b":2}'][: len(got)]


def test_a_watch_that_ends_by_closing_the_connection_is_read_to_its_last_whole_line(
    server: ScriptedServer, client: KubeClient
) -> None:
    # HTTP/1.0 and `Connection: close`: as simple servers and some proxies stream.
    def script(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n")
        connection.sendall(b'{"a":1}\n')
        time.sleep(1.3)  # longer than the time to connect
        connection.sendall(b'{"b":2}\n{"trunc')
        return False

    server.script = script
    with client.stream("/w", {}, connect_timeout=1.0, read_timeout=30) as lines:
        assert list(lines) == [b'{"a":1}', b'{"b":2}']


def test_each_event_is_delivered_when_it_comes(server: ScriptedServer, client: KubeClient) -> None:
    more = threading.Event()

    def script(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(chunked(b'{"a":1}\n', end=False))
        more.wait(30)
        connection.sendall(b'8\r\n{"b":2}\n\r\n0\r\n\r\n')
        return False

    server.script = script
    with client.stream("/w", {}, connect_timeout=30, read_timeout=30) as lines:
        stream = iter(lines)
        assert next(stream) == b'{"a":1}'
        more.set()
        assert list(stream) == [b'{"b":2}']


def silent(server: ScriptedServer) -> None:
    def script(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(chunked(b'{"a":1}\n', end=False))
        server.stopped.wait(60)
        return False

    server.script = script


def test_a_watch_silent_for_too_long_is_an_error(
    server: ScriptedServer, client: KubeClient
) -> None:
    silent(server)
    with pytest.raises(ApiUnavailable, match="timed out"):
        watch(client, read_timeout=0.2)


def test_a_watch_whose_answer_never_begins_is_an_error(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = lambda _, __: server.stopped.wait(60) and None
    with (
        pytest.raises(ApiUnavailable, match="timed out"),
        client.stream("/w", {}, connect_timeout=0.2, read_timeout=60),
    ):
        pass


def test_a_blocked_watch_ends_at_once_when_another_thread_closes_it(
    server: ScriptedServer, client: KubeClient
) -> None:
    silent(server)
    started = time.monotonic()
    with client.stream("/w", {}, connect_timeout=30, read_timeout=30) as lines:
        threading.Timer(0.2, lines.close).start()
        assert list(lines) == [b'{"a":1}']
        lines.close()
    lines.close()
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("status", [403, 410, 500])
def test_a_watch_refused_is_told_by_its_status(
    server: ScriptedServer, client: KubeClient, status: int
) -> None:
    server.script = reply(status, b'{"kind":"Status","message":"no"}')
    with pytest.raises(ApiError, match=f"{status} no"):
        watch(client)


def test_a_server_below_a_path_is_called_below_it(server: ScriptedServer, tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", server.url + "/k8s/clusters/c-1")
    client = connect(path, pool_size=1, user_agent="t")
    get(client)
    assert server.seen[0].target == "/k8s/clusters/c-1/api/v1/pods/p"
    client.close()


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    client = connect(write_kubeconfig(tmp_path / "config", server.url), pool_size=1, user_agent="t")
    assert get(client) == b"{}"
    client.close()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "127.0.0.1:9"])
def test_a_proxy_of_another_kind_is_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], proxy: str
) -> None:
    path = write_kubeconfig(tmp_path / "config", "https://192.0.2.1", None, **{"proxy-url": proxy})
    with pytest.raises(SettingsError, match=r"config cannot be used: .*proxy"):
        connect(path, pool_size=1, user_agent="t")
    assert capfd.readouterr() == ("", "")


def test_a_proxy_of_another_kind_may_be_there_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "192.0.2.0/24")
    connect(write_kubeconfig(tmp_path / "config", "http://192.0.2.1"), pool_size=1, user_agent="t")


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        (None, None, "does not exist"),
        ("", None, "cannot be used"),
        ("{", None, "cannot be used"),
        ("[1]", None, "cannot be used"),
        ("a: [", None, "cannot be used"),
        ('{"current-context": "x"}', None, "cannot be used"),
        ("good", "other", "other"),
        ("no server", None, "names no server"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, text: str | None, context: str | None, said: str
) -> None:
    file = tmp_path / "config"
    if text in ("good", "no server"):
        write_kubeconfig(file, "http://127.0.0.1:1" if text == "good" else "")
    elif text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        connect(str(file), context, pool_size=1, user_agent="t")
    assert said in str(caught.value)
    assert "config" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["~nobody-of-that-name/config", "config" + "x" * 300])
def test_a_kubeconfig_that_cannot_be_looked_for_is_one_line(tmp_path: Path, name: str) -> None:
    """As one in a folder that we may not enter; a test that runs as root may enter any."""
    file = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(SettingsError, match=r"^kubeconfig .*config.* cannot be used: \S.*$"):
        connect(file, pool_size=1, user_agent="t")


def test_without_kubeconfig_and_outside_a_pod_the_message_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="no kubeconfig given"):
        connect(None, pool_size=1, user_agent="t")


def test_an_answer_of_too_many_bytes_is_not_read_to_its_end(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = send(chunked(b"x" * (MOST_BYTES + 1)))
    with pytest.raises(ApiTooLarge, match="more than 16 MiB"):
        get(client)
    server.script = send(chunked(b"small"))
    assert get(client) == b"small"


def test_the_outcome_of_a_write_with_an_answer_of_too_many_bytes_is_unknown(
    server: ScriptedServer, client: KubeClient
) -> None:
    server.script = send(chunked(b"x" * (MOST_BYTES + 1)))
    with pytest.raises(ApiUnavailable, match="more than 16 MiB"):
        client.request("POST", "/api/v1/bindings", body=b"{}", timeout=5.0)
