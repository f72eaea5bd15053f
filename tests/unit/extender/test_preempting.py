"""The preempt verb: of the victims proposed, those that really make room on a device."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.core.model import Allocation, Request
from gpushare.errors import MessageError, NotReady
from gpushare.extender.app import Routes, build_app
from gpushare.wire.annotations import ALIYUN, encode
from gpushare.wire.pods import observe_pod
from tests.unit.extender.desk import Desk
from tests.unit.extender.kit import pod_json, read_pod


@pytest.fixture
def desk() -> Iterator[Desk]:
    """`small` has 8 units on each of two devices, 6 of them held on either."""
    made = Desk()
    for device in (0, 1):
        asks = Request(6, 1, containers=((0, 6),))
        held = encode(Allocation("small", (device,), (6,)), asks, 8, 1, ALIYUN)
        pod = pod_json(f"held-{device}", 6, node="small", annotations=held)
        made.ledger.pod_changed(observe_pod(read_pod(pod), ALIYUN))
    yield made
    made.ledger.check()


def asking(pod: dict[str, Any], **victims: list[str]) -> bytes:
    nodes = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
        for node, uids in victims.items()
    }
    return json.dumps({"Pod": pod, "NodeNameToMetaVictims": nodes}).encode()


def preempt(desk: Desk, body: bytes) -> dict[str, list[str]]:
    answer = json.loads(desk.service.preempt(body))["NodeNameToMetaVictims"]
    return {node: [pod["UID"] for pod in found["Pods"]] for node, found in answer.items()}


IMPORTANT = pod_json("web", 5)
IMPORTANT["spec"]["priority"] = 100


def test_a_node_stays_with_the_victims_that_make_room(desk: Desk) -> None:
    one = preempt(desk, asking(IMPORTANT, small=["uid-held-0"]))
    assert one == {"small": ["uid-held-0"]}
    assert desk.told == [("preempt", "victims")]


def test_nodes_where_nothing_helps_are_left_out(desk: Desk) -> None:
    victims = {"tiny": ["uid-held-0"], "big": ["uid-held-0"], "nowhere": ["uid-other"]}
    assert preempt(desk, asking(IMPORTANT, **victims)) == {}
    assert desk.told == [("preempt", "no_victims")]


def test_a_pod_that_never_preempts_is_given_no_victims(desk: Desk) -> None:
    polite = pod_json("web", 5)
    polite["spec"] |= {"priority": 100, "preemptionPolicy": "Never"}
    assert preempt(desk, asking(polite, small=["uid-held-0"])) == {}


def test_a_pod_that_asks_for_nothing_keeps_the_victims_it_came_with(desk: Desk) -> None:
    assert preempt(desk, asking(pod_json("web"), x=["uid-other"])) == {"x": ["uid-other"]}
    assert desk.told == [("preempt", "plain")]


def test_preempt_changes_nothing_in_the_books(desk: Desk) -> None:
    before = desk.ledger.snapshot().generation, desk.ledger.counts()
    preempt(desk, asking(IMPORTANT, small=["uid-held-0", "uid-held-1"]))
    assert (desk.ledger.snapshot().generation, desk.ledger.counts()) == before


def test_what_cannot_be_read_or_judged_is_an_error(desk: Desk) -> None:
    odd = pod_json("web", 7, annotations={ALIYUN.count: "2"})
    for body in (b"{", b"{}", asking(odd, small=["uid-held-0"])):
        with pytest.raises(MessageError):
            desk.service.preempt(body)
    desk.why_not = "pods are not listed yet"
    with pytest.raises(NotReady):
        desk.service.preempt(asking(IMPORTANT))


def test_preempt_is_served_where_the_scheduler_calls_it(desk: Desk) -> None:
    client = build_app(desk.service, Routes(), 10_000, frozenset()).test_client()
    path, kind = "/gpushare-scheduler/preempt", "application/json"
    good = client.post(path, data=asking(IMPORTANT, small=["uid-held-0"]), content_type=kind)
    assert good.get_json()["NodeNameToMetaVictims"]["small"]["Pods"] == [{"UID": "uid-held-0"}]
    assert client.post(path, data=b"{", content_type=kind).status_code == 400
    desk.why_not = "pods are not listed yet"
    assert client.post(path, data=asking(IMPORTANT), content_type=kind).status_code == 503
