"""Refuses callers that may not call, and logs each once.

Tested in `tests/unit/extender/door/test_app.py`.
"""

import logging
from typing import TYPE_CHECKING

from gpushare.daemon.callers import Callers, browser_header, names_of
from gpushare.daemon.logs.formatters import Line

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

log = logging.getLogger("gpushare.serve")

_SAFE_METHODS = ("GET", "HEAD")
_MAX_LOGGED_CALLERS = 64
"""Refused callers that are logged."""
_MAX_LOGGED_NAMES = 500
"""Characters of the names in a certificate that are logged."""


class AccessControl:
    """Refuses callers that `callers` does not allow, and logs each once."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._logged: set[str] = set()

    def refusal(self, environ: "WSGIEnvironment") -> str:
        """Return why the caller may not call, for an answer of 403; "" for one that may."""
        callers = self._callers
        # If one CA signs everything, as with kubeadm, its signature alone lets every kubelet in.
        if callers.names and not callers.allows_certificate(
            names := names_of(environ["gunicorn.socket"].getpeercert())
        ):
            refused = ", ".join(sorted(names))[:_MAX_LOGGED_NAMES] or "nobody"
            self._log_once(certificate=refused, wanted=", ".join(sorted(callers.names)))
            return f"a certificate of {refused} may not call (--tls-client-names)"
        host = environ.get("HTTP_HOST", "")
        if not callers.allows_host(host):
            self._log_once(host=host)
            return (
                f"Host: {host[:80]!r} is no name of loopback, where this listens: call 127.0.0.1,"
                " or what urlPrefix names"
            )
        # What is only read no page can read either: nothing here allows it to.
        header = browser_header(environ) if environ["REQUEST_METHOD"] not in _SAFE_METHODS else ""
        if header:
            self._log_once(header=header)
            return f"{header}: a page in a browser may not call"
        return ""

    def _log_once(self, **values: str) -> None:
        """Log it once: kube-scheduler drops the answer's text, and calls for each pod."""
        line = Line("caller refused", **values)
        if str(line) not in self._logged and len(self._logged) < _MAX_LOGGED_CALLERS:
            self._logged.add(str(line))
            log.warning(line)
