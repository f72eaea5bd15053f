"""The connections that urllib3 opens: they send a call in one piece, in time or not at all.

Knows urllib3 and http.client; no credentials, and nothing of what is sent.

Tested in `tests/unit/kube/test_client_in_time.py`.
"""

import math
import socket
import threading
import time
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError


class TooLateError(HTTPError):
    """A call was not sent: its send deadline is over."""

    def __init__(self) -> None:
        super().__init__("not sent: its time was over before it could be")


class SendDeadline(threading.local):
    """The deadline of the call that this thread makes, and whether any byte of it was sent.

    `not_after` is monotonic. It is kept per thread, since urllib3 passes no values of ours to its
    connections.
    """

    not_after: float = math.inf
    sent: bool = False

    def mark_sent(self) -> None:
        """Record that the call is sent now. Raises TooLateError if its deadline is over."""
        if time.monotonic() > self.not_after:
            raise TooLateError
        self.sent = True


send_deadline = SendDeadline()


class OneWriteConnection(HTTPConnection):
    """A connection that sends head and body in one write, and keeps its socket.

    http.client sends them apart, and at each system call another thread may take the interpreter
    lock (and over TLS, each would be a record of its own). It also drops the socket when the answer
    says `close`.

    The deadline is checked last, when it is connected: a name server that does not answer, say,
    holds `connect` for 5 s, whatever its time-out.
    """

    live: socket.socket | None = None
    _parts: list[bytes] | None = None

    def connect(self) -> None:
        """Open the connection."""
        super().connect()
        self.live = self.sock

    def request(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 -- as the base class
        """Send a call. Raises TooLateError."""
        self._parts = []
        try:
            super().request(*args, **options)
            message = b"".join(self._parts)
        finally:
            self._parts = None
        if self.sock is None:
            self.connect()
        send_deadline.mark_sent()
        self.send(message)

    def send(self, data: Any) -> None:  # noqa: ANN401 -- as the base class
        """Send bytes, or keep them until the call is complete."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class TlsConnection(OneWriteConnection, HTTPSConnection):
    """The same over TLS."""
