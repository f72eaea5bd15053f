"""Claims, classes, extended resources and allocations become core types."""

from typing import Any

import msgspec
import pytest

from gpushare.core.claims.model import (
    ClaimRequest,
    ClassRecord,
    Constraint,
    DeviceKey,
    DeviceRequest,
    Holding,
    NamedRequest,
)
from gpushare.core.selectors import Toleration
from gpushare.errors import MessageError
from gpushare.wire.dra.objects import DEVICE_CLASSES, RESOURCE_CLAIMS, ClaimAllocation
from gpushare.wire.dra.requests import (
    MAX_CLAIM_TEXT,
    claim_request,
    class_record,
    classes_by_resource,
    extended_request,
    holdings,
)
from gpushare.wire.objects import PodSpec

GIB = 1024**3 * 1000


def read(*requests: dict[str, Any], **devices: Any) -> ClaimRequest:
    body = {"spec": {"devices": {"requests": requests, **devices}}}
    claim = RESOURCE_CLAIMS.decode(msgspec.json.encode(body))
    assert claim.spec is not None
    return claim_request(claim.spec)


def one(**exactly: Any) -> DeviceRequest:
    request = read({"name": "r", "exactly": {"deviceClassName": "c"} | exactly})
    return request.requests[0].alternatives[0]


# -- claims ---------------------------------------------------------------------------------------


def test_a_request_asks_for_devices_of_a_class() -> None:
    assert read({"name": "r", "exactly": {"deviceClassName": "c"}}) == ClaimRequest(
        (NamedRequest("r", (DeviceRequest(name="r", device_class="c"),)),)
    )
    assert one(count=3, allocationMode="ExactCount").count == 3
    assert one(allocationMode="All").count is None
    assert one(adminAccess=True).has_admin_access
    assert not one(adminAccess=False).has_admin_access
    assert read() == ClaimRequest(())


def test_a_request_says_amounts_selectors_and_tolerations() -> None:
    request = one(
        capacity={"requests": {"memory": "10Gi", "cores": "1500m"}},
        selectors=[{"cel": {"expression": "a"}}, {"cel": {"expression": "b"}}],
        tolerations=[{"key": "k", "operator": "Exists"}, {"key": "l", "value": "v"}],
    )
    assert request.amounts == (("cores", 1500), ("memory", 10 * GIB))
    assert request.selectors == ("a", "b")
    assert request.tolerations == (Toleration("k", "Exists"), Toleration("l", "Equal", "v"))


def test_alternatives_are_named_with_their_request() -> None:
    choices = [{"name": "a", "deviceClassName": "c"}, {"deviceClassName": "d", "count": 2}]
    request = read({"name": "r", "firstAvailable": choices}).requests[0]
    assert request.is_choice
    assert [alternative.name for alternative in request.alternatives] == ["r/a", "r/"]
    assert request.alternatives[1].count == 2


def test_constraints_are_of_equal_or_distinct_attributes() -> None:
    constraints = [
        {"matchAttribute": "gpu/root", "requests": ["r", "s/a"]},
        {"distinctAttribute": "gpu/numa"},
    ]
    assert read(constraints=constraints).constraints == (
        Constraint("gpu/root", requests=frozenset({"r", "s/a"})),
        Constraint("gpu/numa", is_distinct=True),
    )


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ({"requests": [{"name": "r"}]}, "not modelled"),
        ({"requests": [{"name": "r", "exactly": {"allocationMode": "Some"}}]}, "'Some'"),
        ({"requests": [{"name": "r", "exactly": {"derivedAttributes": [{}]}}]}, "derives"),
        ({"requests": [{"name": "r", "exactly": {"selectors": [{}]}}]}, "not CEL"),
        ({"requests": [{"name": "r", "exactly": {"selectors": [{"cel": {}}]}}]}, "not CEL"),
        (
            {"requests": [{"name": "r", "exactly": {"capacity": {"requests": {"m": "x"}}}}]},
            "capacity",
        ),
        ({"constraints": [{}]}, "constraint"),
        ({"constraints": [{"requests": ["x" * MAX_CLAIM_TEXT]}]}, "more than"),
    ],
)
def test_a_claim_that_is_not_modelled_is_refused_with_the_reason(
    devices: dict[str, Any], text: str
) -> None:
    claim = RESOURCE_CLAIMS.decode(msgspec.json.encode({"spec": {"devices": devices}}))
    assert claim.spec is not None
    with pytest.raises(MessageError, match=text):
        claim_request(claim.spec)


def test_a_claim_without_devices_asks_for_nothing() -> None:
    claim = RESOURCE_CLAIMS.decode(b'{"spec": {}}')
    assert claim.spec is not None
    assert claim_request(claim.spec) == ClaimRequest(())


# -- classes --------------------------------------------------------------------------------------


def test_a_class_has_selectors_and_may_name_a_resource() -> None:
    body = {
        "metadata": {"name": "c", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"selectors": [{"cel": {"expression": "a"}}], "extendedResourceName": "x.com/gpu"},
    }
    record = class_record(DEVICE_CLASSES.decode(msgspec.json.encode(body)))
    assert record == ClassRecord("c", ("a",), "x.com/gpu", "2026-01-01T00:00:00Z")
    assert class_record(DEVICE_CLASSES.decode(b'{"metadata": {"name": "c"}}')) == ClassRecord("c")
    with pytest.raises(MessageError, match="name is missing"):
        class_record(DEVICE_CLASSES.decode(b"{}"))


def test_of_classes_for_one_resource_the_newest_counts_then_the_first_name() -> None:
    old = ClassRecord("a", extended_resource="x.com/gpu", created_at="2026-01-01T00:00:00Z")
    new = ClassRecord("b", extended_resource="x.com/gpu", created_at="2026-01-02T00:00:00Z")
    same = ClassRecord("c", extended_resource="x.com/gpu", created_at="2026-01-02T00:00:00Z")
    implicit = "deviceclass.resource.kubernetes.io/"
    for order in ([old, new, same], [same, new, old]):
        classes_by_resource_result = classes_by_resource(order)
        assert classes_by_resource_result["x.com/gpu"] is new
        assert classes_by_resource_result[f"{implicit}a"] is old
    assert classes_by_resource([ClassRecord("d")]) == {f"{implicit}d": ClassRecord("d")}


# -- extended resources ---------------------------------------------------------------------------

GPU = {"x.com/gpu": ClassRecord("gpu")}


def extended(
    *containers: dict[str, Any], inits: tuple[dict[str, Any], ...] = ()
) -> list[tuple[str, int | None]] | None:
    body = {"containers": containers, "initContainers": inits}
    spec = msgspec.json.decode(msgspec.json.encode(body), type=PodSpec)
    request = extended_request(spec, GPU | {"x.com/nic": ClassRecord("nic")})
    if request is None:
        return None
    assert all(not part.is_choice for part in request.requests)
    return [(part.name, part.alternatives[0].count) for part in request.requests]


def needs(**amounts: Any) -> dict[str, Any]:
    names = {("cpu" if name == "cpu" else f"x.com/{name}"): a for name, a in amounts.items()}
    return {"resources": {"requests": names}}


def test_each_container_has_a_request_for_each_resource() -> None:
    assert extended(needs(gpu="2", cpu="1"), needs(nic=1, gpu=1)) == [
        ("container-0-request-1", 2),
        ("container-1-request-0", 1),
        ("container-1-request-1", 1),
    ]
    assert extended(needs(cpu="1"), {}, needs(other="3")) is None
    assert extended({"resources": {"limits": {"x.com/gpu": "1"}}}) == [("container-0-request-0", 1)]


def test_amounts_that_are_no_whole_devices_ask_for_none() -> None:
    assert extended(needs(gpu="0"), needs(gpu="500m")) is None
    with pytest.raises(MessageError, match=r"x\.com/gpu"):
        extended(needs(gpu="many"))


def test_init_containers_use_the_devices_of_later_containers_first() -> None:
    assert extended(needs(gpu=2), inits=(needs(gpu=1),)) == [("container-1-request-0", 2)]
    assert extended(needs(gpu=2), inits=(needs(gpu=3), needs(gpu=5))) == [
        ("container-1-request-0", 3),
        ("container-2-request-0", 2),
    ]
    sidecar = needs(gpu=1) | {"restartPolicy": "Always"}
    assert extended(needs(gpu=1), inits=(needs(gpu=3), sidecar)) == [
        ("container-0-request-0", 1),
        ("container-1-request-0", 1),
        ("container-2-request-0", 1),
    ]


# -- allocations ----------------------------------------------------------------------------------


def held(*results: dict[str, Any]) -> tuple[Holding, ...]:
    body = msgspec.json.encode({"devices": {"results": results}})
    return holdings(msgspec.json.decode(body, type=ClaimAllocation))


def test_an_allocation_holds_devices_whole_or_in_part() -> None:
    device = {"request": "r", "driver": "gpu", "pool": "p", "device": "d"}
    key = DeviceKey("gpu", "p", "d")
    share = device | {"shareID": "x"}
    assert held(device) == (Holding(key, None),)
    assert held(share | {"consumedCapacity": {"memory": "1Gi"}}) == (Holding(key, {"memory": GIB}),)
    assert held(share) == (Holding(key, {}),)
    assert held(device | {"adminAccess": True}) == ()
    assert held(share | {"consumedCapacity": {"memory": "much"}}) == (Holding(key, None),)
    assert holdings(ClaimAllocation()) == ()
