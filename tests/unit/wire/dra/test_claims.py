"""What a claim asks for, the sentence where we refuse it, and what others have been given."""

import random

import pytest

from gpushare.core.model import Request
from gpushare.errors import MessageError
from gpushare.wire.dra.claims import (
    FINALIZER,
    claim_request,
    given_devices,
    is_protected,
    kept_claim,
)
from gpushare.wire.dra.objects import ClaimAllocation, ClaimSpec, ResourceClaim
from tests.unit.wire.dra.objects import CLASS, DRIVER, GIB, Json, claim, exactly

_NEARLY_EQUAL = {"a": "4.2Gi", "b": "4.8Gi"}


def test_the_request_of_a_claim_is_read_in_units_rounded_up() -> None:
    found = claim_request(claim(exactly("9.5Gi", count=2)), CLASS)
    assert found is not None
    assert found.parts == (("gpu", 19 * GIB // 2),) * 2
    assert found.asked(GIB).request == Request(10, 2)
    assert found.asked(2**20).request.units == 9728


def test_several_requests_ask_for_a_card_each_the_largest_first() -> None:
    requests = [
        {"name": "draft", "exactly": exactly("4.5Gi")},
        {"name": "main", "exactly": exactly("40Gi", count=2)},
        {"name": "cache", "exactly": exactly("5Gi")},
    ]
    found = claim_request(claim(devices={"requests": requests}), CLASS)
    assert found is not None
    assert [each.request for each in found.parts] == ["main", "main", "cache", "draft"]
    assert found.requests == ("main", "cache", "draft")
    assert found.memory == 179 * GIB // 2
    assert found.asked(GIB).request.parts == (40, 40, 5, 5)


def test_requests_of_one_size_in_units_are_one_of_several_devices() -> None:
    requests = [{"name": name, "exactly": exactly(size)} for name, size in _NEARLY_EQUAL.items()]
    found = claim_request(claim(devices={"requests": requests}), CLASS)
    assert found is not None
    assert found.asked(GIB).request == Request(5, 2)


def test_one_device_is_meant_where_nothing_is_counted() -> None:
    asked = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": "1Gi"}}}
    found = claim_request(claim(asked), CLASS)
    assert found is not None
    assert found.parts == (("gpu", GIB),)


def test_what_tolerates_taints_or_sets_up_its_device_is_taken() -> None:
    tolerant = exactly(tolerations=[{"operator": "Exists"}])
    assert claim_request(claim(tolerant, devices={"config": [{"opaque": {}}]}), CLASS)


@pytest.mark.parametrize(
    "other",
    [
        claim(exactly(deviceClassName="gpu.nvidia.com", selectors=[{"cel": {}}])),
        claim(devices={"requests": None}),
        claim(devices={"requests": ["gpu"]}),
        ResourceClaim(spec=ClaimSpec()),
    ],
)
def test_claims_of_other_classes_are_none_of_ours(other: ResourceClaim) -> None:
    assert claim_request(other, CLASS) is None


_FOREIGN = {"name": "nic", "exactly": {"deviceClassName": "nic"}}
_OURS = {"name": "gpu", "exactly": exactly()}
_MANY = {"name": "many", "exactly": exactly(count=32)}
_BOTH = {"name": "both", "firstAvailable": [exactly()]}


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (claim(exactly(selectors=[{"cel": {"expression": "true"}}])), "may have no selectors"),
        (claim(exactly(adminAccess=True)), "may have no adminAccess"),
        (claim(exactly(allocationMode="All")), "has to count its devices"),
        (claim(exactly(count=0)), "may count 1 to 32 devices"),
        (claim(exactly(count=33)), "may count 1 to 32 devices"),
        (claim(exactly(count=True)), "may count 1 to 32 devices"),
        (claim(exactly(capacity=None)), "has to say how much memory it needs"),
        (claim(exactly(capacity={"requests": {}})), "has to say how much memory it needs"),
        (
            claim(exactly(capacity={"requests": {"memory": "1Gi", "shares": "2"}})),
            "may ask for memory alone, not 'shares'",
        ),
        (claim(exactly("much")), "capacity.requests.memory: 'much' is not a quantity"),
        (claim(exactly("-1Gi")), "out of range"),
        (claim(exactly("0")), "has to be more than 0"),
        (claim(exactly(nextYears=[1])), "says 'nextYears', which we do not know"),
        (claim(devices={"nextYears": 1}), "says 'nextYears', which we do not know"),
        (claim(devices={"constraints": [{"matchAttribute": "x"}]}), "may have no constraints"),
        (claim(devices={"requests": [_OURS, _FOREIGN]}), "ask for the others by another claim"),
        (claim(devices={"requests": [_OURS, "gpu"]}), "ask for the others by another claim"),
        (claim(devices={"requests": [_OURS, _MANY]}), "may count 32 devices together"),
        (claim(devices={"requests": [_BOTH]}), "may offer no choice (firstAvailable)"),
        (claim(devices={"requests": [_OURS, _BOTH]}), "request both of class gpushare.io may"),
    ],
)
def test_what_we_do_not_decide_is_refused_with_a_sentence(
    refused: ResourceClaim, sentence: str
) -> None:
    with pytest.raises(MessageError) as error:
        claim_request(refused, CLASS)
    assert sentence in str(error.value)


def test_more_memory_than_any_device_has_is_refused() -> None:
    found = claim_request(claim(exactly("4Ei")), CLASS)
    assert found is not None
    with pytest.raises(MessageError, match="more memory than any device"):
        found.asked(2**20)


def given(**result: object) -> ClaimAllocation:
    results = [{"request": "r", "driver": DRIVER, "pool": "n1", "device": "gpu-0", **result}]
    found = claim(status={"allocation": {"devices": {"results": results}}}).status
    assert found
    assert found.allocation
    return found.allocation


@pytest.mark.parametrize(
    ("result", "memory"),
    [
        ({"consumedCapacity": {"memory": "10Gi"}, "shareID": "s"}, 10 * GIB),
        ({"consumedCapacity": {"memory": "0"}}, 0),
        ({"consumedCapacity": {"memory": "x"}}, None),
        ({"consumedCapacity": {"shares": "2"}}, None),
        ({"consumedCapacity": {}}, None),
        ({}, None),
    ],
)
def test_an_allocation_takes_what_it_consumes_or_all_of_its_device(
    result: Json, memory: int | None
) -> None:
    (found,) = given_devices(given(**result))
    assert found.key == (DRIVER, "n1", "gpu-0")
    assert found.memory == memory


def test_administrators_access_takes_nothing_and_no_results_are_none() -> None:
    assert given_devices(given(adminAccess=True)) == ()
    assert given_devices(ClaimAllocation()) == ()


def test_only_the_finalizer_protects_a_claim() -> None:
    ours = "resource.kubernetes.io/delete-protection"
    assert is_protected(claim(meta={"finalizers": ["x/y", ours]}))
    assert not is_protected(claim(meta={"finalizers": ["x/y"]}))
    assert not is_protected(ResourceClaim())


def test_of_a_claim_what_is_asked_and_what_is_copied_is_kept() -> None:
    opaque = {"driver": "gpu.example.com", "parameters": {"sharing": ["a", 1.5]}}
    config = [{"requests": ["gpu"], "opaque": opaque}]
    whole = claim(devices={"config": config}, meta={"labels": {"a": "b"}, "finalizers": ["x/y"]})
    kept = kept_claim(whole, CLASS)
    assert claim_request(kept, CLASS) == claim_request(whole, CLASS)
    assert (kept.metadata, kept.status) == (whole.metadata, whole.status)
    assert kept.spec
    assert kept.spec.config == config
    again = kept_claim(kept, CLASS)
    assert again.spec
    assert again.spec.config == config


def test_of_a_claim_of_another_class_nothing_of_its_spec_is_kept() -> None:
    other = claim(exactly(deviceClassName="nic.example.com", selectors=[{"cel": "x" * 10_000}]))
    assert kept_claim(other, CLASS).spec == ClaimSpec()
    assert claim_request(kept_claim(other, CLASS), CLASS) is None


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_of_a_claim_asks_for_the_same_or_is_refused_for_the_same(seed: int) -> None:
    chance = random.Random(seed)
    odd: list[Json] = [{}, {}, {}, {"selectors": [{"cel": "x" * 5000}]}, {"adminAccess": True}]
    odd += [{"tolerations": [{"key": "a" * 200}]}, {"deviceClassName": "nic.example.com"}]
    requests = [
        {
            "name": f"{'x' * 50}-{at}",
            "exactly": exactly(f"{chance.choice((1, 1.5, 4))}Gi", count=chance.choice((1, 1, 2)))
            | (chance.choice(odd) if chance.random() < 0.1 else {}),
        }
        for at in range(chance.choice((1, 2, 16, 32)))
    ]
    whole = claim(devices={"requests": requests})
    asked: list[object] = []
    for each in (whole, kept_claim(whole, CLASS), kept_claim(kept_claim(whole, CLASS), CLASS)):
        try:
            asked.append(claim_request(each, CLASS))
        except MessageError as error:
            asked.append(str(error))
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize("length", [0, 3900, 3994, 4032, 4033, 4090, 5000])
def test_a_claim_whose_finalizers_are_not_kept_is_never_allocated(length: int) -> None:
    opaque = [{"opaque": {"driver": DRIVER, "parameters": {"sharing": "MPS"}}}]
    names = ["x" * length] if length else []
    for ours in ([], [FINALIZER]):
        kept = kept_claim(
            claim(devices={"config": opaque}, meta={"finalizers": [*names, *ours]}), CLASS
        )
        assert kept.metadata
        if length <= 4096 - 64:
            assert kept.spec
            assert (kept.metadata.finalizers, kept.spec.config) == ([*names, *ours], opaque)
            assert claim_request(kept, CLASS)
        else:
            assert kept.metadata.finalizers == ours
            with pytest.raises(MessageError, match="finalizers take more than 4096"):
                claim_request(kept, CLASS)
