"""Objects of claims as the API server shows them -> facts: the class, the fence, slices, claims.

Pure.

Tested in `tests/unit/doctor/test_claims.py`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from gpushare.doctor.facts import DriverSeen, FenceSeen
from gpushare.doctor.objects import Fields, seconds
from gpushare.errors import MessageError, WireError
from gpushare.wire.dra.claims import CLASS, CLASS_ASIDE, claim_request
from gpushare.wire.dra.objects import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Device,
    ResourceSlice,
    SliceSpec,
)
from gpushare.wire.dra.slices import MEMORY, UUID, DeviceKey, cards_of

_DRIVER = re.compile(r"\.driver\s*[!=]=\s*'([^']+)'")
_GUARDED = frozenset({"resourceclaims/status", "resourceclaims/*", "*/*"})


def read_classes(classes: Iterable[Fields]) -> dict[str, tuple[str, ...]]:
    """Return the expressions that a device has to meet, by the names that our class may have."""
    found = {}
    for each in classes:
        name = str(_map(each.get("metadata")).get("name"))
        if name in {CLASS, CLASS_ASIDE}:
            every = _maps(_map(each.get("spec")).get("selectors"))
            found[name] = tuple(str(_map(one.get("cel")).get("expression")) for one in every)
    return found


def read_fences(policies: Iterable[Fields], bindings: Iterable[Fields]) -> Iterator[FenceSeen]:
    """Yield the policies that look at allocations."""
    bound: dict[str, list[Fields]] = {}
    for binding in bindings:
        spec = _map(binding.get("spec"))
        bound.setdefault(str(spec.get("policyName")), []).append(spec)
    for policy in policies:
        spec, name = _map(policy.get("spec")), str(_map(policy.get("metadata")).get("name"))
        matches = _map(spec.get("matchConstraints"))
        rules = [rule for rule in _maps(matches.get("resourceRules")) if _guards(rule)]
        if not rules:
            continue
        text = " ".join(str(each.get("expression")) for each in _maps(spec.get("validations")))
        gaps = (
            [] if spec.get("failurePolicy", "Fail") == "Fail" else ["its failurePolicy is not Fail"]
        )
        if not any({"UPDATE", "*"} & set(_texts(rule.get("operations"))) for rule in rules):
            gaps.append("it does not look at UPDATE")
        if any(_map(matches.get(key)) for key in ("namespaceSelector", "objectSelector")):
            gaps.append("it looks at some namespaces or objects alone")
        gaps += _gaps_of(bound.get(name, []))
        yield FenceSeen(name, frozenset(_DRIVER.findall(text)), tuple(gaps))


def _gaps_of(bindings: list[Fields]) -> list[str]:
    """Return what is wrong with the bindings of a policy: one without a fault is enough."""
    if not bindings:
        return ["no ValidatingAdmissionPolicyBinding names it"]
    faults = [
        "its binding does not Deny"
        if "Deny" not in _texts(binding.get("validationActions"))
        else "its binding is for some namespaces or objects alone"
        if binding.get("matchResources")
        else ""
        for binding in bindings
    ]
    return [] if "" in faults else faults[:1]


def read_drivers(slices: Iterable[Fields]) -> dict[str, DriverSeen]:
    """Return the drivers, by name."""
    read: list[SliceSpec] = []
    whole: list[ResourceSlice] = []
    for item in slices:
        try:
            found = RESOURCE_SLICES.decode(json.dumps(item).encode())
        except WireError:
            continue  # its devices are given out by nobody
        whole.append(found)
        read += [found.spec] if found.spec else []
    cards = cards_of(whole)
    nodes: dict[str, dict[str, set[str]]] = {spec.driver or "": {} for spec in read}
    unfit: dict[str, Counter[str]] = {driver: Counter() for driver in nodes}
    for spec in read:
        driver, pool = spec.driver or "", (spec.pool and spec.pool.name) or ""
        for device in spec.devices or ():
            card = cards.get(DeviceKey(driver, pool, device.name or ""))
            if card is not None and card.shared and card.open:
                nodes[driver].setdefault(card.node, set()).add(card.uuid)
            else:
                unfit[driver][_lack(driver, device)] += 1
    return {
        driver: DriverSeen(
            {name: frozenset(uuids) for name, uuids in by_node.items()}, unfit[driver]
        )
        for driver, by_node in nodes.items()
    }


def _lack(driver: str, device: Device) -> str:
    """Return what keeps the device from being shared by memory."""
    if MEMORY not in (device.capacity or {}):
        return f"no capacity {MEMORY}"
    if not {UUID, f"{driver}/{UUID}"} & (device.attributes or {}).keys():
        return f"no attribute {UUID}"
    if device.allow_multiple_allocations is not True:
        return "no allowMultipleAllocations"
    return "a taint, counters, conditions, the uuid of another one, or a pool that is not whole"


def read_unused(claims: Iterable[Fields]) -> Iterator[tuple[str, float]]:
    """Yield the claims of our class that have devices, and that nobody has reserved."""
    for each in claims:
        status, metadata = _map(each.get("status")), _map(each.get("metadata"))
        allocation = _map(status.get("allocation"))
        if not allocation or status.get("reservedFor"):
            continue
        try:
            if claim_request(RESOURCE_CLAIMS.decode(json.dumps(each).encode()), CLASS) is None:
                continue
        except MessageError:
            pass  # it has devices all the same
        name = f"{metadata.get('namespace')}/{metadata.get('name')}"
        yield name, seconds(allocation.get("allocationTimestamp"))


def _guards(rule: Fields) -> bool:
    groups = {"resource.k8s.io", "*"} & set(_texts(rule.get("apiGroups")))
    return bool(groups and _GUARDED & set(_texts(rule.get("resources"))))


def _map(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def _maps(value: object) -> Iterator[Fields]:
    return (_map(item) for item in (value if isinstance(value, list) else ()))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
