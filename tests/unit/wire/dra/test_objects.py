"""A claim of which something cannot be read still says what it has, and hides no other."""

import json

import pytest

from gpushare.errors import MessageError
from gpushare.extender.claims.books import claim_ref, version_of
from gpushare.wire.dra.claims import claim_request, given_devices, nodes_of
from gpushare.wire.dra.objects import RESOURCE_CLAIMS, ResourceClaim
from gpushare.wire.dra.slices import DeviceKey
from tests.unit.wire.dra.objects import CLASS, DRIVER, GIB, Json, claim, exactly

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
    given = {"driver": DRIVER, "pool": "n1", "device": "gpu-0", **(result or {})}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    status = {
        "allocation": {
            "devices": {"results": [given], "config": ["PARAMETERS"]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            **allocation,
        }
    }
    meta = {"name": "bad", "namespace": "d", "uid": "bad", "resourceVersion": "7"}
    request = {"name": "gpu", "exactly": exactly()}
    spec = {"devices": {"requests": [request], "config": ["PARAMETERS"]}}
    whole = {"kind": "ResourceClaim", "metadata": meta, "spec": spec, "status": status}
    return json.dumps(whole).encode().replace(b'"PARAMETERS"', parameters)


def counted(found: ResourceClaim) -> list[tuple[DeviceKey, int | None]]:
    assert (claim_ref(found).name, version_of(found)) == ("bad", 7)
    assert found.status
    assert found.status.allocation
    return [(each.key, each.memory) for each in given_devices(found.status.allocation)]


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
    for found in (second, event.object, answer, RESOURCE_CLAIMS.decode(bad)):
        assert counted(found) == [(DeviceKey(DRIVER, "n1", "gpu-0"), 9 * GIB)]
        assert found.status
        assert found.status.allocation
        assert nodes_of(found.status.allocation) == {"n1"}
        with pytest.raises(MessageError, match="cannot be read"):
            claim_request(found, CLASS)
    for good in (first, third):
        assert claim_request(good, CLASS)


def test_what_can_be_read_of_the_parameters_is_kept_to_the_letter() -> None:
    pair = '{"a": ["\\ud83d\\ude00", "\\\\ud800", {"b": ' + "[" * 30 + "]" * 30 + "}]}"
    other = body(PARAMETERS["deep"])
    kept = body(pair.encode())
    page = RESOURCE_CLAIMS.decode_list(
        b'{"kind":"ResourceClaimList","items":[' + other + b"," + kept + b"]}"
    )
    spec = page.items[1].spec
    assert spec
    assert spec.devices
    assert spec.devices["config"] == [json.loads(pair)]


@pytest.mark.parametrize(
    "amounts",
    [
        {"memory": {"value": "9Gi"}},
        {"memory": ["9Gi"]},
        {"memory": None},
        {"memory": "1e400"},
        {"memory": "-3Gi"},
        {"memory": "9" * 5000},
        {"memory": 10**400},
        {"cores": "4"},
        "9Gi",
        [9],
        None,
    ],
)
def test_an_amount_that_cannot_be_read_is_the_whole_card(amounts: object) -> None:
    bad = body(b"{}", {"consumedCapacity": amounts})
    assert counted(RESOURCE_CLAIMS.decode(bad)) == [(DeviceKey(DRIVER, "n1", "gpu-0"), None)]


@pytest.mark.parametrize("odd", [{"shareID": 5}, {"request": []}, {"adminAccess": "true"}])
def test_odd_fields_that_are_not_counted_change_nothing(odd: Json) -> None:
    bad = body(b"{}", {"consumedCapacity": {"memory": "1Gi"}, **odd}, nodeSelector=5)
    assert counted(RESOURCE_CLAIMS.decode(bad)) == [(DeviceKey(DRIVER, "n1", "gpu-0"), GIB)]


@pytest.mark.parametrize("odd", [{"driver": 5}, {"pool": []}, {"device": {}}])
def test_a_claim_that_does_not_say_which_device_it_has_cannot_be_read(odd: Json) -> None:
    with pytest.raises(MessageError):
        RESOURCE_CLAIMS.decode(body(b"{}", odd))


def test_a_claim_without_an_allocation_has_nothing_whatever_else_it_is() -> None:
    bad = json.loads(GOOD) | {"spec": [], "status": {"devices": "?"}}
    found = RESOURCE_CLAIMS.decode(json.dumps(bad).encode())
    assert found.status
    assert found.status.allocation is None
    assert claim().spec is not None
