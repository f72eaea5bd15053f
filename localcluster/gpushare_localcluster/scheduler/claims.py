"""ResourceClaims, the devices of slices, and device classes: what DynamicResources goes by.

Informers and bindings write, the scheduling cycle reads, from any thread. Slices and claims are
read as gpushare reads them (`gpushare.wire.dra`); of the CEL of a class only `device.driver ==` is
understood.
"""

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping

from gpushare.errors import MessageError
from gpushare.wire.dra.claims import GivenDevice, given_devices
from gpushare.wire.dra.objects import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from gpushare.wire.dra.slices import DeviceKey, SliceCard, cards_of
from gpushare_localcluster.api.objects import to_json
from gpushare_localcluster.client import Json
from gpushare_localcluster.scheduler.cluster_events import Resource

API = "/apis/resource.k8s.io/v1"
WATCHED = {
    Resource.RESOURCE_CLAIM: f"{API}/resourceclaims",
    Resource.RESOURCE_SLICE: f"{API}/resourceslices",
    Resource.DEVICE_CLASS: f"{API}/deviceclasses",
}
"""What is watched, and where it is listed."""

WHOLE = 2**62
"""More bytes than any device has."""

_DRIVER = re.compile(r"""device\.driver\s*==\s*(["'])(?P<name>[^"']+)\1""")


class Claims:
    """What has been seen of them, and what the pods take that are being bound."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], ResourceClaim] = {}
        self._slices: dict[str, ResourceSlice] = {}
        self._classes: dict[str, tuple[DeviceClass, tuple[str, ...]]] = {}
        self._assumed: dict[str, tuple[GivenDevice, ...]] = {}
        self._cards: Mapping[str, tuple[SliceCard, ...]] = {}

    def changed(self, kind: Resource, before: Json | None, after: Json | None) -> None:
        """Take in an object that appeared, changed or vanished. Raises MessageError."""
        meta: Json = (after or before or {}).get("metadata") or {}
        name = str(meta.get("name"))
        with self._lock:
            if kind is Resource.RESOURCE_CLAIM:
                key = (str(meta.get("namespace")), name)
                self._claims.pop(key, None)
                claim = read_claim(after) if after else None
                if claim is not None:
                    self._claims[key] = claim
                if claim is None or claim.allocation:
                    self._assumed.pop(str(meta.get("uid")), None)
            elif kind is Resource.RESOURCE_SLICE:
                self._slices.pop(name, None)
                if after is not None:
                    self._slices[name] = RESOURCE_SLICES.decode(to_json(after))
                self._cards = _by_node(self._slices)
            else:
                self._classes.pop(name, None)
                if after is not None:
                    selectors = (after.get("spec") or {}).get("selectors") or ()
                    told = tuple(
                        str((each.get("cel") or {}).get("expression")) for each in selectors
                    )
                    self._classes[name] = DEVICE_CLASSES.decode(to_json(after)), told

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim, None if there is none."""
        with self._lock:
            return self._claims.get((namespace, name))

    def device_class(self, name: str) -> DeviceClass:
        """Return a class. Raises MessageError if there is none."""
        return self._class(name)[0]

    def selected(self, class_name: str, node: str) -> tuple[SliceCard, ...]:
        """Return the devices of the class on a node, in the order in which they are tried.

        Raises MessageError for a class that is not there, or whose selectors are not understood.
        """
        _, selectors = self._class(class_name)
        with self._lock:
            cards = self._cards.get(node, ())
        return tuple(card for card in cards if all(_selects(each, card) for each in selectors))

    def used(self) -> Counter[DeviceKey]:
        """Return the bytes that claims have of each device; of one that is taken whole, the most
        there can be.
        """
        found: Counter[DeviceKey] = Counter()
        with self._lock:
            allocations = [claim.allocation for claim in self._claims.values()]
            given = [given_devices(each) for each in allocations if each]
            given += self._assumed.values()
        for device in (device for devices in given for device in devices):
            found[device.key] += WHOLE if device.memory is None else device.memory
        return found

    def assume(self, uid: str, devices: tuple[GivenDevice, ...]) -> None:
        """Count what a claim is about to be given."""
        with self._lock:
            self._assumed[uid] = devices

    def forget(self, uid: str) -> None:
        """Count it no more."""
        with self._lock:
            self._assumed.pop(uid, None)

    def _class(self, name: str) -> tuple[DeviceClass, tuple[str, ...]]:
        with self._lock:
            found = self._classes.get(name)
        if found is None:
            raise MessageError(f"device class {name} does not exist")
        return found


def read_claim(raw: Json) -> ResourceClaim:
    """Return a claim as the API server answers it. Raises MessageError."""
    return RESOURCE_CLAIMS.decode(to_json(raw))


def _by_node(slices: Mapping[str, ResourceSlice]) -> dict[str, tuple[SliceCard, ...]]:
    """Return the devices of each node in kube-scheduler's order.

    Pools by driver and name, slices by name, devices as the slice has them.
    """
    found: dict[str, list[SliceCard]] = defaultdict(list)
    cards = cards_of(each for _, each in sorted(slices.items(), key=_place))
    for card in cards.values():
        if card.open:
            found[card.node].append(card)
    return {node: tuple(some) for node, some in found.items()}


def _place(item: tuple[str, ResourceSlice]) -> tuple[str, str, str]:
    name, spec = item[0], item[1].spec
    pool = spec and spec.pool
    return (spec and spec.driver) or "", (pool and pool.name) or "", name


def _selects(expression: str, card: SliceCard) -> bool:
    """Return whether a selector of a class chooses the device. Raises MessageError."""
    for term in expression.split("&&"):
        driver = _DRIVER.fullmatch(term.strip())
        if driver is None and term.strip() not in ("true", "false"):
            raise MessageError(f"selector {expression[:60]!r}: only device.driver == is understood")
        if term.strip() == "false" or (driver and driver["name"] != card.key.driver):
            return False
    return True
