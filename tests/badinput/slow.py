"""Slow-downs with size: a decoder is given an input, one twice as long, and so on.

Twice the input may take three times as long, never four: so a quadratic step shows on any machine.
Each text, key, list and object of each decoder's documents is stretched in turn, and each part of a
request's head.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from gunicorn.config import Config

from gpushare.extender.door.connection import Connection
from tests.badinput import large
from tests.badinput.decoders import DECODERS, Decoder
from tests.badinput.odd import Json

SIZES = tuple(1000 << step for step in range(7))
"""Lengths of stretched parts; heads are stretched up to the limit of the server."""
MOST = 3.0
"""Times as long that twice as much may take."""
NOTABLE = 0.01
"""Seconds below which times say nothing."""
LONG = 0.05
"""Seconds that no input as short as 64,000 bytes may take."""

_TRIES = 3
_MARK = "\x01"
_KEPT = 65_000
_RUNS = ("0", "9", "a", " ", ",", ".", "/", "\\", '"', "-", "0,", "{", "[", "é", "e1", "1m")

Stretch = Callable[[int], bytes]
Target = tuple[str, Callable[[bytes], object], Stretch]


def slow_downs(
    decoders: Iterable[Decoder] = DECODERS, heads: Iterable[tuple[str, Stretch]] | None = None
) -> tuple[int, list[str]]:
    """(inputs tried, findings)."""
    tries, findings = 0, list[str]()
    targets: list[Target] = [
        (f"{item.name}: {kind}", item.refuses, stretch)
        for item in decoders
        for kind, stretch in stretches(item)
    ]
    targets += [
        (f"head: {kind}", read_head, stretch)
        for kind, stretch in (in_heads() if heads is None else heads)
    ]
    for name, run, stretch in targets:
        sizes = [size for size in SIZES if not name.startswith("head: ") or size <= large.HEAD]
        tries += len(sizes)
        findings += [f"{name}: {result}" for result in growth(run, stretch, sizes)]
    return tries, findings


def growth(run: Callable[[bytes], object], stretch: Stretch, sizes: Iterable[int]) -> list[str]:
    """The finding about the times, as soon as there is one."""
    before = 0.0
    for size in sizes:
        data = stretch(size)
        took = timed(run, data)
        if took > LONG and len(data) <= _KEPT:
            return [f"{took:.3f} s for {len(data):,} bytes"]
        if took > NOTABLE and took > MOST * before:
            # Once more, both: the machine may have been somewhere else.
            before, took = timed(run, stretch(size // 2)), timed(run, data)
            if took > NOTABLE and took > MOST * before:
                return [f"{before:.4f} s for {size // 2:,}, {took:.4f} s for {size:,}"]
        before = took
    return []


def timed(run: Callable[[bytes], object], data: bytes) -> float:
    """Seconds of CPU, the least of some tries."""
    minimum = float("inf")
    for _ in range(_TRIES):
        begin = time.process_time()
        run(data)
        minimum = min(minimum, time.process_time() - begin)
        if minimum > 1.0:
            break
    return minimum


def stretches(decoder: Decoder) -> Iterator[tuple[str, Stretch]]:
    """Every way to make one of the decoder's documents longer, by name."""
    for seed in decoder.seeds:
        if isinstance(seed, str):
            for run in _RUNS:
                yield f"run of {run!r}", partial(_repeated, run)
                yield f"{seed[:20]!r} and {run!r}", _tail(seed, run)
            yield f"{seed[:20]!r} repeated", partial(_repeated, seed or "x")
            continue
        for way in _ways(seed):
            yield from _along(seed, way)


def _repeated(piece: str, size: int) -> bytes:
    return _runs(piece, size).encode()


def _tail(seed: str, run: str) -> Stretch:
    return lambda size: f"{seed[:1]}{_runs(run, size)}x".encode()


def _along(seed: Json, way: tuple[Any, ...]) -> Iterator[tuple[str, Stretch]]:
    name = ".".join(map(str, way))
    result = seed
    for key in way:
        result = result[key]
    for run in _RUNS:
        text = _put(seed, way, _MARK)
        yield f"{name} as a run of {run!r}", _filled(text, run)
    if isinstance(result, list):
        item = json.dumps(result[0] if result else {})
        yield f"{name} with many items", _items(_put(seed, way, [_MARK]), item)
    elif isinstance(result, dict):
        yield f"{name} with many keys", _keys(_put(seed, way, {_MARK: 0}), result)
    yield (
        f"{name} as digits",
        lambda size: _put(seed, way, _MARK).replace(json.dumps(_MARK), "9" * size).encode(),
    )


def _filled(text: str, run: str) -> Stretch:
    return lambda size: text.replace(
        json.dumps(_MARK), json.dumps(_runs(run, size), ensure_ascii=False)
    ).encode()


def _items(text: str, item: str) -> Stretch:
    return lambda size: text.replace(
        json.dumps(_MARK), ",".join([item] * max(1, size // (len(item) + 1)))
    ).encode()


def _keys(text: str, result: Json) -> Stretch:
    value = json.dumps(next(iter(result.values()), ""))

    def stretch(size: int) -> bytes:
        count = max(1, size // (len(value) + 12))
        pairs = ",".join(f'"key-{number:06}":{value}' for number in range(count))
        return text.replace(f"{json.dumps(_MARK)}: 0", pairs).encode()

    return stretch


def _put(seed: Json, way: tuple[Any, ...], value: Json) -> str:
    copy = json.loads(json.dumps(seed))
    holder = copy
    for key in way[:-1]:
        holder = holder[key]
    holder[way[-1]] = value
    return json.dumps(copy)


def _ways(document: Json, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value of the document."""
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(min(1, len(document))):
            yield (*before, key)
            yield from _ways(document[key], (*before, key))


def in_heads() -> Iterator[tuple[str, Stretch]]:
    """Every part of a head, as a run of each character."""
    for place in (*large.LINES, *(f"POST / HTTP/1.1\r\n{header}" for header in large.HEADERS)):
        for run in large.RUNS:
            if "\n" not in run:
                yield f"{place!r} with {run!r}", _in_head(place, run)


def _in_head(place: str, run: str) -> Stretch:
    def stretch(size: int) -> bytes:
        return f"{place.format(_runs(run, size))}\r\nHost: x\r\n\r\n".encode()

    return stretch


def read_head(data: bytes) -> None:
    """The work of the worker's loop on the bytes of a request."""
    place, existing = socket.socketpair()
    with place, existing:
        place.sendall(data)
        place.shutdown(socket.SHUT_WR)
        conn = Connection(_CONFIG, existing, ("x", 0), ("x", 0))
        with contextlib.suppress(EOFError, OSError):
            while not conn.receive():
                pass


_CONFIG = Config()


def _runs(piece: str, size: int) -> str:
    return piece * max(1, size // len(piece))
