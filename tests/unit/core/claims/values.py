"""Short ways to write devices, pools and claims."""

from collections.abc import Mapping
from typing import Any

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import (
    Attribute,
    Capacity,
    ClaimRequest,
    Constraint,
    CounterUse,
    Device,
    DeviceKey,
    DeviceRequest,
    Fit,
    NamedRequest,
    NodeDevices,
    NoFit,
    PodClaims,
    Pool,
    PoolState,
    Use,
)

NOTHING_HELD = Use()


def key(name: str) -> DeviceKey:
    """Return the key of a device of the pool that `node` makes."""
    return DeviceKey("gpu", "pool", name)


def device(name: str, memory: int = 0, **fields: Any) -> Device:
    """Return a device, with memory in GiB if there is any."""
    if memory:
        fields["capacities"] = {"memory": Capacity(memory)}
    return Device(key=key(name), **fields)


def shared(name: str, memory: int = 80, **fields: Any) -> Device:
    """Return a shared device."""
    return device(name, memory, is_shared=True, **fields)


def valued(name: str, kind: str = "string", **values: Any) -> Device:
    """Return a device with attributes of one kind, each of the domain `gpu`."""
    attributes = {f"gpu/{word}": Attribute(kind, value) for word, value in values.items()}
    return device(name, attributes=attributes)


def counted(name: str, amount: int, counter: str = "slices") -> Device:
    """Return a device that consumes a counter."""
    return device(name, counters=(CounterUse("set", counter, amount),))


def node(*devices: Device, **fields: Any) -> NodeDevices:
    """Return a node with one pool of these devices."""
    return NodeDevices((Pool(driver="gpu", name="pool", devices=devices, **fields),))


def broken(state: PoolState) -> Pool:
    """Return a pool without any allocation."""
    return Pool(driver="gpu", name="broken", state=state)


def wish(name: str = "r", **fields: Any) -> DeviceRequest:
    """Return a request for devices; `memory` is the amount asked of each."""
    memory = fields.pop("memory", None)
    if memory is not None:
        fields["amounts"] = (("memory", memory),)
    return DeviceRequest(name=name, **fields)


def request(name: str = "r", **fields: Any) -> NamedRequest:
    """Return a request without alternatives."""
    return NamedRequest(name, (wish(name, **fields),))


def choice(name: str, *alternatives: DeviceRequest) -> NamedRequest:
    """Return a request with alternatives."""
    return NamedRequest(name, alternatives, is_choice=True)


def claims(*requests: NamedRequest, constraints: tuple[Constraint, ...] = ()) -> PodClaims:
    """Return one claim with these requests."""
    return PodClaims((ClaimRequest(requests, constraints),))


def names(
    devices: NodeDevices,
    wanted: PodClaims,
    use: Use = NOTHING_HELD,
    verdicts: Mapping[str, Mapping[str, bool]] | None = None,
    steps: int = 10_000,
) -> str | NoFit:
    """Return the names of the devices that first fit takes, in order, with a blank between.

    verdicts: of each selector, for which devices it is true, by name.
    """
    fit = first_fit(devices, wanted, use, matcher(verdicts or {}), Steps(steps))
    return " ".join(item.device.key.device for item in fit.taken) if isinstance(fit, Fit) else fit


def matcher(verdicts: Mapping[str, Mapping[str, bool]]) -> Any:
    """Return a function that looks up the selectors that are true of a device."""

    def matches(selectors: tuple[str, ...], one: Device) -> bool:
        return all(verdicts[selector][one.key.device] for selector in selectors)

    return matches
