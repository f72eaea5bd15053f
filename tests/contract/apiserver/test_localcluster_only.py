"""Behaviour of the local server alone: faults, logs, compaction, the end, stricter checks."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import yaml

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from tests.contract.apiserver.client import STRATEGIC, Api, Json
from tests.contract.apiserver.conftest import binding, config_map, pod
from tests.support.faults import (
    Fault,
    FaultPlan,
    Refusal,
    apply_late,
    cut_watch,
    delay,
    drop_after,
    drop_before,
    faulty,
    status,
)
from tests.support.waiting import poll

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
LOST = (http.client.RemoteDisconnected, ConnectionResetError)


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest.fixture
def local(plan: FaultPlan) -> Iterator[ApiServer]:
    server = ApiServer(Store(), wrap=faulty(plan), bookmark_every=0.1)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def api(local: ApiServer) -> Api:
    return Api(local.url)


def test_a_request_dropped_before_has_not_acted(api: Api, plan: FaultPlan) -> None:
    plan.on("POST", "configmaps", drop_before())
    with pytest.raises(LOST):
        api.create(MAPS, config_map("a"))
    assert api.get(f"{MAPS}/a").status == 404


def test_a_request_dropped_after_has_acted(api: Api, plan: FaultPlan) -> None:
    plan.on("POST", "configmaps", drop_after())
    with pytest.raises(LOST):
        api.create(MAPS, config_map("a"))
    assert api.get(f"{MAPS}/a").status == 200


def test_a_refusal_says_when_to_come_back(api: Api, plan: FaultPlan) -> None:
    plan.on("POST", "configmaps", status(429, "TooManyRequests", retry_after=1))
    reply = api.call("POST", MAPS, config_map("a"))
    assert (reply.status, reply.body["reason"]) == (429, "TooManyRequests")
    assert reply.headers["Retry-After"] == "1"
    assert api.get(f"{MAPS}/a").status == 404


def test_a_delay_delays(api: Api, plan: FaultPlan) -> None:
    plan.on("GET", "version", delay(0.2))
    start = time.monotonic()
    assert api.get("/version").status == 200
    assert time.monotonic() - start >= 0.2


def test_a_delayed_request_ends_with_the_server_and_has_not_acted() -> None:
    plan = FaultPlan()
    plan.on("POST", "configmaps", delay(3600))
    server = ApiServer(Store(), wrap=faulty(plan))
    server.start()
    lost: list[bool] = []

    def create() -> None:
        with pytest.raises(LOST):
            Api(server.url).create(MAPS, config_map("a"))
        lost.append(True)

    caller = threading.Thread(target=create)
    caller.start()
    poll(lambda: len(server.requests) == 1)
    server.stop()
    caller.join()
    assert lost
    assert server.store.records("configmaps")[0] == []


def test_a_late_request_acts_after_the_client_has_given_up(api: Api, plan: FaultPlan) -> None:
    plan.on("POST", "configmaps", apply_late(2.0))
    with pytest.raises(LOST):
        api.create(MAPS, config_map("a"))
    assert api.get(f"{MAPS}/a").status == 404
    poll(lambda: api.get(f"{MAPS}/a").status == 200)


def test_a_late_request_may_be_answered_with_a_timeout(api: Api, plan: FaultPlan) -> None:
    plan.on("POST", "configmaps", apply_late(0.1, answer=Refusal(504, "Timeout")))
    assert api.call("POST", MAPS, config_map("a")).status == 504
    poll(lambda: api.get(f"{MAPS}/a").status == 200)


def test_a_watch_is_cut_in_mid_stream(api: Api, plan: FaultPlan) -> None:
    for name in ("a", "b", "c"):
        api.create(MAPS, config_map(name))
    plan.on("GET", "configmaps", cut_watch(2))
    with api.watch(MAPS) as stream:
        stream.take(2)
        with pytest.raises(http.client.IncompleteRead):
            stream.response.read()


def test_faults_combine() -> None:
    assert delay(1) | drop_after() == Fault(delay=1, drop="after")
    assert (delay(1) | status(500)) | delay(2) == Fault(delay=2, refuse=Refusal(500))


def test_a_rule_is_used_as_often_as_it_says(api: Api, plan: FaultPlan) -> None:
    plan.on("GET", "version", status(503), times=2)
    assert [api.get("/version").status for _ in range(3)] == [503, 503, 200]


def test_requests_are_recorded(api: Api, local: ApiServer) -> None:
    api.get(MAPS, limit=1)
    api.call("PUT", f"{MAPS}/a", config_map("a"))
    assert list(local.requests) == [("GET", MAPS), ("PUT", f"{MAPS}/a")]


def test_the_kubeconfig_leads_to_the_server(local: ApiServer) -> None:
    config = yaml.safe_load(local.kubeconfig())
    assert config["clusters"][0]["cluster"]["server"] == local.url
    assert config["users"] == []


def gone(api: Api, version: str) -> bool:
    """Whether a watch from there is an ERROR in a stream, which then ends.

    Kube-apiserver has no status of its own for it: "other errors must fail with a watch event of
    type ERROR" (k8s.io/apiserver pkg/storage/cacher).
    """
    with api.watch(MAPS, resourceVersion=version) as stream:
        event = stream.next()
        text = event["type"], event["object"]["code"], event["object"]["reason"]
        return text == ("ERROR", 410, "Expired") and stream.ended()


def test_a_watch_from_a_compacted_version_is_gone(api: Api, local: ApiServer) -> None:
    old = api.create(MAPS, config_map("a")).version
    now = api.create(MAPS, config_map("b")).version
    local.store.compact()
    assert gone(api, old)
    with api.watch(MAPS, resourceVersion=now) as stream:
        api.create(MAPS, config_map("c"))
        assert stream.take(1) == [("ADDED", "c")]


def test_a_watch_that_falls_behind_ends_with_an_error_event() -> None:
    store = Store(history=2)
    server = ApiServer(store)
    server.start()
    try:
        api = Api(server.url)
        body = api.create(MAPS, config_map("a")).body
        with api.watch(MAPS, resourceVersion=body["metadata"]["resourceVersion"]) as stream:
            # More changes in one go than the history keeps: no watch can have seen the first.
            store.update(
                "configmaps", "default", "a", lambda current: _many_changes(store, current)
            )
            event = stream.next()
            while event["type"] != "ERROR":
                event = stream.next()
            assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
            assert stream.ended()
    finally:
        server.stop()


def _many_changes(store: Store, current: Json) -> Json:
    for x in range(5):
        store.create("configmaps", {"metadata": {"name": f"x{x}", "namespace": "default"}})
    return current


def test_a_page_of_a_compacted_list_is_gone(api: Api, local: ApiServer) -> None:
    for name in ("a", "b"):
        api.create(MAPS, config_map(name))
    token = api.get(MAPS, limit=1).meta["continue"]
    api.create(MAPS, config_map("c"))
    local.store.compact()
    assert api.get(MAPS, **{"limit": 1, "continue": token}).status == 410


def test_a_watch_of_a_version_from_another_life_is_gone(api: Api) -> None:
    """A restarted demo starts at version one again; clients must list, not wait."""
    assert gone(api, "999999")
    assert api.get(MAPS, resourceVersion="999999").status == 504


def test_bookmarks_come_to_those_who_ask(api: Api) -> None:
    version = api.create(MAPS, config_map("a")).version
    with api.watch(MAPS, resourceVersion=version, allowWatchBookmarks="true") as stream:
        mark = stream.next()
    assert mark["type"] == "BOOKMARK"
    assert int(mark["object"]["metadata"]["resourceVersion"]) >= int(version)


def test_a_namespace_takes_its_contents_with_it(api: Api) -> None:
    """On a real cluster a controller does this."""
    api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    api.create("/api/v1/namespaces/team/configmaps", config_map("a"))
    assert api.delete("/api/v1/namespaces/team").status == 200
    assert api.get("/api/v1/namespaces/team/configmaps/a").status == 404
    assert api.delete("/api/v1/namespaces/default").status == 403


def test_one_connection_serves_many_requests(local: ApiServer) -> None:
    host = local.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        sockets = set()
        for method, body in (("GET", None), ("POST", b"{"), ("GET", None)):
            connection.request(method, MAPS, body, {"Content-Type": "application/json"})
            connection.getresponse().read()
            sockets.add(id(connection.sock))
        assert len(sockets) == 1
    finally:
        connection.close()


def connections() -> int:
    return sum(1 for thread in threading.enumerate() if thread.name == "apiserver-connection")


def test_a_watch_notices_that_its_client_has_gone(api: Api) -> None:
    version = api.create(MAPS, config_map("a")).version
    with api.watch(MAPS, resourceVersion=version):
        assert connections() >= 1
    poll(lambda: connections() == 0)


def test_a_hundred_watches_see_every_event_and_end_with_the_server() -> None:
    server = ApiServer(Store())
    server.start()
    api = Api(server.url)
    version = server.store.version
    ready, full = threading.Semaphore(0), threading.Semaphore(0)
    ended: list[bool] = []

    def watch() -> None:
        with api.watch(MAPS, resourceVersion=version) as stream:
            ready.release()
            stream.take(3)
            full.release()
            ended.append(stream.ended())

    watchers = [threading.Thread(target=watch) for _ in range(100)]
    for watcher in watchers:
        watcher.start()
    assert all(ready.acquire(timeout=30) for _ in watchers)
    for name in ("a", "b", "c"):
        api.create(MAPS, config_map(name))
    assert all(full.acquire(timeout=30) for _ in watchers)
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 30
    for watcher in watchers:
        watcher.join()
    assert ended == [True] * 100
    assert connections() == 0


def start_pod(api: Api, name: str = "p") -> str:
    created = api.create(PODS, pod(name))
    api.create(f"{PODS}/{name}/binding", binding(name, "n"))
    api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}}, STRATEGIC)
    return str(created.meta["uid"])


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_what_a_container_printed_can_be_read(api: Api, local: ApiServer) -> None:
    uid = start_pod(api)
    local.logs.write(uid, "main", "one\ntwo\nthree\n", NOON)
    path = f"{PODS}/p/log"

    def text(**query: object) -> str:
        reply = api.get(path, **query)
        assert reply.headers["Content-Type"].startswith("text/plain")
        return str(reply.body["text"])

    assert text() == "one\ntwo\nthree\n"
    assert text(container="main", tailLines=1) == "three\n"
    assert text(tailLines=0) == ""
    assert text(timestamps="true", tailLines=1) == "2026-01-01T12:00:00Z three\n"
    local.logs.forget(uid)
    assert text() == ""


def test_a_log_is_refused_where_there_can_be_none(api: Api) -> None:
    assert api.get(f"{PODS}/p/log").status == 404
    api.create(PODS, pod())
    assert "waiting to start" in api.get(f"{PODS}/p/log").body["message"]
    assert api.get(f"{PODS}/p/log", container="other").status == 400


def test_a_body_of_another_coding_is_refused_not_misread(local: ApiServer) -> None:
    host = local.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.putrequest("POST", MAPS)
        connection.putheader("Transfer-Encoding", "gzip, chunked")
        connection.endheaders()
        assert connection.getresponse().status == 411
    finally:
        connection.close()


def test_what_the_store_holds_is_what_was_sent(api: Api, local: ApiServer) -> None:
    data: Json = {"x": "é 😀 \u0000 \\"}
    api.create(MAPS, config_map("a", **data))
    assert json.loads(local.store.get("configmaps", "default", "a").encoded())["data"] == data


def test_what_a_real_server_takes_for_an_empty_text_is_refused(api: Api) -> None:
    body = {"metadata": {"name": "a", "annotations": {"x": None}}}
    assert api.call("POST", MAPS, body).status == 400


def test_a_watch_from_a_version_that_is_no_number_is_a_bad_request(api: Api) -> None:
    assert api.get(MAPS, watch="1", resourceVersion="x").status == 400
