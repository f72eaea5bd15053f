"""Cards, slices, claims and pods with claims, as values for tests."""

from dataclasses import replace
from typing import Any

import msgspec

from gpushare.core.claims.model import (
    THOUSANDTHS,
    Attribute,
    Capacity,
    ClaimRequest,
    CounterUse,
    Device,
    DeviceKey,
    DeviceRequest,
    Holding,
    NamedRequest,
    NodeChoice,
    Slice,
)
from gpushare.core.model import PodRef
from gpushare.core.selectors import Taint
from gpushare.explain.claim_records import ClaimRecord
from gpushare.wire.objects import Pod

GIB = 1 << 30
DRIVER = "gpu.example.com"


def device(
    name: str,
    gib: int,
    *,
    node: str = "n1",
    shared: bool = True,
    driver: str = DRIVER,
    taints: tuple[Taint, ...] = (),
) -> Device:
    """Return a card with memory, in a pool named like the node."""
    return Device(
        key=DeviceKey(driver, node, name),
        is_shared=shared,
        capacities={"memory": Capacity(gib * GIB * THOUSANDTHS)},
        attributes={
            f"{driver}/uuid": Attribute("string", f"GPU-{node}-{name}"),
            f"{driver}/productName": Attribute("string", "A100"),
        },
        taints=taints,
    )


def slice_of(node: str, *devices: Device, name: str = "", generation: int = 1) -> Slice:
    """Return the only slice of a node's pool."""
    driver = devices[0].key.driver if devices else DRIVER
    return Slice(
        name=name or f"slice-{driver}-{node}",
        driver=driver,
        pool=node,
        generation=generation,
        slice_count=1,
        nodes=NodeChoice(node),
        devices=devices,
    )


def partition(
    name: str, mebibytes: int, card: str = "0", node: str = "n1", **fields: Any
) -> Device:
    """Return a partition of a card, or the whole card, as drivers publish MIG."""
    amount = mebibytes * (GIB >> 10) * THOUSANDTHS
    parent = Attribute("string", f"GPU-{card}")
    return Device(
        key=DeviceKey(DRIVER, node, name),
        capacities={"memory": Capacity(amount)},
        attributes={f"{DRIVER}/parentUUID": parent},
        counters=(CounterUse(f"card-{card}", "memory", amount),),
        **fields,
    )


def partitioned_slices(*devices: Device, cards: str = "01", node: str = "n1") -> list[Slice]:
    """Return the slices of cards of 80 GiB with these partitions."""
    memory = {"memory": 80 * GIB * THOUSANDTHS}
    counters = replace(
        slice_of(node, name=f"counters-{node}"), counters={f"card-{card}": memory for card in cards}
    )
    slices = (counters, slice_of(node, *devices, name=f"devices-{node}"))
    return [replace(item, slice_count=2) for item in slices]


def holding(node: str, name: str, gib: int | None, driver: str = DRIVER) -> Holding:
    """Return the holding of a claim on a card; gib None: the whole card."""
    amounts = None if gib is None else {"memory": gib * GIB * THOUSANDTHS}
    return Holding(DeviceKey(driver, node, name), amounts)


def allocated(
    number: int, *holdings: Holding, users: tuple[tuple[str, str], ...] = ()
) -> ClaimRecord:
    """Return an allocated claim."""
    ref = PodRef("default", f"claim-{number}", f"claim-uid-{number}")
    return ClaimRecord(ref=ref, is_allocated=True, holdings=holdings, users=users)


def open_claim(number: int, gib: int, count: int = 1) -> ClaimRecord:
    """Return a claim without an allocation that asks for memory of cards of class gpu."""
    alternative = DeviceRequest(
        name="cards",
        device_class="gpu",
        count=count,
        amounts=(("memory", gib * GIB * THOUSANDTHS),),
    )
    request = ClaimRequest((NamedRequest("cards", (alternative,)),))
    ref = PodRef("default", f"claim-{number}", f"claim-uid-{number}")
    return ClaimRecord(ref=ref, is_allocated=False, request=request)


def pod_with(*numbers: int, uid: str = "pod-uid") -> Pod:
    """Return a pod with these claims."""
    claims = [{"name": f"c{n}", "resourceClaimName": f"claim-{n}"} for n in numbers]
    body = {
        "metadata": {"namespace": "default", "name": "pod", "uid": uid},
        "spec": {"resourceClaims": claims},
    }
    return decoded(body)


def decoded(body: dict[str, object]) -> Pod:
    """Return a pod as stored by the API server."""
    return msgspec.convert(body, Pod)
