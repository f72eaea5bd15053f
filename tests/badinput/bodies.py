"""Well-framed requests with odd bodies, paths or headers: many and quick, on one connection.

Pods named here do not exist or are bound already, so that no request may succeed: every change of
the books is a finding.
"""

import gzip
import json
import random

from tests.badinput import odd
from tests.badinput.attempt import PREFIX, VERBS, Attempt, Targets, framed
from tests.badinput.odd import MEM, Json


def _verb(rng: random.Random) -> str:
    return f"{PREFIX}/{rng.choice(VERBS)}"


def sound(rng: random.Random, targets: Targets) -> tuple[str, Json]:
    """(path, document) of a request that makes sense, but is granted nothing."""
    verb = rng.choice(VERBS)
    pod = rng.choice((odd.POD, *targets.bound))
    names = [*rng.sample(list(targets.nodes), rng.randint(0, len(targets.nodes))), "nowhere"]
    if verb == "bind":
        meta = pod["metadata"]
        known_names = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
        }
        return f"{PREFIX}/bind", {**known_names, "Node": rng.choice(names)}
    if verb == "preempt":
        uids = [{"UID": item["metadata"]["uid"]} for item in targets.bound]
        victims = {name: {"Pods": uids[:2], "NumPDBViolations": 0} for name in names}
        if rng.random() < 0.5:
            whole = {name: {"Pods": list(targets.bound[:2])} for name in names}
            return f"{PREFIX}/preempt", {"Pod": pod, "NodeNameToVictims": whole}
        return f"{PREFIX}/preempt", {"Pod": pod, "NodeNameToMetaVictims": victims}
    if rng.random() < 0.3:
        items = {"items": [{"metadata": {"name": name}} for name in names]}
        return f"{PREFIX}/{verb}", {"Pod": pod, "Nodes": items}
    return f"{PREFIX}/{verb}", {"Pod": pod, "Nodes": None, "NodeNames": names}


def dumped(document: Json) -> bytes:
    return json.dumps(document).encode()


def _json(kind: str, path: str, body: bytes) -> Attempt:
    return Attempt(kind, framed(body, path), framed=True)


def wrong_values(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    return _json("json values", path, dumped(odd.spoiled(rng, document)))


def broken_bytes(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    body = odd.bytes_of(rng, dumped(document))
    return _json(
        "json bytes", path, body[: rng.randint(0, len(body))] if rng.random() < 0.3 else body
    )


def nested(rng: random.Random, targets: Targets) -> Attempt:
    depth = rng.choice((50, 200, 1000, 5000, 20_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"Pod":', b"}]")))
    bomb = opening * depth + b"1" + closing * rng.choice((depth, 0, depth - 1))
    keys = (b"Pod", b"NodeNames", b"Nodes", b"PodName", b"NodeNameToVictims", b"Other")
    body = bomb if rng.random() < 0.3 else b'{"' + rng.choice(keys) + b'":' + bomb + b"}"
    return _json("json nesting", _verb(rng), body)


def numbers(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    numbers = ("NaN", "-Infinity", "1e999", "-0", "01", "1.", ".5", "0x1", "1" * 5000, "1e-9999")
    number = rng.choice((*numbers, str(2**63), str(-(2**63) - 1), "9" * 400 + ".5"))
    text = json.dumps(odd.spoiled(rng, document)).replace("null", number, 1)
    pod = '{"metadata":{"name":"p"},"spec":{"priority":%s,"containers":[{"resources":{"limits":'
    pod = pod % number + '{"%s":%s}}}]}}' % (MEM, number)  # noqa: UP031 -- braces all over
    if rng.random() < 0.7:
        text = f'{{"Pod":{pod},"NodeNames":["{rng.choice(targets.nodes)}"]}}'
    return _json("json numbers", path, text.encode())


def twice(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    key = rng.choice(list(document))
    second = rng.choice((key, key.upper(), key.lower(), key.swapcase()))
    more = f"{json.dumps(second)}:{json.dumps(odd.value(rng))},"
    return _json("json keys twice", path, b"{" + more.encode() + dumped(document)[1:])


def texts(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    strange = (
        *(b"\\ud800", b"\\udc00\\ud800", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\\u0000"),
        *(b"\\u2028", b"\xef\xbb\xbf", b"\\x", b"\\u12", b"\x01", b"\n", b"\xf4\x90\x80\x80"),
    )
    body = dumped(document)
    at = body.find(b'"', rng.randrange(len(body))) + 1
    body = body[:at] + rng.choice(strange) + body[at:]
    if rng.random() < 0.1:
        body = rng.choice((b"\xef\xbb\xbf" + body, body.decode("latin-1").encode("utf-16")))
    return _json("json texts", path, body)


def pods(rng: random.Random, targets: Targets) -> Attempt:
    pod = odd.spoiled(rng, odd.POD)
    if isinstance(pod, dict):
        limits = {rng.choice((MEM, odd.COUNT, "cpu", "example.com/npu-mem")): rng.choice(odd.TEXTS)}
        pod = {**pod, "spec": {"containers": [{"resources": {"limits": limits}}]}}
    body = {"Pod": pod, "NodeNames": list(targets.nodes)}
    return _json(
        "pods", f"{PREFIX}/{rng.choice(('filter', 'prioritize', 'preempt'))}", dumped(body)
    )


def annotations(rng: random.Random, targets: Targets) -> Attempt:
    notes = {key: rng.choice(odd.TEXTS) for key in odd.POD["metadata"]["annotations"]}
    pod = {**odd.POD, "metadata": {**odd.POD["metadata"], "annotations": notes, "labels": notes}}
    body = {"Pod": pod, "NodeNames": list(targets.nodes)}
    return _json("annotations", f"{PREFIX}/{rng.choice(('filter', 'prioritize'))}", dumped(body))


def node_names(rng: random.Random, targets: Targets) -> Attempt:
    count = rng.choices((1, 10, 300, 100_000), (40, 40, 19, 1))[0]
    names = [f"node-{index % max(1, count // 2)}" for index in range(count)]
    names[rng.randrange(count)] = rng.choice(odd.TEXTS)
    body: Json = {"Pod": odd.POD, "NodeNames": [*names, *targets.nodes]}
    return _json("node names", f"{PREFIX}/{rng.choice(('filter', 'prioritize'))}", dumped(body))


def binds(rng: random.Random, targets: Targets) -> Attempt:
    meta = rng.choice((odd.POD, *targets.bound))["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
    body["Node"] = rng.choice((*targets.nodes, "nowhere", ""))
    if rng.random() < 0.8:
        body[rng.choice(list(body))] = rng.choice(odd.TEXTS)
    return _json("binds", f"{PREFIX}/bind", dumped(body))


def media(rng: random.Random, targets: Targets) -> Attempt:
    path, document = sound(rng, targets)
    body = dumped(document)
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "é", "/")
    headers = [
        ("Content-Type", rng.choice((*kinds, "application/json; charset=utf-16", "a" * 500)))
    ]
    if rng.random() < 0.4:
        coding = rng.choice(("gzip", "deflate", "br", "identity", "gzip, gzip", "x"))
        headers.append(("Content-Encoding", coding))
        body = gzip.compress(body) if rng.random() < 0.7 else body
    return Attempt("media types", framed(body, path, headers=headers), framed=True)


def paths(rng: random.Random, targets: Targets) -> Attempt:
    methods = (
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "PATCH",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "XYZ",
    )
    parts = (
        "%ff%fe",
        "%00",
        "%2e%2e",
        "%",
        "%zz",
        "a" * 2000,
        "*",
        ";a=b",
        "\u00e9",
        targets.nodes[0],
    )
    tails = ("", "?resource=%ff", "?resource=" + "x" * 500, "?&&==", "#x", "?resource=" + MEM)
    path = rng.choice(("", PREFIX, f"{PREFIX}/inspect", f"{PREFIX}/filter", "/version", "//"))
    path = f"{path}/{rng.choice(parts)}{rng.choice(tails)}"
    method = rng.choice(methods)
    return Attempt("methods, paths", framed(b"{}" if rng.random() < 0.5 else b"", path, method))


QUICK = (wrong_values, broken_bytes, binds, numbers)
"""Parts of other inputs."""
