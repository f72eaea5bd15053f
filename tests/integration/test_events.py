"""Events of the real process: they are written, and a bind never waits for one."""

import json
import re
import time
from contextlib import suppress

import pytest

from gpushare_localcluster.client import HttpClient
from tests.integration.cluster import COUNT, Cluster, Json
from tests.integration.conftest import StartExtender, World
from tests.support.faults import Fault, FaultRequest, delay, status
from tests.support.waiting import PATIENCE, poll

_EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"


def events(cluster: Cluster, reason: str, about: str, namespace: str = "default") -> list[Json]:
    """The events of that reason about the object of that name, as a client gets them."""
    http = HttpClient(cluster.server.url)
    try:
        body = http.call("GET", _EVENTS.format(namespace), timeout=PATIENCE).body
    finally:
        http.close()
    document = json.loads(body)["items"]
    key = (reason, about)
    return [item for item in document if (item["reason"], item["regarding"]["name"]) == key]


def test_after_a_bind_the_pod_has_an_event_with_its_device(world: World) -> None:
    cluster, node = world.cluster, world.cluster.node()
    world.extender.knows(node)
    pod = cluster.pod(4)
    name = pod["metadata"]["name"]
    assert world.extender.bind(pod, node) == ""
    poll(lambda: bool(events(cluster, "GPUShareAllocated", name)), "the event is written")
    (event,) = events(cluster, "GPUShareAllocated", name)
    assert event["regarding"]["uid"] == pod["metadata"]["uid"]
    assert event["note"] == f"node {node}: 4 GiB on device 0"
    assert event["reportingController"] == "gpushare-extender"
    assert event["type"] == "Normal"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["eventTime"])


def test_a_device_that_is_closed_is_an_event_of_its_node(world: World) -> None:
    cluster, node = world.cluster, world.cluster.node()
    world.extender.knows(node)

    def told() -> list[Json]:
        return events(cluster, "GPUShareDeviceUnhealthy", node)

    for pause in (2.5, 5.0, 10.0):
        # The books are looked at once a second, and one look has to see the device open.
        cluster.unhealthy(node, "")
        poll_for(pause)
        cluster.unhealthy(node, "1")
        with suppress(AssertionError):
            poll(told, "the node has an event", pause)
            break
    assert "device 1" in told()[0]["note"]


@pytest.mark.parametrize(
    ("amount", "count", "words"),
    [
        ("5Gi", "1", "write 5"),
        ("8192", "1", "write 8"),
        ("10", "3", "write 9 or 12, or another count"),
    ],
)
def test_a_pod_that_nobody_asks_about_for_its_mistake_is_told_what_to_write(
    world: World, amount: str, count: str, words: str
) -> None:
    world.extender.knows(world.cluster.node())
    pod = world.cluster.pod(amount, annotations={COUNT: count})
    name = pod["metadata"]["name"]
    poll(lambda: bool(events(world.cluster, "GPUShareMistake", name)), "the event is written")
    (event,) = events(world.cluster, "GPUShareMistake", name)
    assert event["note"].endswith(words)
    assert event["type"] == "Warning"


def poll_for(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    poll(lambda: time.monotonic() > deadline, "time passes")


@pytest.mark.parametrize(
    ("fault", "lost"), [(status(403, "Forbidden"), 3), (status(500), 1), (delay(6.0), 0)]
)
def test_an_api_server_that_refuses_or_delays_events_delays_no_bind(
    cluster: Cluster, start_extender: StartExtender, fault: Fault, lost: int
) -> None:
    def on_events(request: FaultRequest) -> Fault | None:
        return fault if "/events" in request.path else None

    node = cluster.node(devices=1, total=32)
    extender = start_extender()
    extender.wait_ready()
    cluster.hook = on_events
    pods = [cluster.pod(1) for _ in range(8)]
    begin = time.monotonic()
    assert [extender.bind(pod, node) for pod in pods] == [""] * len(pods)
    assert time.monotonic() - begin < 8 * 4.0, "each bind has waited for an event"
    poll(lambda: dropped(extender.probe("/metrics").body.decode()) >= lost, "they are counted")
    assert extender.ready()
    off = 1 if lost == 3 else 0
    poll(lambda: extender.log.count("events are off") == off, lambda: extender.log)


def dropped(metrics: str) -> float:
    match = re.search(r"^gpushare_events_dropped_total (\S+)$", metrics, re.MULTILINE)
    return float(match[1]) if match else 0.0


def test_events_may_be_switched_off(cluster: Cluster, start_extender: StartExtender) -> None:
    node = cluster.node()
    extender = start_extender("--no-events", "--log-format", "json")
    extender.wait_ready()
    assert extender.bind(cluster.pod(1), node) == ""
    poll_for(1.0)
    assert not [path for _, path in list(cluster.server.requests) if "/events" in path]

    def outcomes() -> list[str]:
        whole = extender.log.rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line["outcome"] for line in lines if line["message"] == "bind"]

    poll(lambda: outcomes() == ["bound"], lambda: extender.log)
