"""Certificates to listen and to call with, made by openssl: those that may call, and others."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from gpushare.kube.trust import trust_as_kubernetes
from gpushare_localcluster.client import HttpClient


def openssl(folder: Path, *args: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl to make certificates with")
    subprocess.run([program, *args], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str, *, bare: bool = False) -> None:
    """Make NAME.crt and NAME.key of a new authority.

    bare: the certificate says that it is an authority, without key usage and key identifiers.
    """
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    settings = folder / "bare.cnf"
    settings.write_text(f"[req]\ndistinguished_name=dn\nx509_extensions=ca\n[dn]\n[ca]\n{_BARE}")
    config = ("-config", str(settings)) if bare else ()
    openssl(
        folder, "req", *config, *_NEW_KEY, "-x509", "-days", "2", "-subj", f"/CN={name}", *files
    )


def certificate(folder: Path, name: str, common_name: str, by: str, extensions: str) -> None:
    """Make NAME.crt and NAME.key, signed by that authority."""
    (folder / f"{name}.ext").write_text(extensions)
    files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl(folder, "req", *_NEW_KEY, "-subj", f"/CN={common_name}", *files)
    signer = ("-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial", "-days", "2")
    signed = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", f"{name}.ext")
    openssl(folder, "x509", "-req", *signer, *signed)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_JSON = {"Content-Type": "application/json"}
_CLIENT = "extendedKeyUsage=clientAuth"
_NO_IDENTIFIERS = "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"
_BARE = f"basicConstraints=critical,CA:TRUE\n{_NO_IDENTIFIERS}"


def shown(folder: Path, name: str) -> ssl.SSLContext:
    """How a caller with that certificate reaches the extender; "" for one without."""
    # kube-scheduler is the caller, so the context trusts as Go does.
    context = trust_as_kubernetes(ssl.create_default_context(cafile=str(folder / "ca.crt")))
    if name:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


def make_pki(folder: Path, *, bare: bool = False) -> None:
    """Fill a folder with the certificates of docs/install.md, and two that may not call.

    bare: with no extension that the field does not need.
    """
    authority(folder, "ca", bare=bare)
    authority(folder, "scheduler-ca", bare=bare)
    none = _NO_IDENTIFIERS if bare else ""
    server = f"{none}subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth"
    certificate(folder, "server", "gpushare", "ca", server)
    certificate(folder, "client", "kube-scheduler", "scheduler-ca", none + _CLIENT)
    certificate(folder, "other", "somebody", "scheduler-ca", none + _CLIENT)
    certificate(folder, "forged", "kube-scheduler", "ca", none + _CLIENT)


def call(url: str, tls: ssl.SSLContext, body: bytes) -> int:
    """The status of a bind."""
    client = HttpClient(url, tls=tls)
    try:
        return client.call("POST", "/bind", body, timeout=60.0, headers=_JSON).status
    finally:
        client.close()
