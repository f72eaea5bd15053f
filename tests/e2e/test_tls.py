"""Away from loopback: a real kube-scheduler and our extender show each other certificates."""

import http.client
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from gpushare.localcluster.client import HttpClient
from tests.e2e.conftest import MakeWorld
from tests.integration.process import free_port
from tests.integration.verbs import bind_args

_PRINTED = "/etc/kubernetes/pki/gpushare"
"""Where the printed file has kube-scheduler look for certificates."""


def openssl(folder: Path, *args: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl to make certificates with")
    subprocess.run([program, *args], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """Make NAME.crt and NAME.key of a new authority."""
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    openssl(folder, "req", *_NEW_KEY, "-x509", "-days", "2", "-subj", f"/CN={name}", *files)


def certificate(folder: Path, name: str, common_name: str, by: str, extensions: str) -> None:
    """Make NAME.crt and NAME.key, signed by that authority."""
    (folder / f"{name}.ext").write_text(extensions)
    files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl(folder, "req", *_NEW_KEY, "-subj", f"/CN={common_name}", *files)
    signer = ("-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial", "-days", "2")
    signed = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", f"{name}.ext")
    openssl(folder, "x509", "-req", *signer, *signed)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_CLIENT = "extendedKeyUsage=clientAuth"


def shown(folder: Path, name: str) -> ssl.SSLContext:
    """How a caller with that certificate reaches the extender; "" for one without."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if name:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """A folder with the certificates that docs/install.md speaks of, and two that may not call."""
    authority(tmp_path, "ca")
    authority(tmp_path, "scheduler-ca")
    server = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth"
    certificate(tmp_path, "server", "gpushare", "ca", server)
    certificate(tmp_path, "client", "kube-scheduler", "scheduler-ca", _CLIENT)
    certificate(tmp_path, "other", "somebody", "scheduler-ca", _CLIENT)
    certificate(tmp_path, "forged", "kube-scheduler", "ca", _CLIENT)
    return tmp_path


def test_pods_are_placed_over_mutual_tls_and_nobody_else_may_call(
    make_world: MakeWorld, pki: Path
) -> None:
    port = free_port()
    world = make_world(
        options=("--url", f"https://127.0.0.1:{port}/gpushare-scheduler"),
        change={_PRINTED: str(pki)},
        flags=(
            *("--leadership", "off", "--listen", f"0.0.0.0:{port}"),
            *("--tls-cert", str(pki / "server.crt"), "--tls-key", str(pki / "server.key")),
            *("--tls-client-ca", str(pki / "scheduler-ca.crt")),
            *("--tls-client-names", "kube-scheduler"),
        ),
        tls=shown(pki, "client"),
    )
    objects = world.objects
    world.start()
    node = objects.node(devices=2, units=16)
    assert objects.lands(objects.pod(10), world.told) == (node, {0: 10})
    assert objects.lands(objects.pod(9), world.told) == (node, {1: 9})
    objects.refusal(objects.pod(8), "1 Insufficient GPU Memory in one device")

    unbound = objects.pod(1, schedulerName="nobody")
    body = json.dumps(bind_args(unbound, node)).encode()
    for name in ("", "forged"):
        with pytest.raises((OSError, http.client.HTTPException)):
            call(world.extender.url, shown(pki, name), body)
    assert call(world.extender.url, shown(pki, "other"), body) == 403
    assert not objects.node_of(unbound)
    world.agrees()


def call(url: str, tls: ssl.SSLContext, body: bytes) -> int:
    """The status of a bind."""
    client = HttpClient(url, tls=tls)
    try:
        return client.call("POST", "/bind", body, timeout=15.0).status
    finally:
        client.close()
