"""ResourceClaims, devices of slices, device classes and taint rules: the input of DynamicResources.

Informers and bindings write, the scheduling cycle reads, from any thread. Slices, classes and
claims are read, and devices found, as gpushare's model of kube-scheduler does it
(`gpushare.core.claims`).
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import (
    ClaimRequest,
    ClassRecord,
    Fit,
    Holding,
    NodeDevices,
    NoFit,
    PodClaims,
    Slice,
    TaintRule,
    Use,
)
from gpushare.core.claims.pools import gather_pools
from gpushare.errors import MessageError
from gpushare.wire.dra.devices import read_slice, read_taint_rule
from gpushare.wire.dra.objects import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from gpushare.wire.dra.requests import claim_request, class_record, holdings
from gpushare.wire.dra.selectors import Selectors
from gpushare_localcluster.api.objects import to_json
from gpushare_localcluster.client import Json
from gpushare_localcluster.scheduler.cluster_events import Resource
from gpushare_localcluster.scheduler.objects import NodeView

API = "/apis/resource.k8s.io/v1"
WATCHED = {
    Resource.RESOURCE_CLAIM: f"{API}/resourceclaims",
    Resource.RESOURCE_SLICE: f"{API}/resourceslices",
    Resource.DEVICE_CLASS: f"{API}/deviceclasses",
    Resource.DEVICE_TAINT_RULE: f"{API}/devicetaintrules",
}
"""Path of the list of each watched kind."""

_MAX_STEPS = 1_000_000
"""Upper bound on the steps of one search of devices."""


@dataclass(frozen=True)
class Claim:
    """A claim of the API server. holdings: the devices of the allocation; None without one."""

    raw: Json
    holdings: tuple[Holding, ...] | None

    @property
    def uid(self) -> str:
        """The claim's uid."""
        return str(self.raw["metadata"]["uid"])

    @property
    def path(self) -> str:
        """The claim's path on the API server."""
        meta = self.raw["metadata"]
        return f"{API}/namespaces/{meta['namespace']}/resourceclaims/{meta['name']}"

    @property
    def reserved(self) -> list[Json]:
        """Consumers for which the claim is reserved."""
        return (self.raw.get("status") or {}).get("reservedFor") or []

    @property
    def node_terms(self) -> tuple[Json, ...] | None:
        """Terms of the node selector of the allocation; None: any node."""
        allocation = (self.raw.get("status") or {}).get("allocation") or {}
        selector = allocation.get("nodeSelector")
        return None if selector is None else tuple(selector.get("nodeSelectorTerms") or ())

    def request(self) -> ClaimRequest:
        """Return the requests of the claim. Raises MessageError."""
        spec = RESOURCE_CLAIMS.decode(to_json(self.raw)).spec
        if spec is None:
            raise MessageError("the claim's spec cannot be read")
        return claim_request(spec)


class Claims:
    """The last known objects, and the devices of claims in allocation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], Claim] = {}
        self._slices: dict[str, Slice] = {}
        self._classes: dict[str, tuple[ClassRecord, list[Json]]] = {}
        self._rules: dict[str, TaintRule] = {}
        self._assumed: dict[str, tuple[Holding, ...]] = {}
        self._nodes: dict[str, tuple[Mapping[str, str], NodeDevices]] = {}
        """Cache of labels and devices by node, valid for unchanged slices and rules."""
        self._selectors = Selectors(time.monotonic)

    def changed(self, kind: Resource, before: Json | None, after: Json | None) -> None:
        """Handle an added, changed or deleted object. Raises MessageError."""
        meta: Json = (after or before or {}).get("metadata") or {}
        name = str(meta.get("name"))
        with self._lock:
            if kind is Resource.RESOURCE_CLAIM:
                key = (str(meta.get("namespace")), name)
                self._claims.pop(key, None)
                claim = read_claim(after) if after else None
                if claim is not None:
                    self._claims[key] = claim
                if claim is None or claim.holdings is not None:
                    self._assumed.pop(str(meta.get("uid")), None)
            elif kind is Resource.DEVICE_CLASS:
                self._classes.pop(name, None)
                if after is not None:
                    config = (after.get("spec") or {}).get("config") or []
                    record = class_record(DEVICE_CLASSES.decode(to_json(after)))
                    self._classes[name] = record, config
            elif kind is Resource.RESOURCE_SLICE:
                self._nodes.clear()
                self._slices.pop(name, None)
                if after is not None:
                    self._slices[name] = read_slice(RESOURCE_SLICES.decode(to_json(after)))
            else:
                self._nodes.clear()
                self._rules.pop(name, None)
                if after is not None:
                    self._rules[name] = read_taint_rule(DEVICE_TAINT_RULES.decode(to_json(after)))

    def named(self, namespace: str, name: str) -> Claim | None:
        """Return a claim, None for an unknown one."""
        with self._lock:
            return self._claims.get((namespace, name))

    def requests(self, claims: Iterable[Claim]) -> PodClaims:
        """Return the requests of claims. Raises MessageError, also for a missing device class."""
        with self._lock:
            records = {name: record for name, (record, _) in self._classes.items()}
        requests = []
        for claim in claims:
            request = claim.request()
            complete = request.with_classes(records)
            if complete is None:
                names = {
                    alternative.device_class
                    for r in request.requests
                    for alternative in r.alternatives
                }
                missing = min(names - records.keys())
                raise MessageError(f"device class {missing} does not exist")
            requests.append(complete)
        return PodClaims(tuple(requests))

    def class_config(self, name: str) -> list[Json]:
        """Return the configuration of a class, [] for an unknown one."""
        with self._lock:
            return self._classes[name][1] if name in self._classes else []

    def first_fit(self, requests: PodClaims, node: NodeView) -> Fit | NoFit:
        """Return the devices for the claims on a node."""
        with self._lock:
            devices = self._devices(node)
            use = self._use()
        matches = self._selectors.matches
        return first_fit(devices, requests, use, matches, Steps(_MAX_STEPS))

    def assume(self, uids: Sequence[str], fit: Fit) -> None:
        """Count the devices of a fit. uids: of the claims in the order of the requests."""
        with self._lock:
            for index, uid in enumerate(uids):
                self._assumed[uid] = tuple(
                    Holding(allocated.device.key, allocated.consumed)
                    for allocated in fit.taken
                    if allocated.claim == index and not allocated.has_admin_access
                )

    def is_assumed(self, uid: str) -> bool:
        """Return whether a claim is in allocation."""
        with self._lock:
            return uid in self._assumed

    def forget(self, uid: str) -> None:
        """Stop counting the devices of a claim in allocation."""
        with self._lock:
            self._assumed.pop(uid, None)

    def _devices(self, node: NodeView) -> NodeDevices:
        """Return the devices of a node; the lock is held."""
        cached = self._nodes.get(node.name)
        if cached is None or cached[0] != node.labels:
            pools: dict[tuple[str, str], list[Slice]] = {}
            for item in self._slices.values():
                pools.setdefault((item.driver, item.pool), []).append(item)
            rules = tuple(self._rules.values())
            devices = gather_pools(node.name, node.labels, self._slices.values(), pools, rules)
            cached = self._nodes[node.name] = (node.labels, devices)
        return cached[1]

    def _use(self) -> Use:
        """Return the devices that claims hold; the lock is held."""
        allocated = [claim.holdings for claim in self._claims.values() if claim.holdings]
        return Use().plus(chain.from_iterable((*allocated, *self._assumed.values())))


def read_claim(raw: Json) -> Claim:
    """Return a claim from an object of the API server. Raises MessageError."""
    allocation = RESOURCE_CLAIMS.decode(to_json(raw)).allocation
    return Claim(raw, None if allocation is None else holdings(allocation))
