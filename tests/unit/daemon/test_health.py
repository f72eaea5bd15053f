"""The probes' and metrics' listener, on true sockets."""

import gzip
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from gpushare.daemon.health import HealthServer
from gpushare.daemon.listener import Handler
from tests.support.waiting import poll

WELL = {"nodes": "", "pods": ""}
STALLED = 20


def connections() -> int:
    """How many threads serve one."""
    return sum("process_request" in thread.name for thread in threading.enumerate())


class Subject:
    """A health server and the problems that it reports."""

    def __init__(self) -> None:
        self.reset()
        self.server = HealthServer(
            "127.0.0.1",
            0,
            lambda: self.live,
            lambda: self.ready,
            self._metrics,
            explain=lambda *names: (200, "/".join(names).encode()),
        )

    def reset(self) -> None:
        """All is well."""
        self.live: dict[str, str] = dict(WELL)
        self.ready: dict[str, str] = dict(WELL)
        self.metrics = b"gpushare_up 1\n"

    def _metrics(self) -> bytes:
        if not self.metrics:
            raise ZeroDivisionError("a bug")
        return self.metrics

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
        """(status, content type, body)."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, 20)) as client:
            client.request(method, path, headers=headers)
            answer = client.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read().decode()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20)


@pytest.fixture(scope="module")
def running() -> Iterator[Subject]:
    """One server for all: to stop one takes half a second."""
    new_subject = Subject()
    new_subject.server.start()
    yield new_subject
    new_subject.server.stop()


@pytest.fixture
def subject(running: Subject) -> Subject:
    running.reset()
    return running


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this system has no IPv6")
@pytest.mark.parametrize(("host", "answers"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
def test_ipv6_addresses_are_listened_on_and_the_open_one_takes_ipv4_too(
    host: str, answers: list[str]
) -> None:
    server = HealthServer(host, 0, dict, dict, bytes)
    server.start()
    try:
        for address in answers:
            with closing(http.client.HTTPConnection(address, server.port, 20)) as client:
                client.request("GET", "/livez")
                assert client.getresponse().status == 200
    finally:
        server.stop()


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_where_all_is_well_every_probe_says_ok(subject: Subject, path: str) -> None:
    assert subject.get(path) == (200, "text/plain", "ok\n")


def test_live_and_ready_are_two_questions(subject: Subject) -> None:
    subject.ready["pods"] = "pods are not listed yet"
    assert [subject.get(path)[0] for path in ("/livez", "/healthz", "/readyz")] == [200, 200, 503]
    subject.ready, subject.live = dict(WELL), {"settling": "its thread is stuck"}
    assert [subject.get(path)[0] for path in ("/livez", "/healthz", "/readyz")] == [503, 503, 200]


def test_what_fails_is_named(subject: Subject) -> None:
    subject.ready["pods"] = "pods are not listed yet"
    _, _, text = subject.get("/readyz")
    assert text == "[+]nodes ok\n[-]pods pods are not listed yet\n"


@pytest.mark.parametrize("query", ["verbose", "verbose=", "verbose=1&x=%zz"])
def test_verbose_names_what_is_well_too(subject: Subject, query: str) -> None:
    assert subject.get(f"/readyz?{query}")[::2] == (200, "[+]nodes ok\n[+]pods ok\n")


def test_checks_can_be_left_out(subject: Subject) -> None:
    subject.ready["pods"] = "pods are not listed yet"
    assert subject.get("/readyz?exclude=pods") == (200, "text/plain", "ok\n")
    assert subject.get("/readyz?exclude=nodes&exclude=pods&verbose")[::2] == (200, "\n")
    assert subject.get("/readyz?exclude=nodes")[0] == 503


def test_metrics_are_compressed_for_a_scraper_that_accepts_it(subject: Subject) -> None:
    subject.metrics = b"".join(b'gpushare_used{node="n%d"} 1\n' % number for number in range(500))
    with closing(http.client.HTTPConnection("127.0.0.1", subject.server.port, 20)) as client:
        for accepted, coding in (("gzip", "gzip"), ("identity", None)):
            client.request("GET", "/metrics", headers={"Accept-Encoding": accepted})
            answer = client.getresponse()
            body = answer.read()
            assert answer.headers["Content-Encoding"] == coding
            assert answer.headers["Vary"] == "Accept-Encoding"
            assert int(answer.headers["Content-Length"]) == len(body)
            assert (gzip.decompress(body) if coding else body) == subject.metrics
            assert (len(body) * 4 < len(subject.metrics)) == bool(coding)


def test_metrics_say_what_format_they_are_in(subject: Subject) -> None:
    status, kind, text = subject.get("/metrics?name=x")
    assert (status, text) == (200, "gpushare_up 1\n")
    assert kind == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize("path", ["/", "/livez/", "/metricsx", "/readyz/pods"])
def test_other_pages_are_404_and_say_which_there_are(subject: Subject, path: str) -> None:
    status, _, text = subject.get(path)
    assert status == 404
    assert "/readyz" in text


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET http://[x HTTP/1.1", b" 404 "),
        (b"GET //[ HTTP/1.1", b" 404 "),
        (b"GET /livez?%ff&=&;;=% HTTP/1.1", b" 200 "),
        (b"\xff\xfe /livez HTTP/1.1", b" 405 "),
    ],
)
def test_an_odd_request_gets_an_answer_all_the_same(
    subject: Subject, line: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with subject.connect() as client, client.makefile("rb") as lines:
        client.sendall(line + b"\r\nConnection: close\r\n\r\n")
        assert status in lines.readline()
    assert caplog.text == ""


def test_a_pod_is_explained_to_callers_on_this_machine(subject: Subject) -> None:
    assert subject.get("/apis/v1/explain/team/web") == (200, "application/json", "team/web")
    assert subject.get("/apis/v1/explain/team/web", Host="localhost:1")[0] == 200
    assert subject.get("/apis/v1/explain/team")[0] == 404
    assert subject.get("/apis/v1/explain/team/web/x")[0] == 404


def test_a_page_in_a_browser_gets_no_explanation(subject: Subject) -> None:
    status, _, text = subject.get("/apis/v1/explain/team/web", Host="evil.example:80")
    assert status == 403
    assert "port-forward" in json.loads(text)["error"]


def test_another_machine_gets_no_explanation(subject: Subject) -> None:
    own_address = _own_address()
    if own_address is None:
        pytest.skip("this machine has no address but loopback")
    server = HealthServer(
        "0.0.0.0",  # noqa: S104 -- as in the second scheduler's pod
        0, dict, dict, bytes, explain=lambda *_: (200, b"{}"), held=lambda: (200, b"{}"),
    )  # fmt: skip
    server.start()
    try:
        answers = []
        for path in ("/livez", "/apis/v1/explain/team/web", "/apis/v1/held"):
            with closing(http.client.HTTPConnection(own_address, server.port, 20)) as client:
                client.request("GET", path, headers={"Host": "127.0.0.1"})
                answers.append(client.getresponse().status)
        assert answers == [200, 403, 403]
    finally:
        server.stop()


def test_where_nothing_explains_there_is_no_such_page() -> None:
    server = HealthServer("127.0.0.1", 0, dict, dict, bytes)
    server.start()
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, 20)) as client:
            client.request("GET", "/apis/v1/explain/team/web")
            assert client.getresponse().status == 404
    finally:
        server.stop()


def _own_address() -> str | None:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


def test_nothing_can_be_written(subject: Subject) -> None:
    assert subject.get("/livez", "POST")[0] == 405


def test_a_connection_can_be_used_again(subject: Subject) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", subject.server.port, 20)) as client:
        for _ in range(3):
            client.request("GET", "/livez")
            assert client.getresponse().read() == b"ok\n"


def test_an_answer_on_a_kept_connection_is_not_held_back(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head and body are two packets, and nobody acknowledges the first at once."""
    statuses: list[int] = []
    page = Handler.do_GET

    def noting(handler: Handler) -> None:
        statuses.append(handler.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        page(handler)

    monkeypatch.setattr(Handler, "do_GET", noting)
    assert subject.get("/livez")[0] == 200
    assert all(statuses)
    assert statuses


def test_clients_that_stall_do_not_keep_others_waiting(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "timeout", 60)  # for each, longer than `get` waits
    with ExitStack() as stack:
        for index in range(STALLED):
            stalled = stack.enter_context(subject.connect())
            stalled.sendall(b"GET /livez HTTP/1.1\r\n" if index % 2 else b"")
        assert subject.get("/livez")[0] == 200


def test_a_client_that_says_nothing_is_cut_off(subject: Subject) -> None:
    with subject.connect() as stalled:
        stalled.sendall(b"GET /livez HTTP/1.1\r\n")
        assert stalled.recv(100) == b""


def test_a_scrape_may_take_long_as_long_as_it_goes_on(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "timeout", 2)
    subject.metrics = b"x" * (64 << 20)
    with closing(http.client.HTTPConnection("127.0.0.1", subject.server.port, 20)) as client:
        client.request("GET", "/metrics")
        answer = client.getresponse()
        size, begin = 0, time.monotonic()
        while piece := answer.read(1 << 20):
            size += len(piece)
            time.sleep(0.08)
    assert size == len(subject.metrics)
    assert time.monotonic() - begin > 4


def test_of_very_many_connections_the_oldest_are_cut(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection has a thread; many connections must not take all threads."""
    monkeypatch.setattr(Handler, "timeout", 60)  # silence alone cuts none so soon
    with ExitStack() as stack:
        crowd = [stack.enter_context(subject.connect()) for _ in range(100)]
        assert crowd[0].recv(100) == b""
        assert subject.get("/livez")[0] == 200
        poll(lambda: connections() <= 64)


def test_a_failure_nobody_thought_of_is_logged_and_ends_one_connection(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    subject.metrics = b""
    with caplog.at_level(logging.WARNING), pytest.raises(http.client.RemoteDisconnected):
        subject.get("/metrics")
    assert "ZeroDivisionError: a bug" in caplog.text
    assert subject.get("/livez")[0] == 200


def test_a_client_that_goes_away_is_no_news(
    subject: Subject, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    subject.metrics = b"x" * 50_000_000
    with subject.connect() as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        client.recv(10)
    poll(lambda: connections() == 0)
    assert capfd.readouterr().err == ""
    assert caplog.text == ""


def test_an_address_in_use_is_refused_at_once(subject: Subject) -> None:
    with pytest.raises(OSError, match="in use"):
        HealthServer("127.0.0.1", subject.server.port, dict, dict, bytes)


def test_a_server_that_never_started_can_be_stopped() -> None:
    new_subject = Subject()
    new_subject.server.stop()
    with pytest.raises(OSError, match="refused"):
        new_subject.connect()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /livez HTTP/1.1\r\n\r\n", b"405"),
        (b"HEAD /livez HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /livez HTTP/3.0\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /livez\r\n\r\n", b"200"),
        (b"\x16\x03\x01 \r\n\r\n", b"400"),
    ],
)
def test_what_a_caller_does_wrong_is_not_told_as_our_failure(
    subject: Subject, sent: bytes, status: bytes
) -> None:
    with subject.connect() as client:
        client.sendall(sent)
        assert client.recv(64).split(b" ")[:2] == [b"HTTP/1.1", status]
