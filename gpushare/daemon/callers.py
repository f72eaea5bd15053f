"""Access rules: callers with an allowed client certificate, or on this machine; never a page in a
browser.

Pure. A page that somebody reads on this machine can make a browser send requests to loopback, but
cannot remove the headers that reveal the page: `Origin`, `Sec-Fetch-Site`, and a `Host` with the
name of the page, if that name resolves to 127.0.0.1.

Tested in `tests/unit/extender/door/test_app.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.addresses import is_loopback

BROWSERS = {"HTTP_ORIGIN": "Origin", "HTTP_SEC_FETCH_SITE": "Sec-Fetch-Site"}
"""Headers that show that a page in a browser calls: as in an environment of WSGI, and by name."""

_MAX_NAME_LENGTH = 253


@dataclass(frozen=True, slots=True)
class Callers:
    """The callers that are allowed."""

    names: frozenset[str] = frozenset()
    """A client certificate must have one of these names; empty: no certificates are used."""
    hosts: frozenset[str] | None = None
    """Further names of this machine for callers on loopback; None: any name."""

    def allows_certificate(self, certificate: frozenset[str]) -> bool:
        """Return whether a caller with these names in the certificate may call."""
        return not self.names or bool(self.names & certificate)


def is_this_machine(host: str, names: frozenset[str] = frozenset()) -> bool:
    """Return whether a Host header has one of the names or an address of loopback; "" (no header)
    passes.
    """
    if not host:  # every browser sends one
        return True
    if len(host) > _MAX_NAME_LENGTH + len("[]:65535"):
        return False
    if host.startswith("["):
        name, bracket, _ = host[1:].lower().partition("]")
        if not bracket:
            return False
    else:
        name = host.lower().partition(":")[0]
    return name in names or is_loopback(name)


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the common names and DNS names of a certificate of `SSLSocket.getpeercert`.

    No addresses and no URIs: an allowed name must not match an entry of another kind.
    """
    fields = certificate or {}
    names = {value for kind, value in fields.get("subjectAltName", ()) if kind == "DNS"}
    for part in fields.get("subject", ()):
        names.update(value for key, value in part if key == "commonName")
    return frozenset(names)
