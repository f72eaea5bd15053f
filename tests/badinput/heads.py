"""Malformed request lines, heads and framing: a connection each."""

import random

from tests.badinput import bodies, odd
from tests.badinput.attempt import PREFIX, SMUGGLED, Attempt, Targets, framed
from tests.badinput.bodies import dumped, sound


def request_lines(rng: random.Random, targets: Targets) -> Attempt:
    lines = (
        *(b"", b" ", b"GET", b"GET /", b"GET / HTTP/9.9", b"GET / HTTP/2.0", b"GET / HTTP/1.10"),
        *(b"get / HTTP/1.1", b"G\x00T / HTTP/1.1", b"GET\t/\tHTTP/1.1", b"GET  /  HTTP/1.1"),
        *(
            b"GET " + b"/a" * 20_000 + b" HTTP/1.1",
            b"GET http://[::1 HTTP/1.1",
            b"\x16\x03\x01\x02",
        ),
        *(b"PRI * HTTP/2.0\r\n\r\nSM", b"GET /\xff HTTP/1.1", b"GET / http/1.1", b"GET / HTTP/1"),
        *(b"POST //x:99999999/ HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"OPTIONS * HTTP/1.1"),
        *(
            b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1",
            b"GET http://a/../b?c HTTP/1.0",
            b"A" * 300 + b" / HTTP/1.1",
        ),
    )
    line = rng.choice(lines)
    if rng.random() < 0.3:
        line = odd.bytes_of(rng, b"GET /version HTTP/1.1")
    return Attempt("request lines", line + b"\r\nHost: 127.0.0.1\r\n\r\n")


def odd_heads(rng: random.Random, targets: Targets) -> Attempt:
    odd_lines = (
        *(
            b"NoColon",
            b": x",
            b"A B: c",
            b"A\x00: b",
            b"A: b\x00c",
            b" folded: x",
            b"A:\x01",
            b"\xff: x",
        ),
        *(b"A: b\r\n folded", b"A: " + b"x" * 20_000, b"Host: a\r\nHost: b", b"Host:", b"(x): y"),
        *(b"X: 1\r\n" * 300, b"Connection: close, x\x0b", b"Expect: 100-continue", b"Expect: 9"),
        *(
            b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
            b"A:b\nC:d",
        ),
        *(
            b"X-Forwarded-For: \x1b[31m",
            b"Content-Type: \xff\xfe",
            b"Cookie: " + b";" * 5000,
            b"A: b\rC: d",
        ),
        *(
            b"SCRIPT_NAME: /x",
            b"X-Forwarded-Proto: ftp",
            b"Content_Length: 5",
            b"A: " + b"x" * 40_000,
        ),
    )
    path, document = sound(rng, targets)
    body = dumped(document)
    head = f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n".encode()
    head += b"Content-Type: application/json\r\n"
    line = rng.choice(odd_lines)
    if rng.random() < 0.3:
        line = odd.bytes_of(rng, b"X-Header: some value")
    return Attempt("heads", head + line + b"\r\n\r\n" + body)


def smuggled(rng: random.Random, targets: Targets) -> Attempt:
    """Two readings of the end of a request, and a bind that one reading hides."""
    names = {"PodName": SMUGGLED, "PodNamespace": "default", "PodUID": SMUGGLED}
    hidden = framed(dumped({**names, "Node": targets.nodes[0]}), f"{PREFIX}/bind")
    length = str(len(hidden) + 5).encode()
    frames = (
        *(b"Content-Length: 0\r\nContent-Length: " + length, b"Content-Length: " + length + b", 0"),
        *(
            b"Transfer-Encoding: chunked\r\nContent-Length: " + length,
            b"Transfer-Encoding: xchunked",
        ),
        *(
            b"Content-Length: " + length + b"\r\nTransfer-Encoding: chunked",
            b"Transfer-Encoding : chunked",
        ),
        *(
            b"Transfer-Encoding:\x0bchunked",
            b"Transfer-Encoding: identity, chunked",
            b"Content-Length: +5",
        ),
        *(b"Transfer-Encoding:\r\n chunked", b"Content-Length: 0x5", b"Content-Length: 5 5"),
        *(b"Content-Length: -1", b"Content-Length: " + b"9" * 30, b"Content-Length: \xd9\xa7"),
        *(b"Content-Length\r\n: 5", b"X: y\nTransfer-Encoding: chunked", b"Content-Length:\t5\x00"),
        *(
            b"Content-Length: 5\r\nContent-Length: 6",
            b"transfer-encoding: Chunked",
            b"Content-Length: 1e1",
        ),
        *(b"Content-Length: 0_5", b"Content-Length:", b"Transfer-Encoding: chunked, identity"),
    )
    start = f"POST {PREFIX}/filter HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    payload = start + rng.choice(frames) + b"\r\n\r\n0\r\n\r\n" + hidden
    return Attempt("two lengths", payload, alone=True)


def chunked(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    body = dumped(document)
    sizes = (b"%x" % len(body), b"-1", b"0x5", b"FFFFFFFFFFFFFFFF", b"5;" + b"x" * 3000, b"zz", b"")
    chunks = (
        rng.choice(sizes)
        + b"\r\n"
        + body
        + b"\r\n0\r\n"
        + rng.choice((b"\r\n", b"A: b\r\n\r\n", b""))
    )
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return Attempt("chunked bodies", head + chunks, alone=True)


def short(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    whole = framed(dumped(document), path)
    return Attempt("broken off", whole[: rng.randrange(len(whole))], cut=rng.random() < 0.5)


def gone(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    return Attempt("gone before the answer", framed(dumped(document), path), cut=True)


def together(rng: random.Random, targets: Targets) -> Attempt:
    """Several requests in one piece, good ones and bad ones."""
    makers = (*bodies.QUICK, odd_heads, request_lines)
    parts = [rng.choice(makers)(rng, targets).payload for _ in range(rng.randint(2, 6))]
    return Attempt("in one piece", b"".join(parts))


def noise(rng: random.Random, targets: Targets) -> Attempt:
    if rng.random() < 0.5:
        return Attempt("noise", rng.randbytes(rng.randint(1, 3000)))
    path, document = sound(rng, targets)
    return Attempt("noise", odd.bytes_of(rng, framed(dumped(document), path)))


def probes(rng: random.Random, targets: Targets) -> Attempt:
    """The same at the probes' listener."""
    inner = rng.choice((request_lines, odd_heads, noise, bodies.paths, short))(rng, targets)
    payload = inner.payload
    if rng.random() < 0.4:
        pages = (
            "/livez?%ff=%zz",
            "/readyz?exclude=" + "&exclude=" * 500,
            "/metrics?x",
            "/healthz/../x",
        )
        payload = framed(b"", rng.choice(pages), rng.choice(("GET", "HEAD", "POST", "BREW")))
    return Attempt("probes", payload, cut=inner.cut, probe=True)
