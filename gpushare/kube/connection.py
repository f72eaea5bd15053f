"""The connections that urllib3 opens for us: they send a call at once, and keep their socket.

Knows urllib3 and http.client; no credentials, and nothing of what is sent.
"""

import socket
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection


class PlainConnection(HTTPConnection):
    """Keeps hold of its socket: http.client lets go of it when the answer says `close`.

    Sends head and body at once. http.client sends them apart, and at each system call another
    thread may take the interpreter lock (and over TLS, each would be a record of its own).
    """

    live: socket.socket | None = None
    _parts: list[bytes] | None = None

    def connect(self) -> None:
        """Open the connection."""
        super().connect()
        self.live = self.sock

    def request(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 -- as the base class
        """Send a call."""
        self._parts = []
        try:
            super().request(*args, **options)
            whole = b"".join(self._parts)
        finally:
            self._parts = None
        self.send(whole)

    def send(self, data: Any) -> None:  # noqa: ANN401 -- as the base class
        """Send bytes, or keep them until the call is whole."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class TlsConnection(PlainConnection, HTTPSConnection):
    """The same over TLS."""
