"""A call is sent in time or not at all, with any delay before."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import ApiUnreachable
from gpushare.kube.client import KubeClient, connect
from tests.unit.kube.exec_plugin import ExecPlugin
from tests.unit.kube.scripted_server import (
    ScriptedServer,
    Seen,
    answer,
    write_kubeconfig,
)


@pytest.fixture
def client(server: ScriptedServer, tmp_path: Path) -> Iterator[KubeClient]:
    new_client = client_of(server, tmp_path)
    yield new_client
    new_client.close()


def client_of(server: ScriptedServer, folder: Path, **user: Any) -> KubeClient:
    path = write_kubeconfig(folder / "config", server.url, user or {"token": "secret"})
    return connect(path, pool_size=2, user_agent="t")


def wait_until(moment: float) -> None:
    while time.monotonic() <= moment:
        time.sleep(0.01)


def post(client: KubeClient, not_after: float, timeout: float = 30) -> bytes:
    return client.request("POST", "/x", body=b"{}", timeout=timeout, not_after=not_after)


@pytest.mark.parametrize("by", ["timeout", "not_after"])
def test_a_call_whose_server_is_found_too_late_is_not_sent(
    server: ScriptedServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A name server that does not answer holds up getaddrinfo for 5 s, whatever the time-out."""
    resolve: Callable[..., Any] = socket.getaddrinfo
    late = time.monotonic() + 0.3

    def slow(*args: Any, **options: Any) -> Any:
        wait_until(late + 0.5)  # a busy machine may begin the call and the time-out after `late`
        return resolve(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    limits = (late, 30.0) if by == "not_after" else (late + 30, late - time.monotonic())
    with pytest.raises(ApiUnreachable, match="not sent"):
        post(client, *limits)
    assert server.seen == []
    assert post(client, time.monotonic() + 30) == b"{}"


def test_a_call_on_an_open_connection_is_not_sent_too_late(
    server: ScriptedServer, client: KubeClient
) -> None:
    post(client, time.monotonic() + 30)
    with pytest.raises(ApiUnreachable, match="not sent"):
        post(client, time.monotonic() - 1)
    assert len(server.seen) == 1


def test_a_call_whose_credentials_come_too_late_is_not_sent(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.kube.session._TOKEN_CHECK_SECONDS", -1.0)
    plug_in = ExecPlugin(tmp_path)
    plug_in.hand_out("secret")
    client = client_of(server, tmp_path, **plug_in.user)
    plug_in.be_slow()
    with pytest.raises(ApiUnreachable, match="not sent"):
        post(client, time.monotonic() + 0.5)
    assert server.seen == []
    client.close()


def test_a_call_refused_too_late_for_a_second_try_has_none(
    server: ScriptedServer, client: KubeClient
) -> None:
    late = time.monotonic() + 1.5

    def script(connection: socket.socket, _: Seen) -> None:
        wait_until(late)
        connection.sendall(answer(401))

    server.script = script
    with pytest.raises(ApiUnreachable, match="not sent"):
        post(client, late)
    assert len(server.seen) == 1


def test_a_refusal_whose_text_drips_does_not_hold_the_call(
    server: ScriptedServer, client: KubeClient
) -> None:
    def drip(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(answer(401, b"x" * 200)[:80])
        while not server.stopped.wait(0.05):
            connection.sendall(b"x")
        return False

    server.script = drip
    with pytest.raises(ApiUnreachable, match="not sent"):
        post(client, time.monotonic() + 30, timeout=1.5)
    assert len(server.seen) == 1


def test_through_a_proxy_that_is_away_nothing_was_sent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    for server in ("http://192.0.2.1", "https://192.0.2.1"):
        proxy = {"proxy-url": f"http://127.0.0.1:{port}"}
        path = write_kubeconfig(tmp_path / "config", server, {"token": "secret"}, **proxy)
        client = connect(path, pool_size=1, user_agent="t")
        with pytest.raises(ApiUnreachable, match="proxy"):
            post(client, time.monotonic() + 30)
        client.close()
