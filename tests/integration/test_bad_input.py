"""Nonsense sent to the real extender process: a clear error, no traceback, and the same books."""

import gzip
import http.client
import json
from typing import Any

import pytest

from tests.integration.cluster import MEM, Json
from tests.integration.conftest import World
from tests.integration.process import Extender
from tests.integration.verbs import Reply, bind_args, filter_args

PREFIX = "/gpushare-scheduler"
VERBS = ("filter", "prioritize", "bind")
JSON = {"Content-Type": "application/json"}

POD: Json = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {"containers": [{"resources": {"limits": {MEM: "4"}}}]},
}
FILTER = filter_args(POD, ["n"])
BIND = bind_args(POD, "n")


def dumped(document: object) -> bytes:
    return json.dumps(document).encode()


NO_REQUEST: dict[str, bytes] = {
    "empty": b"",
    "cut short": dumped(FILTER)[:-1],
    "more behind it": dumped(FILTER) + b"}",
    "no JSON": b"\x00\x01",
    "not UTF-8": b'{"Pod":"\xff\xfe","PodName":"\xff"}',
    "an array": b"[]",
    "a number": b"7",
    "null": b"null",
    "NaN": b'{"Pod":NaN,"PodName":NaN}',
    "keys alone": dumped(dict.fromkeys([*FILTER, *BIND])),
    "nothing asked": b"{}",
    "wrong types": dumped(dict.fromkeys([*FILTER, *BIND], 7)),
    "nested too deeply": b'{"Pod":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    "nested objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "a number of many digits": b'{"Pod":' + b"9" * 5000 + b',"Node":' + b"9" * 5000 + b"}",
    "larger than the limit": dumped({**FILTER, **BIND}) + b" " * 200_000,
}

ODD_FILTERS: dict[str, object] = {
    "no pod": {**FILTER, "Pod": None},
    "a pod that is text": {**FILTER, "Pod": "p"},
    "no nodes": {**FILTER, "NodeNames": None},
    "a name that is a number": {**FILTER, "NodeNames": [1]},
    "an empty name": {**FILTER, "NodeNames": [""]},
    "a name with a line break": {**FILTER, "NodeNames": ["a\nb"]},
    "nodes without names": {"Pod": POD, "Nodes": {"items": [{}]}},
    "nodes that are text": {"Pod": POD, "Nodes": {"items": "abc"}},
    "labels that are numbers": {**FILTER, "Pod": {"metadata": {"labels": {"a": 1}}}},
}

ODD_BINDS: dict[str, object] = {
    **{f"no {key}": {**BIND, key: None} for key in BIND},
    **{f"empty {key}": {**BIND, key: ""} for key in BIND},
    **{f"a number for {key}": {**BIND, key: 1} for key in BIND},
    "a path in the pod's name": {**BIND, "PodName": "../../nodes/n"},
    "a path in the namespace": {**BIND, "PodNamespace": "a/pods/b"},
    "a query in the pod's name": {**BIND, "PodName": "p?x=1"},
    "a line break in the node": {**BIND, "Node": "n\r\nX-Y: z"},
    "a name of other letters": {**BIND, "PodName": "pöd"},
}

ARABIC_SEVEN = "\u0667"
ODD_AMOUNTS = ("-1", "1.5", "1e400", "9" * 400, "1_000", ARABIC_SEVEN, "4 ", "four", str(2**31), "")


def said(reply: Reply) -> str:
    """The error of an answer whose status is always 200."""
    assert reply.status == 200, reply
    return str(reply.json()["Error"])


def assert_refused(extender: Extender, verb: str, reply: Reply) -> None:
    """The answer says the mistake in the way of its verb."""
    if verb == "prioritize":
        assert 400 <= reply.status < 500, reply
        assert reply.json()["error"], reply
    else:
        assert said(reply) != ""
    assert b"Traceback" not in reply.body
    assert len(reply.body) < 2000
    assert extender.ready()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", NO_REQUEST.values(), ids=NO_REQUEST.keys())
def test_a_body_that_is_no_request_is_refused(world: World, verb: str, body: bytes) -> None:
    before = world.extender.inspect()
    assert_refused(world.extender, verb, world.extender.post(verb, body))
    assert world.extender.inspect() == before


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@pytest.mark.parametrize("args", ODD_FILTERS.values(), ids=ODD_FILTERS.keys())
def test_odd_arguments_of_filter_are_refused(world: World, verb: str, args: object) -> None:
    assert_refused(world.extender, verb, world.extender.post(verb, dumped(args)))


@pytest.mark.parametrize("args", ODD_BINDS.values(), ids=ODD_BINDS.keys())
def test_odd_arguments_of_bind_are_refused(world: World, args: object) -> None:
    count = len(world.cluster.server.requests)
    assert_refused(world.extender, "bind", world.extender.post("bind", dumped(args)))
    calls = list(world.cluster.server.requests)[count:]
    # Events of binds before this one may still be on their way.
    acts = [path for method, path in calls if method != "GET" and "/events" not in path]
    assert acts + [path for _, path in calls if "/pods/" in path] == []


@pytest.mark.parametrize("amount", ODD_AMOUNTS)
def test_a_pod_that_asks_for_nonsense_fits_nowhere(world: World, amount: str) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod = {**POD, "spec": {"containers": [{"resources": {"limits": {MEM: amount}}}]}}
    before = world.extender.inspect()
    answer = world.extender.filter(pod, [node])
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"][node] != ""
    assert world.extender.bind(pod, node) != ""
    assert world.extender.inspect() == before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/vnd.kubernetes.protobuf"},
        {},
        {**JSON, "Content-Encoding": "gzip"},
    ],
    ids=["text", "form", "multipart", "protobuf", "no type", "gzip"],
)
def test_only_plain_json_is_taken(world: World, verb: str, headers: dict[str, str]) -> None:
    body = gzip.compress(dumped(FILTER)) if "Content-Encoding" in headers else dumped(FILTER)
    reply = world.extender.call("POST", f"{PREFIX}/{verb}", body, headers)
    assert_refused(world.extender, verb, reply)


def test_json_may_say_how_it_is_written(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    headers = {"Content-Type": "application/json; charset=utf-8"}
    body = dumped(filter_args(world.cluster.pod(4), [node]))
    reply = world.extender.call("POST", f"{PREFIX}/filter", body, headers)
    assert reply.json()["NodeNames"] == [node]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{PREFIX}/filter", 405),
        ("PUT", f"{PREFIX}/bind", 405),
        ("POST", f"{PREFIX}/inspect", 405),
        ("POST", f"{PREFIX}/nosuch", 404),
        ("GET", "/", 404),
        ("GET", f"{PREFIX}/inspect/%ff%fe", 404),
        ("GET", f"{PREFIX}/inspect/{'x' * 3000}", 404),
        ("GET", f"{PREFIX}/inspect/a/b", 404),
        ("GET", f"{PREFIX}/inspect/%00%0d%0a", 404),
        ("GET", f"{PREFIX}/inspect?resource=%ff", 404),
    ],
)
def test_other_paths_and_methods_are_refused(
    world: World, method: str, path: str, status: int
) -> None:
    reply = world.extender.call(method, path, b"{}" if method != "GET" else None, JSON)
    assert reply.status == status
    assert reply.json()["error"] != ""


@pytest.mark.parametrize(
    "send",
    [
        {"Transfer-Encoding": "chunked"},
        {"Content-Length": str(1 << 40)},
        {"Content-Length": "-5"},
        {"Content-Length": "7", "Transfer-Encoding": "chunked"},
        {"Content-Length": "0", "X-Long": "x" * 40_000},
    ],
    ids=["chunked", "huge", "negative", "two lengths", "long header"],
)
def test_what_is_no_request_of_http_is_refused_and_closed(
    world: World, send: dict[str, Any]
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", world.extender.port, timeout=60)
    connection.putrequest("POST", f"{PREFIX}/filter")
    for name, value in send.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert 400 <= answer.status < 500
    assert answer.getheader("Connection") == "close"
    answer.read()
    connection.close()
    assert world.extender.ready()


@pytest.mark.parametrize("header", ["SCRIPT_NAME", "PATH_INFO", "X-Forwarded-Proto", "REMOTE_USER"])
def test_no_header_leads_to_another_path(world: World, header: str) -> None:
    headers = {header: f"{PREFIX}/bind"}
    reply = world.extender.call("GET", "/version", None, headers)
    assert reply.status == 200
    assert "version" in reply.json()
