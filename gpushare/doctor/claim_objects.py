"""Read objects of resource.k8s.io/v1 and admission policies from JSON into the records of facts.py.

Tested in `tests/unit/doctor/test_claims.py`.
"""

from collections.abc import Iterable, Iterator

from gpushare.doctor import facts
from gpushare.doctor.checks.claims import CLASS
from gpushare.doctor.objects import Fields, mapping, mappings, name_of

LEFT_OVER = frozenset(
    {
        "validatingadmissionpolicies/gpushare-claims",
        "validatingadmissionpolicybindings/gpushare-claims",
        "validatingadmissionpolicies/gpushare-claims-pods",
        "validatingadmissionpolicybindings/gpushare-claims-pods",
        "mutatingadmissionpolicies/gpushare-claims-pods",
        "mutatingadmissionpolicybindings/gpushare-claims-pods",
        "mutatingadmissionpolicies/gpushare-claims-protect",
        "mutatingadmissionpolicybindings/gpushare-claims-protect",
        "deviceclasses/settings.gpushare.io",
    }
)
"""Objects of earlier releases, when the extender allocated claims, as kind/name."""


def read_selectors(classes: Iterable[Fields]) -> tuple[str, ...] | None:
    """Return the CEL expressions of our DeviceClass; None if there is no such class."""
    for item in classes:
        if mapping(item.get("metadata")).get("name") == CLASS:
            selectors = mappings(mapping(item.get("spec")).get("selectors"))
            return tuple(str(mapping(one.get("cel")).get("expression")) for one in selectors)
    return None


def read_left_over(kind: str, items: Iterable[Fields]) -> Iterator[str]:
    """Yield the left-over objects of this kind, as kind/name."""
    names = (f"{kind}/{mapping(item.get('metadata')).get('name')}" for item in items)
    return (name for name in names if name in LEFT_OVER)


def read_drivers(slices: Iterable[Fields]) -> dict[str, facts.ListedDriver]:
    """Return the drivers with slices of single nodes, by name."""
    nodes: dict[str, dict[str, set[str]]] = {}
    devices: dict[str, list[bool]] = {}
    for item in slices:
        spec = mapping(item.get("spec"))
        driver, node = str(spec.get("driver")), spec.get("nodeName")
        uuids = nodes.setdefault(driver, {}).setdefault(str(node), set()) if node else set()
        for device in mappings(spec.get("devices")):
            shared = device.get("allowMultipleAllocations") is True
            devices.setdefault(driver, []).append(shared)
            attributes = mapping(device.get("attributes"))
            uuid = attributes.get("uuid") or attributes.get(f"{driver}/uuid")
            uuids.update(filter(None, [mapping(uuid).get("string")]))
    return {
        driver: facts.ListedDriver(
            {node: frozenset(uuids) for node, uuids in nodes.get(driver, {}).items()},
            len(shared),
            sum(shared),
        )
        for driver, shared in devices.items()
    }


def read_claims(claims: Iterable[Fields]) -> dict[str, facts.ListedClaim]:
    """Return the device classes and drivers of each claim, by namespace/name."""
    by_name = {}
    for claim in claims:
        devices = mapping(mapping(claim.get("spec")).get("devices"))
        requests = [*mappings(devices.get("requests"))]
        exact = [mapping(request.get("exactly")) for request in requests]
        exact += [one for request in requests for one in mappings(request.get("firstAvailable"))]
        allocation = mapping(mapping(claim.get("status")).get("allocation"))
        results = mappings(mapping(allocation.get("devices")).get("results"))
        by_name[name_of(claim)] = facts.ListedClaim(
            frozenset(str(one["deviceClassName"]) for one in exact if "deviceClassName" in one),
            frozenset(str(result.get("driver")) for result in results),
        )
    return by_name
