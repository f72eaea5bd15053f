"""The client over TLS: as API servers are spoken to outside of tests."""

import base64
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.errors import ApiUnavailable, ApiUnreachable, SettingsError
from gpushare.kube.client import KubeClient, connect
from tests.unit.kube.scripted_server import (
    ScriptedServer,
    Seen,
    answer,
    chunked,
    reply,
    scripted_server,
    write_kubeconfig,
)

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates"
)


def make_certificate(folder: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server with a new certificate, and write it as `ca.crt`."""
    folder.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        + ["-nodes", "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", str(folder / "key"), "-out", str(folder / "ca.crt")],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    return context


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    with scripted_server(make_certificate(tmp_path / "good")) as running:
        yield running


def client_for(server: ScriptedServer, folder: Path, ca: Path) -> KubeClient:
    fields = {"certificate-authority": str(ca)}
    path = write_kubeconfig(folder / "config", server.url, {"token": "secret"}, **fields)
    return connect(path, pool_size=4, user_agent="t")


def test_calls_and_watches_work_over_tls(server: ScriptedServer, tmp_path: Path) -> None:
    client = client_for(server, tmp_path, tmp_path / "good" / "ca.crt")
    assert client.warm(2) == 2
    server.script = reply(200, b"fine")
    assert client.request("GET", "/x", timeout=30) == b"fine"

    def script(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(chunked(b'{"a":1}\n', end=False))
        server.stopped.wait(60)
        return False

    server.script = script
    started = time.monotonic()
    with client.stream("/w", {}, connect_timeout=30, read_timeout=30) as lines:
        threading.Timer(0.2, lines.close).start()
        assert list(lines) == [b'{"a":1}']
    with (
        pytest.raises(ApiUnavailable),
        client.stream("/w", {}, connect_timeout=30, read_timeout=0.2) as lines,
    ):
        list(lines)
    assert time.monotonic() - started < 20
    client.close()


def test_a_server_that_cannot_prove_itself_is_not_spoken_to_until_its_ca_is_there(
    server: ScriptedServer, tmp_path: Path
) -> None:
    make_certificate(tmp_path / "other")
    ca = tmp_path / "ca.crt"
    shutil.copy(tmp_path / "other" / "ca.crt", ca)
    client = client_for(server, tmp_path, ca)
    with pytest.raises(ApiUnreachable, match="certificate"):
        client.request("GET", "/x", timeout=30)
    assert server.seen == []
    shutil.copy(tmp_path / "good" / "ca.crt", ca)
    assert client.request("GET", "/x", timeout=30) == b"{}"
    client.close()


@pytest.mark.parametrize("inline", ["user", "cluster", "both"])
def test_certificates_of_the_kubeconfig_outlive_their_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: str
) -> None:
    """The end of a forked worker removes the files of the parent; other programs may do so, too."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    tls = make_certificate(tmp_path / "pki")
    tls.load_verify_locations(tmp_path / "pki" / "ca.crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    ca, key = tmp_path / "pki" / "ca.crt", tmp_path / "pki" / "key"
    cluster = {"certificate-authority": str(ca)}
    user = {"client-certificate": str(ca), "client-key": str(key)}
    if inline in ("user", "both"):
        user = {"client-certificate-data": in_base64(ca), "client-key-data": in_base64(key)}
    if inline in ("cluster", "both"):
        cluster = {"certificate-authority-data": in_base64(ca)}
    with scripted_server(tls) as server:
        path = write_kubeconfig(tmp_path / "config", server.url, user, **cluster)
        client = connect(path, pool_size=4, user_agent="t")
        for file in temporary.iterdir():
            file.unlink()
        assert client.request("GET", "/x", timeout=30) == b"{}"

        def script(connection: socket.socket, request: Seen) -> None:
            connection.sendall(answer(401 if request.connection == 0 else 200))

        server.script = script
        assert client.request("GET", "/x", timeout=30) == b"{}"
        assert {seen.connection for seen in server.seen} == {0, 1}
        client.close()


def in_base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def test_a_ca_that_was_replaced_while_nobody_called_costs_no_call(
    server: ScriptedServer, tmp_path: Path
) -> None:
    make_certificate(tmp_path / "other")
    ca = tmp_path / "ca.crt"
    shutil.copy(tmp_path / "other" / "ca.crt", ca)
    client = client_for(server, tmp_path, ca)
    shutil.copy(tmp_path / "good" / "ca.crt", ca)
    assert client.request("GET", "/x", timeout=30) == b"{}"
    assert len(server.seen) == 1
    client.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("ca", "CA"),
        ("certificate", "client certificate"),
        ("key", "client certificate or key"),
        ("locked key", "client certificate or key"),
    ],
)
def test_certificates_that_are_none_are_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: str, said: str
) -> None:
    make_certificate(tmp_path / "pki")
    ca, key = tmp_path / "pki" / "ca.crt", tmp_path / "pki" / "key"
    locked = tmp_path / "pki" / "locked"
    lock = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret"]
    subprocess.run([*lock, "-out", str(locked)], check=True, capture_output=True)
    none = tmp_path / "none"
    none.write_text("no certificate")
    user = {
        "client-certificate": str(none if wrong == "certificate" else ca),
        "client-key": str({"key": none, "locked key": locked}.get(wrong, key)),
    }
    cluster = {"certificate-authority": str(none if wrong == "ca" else ca)}
    path = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", user, **cluster)
    with pytest.raises(SettingsError, match=f"config cannot be used: its {said}") as caught:
        connect(path, pool_size=1, user_agent="t")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_in_a_pod_the_service_account_is_used_and_a_rotated_token_is_found(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    official = "kubernetes.config.incluster_config"
    monkeypatch.setattr(f"{official}.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(f"{official}.SERVICE_CERT_FILENAME", str(tmp_path / "good" / "ca.crt"))
    monkeypatch.setattr("gpushare.kube.session._SERVICE_ACCOUNT_TOKEN", token)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    client = connect(None, pool_size=2, user_agent="t")

    def script(connection: socket.socket, request: Seen) -> None:
        fresh = request.headers["authorization"].split()[1] == token.read_text().strip()
        connection.sendall(answer(200 if fresh else 401))

    server.script = script
    client.request("GET", "/x", timeout=30)
    token.write_text("second\n")
    client.request("GET", "/x", timeout=30)
    assert [seen.headers["authorization"].split()[1] for seen in server.seen] == (
        ["first", "first", "second"]
    )
    client.close()


def test_what_is_no_tls_on_an_open_connection_has_the_credentials_read_again(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """As at the first call: an alert of TLS may say that a certificate has been replaced."""
    token = tmp_path / "token"
    token.write_text("first")
    ca = {"certificate-authority": str(tmp_path / "good" / "ca.crt")}
    path = write_kubeconfig(tmp_path / "config", server.url, {"tokenFile": str(token)}, **ca)
    client = connect(path, pool_size=1, user_agent="t")
    client.request("GET", "/x", timeout=30)
    token.write_text("second")

    def script(connection: socket.socket, _: Seen) -> bool:
        os.write(connection.fileno(), b"no record of TLS")
        return False

    server.script = script
    with pytest.raises(ApiUnavailable):
        client.request("POST", "/x", body=b"{}", timeout=30)
    server.script = reply()
    client.request("GET", "/x", timeout=30)
    tokens = [request.headers["authorization"].split()[1] for request in server.seen]
    assert tokens == ["first", "first", "second"]
    client.close()
