"""Preempt over HTTP with recorded requests of a real kube-scheduler."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import Client

from gpushare.daemon.callers import Callers
from gpushare.extender.door.app import Routes, build_app
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS
from tests.unit.extender.scripted_extender import ScriptedExtender

# Keys and nulls as kube-scheduler 1.35 writes them; only names and requests are ours.
CAPABLE = (
    b'{"Pod":%s,"NodeNameToVictims":null,'
    b'"NodeNameToMetaVictims":{"big":{"Pods":[{"UID":"uid-low"}],"NumPDBViolations":0}}}'
)
NOT_CAPABLE = (
    b'{"Pod":%s,"NodeNameToVictims":{"big":{"Pods":[%s],"NumPDBViolations":0}},'
    b'"NodeNameToMetaVictims":null}'
)
KEPT = b'{"NodeNameToMetaVictims":{"big":{"Pods":[{"UID":"uid-low"}],"NumPDBViolations":0}}}'
NONE_LEFT = b'{"NodeNameToMetaVictims":{}}'


def pod(name: str, units: int, priority: int, device: str = "") -> dict[str, Any]:
    """A pod, on a device of node big if one is given."""
    notes = {ALIYUN.idx: device, ALIYUN.pod: str(units)} if device else {}
    resources = {"limits": {ALIYUN.resource: str(units)}} if units else {}
    node = {"nodeName": "big"} if device else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": None,
            "annotations": notes,
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"containers": [{"resources": resources}], "priority": priority, **node},
        "status": {"phase": "Pending"},
    }


class Server:
    """The extender over HTTP, with pods on the two devices of 16 of node big."""

    def __init__(self) -> None:
        self.extender = ScriptedExtender()
        self._client = Client(build_app(self.extender.service, Routes(), 100_000, Callers()))

    def holds(self, *pods: dict[str, Any]) -> None:
        meta = {"resourceVersion": "1"}
        items = {"kind": "PodList", "metadata": meta, "items": list(pods)}
        page = PODS.decode_list(json.dumps(items).encode())
        PodEventHandler(self.extender.resources).replace([page], 0.0)

    def preempt(self, body: bytes) -> tuple[int, bytes]:
        path = "/gpushare-scheduler/preempt"
        answer = self._client.post(path, data=body, content_type="application/json")
        return answer.status_code, answer.data


@pytest.fixture
def server() -> Iterator[Server]:
    created = Server()
    yield created
    created.extender.ledger.check()


def dumped(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


LOW, HIGH = pod("low", 10, 1, "0"), pod("high", 10, 9, "1")
URGENT = pod("urgent", 14, 5)


def test_uids_in_uids_out(server: Server) -> None:
    server.holds(LOW, HIGH)
    assert server.preempt(CAPABLE % dumped(URGENT)) == (200, KEPT)


def test_whole_pods_in_uids_out(server: Server) -> None:
    server.holds(LOW, HIGH)
    assert server.preempt(NOT_CAPABLE % (dumped(URGENT), dumped(LOW))) == (200, KEPT)


def test_no_node_left_is_an_empty_map(server: Server) -> None:
    server.holds(pod("low", 4, 1, "0"), pod("beside", 10, 9, "0"), HIGH)
    assert server.preempt(CAPABLE % dumped(URGENT)) == (200, NONE_LEFT)


def test_an_empty_list_is_filled(server: Server) -> None:
    server.holds(LOW, HIGH)
    body = CAPABLE.replace(b'{"UID":"uid-low"}', b"") % dumped(pod("urgent", 12, 5))
    assert server.preempt(body) == (200, KEPT)


def test_a_pod_that_asks_for_nothing_of_ours_gets_its_candidates_back(server: Server) -> None:
    assert server.preempt(CAPABLE % dumped(pod("plain", 0, 5))) == (200, KEPT)
    body = NOT_CAPABLE % (dumped(pod("plain", 0, 5)), dumped(LOW))
    assert server.preempt(body) == (200, KEPT)


def test_a_pod_that_must_not_preempt_gets_no_candidate(server: Server) -> None:
    server.holds(LOW, HIGH)
    never = {**URGENT, "spec": {**URGENT["spec"], "preemptionPolicy": "Never"}}
    assert server.preempt(CAPABLE % dumped(never)) == (200, NONE_LEFT)


def test_errors_are_statuses_since_there_is_no_field_for_them(server: Server) -> None:
    status, text = server.preempt(b"{}")
    assert (status, json.loads(text)) == (
        400,
        {"error": "request: Object missing required field `Pod`"},
    )
    server.extender.why_not = "pods are not listed yet"
    status, text = server.preempt(CAPABLE % dumped(URGENT))
    assert status == 503
    assert "pods are not listed yet" in json.loads(text)["error"]
    assert server.extender.told == [("preempt", "malformed"), ("preempt", "not_ready")]
