"""A cache of the request heads that gunicorn has parsed: kube-scheduler always sends the same few.

A head that is byte for byte a cached one gets the cached WSGI environment. Only the digits of
Content-Length may differ. Only the head of a plain POST on a connection that stays open is cached;
gunicorn parses every other head.

Knows gunicorn (27.x) and WSGI, not the application.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from time import time
from typing import TYPE_CHECKING, Any

from gunicorn import SERVER
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.message import Request
from gunicorn.util import http_date

from gpushare.extender.door.deferred import DeferredBody

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

_LENGTH = b"\r\nContent-Length: "
_MAX_DIGITS = 15
_MAX_HEAD = 2048
MAX_HEADS = 64
_SPECIAL = ("EXPECT", "UPGRADE", "CONNECTION")
_OF_THE_CONNECTION = ("gunicorn.socket", "wsgi.early_hints", "wsgi.input")
"""Keys of an environment with a reference to one connection: never cached."""


@dataclass(frozen=True, slots=True)
class Form:
    """A head without the digits of the Content-Length, and the length as a number."""

    text: bytes
    length: int


def form_of(head: bytes) -> Form | None:
    """Return the form of a head; None for a head that is never cached."""
    start = head.find(_LENGTH) + len(_LENGTH)
    end = head.find(b"\r\n", start)
    digits = head[start:end]
    if start < len(_LENGTH) or not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    return Form(head[:start] + head[end:], int(digits))


@dataclass(frozen=True, slots=True, eq=False)
class KnownHeads:
    """A cache of WSGI environments; the oldest is evicted first. For any thread."""

    environs: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """By the text of a form; each without connection, body and length."""

    def add(self, head: bytes, req: Request, conn: Any, config: Config) -> None:  # noqa: ANN401
        """Add the WSGI environment of a request on a TConn, if its head may be cached."""
        form = form_of(head)
        plain = req.method == "POST" and req.version == (1, 1) and not req.should_close()
        special = any(name in _SPECIAL for name, _ in req.headers)
        if form is None or not plain or special or len(head) > _MAX_HEAD:
            return
        environ = wsgi.create(req, conn.sock, conn.client, conn.server, config)[1]
        reusable = {key: value for key, value in environ.items() if key not in _OF_THE_CONNECTION}
        if len(self.environs) >= MAX_HEADS:
            self.environs.pop(next(iter(self.environs)), None)
        self.environs[form.text] = reusable | {"wsgi.multithread": True}


@dataclass(slots=True)
class CachedRequest:
    """A request for gunicorn's hook `pre_request`."""

    path: str
    method: str = "POST"
    closing: bool = False

    def force_close(self) -> None:
        """Ask for the connection to be closed after the answer."""
        self.closing = True


def answer(
    app: Callable[..., Iterable[bytes]], environ: "WSGIEnvironment", keep: bool
) -> tuple[bytes, bytes] | Future[bytes]:
    """Return (head, body) of the answer of the application, as gunicorn writes both; for a later
    answer the future of head and body, joined.

    keep: whether the connection stays open after it.
    """
    heads: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(
        status: str, headers: list[tuple[str, str]], exc_info: object = None
    ) -> Callable[[bytes], object]:
        del exc_info
        heads.append((status, headers))
        return _refuse_write

    parts = app(environ, start_response)
    if isinstance(parts, DeferredBody) and not parts.future.done():
        whole: Future[bytes] = Future()

        def finish(body: Future[bytes]) -> None:
            whole.set_result(_head(*heads[-1], keep, len(body.result())) + body.result())

        parts.future.add_done_callback(finish)
        return whole
    try:
        body = b"".join(parts)
    finally:
        if hasattr(parts, "close"):
            parts.close()
    return _head(*heads[-1], keep, len(body)), body


def _head(status: str, headers: list[tuple[str, str]], keep: bool, length: int) -> bytes:
    """Return the head of an answer with a body of this length in bytes."""
    connection = "keep-alive" if keep else "close"
    lines = [f"HTTP/1.1 {status}", f"Server: {SERVER}", f"Date: {_date(int(time()))}"]
    lines += [f"Connection: {connection}", *(f"{name}: {value}" for name, value in headers)]
    if not any(name.lower() == "content-length" for name, _ in headers):
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


def _refuse_write(data: bytes) -> object:
    raise NotImplementedError("an application returns its body")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return str(http_date(second))
