"""The patches of a claim: what they say, and that none is made of a claim that may not have it."""

import json
from collections.abc import Sequence

import pytest

from gpushare.core.model import PodRef
from gpushare.errors import InvariantError, MessageError
from gpushare.wire.dra.claims import FINALIZER, claim_request
from gpushare.wire.dra.objects import ResourceClaim
from gpushare.wire.dra.slices import SliceCard, cards_of
from gpushare.wire.dra.writes import SETTLED, allocation, protection, release, settlement
from tests.unit.wire.dra.objects import (
    CLASS,
    GIB,
    Json,
    claim,
    device,
    device_class,
    exactly,
    slice_of,
)

POD = PodRef("default", "p", "pod-uid")
NOW = "2026-01-01T00:00:00Z"
PROTECTED: Json = {"finalizers": [FINALIZER]}
PRECONDITION = {"uid": "uid-1", "resourceVersion": "7"}
OPAQUE = {"opaque": {"driver": "gpu.example.com", "parameters": {"sharing": {"any": [1]}}}}
GIVEN: Json = {"allocation": {"devices": {"results": []}}}


def cards(*devices: Json, node: str = "n1") -> list[SliceCard]:
    return list(cards_of([slice_of(*devices, node=node)]).values())


def written(of: ResourceClaim, chosen: Sequence[SliceCard], *config: Json) -> Json:
    request = claim_request(of, CLASS)
    assert request
    ids = [f"id-{number}" for number in range(len(chosen))]
    body = allocation(of, request, chosen, device_class(*config), pod=POD, share_ids=ids, now=NOW)
    found: Json = json.loads(body)
    return found


def test_protection_keeps_the_finalizers_of_others() -> None:
    patch = json.loads(protection(claim(meta={"finalizers": ["x/y"]})))
    assert patch == {"metadata": {**PRECONDITION, "finalizers": ["x/y", FINALIZER]}}


def test_an_allocation_says_all_that_kube_scheduler_would() -> None:
    of_claim = {"requests": ["gpu"], **OPAQUE}
    asked = claim(exactly("1.5Mi", count=2), meta=PROTECTED, devices={"config": [of_claim]})
    patch = written(asked, cards(device(0), device(1)), OPAQUE)
    common = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1"}
    taken = {"consumedCapacity": {"memory": str(2 * 2**20)}}
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert patch == {
        "metadata": PRECONDITION,
        "status": {
            "allocation": {
                "allocationTimestamp": NOW,
                "devices": {
                    "results": [
                        {**common, "device": "gpu-0", "shareID": "id-0", **taken},
                        {**common, "device": "gpu-1", "shareID": "id-1", **taken},
                    ],
                    "config": [
                        {"source": "FromClass", "requests": ["gpu"], **OPAQUE},
                        {"source": "FromClaim", "requests": ["gpu"], **OPAQUE},
                    ],
                },
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}],
        },
    }


def test_each_result_names_its_request_and_has_its_amount() -> None:
    requests = [
        {"name": "draft", "exactly": exactly("4Gi")},
        {"name": "main", "exactly": exactly("40Gi", count=2)},
    ]
    asked = claim(meta=PROTECTED, devices={"requests": requests})
    chosen = cards(device(0), device(1), device(2))
    found = written(asked, chosen, OPAQUE)["status"]["allocation"]["devices"]
    given = [
        (each["request"], each["device"], int(each["consumedCapacity"]["memory"]) // GIB)
        for each in found["results"]
    ]
    assert given == [("main", "gpu-0", 40), ("main", "gpu-1", 40), ("draft", "gpu-2", 4)]
    assert [each["requests"] for each in found["config"]] == [["main", "draft"]]


def test_two_requests_are_not_given_one_card() -> None:
    requests = [{"name": name, "exactly": exactly("4Gi")} for name in ("a", "b")]
    asked = claim(meta=PROTECTED, devices={"requests": requests})
    with pytest.raises(InvariantError):
        written(asked, cards(device(0)) * 2)


def test_a_card_that_is_not_shared_has_no_share() -> None:
    patch = written(claim(meta=PROTECTED), cards(device(0, allowMultipleAllocations=False)))
    (result,) = patch["status"]["allocation"]["devices"]["results"]
    assert result.keys() == {"request", "driver", "pool", "device"}


@pytest.mark.parametrize(
    "meta",
    [{}, {"finalizers": ["x/y"]}, {**PROTECTED, "deletionTimestamp": NOW}],
    ids=["no finalizer", "another finalizer", "deleted"],
)
def test_only_a_claim_that_is_protected_and_stays_is_allocated(meta: Json) -> None:
    with pytest.raises(InvariantError):
        written(claim(meta=meta), cards(device(0)))


def test_a_claim_that_has_devices_gets_no_others() -> None:
    with pytest.raises(InvariantError):
        written(claim(meta=PROTECTED, status=GIVEN), cards(device(0)))


@pytest.mark.parametrize(
    "chosen",
    [
        [],
        cards(device(0)),
        cards(device(0), device(1), device(2)),
        cards(device(0)) * 2,
        [*cards(device(0)), *cards(device(1), node="n2")],
        cards(device(0), device(1, taints=[{"effect": "NoSchedule"}])),
        cards(device(0), device(1, 4)),
    ],
    ids=["none", "too few", "too many", "one twice", "two nodes", "not open", "too small"],
)
def test_cards_that_the_claim_does_not_ask_for_are_not_written(
    chosen: Sequence[SliceCard],
) -> None:
    with pytest.raises(InvariantError):
        written(claim(exactly(count=2), meta=PROTECTED), chosen)


def test_release_takes_back_what_nobody_but_the_pod_that_waits_has_reserved() -> None:
    cleared = {"metadata": PRECONDITION, "status": {"allocation": None, "reservedFor": None}}
    assert json.loads(release(claim(status=GIVEN))) == cleared
    waiting, other = ({"resource": "pods", "name": "p", "uid": uid} for uid in ("pod-uid", "u"))
    held = claim(status=GIVEN | {"reservedFor": [waiting]})
    assert json.loads(release(held, POD)) == cleared
    for reserved, pod in (([waiting], None), ([other], POD), ([waiting, other], POD)):
        with pytest.raises(InvariantError):
            release(claim(status=GIVEN | {"reservedFor": reserved}), pod)


@pytest.mark.parametrize("missing", ["uid", "resourceVersion"])
def test_nothing_is_written_without_its_preconditions(missing: str) -> None:
    with pytest.raises(MessageError):
        protection(claim(meta={missing: ""}))


def test_a_settlement_demands_the_claim_and_no_version_of_it() -> None:
    found = json.loads(settlement(PodRef("default", "c", "uid-1"), "t"))
    assert found == {"metadata": {"uid": "uid-1", "annotations": {SETTLED: "t"}}}
