"""Certificates to listen and to call with, made by openssl: those that may call, and others."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from gpushare.localcluster.client import HttpClient


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


def make_pki(folder: Path) -> None:
    """Fill a folder with the certificates of docs/install.md, and two that may not call."""
    authority(folder, "ca")
    authority(folder, "scheduler-ca")
    server = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth"
    certificate(folder, "server", "gpushare", "ca", server)
    certificate(folder, "client", "kube-scheduler", "scheduler-ca", _CLIENT)
    certificate(folder, "other", "somebody", "scheduler-ca", _CLIENT)
    certificate(folder, "forged", "kube-scheduler", "ca", _CLIENT)


def call(url: str, tls: ssl.SSLContext, body: bytes) -> int:
    """The status of a bind."""
    client = HttpClient(url, tls=tls)
    try:
        return client.call("POST", "/bind", body, timeout=15.0).status
    finally:
        client.close()
