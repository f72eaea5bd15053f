"""The hands that run a scenario, on a cluster that is slow to tell."""

import io
from pathlib import Path

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.httpserver import Environ, HttpServer, StartResponse
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient, HttpClient
from gpushare_localcluster.demo.board import Board
from gpushare_localcluster.demo.report import Report
from gpushare_localcluster.demo.runner import Runner
from gpushare_localcluster.demo.scenario import load_scenario
from tests.support.faults import FaultPlan, delay, faulty


def no_books(_: Environ, start: StartResponse) -> list[bytes]:
    body = b'{"nodes": []}'
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def test_what_was_applied_is_seen_by_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "title: t\nnodes: [{name: n, gpus: 0}]\n"
        "steps:\n  - apply: {name: a, gpuMem: 1, replicas: 2}\n"
    )
    plan = FaultPlan()
    plan.on("GET", "^/api/v1/pods$", delay(0.5))
    server, extender = ApiServer(Store(), wrap=faulty(plan)), HttpServer("127.0.0.1", 0, no_books)
    server.start()
    extender.start()
    api = ApiClient(server.url, user_agent="test")
    inspect = HttpClient("http://{}:{}".format(*extender.server_address[:2]))
    report = Report(io.StringIO(), colours=False)
    board = Board(api, report.on_pod)
    board.start()
    try:
        assert Runner(api, inspect, board, report).run(load_scenario(file))
        assert board.pods().keys() == {"a-1", "a-2"}
    finally:
        board.stop()
        api.close()
        inspect.close()
        extender.stop()
        server.stop()
