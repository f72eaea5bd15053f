"""Lines out of chunks, for watch streams: pure bytes in, whole lines out.

Knows no JSON and no sockets. A watch is one JSON document a line; the network may cut it anywhere,
and what is left without a line end when the stream ends was cut off, so it is never delivered.
"""

# An object in etcd is at most 1.5 MiB by default (`--max-request-bytes`); a line many times that
# is not a watch, and must not fill our memory.
LINE_LIMIT = 16 << 20


class LineSplitter:
    """Cuts a stream of chunks into lines, without their ends; empty lines are dropped."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines completed by `chunk`, in order.

        Raises ValueError when a line grows past the limit (bytes).
        """
        head, *rest = chunk.split(b"\n")
        self._hold(head)
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts = []
        self._held = 0
        self._hold(rest[-1])
        return [line for line in lines if line.strip()]

    def _hold(self, part: bytes) -> None:
        """Keep a piece of a line; pieces are joined once, so a line cut often costs no more."""
        if part:
            self._parts.append(part)
            self._held += len(part)
        if self._held > self._limit:
            raise ValueError(f"a line of the stream is longer than {self._limit} bytes")
