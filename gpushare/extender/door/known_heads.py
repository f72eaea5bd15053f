"""A cache of the request heads that gunicorn has parsed: kube-scheduler always sends the same few.

A head that is byte for byte a cached one gets the cached WSGI environment. Only the digits of
Content-Length may differ. Only the head of a plain POST on a connection that stays open is cached;
gunicorn parses every other head.

Knows gunicorn (27.x) and WSGI, not the application.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from gunicorn.http.message import Request

LENGTH = re.compile(rb"\r\nContent-Length: ([0-9]{1,15})(?=\r\n)")
"""The form of a head is the head without these digits."""
_MAX_HEAD = 2048
MAX_HEADS = 64
_SPECIAL = ("EXPECT", "UPGRADE", "CONNECTION")
_OF_THE_CONNECTION = ("gunicorn.socket", "wsgi.early_hints", "wsgi.input")
"""Keys of an environment with a reference to one connection: never cached."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownHeads:
    """A cache of WSGI environments; the oldest is evicted first. For any thread."""

    environs: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """By the form of the head; each without connection, body and length."""

    def add(self, form: bytes, req: Request, environ: dict[str, Any]) -> None:
        """Add the WSGI environment of a POST, if its head may be cached; form: as in Connection."""
        plain = req.version == (1, 1) and not req.should_close()
        special = any(name in _SPECIAL for name, _ in req.headers)
        if not form or not plain or special or len(form) > _MAX_HEAD:
            return
        if len(self.environs) >= MAX_HEADS:
            # Of a copy: another thread may add a head between two steps of an iteration.
            self.environs.pop(next(iter(self.environs.copy())), None)
        self.environs[form] = {
            key: value for key, value in environ.items() if key not in _OF_THE_CONNECTION
        }
