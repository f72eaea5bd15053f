"""What the page tells of claims: who holds the devices, and why pods wait for claims."""

import json
from typing import Any

import pytest

from gpushare.core.claims.model import ClassRecord, Device
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.tell.page import document
from gpushare.extender.tell.page.document import Documents
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.wire.codec import Codec
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.objects import PODS
from tests.support.claim_values import DRIVER, GIB, allocated, device, holding, open_claim, slice_of
from tests.support.waiting import poll
from tests.unit.extender.follow.test_watch_handlers import event, page
from tests.unit.extender.kit import pod_json
from tests.unit.extender.tell.page.world import World
from tests.unit.extender.tell.test_explainer import view_of

_PODS: Codec[Any] = PODS


class ClaimsWorld:
    """Books of a node with one card of 80 GiB, pods that wait for claims, and the page."""

    def __init__(self) -> None:
        self.books = ClaimBooks(DRIVER, GIB)
        self.books.replace_classes([ClassRecord("gpu", (), extended_resource="nvidia.com/gpu")])
        self.books.slice_changed(slice_of("n1", device("gpu-0", 80)))
        self.view = view_of(self.books)
        world = World()
        self.pods = PodEventHandler(world.resources, waiting=self.view.waiting)
        self._documents = Documents(
            world.resources,
            "GiB",
            LastHour(),
            not_ready=str,
            called=lambda _: False,
            mistaken_pods=world.mistaken_pods,
            claims=self.view,
        )

    def show(self, *pods: dict[str, Any]) -> None:
        """Have the watch list these pods."""
        for pod in pods:
            pod["metadata"]["namespace"] = "default"
        self.pods.replace([page(_PODS, *pods)], 0.0)

    def part(self) -> dict[str, Any]:
        """The part of the document about the driver's devices."""
        *_, claims_part = json.loads(self._documents.body())["resources"]
        return claims_part  # type: ignore[no-any-return]  # JSON

    def pending(self) -> list[dict[str, Any]]:
        """The pods that wait, once all have a sentence."""
        poll(lambda: all(pod["why"] for pod in self.part()["pending"]))
        pods: list[dict[str, Any]] = self.part()["pending"]
        return pods


def by_claim(name: str, number: int) -> dict[str, Any]:
    """A pod with this claim, which kube-scheduler could not place."""
    pod = pod_json(name)
    pod["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": f"claim-{number}"}]
    message = "0/1 nodes are available: 1 cannot allocate all claims."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    pod["status"]["conditions"] = [condition]
    return pod


def test_the_devices_of_claims_stand_beside_the_others() -> None:
    world = ClaimsWorld()
    assert world.part()["nodes"][0]["allocated"] == 0
    world.books.claim_changed(allocated(1, holding("n1", "gpu-0", 70)))
    part = world.part()
    assert (part["resource"], part["holder"], part["pending"]) == (CLASS, "claim", [])
    (displayed,) = part["nodes"]
    assert [item["allocated"] for item in displayed["devices"]] == [70]
    assert [item["name"] for item in displayed["pods"]] == ["claim-1"]


def test_a_pod_that_waits_for_claims_is_told_the_condition_and_the_devices() -> None:
    world = ClaimsWorld()
    world.books.claim_changed(allocated(1, holding("n1", "gpu-0", 70), users=(("train", "u"),)))
    world.books.claim_changed(open_claim(2, 20))
    world.show(by_claim("web", 2), pod_json("plain"))
    (waiting,) = world.pending()
    assert (waiting["namespace"], waiting["name"]) == ("default", "web")
    assert waiting["why"] == (
        "asks for 1 x gpu with memory 20Gi; 0 of 1 nodes have devices for its claims; it would"
        " fit on n1 once claim default/claim-1 (of train) ends"
    )
    assert waiting["scheduler"] == (
        "default-scheduler says: 0/1 nodes are available: 1 cannot allocate all claims."
    )
    world.books.claim_gone("claim-uid-1")
    poll(lambda: "it fits now on n1" in world.pending()[0]["why"])
    bound = by_claim("web", 2)
    bound["spec"]["nodeName"] = "n1"
    world.pods.apply(event(_PODS, "MODIFIED", bound))
    assert world.pending() == []


def test_a_pod_by_an_extended_resource_waits_for_the_claim_of_its_class() -> None:
    world = ClaimsWorld()
    world.books.claim_changed(allocated(1, holding("n1", "gpu-0", 70)))
    world.show(
        pod_json("whole", limits={"nvidia.com/gpu": 1}),
        pod_json("fpga", limits={"example.com/fpga": 1}),
        pod_json("annotated", 4, limits={"nvidia.com/gpu": 1}),
    )
    (waiting,) = world.pending()
    assert waiting["name"] == "whole"
    assert "once claim default/claim-1 ends" in waiting["why"]
    assert waiting["scheduler"] == "default-scheduler has said nothing yet"


def test_a_deleted_pod_waits_no_more() -> None:
    world = ClaimsWorld()
    pod = by_claim("web", 2)
    world.show(pod)
    assert [waiting["name"] for waiting in world.pending()] == ["web"]
    world.pods.apply(event(_PODS, "DELETED", pod))
    assert world.pending() == []


def test_no_namespace_waits_for_all_sentences_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # One explanation in each document.
    monkeypatch.setattr(document, "_BUDGET", 0.0)
    monkeypatch.setattr(document, "_REST", 0.0)
    world = ClaimsWorld()
    one_more = by_claim("one-more", 9)
    world.show(*(by_claim(f"web-{number}", number) for number in range(1, 6)))
    one_more["metadata"]["namespace"] = "other"
    world.pods.apply(event(_PODS, "ADDED", one_more))
    world.part()
    explained = [pod["name"] for pod in world.part()["pending"] if pod["why"]]
    assert explained == ["web-1", "one-more"]


def judged_devices(pods: int) -> int:
    """Return how many devices are judged for so many pods with equal claims."""
    world, judged = ClaimsWorld(), 0

    def matches(_selectors: tuple[str, ...], _device: Device) -> bool:
        nonlocal judged
        judged += 1
        return True

    world.view.matches = matches
    world.books.claim_changed(allocated(1, holding("n1", "gpu-0", 70)))
    for number in range(pods):
        world.books.claim_changed(open_claim(2 + number, 20))
    world.show(*(by_claim(f"web-{number}", 2 + number) for number in range(pods)))
    assert len(world.pending()) == pods
    return judged


def test_pods_with_equal_claims_share_a_reading() -> None:
    assert judged_devices(5) == judged_devices(1) > 0


def test_a_pod_with_a_large_spec_is_named_and_not_judged() -> None:
    world = ClaimsWorld()
    pod = by_claim("web", 2)
    pod["spec"]["nodeSelector"] = {f"label-{number}": "x" * 60 for number in range(200)}
    world.show(pod)
    (waiting,) = world.pending()
    assert waiting["why"].startswith("its spec is too large to be judged here")
