"""The extender client over real HTTP: the requests, and the answers that count as errors."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import pytest

from gpushare.wire.scheduler.config import ExtenderConfig, ExtenderManagedResource
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.cycle import (
    CycleError,
    FitError,
    SchedulingCycle,
    nodes_to_find,
)
from gpushare_localcluster.scheduler.extender import ExtenderError, HttpExtender, go_json
from gpushare_localcluster.scheduler.framework import Code
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.node import NodeUnschedulable
from gpushare_localcluster.scheduler.runtime import Framework

GPU = "example.com/gpu-mem"


class Scripted(ThreadingHTTPServer):
    """An extender with a scripted answer for each path, which records requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.clients: set[object] = set()
        self.release = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """In some tests the client leaves early."""

    def answer(self, verb: str, body: Any, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[f"/x/{verb}"] = (status, data)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/x/"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.clients.add(self.client_address)
        self.server.requests.append((self.path, dict(self.headers), body))
        if self.path.endswith("/slow"):
            self.server.release.wait(60)
        status, data = self.server.answers.get(self.path, (404, b"?"))
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  -- inherited name
        pass


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as scripted:
        thread = threading.Thread(target=scripted.serve_forever, args=(0.01,))
        thread.start()
        yield scripted
        scripted.release.set()
        scripted.shutdown()
        thread.join()


@pytest.fixture
def make_extender(server: Scripted) -> Iterator[Any]:
    extenders: list[HttpExtender] = []

    def make(**fields: Any) -> HttpExtender:
        defaults: dict[str, Any] = {
            "url_prefix": server.url,
            "filter_verb": "filter",
            "prioritize_verb": "prioritize",
            "bind_verb": "bind",
            "weight": 1,
            "node_cache_capable": True,
        }
        extenders.append(HttpExtender(ExtenderConfig(**{**defaults, **fields})))
        return extenders[-1]

    yield make
    for extender in extenders:
        extender.close()


def pod(**limits: str) -> PodView:
    resources = {"limits": {name.replace("_", "/"): value for name, value in limits.items()}}
    return read_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "annotations": {"a": "<é&"}},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": "Pending"},
        }
    )


def nodes(*names: str) -> list[NodeInfo]:
    return [
        NodeInfo(read_node({"metadata": {"name": name}, "spec": {}, "status": {}}))
        for name in names
    ]


def test_names_travel_when_the_extender_caches_nodes(server: Scripted, make_extender: Any) -> None:
    server.answer("filter", {"NodeNames": ["n2"], "FailedNodes": {"n1": "full"}})
    result = make_extender().filter(pod(), nodes("n1", "n2"))
    assert [node.name for node in result.nodes] == ["n2"]
    assert result.statuses["n1"].reasons == ("full",)
    path, headers, body = server.requests[0]
    assert path == "/x/filter"
    assert headers["User-Agent"] == "Go-http-client/1.1"
    assert headers["Content-Type"] == "application/json"
    assert "Accept" not in headers
    assert body.startswith(b'{"Pod":{"metadata":{"name":"p"')
    assert body.endswith(b'"Nodes":null,"NodeNames":["n1","n2"]}')
    assert b"apiVersion" not in body
    assert "\\u003cé\\u0026".encode() in body


def test_whole_nodes_travel_otherwise(server: Scripted, make_extender: Any) -> None:
    server.answer("filter", {"Nodes": {"items": [{"metadata": {"name": "n1"}}]}})
    result = make_extender(node_cache_capable=False).filter(pod(), nodes("n1", "n2"))
    assert [node.name for node in result.nodes] == ["n1"]
    body = json.loads(server.requests[0][2])
    assert body["NodeNames"] is None
    assert body["Nodes"]["metadata"] == {}
    assert [item["metadata"]["name"] for item in body["Nodes"]["items"]] == ["n1", "n2"]


def test_keys_match_whatever_their_case_and_trailing_bytes_are_ignored(
    server: Scripted, make_extender: Any
) -> None:
    server.answer("filter", b' {"nodenames":["n1"],"FAILEDNODES":{"n2":"no"}} trailing')
    assert [n.name for n in make_extender().filter(pod(), nodes("n1", "n2")).nodes] == ["n1"]


def test_neither_form_means_no_node(server: Scripted, make_extender: Any) -> None:
    server.answer("filter", {})
    result = make_extender().filter(pod(), nodes("n1"))
    assert result.nodes == ()
    assert result.statuses["n1"].code is Code.UNRESOLVABLE


def test_unresolvable_wins_over_failed(server: Scripted, make_extender: Any) -> None:
    server.answer(
        "filter",
        {
            "NodeNames": [],
            "FailedNodes": {"n1": "busy", "n2": "busy"},
            "FailedAndUnresolvableNodes": {"n1": "never"},
        },
    )
    statuses = make_extender().filter(pod(), nodes("n1", "n2")).statuses
    assert (statuses["n1"].code, statuses["n1"].reasons) == (Code.UNRESOLVABLE, ("never",))
    assert (statuses["n2"].code, statuses["n2"].reasons) == (Code.UNSCHEDULABLE, ("busy",))


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"Error": "books not ready"}, 200, "books not ready"),
        ({"NodeNames": ["n1"]}, 201, "code 201"),
        ({"Error": "never seen"}, 500, "failed filter with extender at URL"),
        ({"NodeNames": ["elsewhere"]}, 200, "not found in the input node list"),
        (b"", 200, "EOF"),
        (b"not json", 200, "Expecting value"),
        ([], 200, "no JSON object"),
    ],
)
def test_a_filter_call_that_failed(
    server: Scripted, make_extender: Any, body: Any, status: int, text: str
) -> None:
    server.answer("filter", body, status)
    with pytest.raises(ExtenderError, match=text) as raised:
        make_extender().filter(pod(), nodes("n1"))
    assert "never seen" not in str(raised.value)


def test_a_slow_answer_is_an_error_after_the_timeout(server: Scripted, make_extender: Any) -> None:
    started = time.monotonic()
    with pytest.raises(ExtenderError, match=r"/x/slow"):
        make_extender(filter_verb="slow", http_timeout=0.2).filter(pod(), nodes("n1"))
    assert time.monotonic() - started < 30


def test_an_extender_that_is_not_there_is_an_error(make_extender: Any) -> None:
    with pytest.raises(ExtenderError, match="refused"):
        make_extender(url_prefix="http://127.0.0.1:1").filter(pod(), nodes("n1"))


def test_a_gzipped_answer_is_understood(server: Scripted, make_extender: Any) -> None:
    server.headers = {"Content-Encoding": "gzip"}
    server.answer("filter", gzip.compress(b'{"NodeNames":["n1"]}'))
    assert len(make_extender().filter(pod(), nodes("n1")).nodes) == 1


def test_calls_reuse_one_connection(server: Scripted, make_extender: Any) -> None:
    server.answer("filter", {"NodeNames": ["n1"]})
    extender = make_extender()
    for _ in range(3):
        extender.filter(pod(), nodes("n1"))
    assert len(server.clients) == 1


def test_scores_are_weighted_and_scaled_and_summed(server: Scripted, make_extender: Any) -> None:
    answer = [{"Host": "n1", "Score": 10}, {"host": "n2", "score": 3}, {"Host": "n2", "Score": -1}]
    server.answer("prioritize", answer)
    assert make_extender(weight=150).prioritize(pod(), nodes("n1", "n2")) == {
        "n1": 15000,
        "n2": 3000,
    }


@pytest.mark.parametrize("score", [5.0, "5", True])
def test_a_score_must_be_an_integer(server: Scripted, make_extender: Any, score: object) -> None:
    server.answer("prioritize", [{"Host": "n1", "Score": score}])
    with pytest.raises(ExtenderError, match="integer"):
        make_extender().prioritize(pod(), nodes("n1"))


def test_bind_sends_identity_and_reads_the_error(server: Scripted, make_extender: Any) -> None:
    server.answer("bind", {"Error": ""})
    assert make_extender().bind(pod(), "n1").ok
    assert server.requests[0][2] == (
        b'{"PodName":"p","PodNamespace":"ns","PodUID":"u1","Node":"n1"}'
    )
    server.answer("bind", {"Error": "no room"})
    assert make_extender().bind(pod(), "n1").message == "no room"
    server.answer("bind", b"")
    assert make_extender().bind(pod(), "n1").message == "EOF"
    server.answer("bind", {"Error": "lost"}, 500)
    assert make_extender().bind(pod(), "n1").message.endswith("code 500")


@pytest.mark.parametrize(
    ("names", "managed_names", "interested"),
    [
        ({GPU.replace("/", "_"): "0"}, (GPU,), True),
        ({"cpu": "1"}, (GPU,), False),
        ({}, (), True),
    ],
)
def test_interest_goes_by_the_names_a_pod_mentions(
    make_extender: Any, names: dict[str, str], managed_names: tuple[str, ...], interested: bool
) -> None:
    resources = tuple(ExtenderManagedResource(name) for name in managed_names)
    assert make_extender(managed_resources=resources).is_interested(pod(**names)) is interested


def test_go_json_escapes_as_go_does() -> None:
    assert go_json({"a": "<\u2028>"}) == b'{"a":"\\u003c\\u2028\\u003e"}'


def cycle(*extenders: HttpExtender) -> SchedulingCycle:
    framework = Framework((NodeUnschedulable(),), percentage=100)
    handle = Handle(extenders=extenders, profiles={"default-scheduler": framework})
    return SchedulingCycle(handle, Random(1))


def test_an_error_ends_the_cycle_unless_the_extender_is_ignorable(
    server: Scripted, make_extender: Any
) -> None:
    snapshot = Snapshot(tuple(nodes("n1")))
    server.answer("filter", {"Error": "down"})
    with pytest.raises(CycleError, match="down"):
        cycle(make_extender()).decide(pod(), snapshot)
    assert cycle(make_extender(ignorable=True)).decide(pod(), snapshot).node == "n1"


def test_prioritize_is_skipped_for_one_node_and_decides_among_more(
    server: Scripted, make_extender: Any
) -> None:
    server.answer("filter", {"NodeNames": ["n1"], "FailedNodes": {"n2": "x"}})
    server.answer("prioritize", [{"Host": "n2", "Score": 10}])
    assert cycle(make_extender()).decide(pod(), Snapshot(tuple(nodes("n1", "n2")))).node == "n1"
    assert [path for path, *_ in server.requests] == ["/x/filter"]
    server.answer("filter", {"NodeNames": ["n1", "n2"]})
    decision = cycle(make_extender()).decide(pod(), Snapshot(tuple(nodes("n1", "n2"))))
    assert (decision.node, decision.feasible, decision.scores["n2"]) == ("n2", 2, 100)


def test_a_failed_prioritize_costs_only_its_share(server: Scripted, make_extender: Any) -> None:
    server.answer("filter", {"NodeNames": ["n1", "n2"]})
    server.answer("prioritize", {"nonsense": 1}, 503)
    assert cycle(make_extender()).decide(pod(), Snapshot(tuple(nodes("n1", "n2")))).feasible == 2


def test_rejections_of_plugins_and_extender_make_one_message(
    server: Scripted, make_extender: Any
) -> None:
    server.answer("filter", {"NodeNames": [], "FailedNodes": {"n1": "no device has room"}})
    closed_nodes = NodeInfo(
        read_node({"metadata": {"name": "n2"}, "spec": {"unschedulable": True}})
    )
    with pytest.raises(FitError) as raised:
        cycle(make_extender()).decide(pod(), Snapshot((*nodes("n1"), closed_nodes)))
    assert str(raised.value) == (
        "0/2 nodes are available: 1 no device has room, 1 node(s) were unschedulable."
    )
    assert raised.value.rejected_by == {"Extender", "NodeUnschedulable"}
    assert json.loads(server.requests[0][2])["NodeNames"] == ["n1"]


def test_without_nodes_nobody_is_asked(server: Scripted, make_extender: Any) -> None:
    with pytest.raises(FitError, match="no nodes available to schedule pods"):
        cycle(make_extender()).decide(pod(), Snapshot(()))
    assert server.requests == []


@pytest.mark.parametrize(
    ("total", "percentage", "expected"),
    [(50, 10, 50), (1000, 100, 1000), (1000, 5, 100), (5000, 0, 500), (100_000, 0, 5000)],
)
def test_large_clusters_are_sampled(total: int, percentage: int, expected: int) -> None:
    assert nodes_to_find(total, percentage) == expected
