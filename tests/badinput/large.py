"""Long, wide and repeated inputs, in every place of a request.

Runs of one character in each part of a head; texts, keys, lists and objects of a valid request that
are thousands of times too long.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.badinput.attempt import PREFIX, Attempt, Targets, framed
from tests.badinput.bodies import sound
from tests.badinput.odd import Json

RUNS = (
    *("0", "9", "a", "A", " ", "\t", ",", ";", ":", ".", "-", "/", "=", "&", "%", '"', "\\", "\n"),
    *("0,", "a=", "%41", "1.", "-1", "{}", "[", '{"', "é", "\u2028", "e1", "Ki", "a/", "\x00"),
)
_COMMON = ("0", "9", "a", " ", ",", "/")
"""Characters in fields of heads and documents: half of all runs."""
HEAD = 31_000
"""Bytes: a head of 32 KiB is refused unread."""
_LONGEST = (1000, 33_000, 300_000, 1_000_000)
_WIDEST = (100, 3000, 20_000)

HEADERS = (
    *("Content-Length: {}", "Content-Length: {}x", "Content-Length: 5{}", "Content-Length:{}5"),
    *("Transfer-Encoding: {}", "Transfer-Encoding: {}chunked", "Connection: {}", "Host: {}"),
    *("Content-Type: {}", "Content-Type: application/json;{}", "Content-Encoding: {}"),
    *("Expect: {}", "Cookie: {}", "{}: x", "X{}x: y", "Accept: {}x", "Origin: {}", "{}"),
)
LINES = (
    *("GET {} HTTP/1.1", "GET /{} HTTP/1.1", "{} / HTTP/1.1", "GET / HTTP/{}", "GET /?{} HTTP/1.1"),
    *(f"GET {PREFIX}/inspect/{{}} HTTP/1.1", f"GET {PREFIX}/inspect?resource={{}} HTTP/1.1"),
)


def run_of(rng: random.Random, length: int) -> str:
    """A run of a length; now and then with another character at the end."""
    piece = rng.choice(_COMMON if rng.random() < 0.5 else RUNS)
    return piece * (length // len(piece)) + rng.choice(("", "", "x", "0", " "))


def long_heads(rng: random.Random, targets: Targets) -> Attempt:
    """A request with a run in one place of the head."""
    run = run_of(rng, rng.choice((2000, 16_000, HEAD))).replace("\n", "\\")
    line, header = "POST /version HTTP/1.1", rng.choice(HEADERS).format(run)
    if rng.random() < 0.4:
        line, header = rng.choice(LINES).format(run), "X: y"
    payload = f"{line}\r\nHost: x\r\n{header}\r\n\r\n".encode()[:HEAD]
    return Attempt("long heads", payload + b"\r\n\r\n", probe=rng.random() < 0.2)


def long_texts(rng: random.Random, targets: Targets) -> Attempt:
    """A sound request with a text, or a key, that goes on and on."""
    path, document = _sound(rng, targets)
    run = run_of(rng, rng.choice(_LONGEST))
    holder, key = rng.choice(list(places(document)))
    if isinstance(holder, dict) and rng.random() < 0.2:
        holder[run] = holder.pop(key)
    else:
        holder[key] = run
    return _sent("long texts", path, document)


def wide(rng: random.Random, targets: Targets) -> Attempt:
    """A sound request with a list, or an object, that has thousands of things."""
    path, document = _sound(rng, targets)
    holder, key = rng.choice(list(places(document)))
    result = holder[key]
    count = max(2, min(rng.choice(_WIDEST), _LONGEST[-1] // len(json.dumps(result))))
    if isinstance(result, list):
        holder[key] = (result or [{}]) * count
    elif isinstance(result, dict):
        values = list(result.values()) or [""]
        result |= {f"key-{number}": values[number % len(values)] for number in range(count)}
    else:
        holder[key] = rng.choice((",".join(["0"] * count), [result] * count, {str(result): result}))
    return _sent("wide", path, document)


def many_names(rng: random.Random, targets: Targets) -> Attempt:
    """Thousands of nodes with long names."""
    length, count = rng.choice(((253, 2000), (5000, 200), (100_000, 10), (1_000_000, 1)))
    names = [f"{number}{run_of(rng, length)}" for number in range(count)]
    body: Json = {"Pod": rng.choice(targets.bound), "NodeNames": [*names, *targets.nodes]}
    verb = rng.choice(("filter", "prioritize"))
    return _sent("long node names", f"{PREFIX}/{verb}", body)


def places(document: Json) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of each value in the document, however deep."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        yield document, key
        if isinstance(value, dict | list):
            yield from places(value)


def _sound(rng: random.Random, targets: Targets) -> tuple[str, Json]:
    path, document = sound(rng, targets)
    return path, json.loads(json.dumps(document))  # a copy to spoil


def _sent(kind: str, path: str, document: Json) -> Attempt:
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return Attempt(kind, framed(body, path), framed=True)
