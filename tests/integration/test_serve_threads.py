"""The threads that `serve` starts beside gunicorn's: each is there, goes on, and is watched."""

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, inventory
from tests.integration.hasty import STUCK
from tests.integration.process import Extender
from tests.integration.verbs import filter_args
from tests.support.waiting import poll

Start = Callable[..., Extender]


@pytest.fixture
def hasty(tmp_path: Path, cluster: Cluster) -> Iterator[Start]:
    """Starts the program in a hurry, by the fate of settling and flags; yields when it is ready."""
    started: list[Extender] = []

    def start(fate: str, *flags: str) -> Extender:
        words = ("tests.integration.hasty", fate)
        flags = ("--leadership", "off", *flags)
        extender = Extender(tmp_path, cluster.kubeconfig(tmp_path), *flags, program=words)
        started.append(extender)
        extender.wait_ready()
        return extender

    yield start
    for extender in started:
        extender.kill()


def audits_twice(extender: Extender) -> None:
    """Wait until the process has begun and ended an audit."""
    figure_result = extender.figure("audits_total")
    poll(lambda: extender.figure("audits_total") >= figure_result + 2, "it audits over and over")


def test_audits_are_made_in_the_unit_of_the_settings(hasty: Start, cluster: Cluster) -> None:
    extender = hasty("well", "--unit", "MiB")
    node = cluster.node(total=32, annotations=inventory(16, 16, unit="MiB"))
    extender.knows(node)
    assert extender.bind(cluster.pod(10), node) == ""
    for turn in range(3):  # a difference counts once the watch has come past the first list
        cluster.annotate_node(node, "turn", str(turn))
        audits_twice(extender)
    assert extender.figure("audit_findings_total") == 0
    assert extender.used(node) == [10, 0]


def test_settling_goes_on_after_a_failure(hasty: Start) -> None:
    extender = hasty("fails")
    poll(lambda: extender.log.count("settling failed") > STUCK, "it fails over and over")
    alive = b"[+]settling ok"  # on a busy machine a turn may come late
    poll(lambda: alive in extender.probe("/livez?verbose").body, lambda: extender.log)


def test_settling_that_does_not_turn_ends_the_liveness(hasty: Start) -> None:
    extender = hasty("hangs")
    poll(lambda: extender.probe("/livez").status == 503, "it is not alive")
    assert b"[-]settling its thread is stuck" in extender.probe("/livez?verbose").body


def test_a_verb_that_never_ends_ends_the_liveness(hasty: Start, cluster: Cluster) -> None:
    extender = hasty("prioritize hangs")
    node, pod = cluster.node(), cluster.pod(1)
    extender.knows(node)
    body = json.dumps(filter_args(pod, [node])).encode()
    threading.Thread(target=lambda: hang_up(extender, body), daemon=True).start()
    poll(lambda: extender.probe("/livez").status == 503, "it is not alive")
    assert b"[-]verbs requests without an answer" in extender.probe("/livez?verbose").body
    assert extender.fit(pod, [node]) == [node]


def hang_up(extender: Extender, body: bytes) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        extender.post("prioritize", body)


def test_a_client_that_keeps_its_thread_busy_is_no_request_that_hangs(
    hasty: Start, cluster: Cluster
) -> None:
    extender = hasty("well")
    node, pod = cluster.node(), cluster.pod(1)
    extender.knows(node)
    audits = extender.figure("audits_total")
    while extender.figure("audits_total") < audits + 6 * STUCK:  # each after a fifth of a second
        for _ in range(20):
            assert extender.fit(pod, [node]) == [node]
        assert extender.probe("/livez").status == 200
