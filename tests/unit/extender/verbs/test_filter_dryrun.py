"""filter-dryrun: an autoscaler asks about nodes that are there and nodes that could come."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from werkzeug.test import Client

from gpushare.core.model import Allocation, PodRef, Reason, Request
from gpushare.daemon.callers import Callers
from gpushare.extender.door.app import Routes, build_app
from gpushare.wire.inventory import Device, Inventory, encode_inventory
from tests.unit.extender.kit import node_json, pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender, request

JSON = {"Content-Type": "application/json"}


@dataclass
class Autoscaler:
    """Asks over HTTP, as cluster-autoscaler would: whole nodes."""

    extender: ScriptedExtender
    client: Client

    def ask(self, pod: dict[str, Any], *nodes: dict[str, Any]) -> dict[str, Any]:
        return self.send(json.dumps({"Pod": pod, "Nodes": {"items": nodes}}).encode())

    def send(self, body: bytes) -> dict[str, Any]:
        path = "/gpushare-scheduler/filter-dryrun"
        answer = self.client.post(path, data=body, headers=JSON)
        assert answer.status_code == 200
        found: dict[str, Any] = json.loads(answer.data)
        return found


@pytest.fixture
def caller() -> Iterator[Autoscaler]:
    extender = ScriptedExtender()
    yield Autoscaler(extender, Client(build_app(extender.service, Routes(), 100_000, Callers())))
    for managed in extender.resources:
        managed.ledger.check()


def shaped(name: str, shape: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"gpushare.io/shape": shape}}}


def test_all_that_fit_are_answered_those_that_are_there_and_those_that_could_come(
    caller: Autoscaler,
) -> None:
    caller.extender.ledger.assume(
        PodRef("team", "other", "uid-other"),
        Request(10, 2),
        Allocation("big", (0, 1), (10, 10)),
        0.0,
    )
    inventory = encode_inventory(Inventory("GiB", (Device(4), Device(9))))
    nodes = [
        node_json("big", 32, 2),
        node_json("small", 16, 2),
        node_json("by-sums", 32, 2),
        {"metadata": {"name": "by-inventory", "annotations": {"gpushare.io/devices": inventory}}},
        shaped("by-label", "4x24GiB"),
        shaped("too-small", "8x7GiB"),
        {"metadata": {"name": "no-gpu"}},
    ]
    answer = caller.ask(pod_json("web", 8), *nodes)
    assert answer == {
        "Nodes": {"metadata": {}, "items": [nodes[at] for at in (1, 2, 3, 4)]},
        "NodeNames": None,
        "FailedNodes": {"big": Reason.INSUFFICIENT_MEMORY.value},
        "FailedAndUnresolvableNodes": {
            "too-small": Reason.TOO_LARGE.value,
            "no-gpu": Reason.NO_DEVICE.value,
        },
        "Error": "",
    }


def test_the_sum_fits_and_no_device_does(caller: Autoscaler) -> None:
    """A pod that an autoscaler by sums would believe to be placed: nodes of 10 + 10, 8 wanted."""
    for device in (0, 1):
        ref = PodRef("team", f"ten-{device}", f"uid-ten-{device}")
        taken = Allocation("big", (device,), (10,))
        caller.extender.ledger.assume(ref, Request(10), taken, 0.0)
    there, copied = node_json("big", 32, 2), node_json("template-1", 32, 2)
    answer = caller.ask(pod_json("web", 8), there, copied)
    assert answer["Nodes"]["items"] == [copied]


def test_names_alone_are_judged_by_the_books(caller: Autoscaler) -> None:
    answer = caller.send(request(pod_json("web", 4), ["big", "tiny", "template-1"]))
    assert answer["NodeNames"] == ["big"]
    assert answer["FailedNodes"] == {"template-1": 'node "template-1" not found'}


def test_a_pod_keeps_the_devices_that_it_has(caller: Autoscaler) -> None:
    ref = PodRef("team", "web", "uid-web")
    caller.extender.ledger.assume(ref, Request(16), Allocation("big", (0,), (16,)), 0.0)
    ref = PodRef("team", "next", "uid-next")
    caller.extender.ledger.assume(ref, Request(16), Allocation("big", (1,), (16,)), 0.0)
    big = node_json("big", 32, 2)
    assert caller.ask(pod_json("web", 16), big)["Nodes"]["items"] == [big]
    assert caller.ask(pod_json("late", 16), big)["Nodes"]["items"] == []


def test_a_pod_that_asks_for_nothing_fits_everywhere(caller: Autoscaler) -> None:
    nodes = [{"metadata": {"name": "a"}}, shaped("b", "nonsense")]
    assert caller.ask(pod_json("plain"), *nodes)["Nodes"]["items"] == nodes


def test_nothing_changes_and_nobody_is_told(caller: Autoscaler) -> None:
    extender, web = caller.extender, pod_json("web", 4)
    managed = extender.resources.resources[0]
    before = extender.ledger.version(), managed.holds.version
    scored = [ranking.recent_kinds for ranking in managed.rankings.values()]
    for pod in (web, pod_json("large", 99), pod_json("odd", "x")):
        caller.ask(pod, node_json("big", 32, 2), shaped("template-1", "4x24GiB"))
    assert (extender.ledger.version(), managed.holds.version) == before
    assert [ranking.recent_kinds for ranking in managed.rankings.values()] == scored
    assert not extender.service.called("uid-web")
    assert extender.heard.events == []
    assert not extender.rejected
    assert extender.api.calls == []
    assert {verb for verb, _ in extender.told} == {"filter_dryrun"}
    assert [outcome for _, outcome in extender.told] == ["fit", "no_fit", "refused"]


def test_a_label_without_sense_closes_its_node_alone(caller: Autoscaler) -> None:
    sound = shaped("sound", "1x8GiB")
    answer = caller.ask(pod_json("web", 8), shaped("odd", "8GiB"), sound)
    assert answer["Nodes"]["items"] == [sound]
    assert answer["FailedNodes"] == {}
    wrong = "label gpushare.io/shape: '8GiB' is not as 4x24GiB"
    assert answer["FailedAndUnresolvableNodes"] == {"odd": wrong}


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"{", "gpushare: request: "),
        (b"[" * 10_000, "gpushare: request: "),
        (b'{"Pod":{}}', "gpushare: NodeNames, Nodes: both missing"),
        (request(pod_json("web", 4), [""]), "gpushare: NodeNames: an empty name"),
        (
            json.dumps(
                {
                    "Pod": pod_json("web", 4),
                    "Nodes": {"items": [{"metadata": {"name": "t", "labels": 7}}]},
                }
            ).encode(),
            "gpushare: Nodes.items",
        ),
        (
            json.dumps(
                {
                    "Pod": pod_json("web", 4),
                    "Nodes": {"items": [{"metadata": {"name": "t"}, "status": 7}]},
                }
            ).encode(),
            "gpushare: Nodes.items: node 't': Expected",
        ),
        (b" " * 100_001, "gpushare: body: larger than --body-limit"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(caller: Autoscaler, body: bytes, wrong: str) -> None:
    before = caller.extender.ledger.version()
    assert caller.send(body)["Error"].startswith(wrong)
    assert caller.extender.ledger.version() == before


def test_who_is_not_ready_says_so(caller: Autoscaler) -> None:
    caller.extender.why_not = "pods are not listed yet"
    answer = caller.ask(pod_json("web", 4), shaped("t", "1x8GiB"))
    assert "pods are not listed yet" in answer["Error"]
