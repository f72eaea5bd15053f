"""The TLS context of the service; a change of the files makes a new context.

Knows ssl and files. A new context takes milliseconds, and the loop that all connections share gets
the context for each connection, before the first byte has come.
"""

import logging
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.kube.trust import trust_as_kubernetes
from gpushare.logline import Line

log = logging.getLogger("gpushare.serve")

_State = tuple[tuple[int, int, int, int] | None, ...]
"""The identity of the content of each file; None for an unreadable file."""


@dataclass
class Certificates:
    """The certificate and key of the service, and the CA that must sign certificates of callers.

    `loads` counts how often the files were loaded.
    """

    certificate: str
    key: str
    authority: str
    loads: int = 0
    _context: ssl.SSLContext | None = field(default=None, init=False, repr=False)
    _state: _State = field(default=(), init=False, repr=False)

    def context(self) -> ssl.SSLContext:
        """Return the context of the current files.

        If the files cannot be used, the last context stays in use, and the log says so once for
        each change. Raises SettingsError if there is no last one.
        """
        state: _State = ()
        for path in (self.certificate, self.key, self.authority):
            # A mounted Secret changes by a link to another folder, so the inode counts too.
            content = None
            with suppress(OSError):
                status = Path(path).stat()
                content = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            state += (content,)
        if self._context is None or state != self._state:
            # The state before the read: a change during the read causes another read.
            self._state = state
            try:
                self._context = self._read()
            except SettingsError as error:
                if self._context is None:
                    raise
                text = "certificates cannot be read: the last ones go on"
                log.warning(Line(text, error=str(error)))
        return self._context

    def _read(self) -> ssl.SSLContext:
        self.loads += 1
        context = trust_as_kubernetes(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        context.verify_mode = ssl.CERT_REQUIRED
        # No session is resumed: each handshake checks the certificate by today's date.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        reading = f"tls-client-ca: {self.authority}"
        try:
            context.load_verify_locations(self.authority)
            reading = f"tls-cert, tls-key: {self.certificate}, {self.key}"
            # Without this, OpenSSL would ask on the terminal for the password of an encrypted key.
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:  # OpenSSL's text does not name the file
            raise SettingsError(f"{reading}: {error}") from error
        return context
