"""The listener of the page: three files and one document, for people on this machine, or with an
allowed certificate.

Read only. The listener refuses requests that a page of another site makes a browser send.
"""

import ssl
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files

from gpushare.daemon.callers import Callers, names_of
from gpushare.daemon.listener import Handler, Listener, Tls
from gpushare.errors import NotReady
from gpushare.extender.door.document_cache import DocumentCache

_DOCUMENT = "/ui/books.json"
_TEXT = "text/plain; charset=utf-8"
_FILES = {
    "/ui": ("index.html", "text/html; charset=utf-8"),
    "/ui/page.css": ("page.css", "text/css; charset=utf-8"),
    "/ui/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_FAR = b"""gpushare: this page is answered on loopback alone. Run kubectl port-forward to the \
extender's pod, or an ssh tunnel to its host, and open http://127.0.0.1:PORT/ui
"""
_NAMELESS = b"""gpushare: your client certificate has none of the names that may see this page \
(--ui-tls-client-names).
"""
_FOREIGN = b"gpushare: another site may not read this page's data. Open /ui itself.\n"
_NOT_THERE = b"gpushare: there is no such page; the page is /ui\n"
_OWN = ("same-origin", "none")
"""Values of Sec-Fetch-Site if no other site has a part in a request."""

_SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class UiServer(Listener):
    """Serves the page at /ui.

    document: returns the JSON for the page. tls, names: the context of a connection, and the
    allowed names in the certificate of a client; without both only callers on loopback are allowed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        document: Callable[[], bytes],
        *,
        tls: Tls | None = None,
        names: frozenset[str] = frozenset(),
    ) -> None:
        """Bind the socket: an address in use fails here."""
        folder = files("gpushare.extender.tell.page") / "static"
        static_files = {
            path: (kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()
        }
        cached_document = partial(DocumentCache().get, _DOCUMENT, document)

        class Page(_UiServer):
            files = static_files
            document = staticmethod(cached_document)
            callers = Callers(names)

        super().__init__(host, port, Page, "ui", tls)


class _UiServer(Handler):
    """Answers one connection."""

    files: Mapping[str, tuple[str, bytes]]
    """By path, (content type, body)."""
    document: Callable[[], bytes]
    """Returns the document. Raises NotReady."""
    callers: Callers
    """Decides which callers may read the page."""

    def page(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, str, bytes]:
        """Return (status, content type, body)."""
        del query
        refusal = self._refusal(path)
        if refusal:
            return 403, _TEXT, refusal
        if path == "/":
            return 302, _TEXT, b"gpushare: the page is /ui\n"
        kind, body = self.files.get(path, ("", b""))
        if path == _DOCUMENT:
            try:
                kind, body = "application/json", self.document()
            except NotReady as error:
                return 503, _TEXT, f"{error}\n".encode()
        if not kind:
            return 404, _TEXT, _NOT_THERE
        tag = self.representations.tag(path, body)
        return 304 if self.headers.get("If-None-Match") == tag else 200, kind, body

    def headers_of(self, status: int, body: bytes) -> Mapping[str, str]:
        """Return headers that keep a browser from doing more than this page needs."""
        if status == 302:
            return _SAFE | {"Location": "/ui"}
        path = self.path.partition("?")[0]
        tagged = {"ETag": self.representations.tag(path, body)} if status in (200, 304) else {}
        return _SAFE | tagged

    def _refusal(self, path: str) -> bytes:
        """Return why the caller is not answered, or nothing."""
        connection = self.connection
        if isinstance(connection, ssl.SSLSocket):
            if not self.callers.allows_certificate(names_of(connection.getpeercert())):
                return _NAMELESS
        elif not self.is_near():
            return _FAR
        # A link from another site may lead to the page, and no further.
        site = self.headers.get("Sec-Fetch-Site", "none")
        return b"" if site in _OWN or path in ("/", "/ui") else _FOREIGN
