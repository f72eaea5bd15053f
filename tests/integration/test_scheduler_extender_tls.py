"""Extenders by https: the small scheduler trusts and shows certificates as kube-scheduler does."""

import base64
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.kube.trust import trust_as_kubernetes
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.config import options_from
from gpushare_localcluster.scheduler.extender import ExtenderError, HttpExtender
from gpushare_localcluster.scheduler.objects import read_node, read_pod
from tests.integration.certificates import authority, certificate

_POD = read_pod({"metadata": {"name": "p"}, "spec": {}})
_NODES = (NodeInfo(read_node({"metadata": {"name": "n1"}})),)


class TlsHandler(BaseHTTPRequestHandler):
    """Keeps all nodes."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"NodeNames":["n1"]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  -- inherited name
        pass


class Server(ThreadingHTTPServer):
    """Serves by https, to callers who show a certificate of the authority `ca`."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), TlsHandler)
        # As Go's servers trust: Python's own ask for key identifiers from 3.13 on.
        self.tls = trust_as_kubernetes(
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
        )
        self.tls.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.tls.verify_mode = ssl.CERT_REQUIRED

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the connection's own thread."""
        with self.tls.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Some tests are about a caller that is refused."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mktemp_result = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        authority(mktemp_result, name)
    certificate(mktemp_result, "server", "extender", "ca", "subjectAltName=DNS:extender.example")
    certificate(mktemp_result, "client", "scheduler", "ca", "extendedKeyUsage=clientAuth")
    return mktemp_result


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}/x"
        server.shutdown()
        thread.join()


def extender(url: str, tls: dict[str, Any] | None, *, enable: bool = True) -> HttpExtender:
    """The extender of a file with that tlsConfig."""
    entry = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [{**entry, "enableHTTPS": enable, "httpTimeout": "30s", "tlsConfig": tls}],
    }
    options = options_from(decode_scheduler_config(document))
    return HttpExtender(options.extenders[0])


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def shown(folder: Path) -> dict[str, Any]:
    return {"certFile": str(folder / "client.crt"), "keyFile": str(folder / "client.key")}


def call(made: HttpExtender) -> list[str]:
    try:
        return [node.name for node in made.filter(_POD, _NODES).nodes]
    finally:
        made.close()


def test_a_trusted_extender_is_called_with_files_or_data(folder: Path, url: str) -> None:
    name = {"serverName": "extender.example"}
    files = {"caFile": str(folder / "ca.crt"), **shown(folder), **name}
    assert call(extender(url, files)) == ["n1"]
    as_data = {
        "caData": data(folder / "ca.crt"),
        "certData": data(folder / "client.crt"),
        "keyData": data(folder / "client.key"),
        "caFile": "/data/comes/first",
    }
    assert call(extender(url, as_data | name)) == ["n1"]


def test_without_a_ca_enable_https_trusts_anybody(folder: Path, url: str) -> None:
    assert call(extender(url, shown(folder))) == ["n1"]
    assert call(extender(url, {**shown(folder), "insecure": True}, enable=False)) == ["n1"]
    with pytest.raises(ExtenderError, match="CERTIFICATE_VERIFY_FAILED"):
        call(extender(url, shown(folder), enable=False))


@pytest.mark.parametrize(
    ("tls", "error"),
    [
        ({"caFile": "ca.crt"}, "IP address mismatch"),
        ({"caFile": "other.crt", "serverName": "extender.example"}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_who_is_not_trusted_is_not_called(
    folder: Path, url: str, tls: dict[str, Any], error: str
) -> None:
    whole = {**shown(folder), **tls, "caFile": str(folder / tls["caFile"])}
    with pytest.raises(ExtenderError, match=error):
        call(extender(url, whole))


def test_who_shows_no_certificate_is_refused(folder: Path, url: str) -> None:
    tls = {"caFile": str(folder / "ca.crt"), "serverName": "extender.example"}
    with pytest.raises(ExtenderError, match=f'Post "{url}/filter"'):
        call(extender(url, tls))


@pytest.mark.parametrize(
    ("tls", "refusal"),
    [
        ({"caFile": "/nowhere"}, "tlsConfig: .*No such file"),
        ({"caData": "!"}, "caData: must be PEM in base64"),
        ({"caData": "QUJD"}, "tlsConfig: "),
        ({"insecure": True, "caFile": "/a"}, "insecure and a CA; kube-scheduler takes one"),
    ],
)
def test_certificates_that_cannot_be_used_are_refused(tls: dict[str, Any], refusal: str) -> None:
    with pytest.raises(SettingsError, match=refusal):
        extender("https://127.0.0.1:1/x", tls)
