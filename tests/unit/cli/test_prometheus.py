"""A Prometheus is asked within bounds, and whatever it answers instead is told in one sentence."""

import json
import re
from collections.abc import Iterator

import pytest

from gpushare.cli.prometheus import Prometheus, seconds_of
from gpushare.errors import MessageError, SettingsError
from tests.unit.cli.prometheus_server import Samples, queries, vector
from tests.unit.kube.scripted_server import ScriptedServer, reply, scripted_server


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


def test_a_query_returns_labels_and_values(server: ScriptedServer) -> None:
    samples: Samples = [({"namespace": "team"}, 1.5), ({"namespace": "é+&"}, "2e3")]
    server.script = reply(body=vector(samples))
    prometheus = Prometheus(f"{server.url}/prom/", token="a.b-c")
    assert prometheus.query('sum(a{b="é+&"})') == [
        ({"namespace": "team"}, 1.5),
        ({"namespace": "é+&"}, 2000.0),
    ]
    assert queries(server) == ['sum(a{b="é+&"})']
    assert server.seen[0].target == "/prom/api/v1/query"
    assert server.seen[0].headers["authorization"] == "Bearer a.b-c"


def test_no_token_for_this_machine_goes_to_a_proxy(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = reply(body=vector([]))
    with scripted_server() as proxy:
        proxy.script = reply(body=vector([({}, 1)]))
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert Prometheus(server.url, token="a.b-c").query("a") == []
        assert not proxy.seen
        # Another host is reached by the proxy.
        assert Prometheus("http://prometheus.test").query("a") == [({}, 1.0)]


def test_what_is_no_number_is_left_out(server: ScriptedServer) -> None:
    samples = [({}, "NaN"), ({}, "+Inf"), ({}, "much"), ({"a": "b"}, "-1")]
    server.script = reply(body=vector(samples))
    assert Prometheus(server.url).query("a") == [({"a": "b"}, -1.0)]


def test_each_warning_is_kept_once(server: ScriptedServer) -> None:
    server.script = reply(body=vector([], "a store is away", "old"))
    prometheus = Prometheus(server.url)
    prometheus.query("a")
    prometheus.query("b")
    assert prometheus.warnings == ["a store is away", "old"]


def _error(kind: str, message: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": message}).encode()


@pytest.mark.parametrize(
    ("status", "body", "headers", "told"),
    [
        (400, _error("bad_data", "parse error"), "", "400 parse error; is it the address"),
        (422, _error("execution", "too many samples"), "", "422 too many samples; .*--since"),
        (503, _error("timeout", "query timed out"), "", "503 query timed out; .*--since"),
        (401, b"<html>", "", "401 .*--token-file"),
        (403, b"{}", "", "403 .*--token-file"),
        (404, b"not here", "", "404 .*address of a Prometheus"),
        (302, b"", "Location: http://login/\r\n", "302 redirects to http://login/; name that"),
        (200, b"<html>", "", "no answer of Prometheus' API"),
        (200, b"[" * 100_000, "", "no answer of Prometheus' API"),
        (200, b'{"status": "success", "data": {"resultType": "matrix"}}', "", "no answer"),
        (200, b'{"status": "success", "data": []}', "", "no answer"),
        (200, _error("internal", "x"), "", "no answer"),
    ],
)
def test_another_answer_is_an_error_that_says_what_to_do(
    server: ScriptedServer, status: int, body: bytes, headers: str, told: str
) -> None:
    server.script = reply(status, body, headers)
    with pytest.raises(MessageError, match=f"{re.escape(server.url)} .*{told}"):
        Prometheus(server.url).query("a")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "result", ["x", [1], [{}], [{"metric": [], "value": "x"}], [{"metric": {"a": 1}, "value": [1]}]]
)
def test_samples_of_another_form_are_left_out(server: ScriptedServer, result: object) -> None:
    document = {"status": "success", "data": {"resultType": "vector", "result": result}}
    server.script = reply(body=json.dumps(document).encode())
    assert Prometheus(server.url).query("a") == []


def test_nobody_at_the_address_is_told(server: ScriptedServer) -> None:
    url = server.url
    server.__exit__()
    with pytest.raises(MessageError, match=r"does not answer \(.*port-forward"):
        Prometheus(url).query("a")


@pytest.mark.parametrize(
    "url", ["", "prometheus:9090", "file:///etc/passwd", "http://", "http://[::1"]
)
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="--prometheus"):
        Prometheus(url)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("12h", 43_200), ("7d", 604_800), ("4w", 2_419_200)]
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert seconds_of(text, "--since") == seconds


@pytest.mark.parametrize(
    "text", ["", "7", "d", "0d", "4m", "401d", "1.5h", "7d ", "\u0667d", "-7d", "7D"]
)
def test_another_duration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--since"):
        seconds_of(text, "--since")
