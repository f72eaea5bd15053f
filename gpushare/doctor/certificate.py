"""Read the end of validity from an X.509 certificate (RFC 5280, section 4.1).

Pure. The standard library reads only certificates that it has verified.

Tested in `tests/unit/doctor/test_parts.py`.
"""

import ssl
from datetime import UTC, datetime

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME = 0xA0, 0x17


def ends_at(pem: str) -> float:
    """Return the end of the text's first certificate in seconds since the epoch.

    Raises ValueError.
    """
    _, begun, after_begin = pem.partition(_BEGIN)
    body, ended, _ = after_begin.partition(_END)
    if not begun or not ended:
        raise ValueError("no PEM certificate in it")
    try:
        certificate = _element(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{_END}"), 0)[1]
        fields = _elements(_element(certificate, 0)[1])
        # serialNumber, signature, issuer, validity; the version before them is optional.
        validity = [content for tag, content in fields if tag != _VERSION][3]
        tag, text = _elements(validity)[1]
        stamp = text.decode("ascii")
        if tag == _UTC_TIME:  # of two digits a year below 50 is in this century
            stamp = ("20" if int(stamp[:2]) < 50 else "19") + stamp
        return datetime.strptime(stamp, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError) as error:
        raise ValueError("its certificate cannot be read") from error


def _elements(content: bytes) -> list[tuple[int, bytes]]:
    elements = []
    at = 0
    while at < len(content):
        tag, inner, at = _element(content, at)
        elements.append((tag, inner))
    return elements


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return (tag, content, start of the next element)."""
    tag, length = data[at], data[at + 1]
    at += 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    if at + length > len(data):
        raise ValueError("cut short")
    return tag, data[at : at + length], at + length
