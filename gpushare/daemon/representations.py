"""The tag and the gzip bytes of a document, made once for each document.

Both run without Python's lock, so that large documents do not hold up other threads. Standard
library only. Tested in `tests/unit/daemon/test_representations.py`.
"""

import hashlib
import zlib
from dataclasses import dataclass, field

_LEAST = 1024
"""The least bytes of a body that gzip makes smaller."""
_MOST_KEPT = 8
"""Upper bound of the cached documents."""
_LEVEL = 1
"""Of zlib: JSON and metrics become 20 to 30 times smaller at the lowest level."""
_GZIP = 16 + zlib.MAX_WBITS


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding lets an answer be compressed with gzip."""
    for part in header.lower().split(","):
        coding, _, parameters = part.partition(";")
        if coding.strip() == "gzip":
            quality = parameters.strip().removeprefix("q=")
            return quality.strip("0.") != "" or not parameters
    return False


@dataclass(slots=True, eq=False)
class _Made:
    """The tag and the gzip bytes of one body."""

    body: bytes
    tag: str = ""
    gzip: bytes = b""


@dataclass(slots=True, eq=False)
class Representations:
    """The tags and compressed bytes of the last bodies of a few documents.

    Any thread may call. A body is recognized by identity. If two threads ask at once, both compute.
    """

    _by_name: dict[str, _Made] = field(default_factory=dict)

    def tag(self, name: str, body: bytes) -> str:
        """Return the ETag of the document of that name."""
        representation = self._of(name, body)
        if not representation.tag:
            representation.tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        return representation.tag

    def encoded(self, name: str, body: bytes, accept_encoding: str) -> tuple[bytes, str]:
        """Return (bytes to send, Content-Encoding or "").

        accept_encoding: the header of the request.
        """
        if len(body) < _LEAST or not accepts_gzip(accept_encoding):
            return body, ""
        representation = self._of(name, body)
        if not representation.gzip:
            compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
            representation.gzip = compressor.compress(body) + compressor.flush()
        return representation.gzip, "gzip"

    def _of(self, name: str, body: bytes) -> _Made:
        representation = self._by_name.get(name)
        if representation is None or representation.body is not body:
            self._by_name.pop(name, None)
            representation = self._by_name[name] = _Made(body)
            for old in list(self._by_name)[:-_MOST_KEPT]:
                self._by_name.pop(old, None)
        return representation
