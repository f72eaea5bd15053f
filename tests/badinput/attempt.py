"""One malformed input: the bytes to write, and the permitted answers.

Knows HTTP/1.1 framing.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.badinput.odd import Json

PREFIX = "/gpushare-scheduler"
VERBS = ("filter", "prioritize", "bind", "preempt")
SMUGGLED = "smuggled"
"""The name of the pods that only a request hidden in another one names."""


@dataclass(frozen=True)
class Targets:
    """Names for inputs: nodes, and bound pods of the API server."""

    nodes: Sequence[str]
    bound: Sequence[Json]


@dataclass(frozen=True)
class Attempt:
    """One input.

    framed: one well-framed request, so one answer comes and the connection stays. alone: at most
    one answer may come, even for hidden requests. cut: close without reading. probe: for the
    probes' listener.
    """

    kind: str
    payload: bytes
    framed: bool = False
    alone: bool = False
    cut: bool = False
    probe: bool = False


Spoil = Callable[[random.Random, Targets], Attempt]


def framed(
    body: bytes,
    path: str = "",
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (("Content-Type", "application/json"),),
) -> bytes:
    """A well-framed request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in headers)]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def shown(payload: bytes, longest: int = 600) -> str:
    """The payload as text for a finding."""
    cut = payload if len(payload) <= longest else payload[:longest] + b"..."
    return ascii(cut.decode("latin-1"))
