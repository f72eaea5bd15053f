"""Unreadable credentials: the client heals as soon as the credentials are readable again.

The server answers as kube-apiserver does by default: 401 to a wrong token, and 403 to a call
without a token, which is of system:anonymous.
"""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.errors import ApiError, SettingsError
from gpushare.kube.client import KubeClient, connect
from tests.unit.kube.exec_plugin import ExecPlugin
from tests.unit.kube.scripted_server import (
    ScriptedServer,
    Seen,
    answer,
    scripted_server,
    write_kubeconfig,
)


class Guarded:
    """A server that lets in who shows `valid`."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.valid = "first"
        server.script = self._answer

    def _answer(self, connection: socket.socket, request: Seen) -> None:
        credentials = request.headers.get("authorization", "").split()[1:]
        connection.sendall(
            answer(200 if credentials == [self.valid] else 401 if credentials else 403)
        )


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with scripted_server() as running:
        yield Guarded(running)


@pytest.fixture
def plug_in(tmp_path: Path) -> ExecPlugin:
    new_plug_in = ExecPlugin(tmp_path)
    new_plug_in.hand_out("first")
    return new_plug_in


def client_with(guarded: Guarded, folder: Path, user: dict[str, object]) -> KubeClient:
    path = write_kubeconfig(folder / "config", guarded.server.url, user)
    return connect(path, pool_size=2, user_agent="t")


def status(client: KubeClient) -> int:
    try:
        client.request("GET", "/api/v1/pods", timeout=30)
    except ApiError as error:
        return error.status
    return 200


def test_a_plug_in_that_fails_once_costs_that_call_alone(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path
) -> None:
    client = client_with(guarded, tmp_path, plug_in.user)
    assert status(client) == 200
    guarded.valid = "second"
    plug_in.hand_out(None)
    assert status(client) == 401
    plug_in.hand_out("second")
    assert status(client) == 200
    client.close()


@pytest.mark.parametrize("half", ["", "\n", "sec\nond"])
def test_a_token_file_without_a_token_costs_that_call_alone(
    guarded: Guarded, tmp_path: Path, half: str
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    client = client_with(guarded, tmp_path, {"tokenFile": str(token)})
    assert status(client) == 200
    guarded.valid = "second"
    token.write_text(half)
    assert status(client) == 401
    token.write_text("second")
    assert status(client) == 200
    client.close()


def test_a_token_in_use_is_not_given_up_for_an_empty_one(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.kube.session._TOKEN_CHECK_SECONDS", -1.0)
    client = client_with(guarded, tmp_path, plug_in.user)
    assert status(client) == 200
    plug_in.hand_out("")
    assert status(client) == 200
    client.close()


def test_who_started_without_credentials_finds_them_later(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.kube.client._ANONYMOUS_SECONDS", 0.0)
    plug_in.hand_out(None)
    client = client_with(guarded, tmp_path, plug_in.user)
    assert status(client) == 403
    plug_in.hand_out("first")
    assert status(client) == 200
    client.close()


@pytest.mark.parametrize("command", ["/no/such/plug-in", "no-such-plug-in"])
def test_a_plug_in_that_is_not_there_is_an_error(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path, command: str
) -> None:
    user: dict[str, object] = {"exec": {**plug_in.user["exec"], "command": command}}
    with pytest.raises(SettingsError, match=f"program for credentials is not found: {command}"):
        client_with(guarded, tmp_path, user)
    assert guarded.server.seen == []


def test_who_has_no_credentials_does_not_look_for_them_at_every_call(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.kube.client._ANONYMOUS_SECONDS", 3600.0)
    plug_in.hand_out(None)
    client = client_with(guarded, tmp_path, plug_in.user)
    runs = plug_in.runs
    assert [status(client) for _ in range(3)] == [403] * 3
    assert len(guarded.server.seen) == 3
    assert plug_in.runs == runs
    client.close()


def test_a_plug_in_that_hangs_delays_no_call_with_a_valid_token(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.kube.session._TOKEN_CHECK_SECONDS", -1.0)
    monkeypatch.setattr("gpushare.kube.session._TOKEN_WAIT_SECONDS", 0.0)
    client = client_with(guarded, tmp_path, plug_in.user)
    runs = plug_in.runs
    plug_in.hang()
    assert [status(client) for _ in range(3)] == [200] * 3
    plug_in.go_on()
    for thread in threading.enumerate():
        if thread.name == "credentials":
            thread.join(60)
    assert plug_in.runs == runs + 1  # one run for all calls
    client.close()


def test_a_plug_in_that_hangs_holds_a_call_with_a_bad_token_for_its_time_out(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.kube.session._TOKEN_CHECK_SECONDS", 3600.0)
    client = client_with(guarded, tmp_path, plug_in.user)
    guarded.valid = "second"
    plug_in.hand_out("second")
    plug_in.hang()
    with pytest.raises(ApiError):
        client.request("GET", "/api/v1/pods", timeout=0.5)
    plug_in.go_on()
    assert status(client) == 200
    client.close()


def test_a_plug_in_is_not_run_again_for_the_first_call(
    guarded: Guarded, plug_in: ExecPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.kube.session._TOKEN_CHECK_SECONDS", 3600.0)
    client = client_with(guarded, tmp_path, plug_in.user)
    runs = plug_in.runs
    assert status(client) == 200
    assert plug_in.runs == runs
    client.close()
