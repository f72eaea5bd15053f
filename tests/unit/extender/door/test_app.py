"""HTTP: routes, status codes, sizes and content types, and who may call."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from gpushare import __version__
from gpushare.daemon.callers import Callers
from gpushare.extender.door.app import Routes, build_app
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender, bind_request, request

PREFIX = "/gpushare-scheduler"
JSON = {"Content-Type": "application/json"}
LIMIT = 10_000
NOBODY_ASKED = Callers()
ASKING = request(pod_json("web", 4), ["big", "tiny"])
BINDING = bind_request(pod_json("web", 4), "big")


@pytest.fixture
def extender() -> Iterator[ScriptedExtender]:
    scripted_extender = ScriptedExtender()
    yield scripted_extender
    scripted_extender.ledger.check()


@pytest.fixture
def client(extender: ScriptedExtender) -> FlaskClient:
    return make_app(extender).test_client()


def make_app(extender: ScriptedExtender, callers: Callers = NOBODY_ASKED) -> Flask:
    return build_app(extender.service, Routes(), LIMIT, callers)


def post(client: FlaskClient, verb: str, body: bytes, **headers: str) -> tuple[int, Any]:
    """(status, document) of a call; the answer is JSON whatever happens."""
    answer = client.post(f"{PREFIX}/{verb}", data=body, headers=JSON | headers)
    assert answer.content_type == "application/json"
    return answer.status_code, json.loads(answer.data)


def test_each_verb_is_served_where_the_scheduler_calls_it(
    client: FlaskClient, extender: ScriptedExtender
) -> None:
    status, result = post(client, "filter", ASKING)
    assert (status, result["NodeNames"]) == (200, ["big"])
    status, scores = post(client, "prioritize", ASKING)
    assert (status, [score["Score"] for score in scores]) == (200, [10])
    assert post(client, "bind", BINDING) == (200, {"Error": ""})
    assert extender.ledger.entry("uid-web") is not None


def test_other_routes_are_served_where_the_scheduler_is_told(extender: ScriptedExtender) -> None:
    routes = Routes("/a/b", "sort-out", "rank", "tie", "throw-out")
    client = build_app(extender.service, routes, LIMIT, Callers()).test_client()
    for verb, body in (("sort-out", ASKING), ("rank", ASKING), ("tie", BINDING)):
        assert client.post(f"/a/b/{verb}", data=body, headers=JSON).status_code == 200
    assert client.post(f"{PREFIX}/filter", data=ASKING, headers=JSON).status_code == 404


def test_inspect_and_version_are_read(client: FlaskClient) -> None:
    nodes = client.get(f"{PREFIX}/inspect").get_json()["nodes"]
    assert [node["name"] for node in nodes] == ["big", "small", "tiny"]
    assert client.get(f"{PREFIX}/inspect/small").get_json()["nodes"] == [nodes[1]]
    plain = client.get(f"{PREFIX}/inspect")
    packed = client.get(f"{PREFIX}/inspect", headers={"Accept-Encoding": "gzip"})
    if len(plain.data) >= 1024:
        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed.data) == plain.data
    assert packed.headers["ETag"] == plain.headers["ETag"]
    again = client.get(f"{PREFIX}/inspect", headers={"If-None-Match": plain.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    npu = client.get(f"{PREFIX}/inspect?resource=example.com/npu-mem").get_json()["nodes"]
    assert [node["name"] for node in npu] == ["npu"]
    assert client.get("/version").get_json() == {"version": __version__}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{PREFIX}/inspect/nowhere", 404),
        ("GET", f"{PREFIX}/inspect?resource=example.com/other", 404),
        ("GET", "/nowhere", 404),
        ("GET", f"{PREFIX}/filter", 405),
        ("POST", f"{PREFIX}/inspect", 405),
    ],
)
def test_what_is_not_there_is_a_4xx_with_a_text(
    client: FlaskClient, method: str, path: str, status: int
) -> None:
    answer = client.open(path, method=method)
    assert answer.status_code == status
    assert answer.content_type == "application/json"
    assert answer.get_json()["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[1]", b"\x00\xff", b'{"Pod":{}}'])
def test_a_malformed_body_is_an_answer_the_scheduler_can_read(
    client: FlaskClient, body: bytes
) -> None:
    for verb in ("filter", "bind"):
        status, result = post(client, verb, body)
        assert status == 200
        assert result["Error"].startswith("gpushare: ")
    status, result = post(client, "prioritize", body)
    assert status == 400
    assert result["error"]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"Content-Type": "text/plain"}, "text/plain is not application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "is not application/json"),
        ({"Content-Type": ""}, "Content-Type: none is not application/json"),
        ({"Content-Encoding": "gzip"}, "must not be compressed"),
    ],
)
def test_only_plain_json_is_read(client: FlaskClient, headers: dict[str, str], text: str) -> None:
    for verb in ("filter", "bind"):
        status, result = post(client, verb, ASKING, **headers)
        assert status == 200
        assert text in result["Error"]
    status, result = post(client, "prioritize", ASKING, **headers)
    assert status == 400
    assert text in result["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json; charset=utf-8"},
        {"Content-Encoding": "identity"},
    ],
)
def test_json_may_be_said_in_several_ways(client: FlaskClient, headers: dict[str, str]) -> None:
    assert post(client, "filter", ASKING, **headers)[1]["NodeNames"] == ["big"]


def padded(size: int) -> bytes:
    return ASKING + b" " * (size - len(ASKING))


def test_a_body_up_to_the_limit_is_read_and_a_larger_one_is_not(client: FlaskClient) -> None:
    assert post(client, "filter", padded(LIMIT))[1]["NodeNames"] == ["big"]
    status, result = post(client, "filter", padded(LIMIT + 1))
    assert status == 200
    assert "--body-limit" in result["Error"]
    assert "--body-limit" in post(client, "bind", padded(LIMIT + 1))[1]["Error"]
    assert post(client, "prioritize", padded(LIMIT + 1))[0] == 400


def test_who_is_not_ready_says_so_in_every_verb(
    client: FlaskClient, extender: ScriptedExtender
) -> None:
    extender.why_not = "pods are not listed yet"
    assert "not ready" in post(client, "filter", ASKING)[1]["Error"]
    assert "not ready" in post(client, "bind", BINDING)[1]["Error"]
    status, result = post(client, "prioritize", ASKING)
    assert (status, "not ready" in result["error"]) == (503, True)
    assert client.get(f"{PREFIX}/inspect").status_code == 503
    assert client.get("/version").status_code == 200


def test_a_failure_nobody_thought_of_is_a_500_in_json_without_a_traceback(
    client: FlaskClient, extender: ScriptedExtender, caplog: pytest.LogCaptureFixture
) -> None:
    extender.api.answers = [ZeroDivisionError("a secret of ours")]
    status, result = post(client, "bind", BINDING)
    assert status == 500
    assert "secret" not in result["error"]
    assert "a secret of ours" in caplog.text


def certificate(
    *, common_name: str = "", dns: str = "", second: tuple[tuple[str, str], ...] = ()
) -> dict[str, Any]:
    """As ssl.SSLSocket.getpeercert gives it."""
    result: dict[str, Any] = {
        "subject": (
            (("organizationName", "scheduler.local"),),
            (("commonName", common_name),),
        )
    }
    names = ((("DNS", dns),) if dns else ()) + second
    return result | ({"subjectAltName": names} if names else {})


class Peer:
    """A connection with a client certificate, as gunicorn hands it on."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self._found = found

    def getpeercert(self) -> dict[str, Any] | None:
        return self._found


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (certificate(common_name="system:kube-scheduler"), 200),
        (certificate(dns="scheduler.local"), 200),
        (certificate(common_name="other", dns="scheduler.local"), 200),
        (certificate(common_name="system:node:n1", dns="n1"), 403),
        (certificate(common_name="n1", second=(("email", "scheduler.local"),)), 403),
        (certificate(common_name="n1", second=(("URI", "scheduler.local"),)), 403),
        (certificate(common_name="n1", second=(("IP Address", "10.0.0.9"),)), 403),
        ({}, 403),
        (None, 403),
    ],
)
def test_only_certificates_of_the_names_given_may_call(
    extender: ScriptedExtender, found: dict[str, Any] | None, status: int
) -> None:
    """With kubeadm one CA signs the scheduler's and every kubelet's certificate."""
    callers = Callers(frozenset({"system:kube-scheduler", "scheduler.local", "10.0.0.9"}))
    client = make_app(extender, callers).test_client()
    environ = {"gunicorn.socket": Peer(found)}
    answer = client.post(f"{PREFIX}/bind", data=BINDING, headers=JSON, environ_overrides=environ)
    assert answer.status_code == status
    assert bool(extender.api.calls) == (status == 200)
    assert client.get("/version", environ_overrides=environ).status_code == status


def called_by(client: FlaskClient, headers: dict[str, str]) -> list[int]:
    """The status of each verb, and of each readable path, called with these headers."""
    verbs = ("filter", "prioritize", "bind", "preempt")
    writes = [client.post(f"{PREFIX}/{v}", data=ASKING, headers=JSON | headers) for v in verbs]
    reader = [client.get(path, headers=headers) for path in (f"{PREFIX}/inspect", "/version")]
    return [answer.status_code for answer in (*writes, *reader)]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},
        {"sec-fetch-site": "none", "origin": "http://127.0.0.1:32766"},
    ],
)
def test_a_page_in_a_browser_may_call_no_verb(
    client: FlaskClient, extender: ScriptedExtender, headers: dict[str, str]
) -> None:
    assert called_by(client, headers) == [403, 403, 403, 403, 200, 200]
    client.post(f"{PREFIX}/bind", data=BINDING, headers=JSON | headers)
    assert extender.api.calls == []


LOOPBACK = Callers(hosts=frozenset({"extender.internal"}))


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:32766", "127.0.0.1", "127.9.9.9:1", "[::1]:32766", "[::1]", "localhost:32766"),
        *("LocalHost", "extender.internal:32766", "Extender.Internal"),
    ],
)
def test_on_loopback_its_own_names_and_that_of_the_schedulers_file_are_answered(
    extender: ScriptedExtender, host: str
) -> None:
    assert 403 not in called_by(make_app(extender, LOOPBACK).test_client(), {"Host": host})


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example:32766", "evil.example", "127.0.0.1.evil.example", "10.0.0.1:32766"),
        *("localhost.evil.example:32766", "[::1", "[::2]", "x" * 8000, "127.0.0.1@evil.example"),
    ],
)
def test_on_loopback_another_name_is_refused_whatever_is_asked(
    extender: ScriptedExtender, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_app(extender, LOOPBACK).test_client()
    assert called_by(client, {"Host": host}) == [403] * 6
    assert caplog.text.count("caller refused") == 1
    assert 403 not in called_by(make_app(extender).test_client(), {"Host": host})
