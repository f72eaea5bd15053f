"""A claim with an unreadable part still says the rest, and hides no other."""

import json

import pytest

from gpushare.core.claims.model import DeviceKey, Holding
from gpushare.errors import MessageError
from gpushare.wire.dra.objects import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    ClaimSpec,
    ResourceClaim,
)
from gpushare.wire.dra.requests import claim_request, holdings
from tests.unit.wire.dra.objects import DRIVER, GIB, Json, claim, exactly

GOOD = json.dumps(
    {
        "kind": "ResourceClaim",
        "metadata": {"name": "good", "namespace": "d", "uid": "good", "resourceVersion": "8"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly()}]}},
    }
).encode()

# More levels than the decoder takes on any Python; on 3.13 it takes some 10,000, on 3.11 1,000.
DEEP = 20_000
# What users write into `opaque.parameters` is passed on by the API server to the letter.
PARAMETERS = {
    "deep": b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "half a pair": b'{"a":"\\ud800"}',
    "half a pair, quoted": b'{"\\\\":"\\\\\\"\\udc00]"}',
    "half a pair as a name": b'{"\\udfff":1}',
    "no UTF-8": b'{"a":"\xff"}',
    "too large": b'{"a":1e400}',
    "too long": b'{"a":' + b"9" * 9000 + b"}",
}


def body(parameters: bytes, result: Json | None = None, **allocation: object) -> bytes:
    """A claim with these parameters for its driver, in the spec and in the allocation."""
    inputs = {"driver": DRIVER, "pool": "n1", "device": "gpu-0", "shareID": "x", **(result or {})}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    status = {
        "allocation": {
            "devices": {"results": [inputs], "config": ["PARAMETERS"]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            **allocation,
        }
    }
    meta = {"name": "bad", "namespace": "d", "uid": "bad", "resourceVersion": "7"}
    request = {"name": "gpu", "exactly": exactly()}
    spec = {"devices": {"requests": [request], "config": ["PARAMETERS"]}}
    whole = {"kind": "ResourceClaim", "metadata": meta, "spec": spec, "status": status}
    return json.dumps(whole).encode().replace(b'"PARAMETERS"', parameters)


def counted(found: ResourceClaim) -> tuple[Holding, ...]:
    assert found.metadata
    assert found.metadata.name in ("bad", "good")
    assert found.allocation
    return holdings(found.allocation)


KEY = DeviceKey(DRIVER, "n1", "gpu-0")


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_what_a_claim_has_is_read_whatever_its_parameters_are(parameters: bytes) -> None:
    bad = body(parameters, {"consumedCapacity": {"memory": "9Gi"}})
    page = RESOURCE_CLAIMS.decode_list(
        b'{"kind":"ResourceClaimList","items":[' + b",".join([GOOD, bad, GOOD]) + b"]}"
    )
    event = RESOURCE_CLAIMS.decode_event(b'{"type":"MODIFIED","object":' + bad + b"}")
    assert event.object
    assert event.resource_version == "7"
    answer = RESOURCE_CLAIMS.decode_answer(bad, "d", "bad")
    first, second, third = page.items
    for item in (second, event.object, answer, RESOURCE_CLAIMS.decode(bad)):
        assert counted(item) == (Holding(KEY, {"memory": 9000 * GIB}),)
    for whole in (*page.items, event.object, answer):
        assert whole.spec
        assert len(claim_request(whole.spec).requests) == 1
    assert (first.metadata, third.metadata) == (RESOURCE_CLAIMS.decode(GOOD).metadata,) * 2


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_a_class_is_read_whatever_its_parameters_are(parameters: bytes) -> None:
    whole = {"metadata": {"name": "c"}, "spec": {"config": ["PARAMETERS"], "selectors": []}}
    decode_result = DEVICE_CLASSES.decode(
        json.dumps(whole).encode().replace(b'"PARAMETERS"', parameters)
    )
    assert decode_result.metadata
    assert decode_result.metadata.name == "c"


@pytest.mark.parametrize("odd", [{"driver": 5}, {"pool": []}, {"device": {}}])
def test_a_claim_that_does_not_say_which_device_it_has_cannot_be_read(odd: Json) -> None:
    with pytest.raises(MessageError):
        RESOURCE_CLAIMS.decode(body(b"{}", odd))


def test_a_claim_without_an_allocation_has_nothing() -> None:
    claim_result = claim(status={"devices": "?"})
    assert claim_result.allocation is None
    assert claim_result.reserved == ()
    assert ResourceClaim().allocation is None
    assert claim(status={"reservedFor": [{"name": "p"}]}).reserved[0].name == "p"


def test_a_template_makes_claims_without_a_name() -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly()}]}}
    body = json.dumps({"metadata": {"name": "t"}, "spec": {"spec": spec}}).encode()
    claim_result = CLAIM_TEMPLATES.decode(body).claim()
    assert claim_result.metadata is None
    assert claim_result.spec == claim().spec
    assert CLAIM_TEMPLATES.decode(b"{}").claim().spec == ClaimSpec()
