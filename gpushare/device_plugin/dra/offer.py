"""The ResourceSlice of a node: each GPU is a device whose memory is shared by the unit.

Pure. A device is named by its GPU's index, as NVIDIA's driver names them by their minor numbers: it
may be another GPU after cards were changed. Which GPU it is, the attribute `uuid` says.

Tested in `tests/unit/device_plugin/dra`.
"""

from typing import Any

from gpushare.device_plugin.cards import Card, Cards
from gpushare.wire.dra.slices import MEMORY, MODEL, UUID

UNHEALTHY = "gpushare.io/unhealthy"
"""The taint of a device that new claims are to keep off."""

_LONGEST_ATTRIBUTE = 64


def slice_spec(cards: Cards, driver: str, node: str, generation: int) -> dict[str, Any]:
    """Return the spec of the only slice of the node's pool, as the API server would write it."""
    return {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": [_device(card, cards.unit_mib) for card in cards.all if card.unit_count],
    }


def device_name(card: Card) -> str:
    """Return by what the slice names the GPU."""
    return f"gpu-{card.index}"


def _device(card: Card, unit_mib: int) -> dict[str, Any]:
    attributes = {UUID: {"string": card.uuid}}
    if card.model:
        attributes[MODEL] = {"string": card.model[:_LONGEST_ATTRIBUTE]}
    unit, whole = _quantity(unit_mib), _quantity(card.unit_count * unit_mib)
    # Who names no amount gets the whole GPU.
    policy = {"default": whole, "validRange": {"min": unit, "step": unit}}
    device = {
        "name": device_name(card),
        "attributes": attributes,
        "capacity": {MEMORY: {"value": whole, "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }
    if card.problem:
        fault = {"key": UNHEALTHY, "value": card.problem.fault.value, "effect": "NoSchedule"}
        device["taints"] = [fault]
    return device


def _quantity(mib: int) -> str:
    """Return so many MiB in the largest unit that takes them whole, as the API server does."""
    units = ["Mi", "Gi", "Ti", "Pi"]
    while mib % 1024 == 0 and len(units) > 1:
        mib //= 1024
        units.pop(0)
    return f"{mib}{units[0]}"
