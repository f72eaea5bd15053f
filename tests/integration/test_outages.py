"""Processes that end, start or wait: the extender's and the API server's.

Real extender processes, each for its test alone.
"""

import signal
import time

import pytest

from tests.integration.cluster import LEASES, MARK, Cluster
from tests.integration.conftest import StartExtender
from tests.support import faults
from tests.support.waiting import PATIENCE, poll

_FOR_GUNICORN = (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR2)

DOWN = faults.status(503, "ServiceUnavailable")


@pytest.mark.parametrize("answer", [DOWN, faults.status(403, "Forbidden")], ids=["503", "403"])
def test_it_answers_nothing_before_its_books_are_filled(
    start_extender: StartExtender, cluster: Cluster, answer: faults.Fault
) -> None:
    node = cluster.node()
    running = cluster.pod(10, spec={"nodeName": node}, annotations={f"{MARK}IDX": "0"})
    pod = cluster.pod(10)
    cluster.hook = lambda request: answer if request.path == "/api/v1/pods" else None
    extender = start_extender()
    extender.wait_answering()
    poll(lambda: extender.probe("/readyz").body.count(b"[-]") == 1, "only the pods are missing")
    assert b"[-]pods pods are not listed yet" in extender.probe("/readyz").body
    filter_result = extender.filter(pod, [node])
    assert filter_result["Error"] == "gpushare is not ready: pods are not listed yet"
    assert filter_result["NodeNames"] in (None, [])
    assert extender.bind(pod, node) == "gpushare is not ready: pods are not listed yet"
    assert extender.inspect_reply().status == 503
    assert extender.post("prioritize", b'{"Pod":{},"NodeNames":[]}').status == 503
    assert cluster.bindings() == []
    cluster.hook = None
    extender.wait_ready()
    assert extender.bind(pod, node) == ""
    assert extender.used(node) == [10, 10]
    cluster.delete_pod(running)
    extender.agrees(cluster)


def test_it_waits_for_an_api_server_that_is_away(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    node = cluster.node()
    cluster.stop()
    extender = start_extender()
    extender.wait_answering()
    cluster.restart()
    extender.wait_ready()
    assert extender.bind(cluster.pod(4), node) == ""


def test_killed_and_started_anew_it_has_the_same_books(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    extender = start_extender()
    extender.wait_ready()
    nodes = [cluster.node(), cluster.node(devices=4, total=64)]
    extender.knows(*nodes)
    pods = [cluster.pod(units) for units in (3, 5, 16, 7)]
    split = cluster.pod(8, 24, annotations={"aliyun.com/gpu-count": "2"})
    for pod, node in zip([*pods, split], [*nodes, *nodes, nodes[1]], strict=True):
        assert extender.bind(pod, node) == ""
    cluster.faults.on("POST", "/binding$", faults.apply_late(2.5))
    late = cluster.pod(2)
    assert extender.bind(late, nodes[0]) != ""  # killed while the outcome is not known
    before = extender.inspect()
    extender.kill()
    extender = start_extender()
    extender.wait_ready()
    poll(lambda: extender.inspect() == before, "the books are the same")
    extender.agrees(cluster)
    assert extender.bind(late, nodes[0]) == ""
    assert extender.bind(pods[0], nodes[0]) == ""
    assert extender.inspect() == before


def test_it_outlives_the_api_server(start_extender: StartExtender, cluster: Cluster) -> None:
    extender = start_extender()
    extender.wait_ready()
    node = cluster.node(devices=1, total=16)
    extender.knows(node)
    bound_pod, pod, other_pod = cluster.pod(4), cluster.pod(6), cluster.pod(2)
    assert extender.bind(bound_pod, node) == ""
    assert extender.fit(pod, [node]) == [node]
    extender.agrees(cluster)
    cluster.stop()
    begin = time.monotonic()
    assert "Connection refused" in extender.bind(pod, node)
    assert "cannot be read" in extender.bind(other_pod, node)
    assert time.monotonic() - begin < 20, "it has waited for the API server to come back"
    assert extender.fit(cluster.pod(6), [node]) == [node]  # from the books
    # A Binding that was never sent holds nothing; a fresh offer is kept for a moment.
    large = cluster.pod(12)
    poll(lambda: extender.fit(large, [node]) == [node], lambda: extender.log)
    assert extender.ready()
    cluster.delete_pod(bound_pod)
    newer = cluster.node()
    cluster.restart()
    extender.knows(newer)
    assert extender.bind(pod, node) == ""
    assert extender.bind(other_pod, newer) == ""
    extender.agrees(cluster)


def test_asked_to_end_it_finishes_the_binds_under_way(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    extender = start_extender()
    extender.wait_ready()
    node = cluster.node()
    extender.knows(node)
    pod = cluster.pod(4)
    cluster.faults.on("POST", "/binding$", faults.delay(1.0))
    answer = extender.bind_later(pod, node)
    poll(lambda: cluster.bindings() != [], "the Binding is on its way")
    extender.signal(signal.SIGTERM)
    assert answer.result(PATIENCE) == ""
    assert cluster.node_of(pod) == node
    poll(extender.ended, "the process has ended")


def test_asked_to_end_it_keeps_its_lease_while_a_binding_may_still_land(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    """The new holder of a Lease that was given away does not wait for late writes."""
    cluster.release_lease()
    node = cluster.node()
    extender = start_extender(leadership="lease")
    extender.wait_ready()
    cluster.faults.on("POST", "/binding$", faults.drop_before())
    assert "reads as not bound so far" in extender.bind(cluster.pod(4), node)
    extender.signal(signal.SIGTERM)
    poll(extender.ended, "the process has ended")
    assert cluster.all(LEASES)[0]["spec"]["holderIdentity"] != ""


def test_what_is_in_doubt_is_read_again_without_anybody_asking(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    node, pod = cluster.node(), cluster.pod(4)
    extender = start_extender()
    extender.wait_ready()
    extender.fit(pod, [node])
    cluster.faults.on("POST", "/binding$", faults.status(409, "Conflict"))
    cluster.faults.on("GET", f"/pods/{pod['metadata']['name']}$", DOWN)
    assert "409" in extender.bind(pod, node)
    poll(lambda: extender.used(node) == [0, 0], "what was refused is given back")


def test_binds_that_wait_for_the_api_server_leave_threads_to_filter(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    node = cluster.node()
    extender = start_extender("--threads", "17")  # 16 are kept from binds
    extender.wait_ready()
    extender.knows(node)
    cluster.faults.on("POST", "/binding$", faults.delay(1.0))
    answer = extender.bind_later(cluster.pod(4), node)
    poll(lambda: cluster.bindings() != [], "the Binding is on its way")
    assert "too many binds are under way" in extender.bind(cluster.pod(4), node)
    assert extender.fit(cluster.pod(4), [node]) == [node]
    assert answer.result(PATIENCE) == ""


def test_a_scheduler_faster_than_binds_waits_in_filter_and_none_of_its_binds_is_refused(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    node = cluster.node(total=64)
    extender = start_extender("--threads", "24", "--pairing", "off")  # 8 binds at once
    extender.wait_ready()
    extender.knows(node)
    cluster.faults.on("POST", "/binding$", faults.delay(0.05), times=40)
    answers = []
    for _ in range(40):
        pod = cluster.pod(1)
        assert extender.fit(pod, [node]) == [node]
        answers.append(extender.bind_later(pod, node))
    assert [answer.result(PATIENCE) for answer in answers] == [""] * 40
    extender.agrees(cluster)


@pytest.mark.parametrize("number", _FOR_GUNICORN)
def test_nothing_starts_a_second_worker_or_ends_the_one_there_is(
    start_extender: StartExtender,
    cluster: Cluster,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gunicorn's own reload runs two workers for seconds: each would bind by books of its own."""
    monkeypatch.setenv("WEB_CONCURRENCY", "2")  # gunicorn's own default of how many there are
    node = cluster.node()
    extender = start_extender()
    extender.wait_ready()
    before = extender.children()
    assert len(before) == 1
    extender.signal(number)
    assert extender.bind(cluster.pod(4), node) == ""
    time.sleep(1.5)  # gunicorn's master looks once a second
    assert extender.children() == before
    assert extender.used(node) == [4, 0]
