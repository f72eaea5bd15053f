"""Watches that are cut, torn, refused and outlived: the books come right by themselves.

The extender's own objects against a true API server. `make_wired` checks at the end of each test
that the books are as the API server's objects say.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.kube.listwatch import Timing
from tests.integration.cluster import MARK, MEM, NODES, PODS, Cluster, Json
from tests.integration.conftest import MakeWired
from tests.integration.torn import TornRelay
from tests.integration.wired import QUICK, Wired
from tests.support import faults
from tests.support.faults import Fault, FaultRequest
from tests.support.waiting import poll

DOWN = faults.status(503, "ServiceUnavailable")


def on_watch(path: str, fault: Fault) -> Callable[[FaultRequest], Fault | None]:
    """A hook that gives the fault to each watch of the path."""

    def hook(request: FaultRequest) -> Fault | None:
        return fault if request.path == path and "watch" in request.query else None

    return hook


PODS_PATH = "/api/v1/pods"


def running(cluster: Cluster, node: str, units: int = 4, name: str = "") -> Json:
    """A pod that is bound already, and says where."""
    notes = {f"{MARK}IDX": "0"}
    return cluster.pod(units, name=name, annotations=notes, spec={"nodeName": node})


@pytest.mark.parametrize("events", [1, 2, 5])
def test_watches_that_are_cut_miss_nothing(
    make_wired: MakeWired, cluster: Cluster, events: int
) -> None:
    cluster.hook = lambda request: faults.cut_watch(events) if "watch" in request.query else None
    wired = make_wired()
    wired.start()
    node = cluster.node(devices=1, total=64)
    pods = [running(cluster, node, units) for units in range(1, 9)]
    for pod in pods[::2]:
        cluster.delete_pod(pod)
    wired.agrees(cluster)
    assert wired.pods.status.relists == 1


def test_a_line_torn_in_the_middle_is_asked_for_again(
    make_wired: MakeWired, cluster: Cluster, relay: TornRelay, tmp_path: Path
) -> None:
    wired = make_wired(kubeconfig=relay.kubeconfig(tmp_path, cluster.kubeconfig(tmp_path)))
    wired.start()
    node = cluster.node(devices=1, total=64)
    wired.knows(node)
    for number in range(1, 4):
        relay.tear()
        running(cluster, node, number)
        poll(relay.has_torn, "a line was torn")
        wired.agrees(cluster)
    assert wired.ledger.counts()["unplaced"] == 0


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[TornRelay]:
    between = TornRelay(cluster.port)
    yield between
    between.stop()


@pytest.mark.parametrize("fault", [faults.drop_before(), DOWN], ids=["closed", "503"])
def test_watches_closed_at_once_are_not_asked_for_in_a_hot_loop(
    make_wired: MakeWired, cluster: Cluster, fault: Fault
) -> None:
    cluster.hook = on_watch(PODS_PATH, fault)
    wired = make_wired(Timing())
    wired.start()
    node = cluster.node()
    running(cluster, node)
    count_result = cluster.server.requests.count(("GET", PODS_PATH))
    begin = time.monotonic()
    poll(lambda: time.monotonic() > begin + 1.5, "a while has passed")
    assert 1 <= cluster.server.requests.count(("GET", PODS_PATH)) - count_result <= 8
    assert wired.used(node) == [0, 0]
    cluster.hook = None
    wired.agrees(cluster)


def test_a_version_that_is_gone_is_listed_anew(make_wired: MakeWired, cluster: Cluster) -> None:
    answers = iter([faults.cut_watch(1), faults.status(410, "Expired")])

    def hook(request: FaultRequest) -> Fault | None:
        watched = request.path == PODS_PATH and "watch" in request.query
        return next(answers, None) if watched else None

    cluster.hook = hook
    wired = make_wired()
    wired.start()
    node = cluster.node()
    running(cluster, node)
    poll(lambda: wired.pods.status.relists == 2, "the pods were listed anew")
    running(cluster, node)
    wired.agrees(cluster)


def test_an_error_event_of_410_is_listed_anew(wired: Wired, cluster: Cluster) -> None:
    wired.knows(cluster.node())

    def told() -> bool:
        # The version moves on past the watch of pods, and the way there is forgotten, before the
        # watch has looked: on a busy machine not at the first try.
        cluster.node()
        cluster.store.compact()
        time.sleep(0.5)
        return wired.pods.status.restarts["gone"] >= 1

    poll(told, "the watch was told so")
    node = cluster.node()
    wired.knows(node)
    running(cluster, node)
    wired.agrees(cluster)
    assert wired.readiness.not_ready() == ""


def test_what_vanished_while_nobody_watched_is_given_back(
    make_wired: MakeWired, cluster: Cluster
) -> None:
    node, other_node, lost = cluster.node(), cluster.node(), cluster.node()
    deleted, moves, stays = (running(cluster, node) for _ in range(3))
    wired = make_wired()
    cluster.hook = lambda request: faults.cut_watch(1) if "watch" in request.query else None
    wired.start()
    wired.agrees(cluster)
    cluster.hook = lambda _: DOWN
    running(cluster, lost)  # ends the watch of pods, by its one event
    poll(lambda: wired.pods.status.restarts["http-503"] >= 1, "nobody watches")
    for pod in (deleted, moves):
        cluster.delete_pod(pod)
    running(cluster, other_node, 5, name=moves["metadata"]["name"])
    cluster.set_phase(stays, "Succeeded")
    cluster.delete(NODES, "", lost)
    cluster.store.compact()
    assert wired.used(node) == [12, 0]
    cluster.hook = None
    wired.agrees(cluster)
    assert (wired.used(node), wired.used(other_node)) == ([0, 0], [5, 0])


def test_a_list_that_is_older_than_a_bind_does_not_drop_it(
    make_wired: MakeWired, cluster: Cluster
) -> None:
    """All pages of a list are of the version of the first page: a pod made meanwhile is missing."""
    second_page: list[FaultRequest] = []

    def hook(request: FaultRequest) -> Fault | None:
        if "continue" in request.query:
            second_page.append(request)
            return faults.delay(0.5)
        return DOWN if request.path == PODS_PATH and "watch" in request.query else None

    node = cluster.node()
    for _ in range(2):
        running(cluster, node)
    wired = make_wired(replace(QUICK, page_limit=1))
    wired.start()
    wired.agrees(cluster)
    cluster.hook = hook
    wired.pods.request_relist()
    poll(lambda: second_page != [], "the second page is asked for")
    pod = cluster.pod(5)
    assert wired.bind(pod, node) == ""
    refusals = wired.pods.status.restarts["http-503"]
    poll(lambda: wired.pods.status.restarts["http-503"] > refusals, "the list was taken over")
    assert wired.pods.status.relists == 2
    assert sum(wired.used(node)) == 13


def test_lists_while_pods_are_bound_lose_none(wired: Wired, cluster: Cluster) -> None:
    node = cluster.node()
    wired.knows(node)
    for number in range(1, 9):
        wired.pods.request_relist()
        assert wired.bind(cluster.pod(3), node) == ""
        assert sum(wired.used(node)) == 3 * number
    wired.agrees(cluster)


def spoil(cluster: Cluster, pod: Json) -> None:
    """Make the pod one that no API server would have taken, and nobody can read."""
    limits = {"limits": {MEM: "lots"}}

    def change(body: Json) -> Json:
        return {**body, "spec": {**body["spec"], "containers": [{"resources": limits}]}}

    cluster.change(PODS, "default", pod["metadata"]["name"], change)


def test_an_object_that_makes_no_sense_blocks_no_other(wired: Wired, cluster: Cluster) -> None:
    node = cluster.node()
    wired.knows(node)
    odd, plain = running(cluster, node, 4), running(cluster, node, 3)
    wired.agrees(cluster)
    spoil(cluster, odd)
    cluster.delete_pod(plain)
    poll(lambda: wired.used(node) == [4, 0], "the other is gone, the odd one kept as it was")
    cluster.delete_pod(odd)


def test_a_list_with_an_odd_pod_keeps_what_it_holds(wired: Wired, cluster: Cluster) -> None:
    node = cluster.node()
    wired.knows(node)
    odd = running(cluster, node, 4)
    wired.agrees(cluster)
    spoil(cluster, odd)
    lists = wired.pods.status.relists
    wired.pods.request_relist()
    poll(lambda: wired.pods.status.relists > lists, "the pods were listed anew")
    plain = running(cluster, node, 3)
    poll(lambda: wired.used(node)[0] in (3, 7), "the list was taken over")
    used = wired.used(node)
    cluster.delete_pod(odd)
    cluster.delete_pod(plain)
    assert used == [7, 0]


def test_a_placement_edited_after_the_bind_moves_nothing(wired: Wired, cluster: Cluster) -> None:
    node = cluster.node()
    wired.knows(node)
    pod = cluster.pod(4)
    assert wired.bind(pod, node) == ""
    wired.agrees(cluster)
    notes = {f"{MARK}IDX": "1", "scheduler.framework.gpushare.allocation": ""}
    cluster.annotate_pod(pod, notes)
    poll(lambda: wired.ledger.counts()["placement_edited"] == 1, "the alarm is raised")
    assert wired.used(node) == [4, 0]
    cluster.delete_pod(pod)


def test_books_out_of_date_answer_nothing(wired: Wired, cluster: Cluster) -> None:
    node = cluster.node()
    wired.knows(node)
    pod = cluster.pod(4)
    wired.lag = 151.0  # as if the API server had been silent so long
    assert wired.filter(pod, [node])["Error"] != ""
    assert "no word from the API server" in wired.bind(pod, node)
    assert wired.inspect_reply(node).status == 503
    assert cluster.bindings() == []
    wired.lag = 0.0
    assert wired.bind(pod, node) == ""
