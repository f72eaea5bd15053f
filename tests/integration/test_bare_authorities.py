"""Clusters whose authorities have no key usage and no key identifier are served, both ways.

Go trusts such authorities, and so do kubectl and kube-scheduler; Python 3.13 refuses them.
"""

import http.client
import json
import ssl
import subprocess
from pathlib import Path

import pytest

from gpushare.errors import ApiUnreachable
from gpushare.kube.client import connect
from gpushare.kube.trust import trust_as_kubernetes
from tests.integration.certificates import authority, call, make_pki, shown
from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.integration.verbs import bind_args
from tests.unit.kube.scripted_server import scripted_server, write_kubeconfig


def test_an_authority_made_here_says_neither(tmp_path: Path) -> None:
    authority(tmp_path, "ca", bare=True)
    command = ["openssl", "x509", "-in", str(tmp_path / "ca.crt"), "-noout", "-text"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "CA:TRUE" in text
    assert "Key Usage" not in text
    assert "Key Identifier" not in text


def test_an_api_server_of_such_an_authority_is_spoken_with_and_another_is_not(
    tmp_path: Path,
) -> None:
    make_pki(tmp_path, bare=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with scripted_server(tls) as server:
        for name in ("ca", "scheduler-ca"):
            fields = {"certificate-authority": str(tmp_path / f"{name}.crt")}
            path = write_kubeconfig(tmp_path / name, server.url, {"token": "secret"}, **fields)
            client = connect(path, pool_size=1, user_agent="t")
            if name == "ca":
                assert client.request("GET", "/x", timeout=30) == b"{}"
            else:
                with pytest.raises(ApiUnreachable, match="certificate"):
                    client.request("GET", "/x", timeout=30)
            client.close()


def test_a_caller_of_such_an_authority_is_answered_and_no_other(
    start_extender: StartExtender, cluster: Cluster, tmp_path: Path
) -> None:
    make_pki(tmp_path, bare=True)
    extender = start_extender(
        *("--tls-cert", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")),
        *("--tls-client-ca", str(tmp_path / "scheduler-ca.crt")),
        *("--tls-client-names", "kube-scheduler"),
    )
    extender.wait_ready()
    url = f"https://127.0.0.1:{extender.port}/gpushare-scheduler"
    body = json.dumps(bind_args(cluster.pod(1), cluster.node())).encode()
    with pytest.raises((OSError, http.client.HTTPException)):
        call(url, shown(tmp_path, "forged"), body)
    assert call(url, shown(tmp_path, "other"), body) == 403
    assert call(url, shown(tmp_path, "client"), body) == 200


def test_what_is_trusted_is_the_same_on_every_python() -> None:
    context = ssl.create_default_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    flags = trust_as_kubernetes(context).verify_flags
    assert not flags & ssl.VERIFY_X509_STRICT
    assert flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
