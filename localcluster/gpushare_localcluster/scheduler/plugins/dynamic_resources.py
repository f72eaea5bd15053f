"""DynamicResources: pods with ResourceClaims, as kube-scheduler allocates them.

An allocated claim restricts the pod to the nodes of its devices. Another claim gets the devices of
first fit on the node; other plug-ins choose the node. Texts are those of kube-scheduler. Left out:
scores of `firstAvailable`, extended resources by device classes, and claims that
`gpushare.core.claims` cannot read.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare.core.claims.model import THOUSANDTHS, Amounts, Fit, NoFit, PodClaims, Taken
from gpushare.errors import ApiError, MessageError
from gpushare.wire.fields import Fields
from gpushare_localcluster.api.objects import timestamp
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json
from gpushare_localcluster.controllers.claims import FINALIZER, claims_of
from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.claims import WATCHED, Claim, read_claim
from gpushare_localcluster.scheduler.cluster_events import Action, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import CycleState
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, any_term

_STATE = "DynamicResources"
_CANNOT = fwk.Status(fwk.Code.UNSCHEDULABLE, ("cannot allocate all claims",))
_ELSEWHERE = fwk.Status(fwk.Code.UNSCHEDULABLE, ("resourceclaim not available on the node",))


@dataclass
class _PodClaims:
    """The claims of a pod in one scheduling cycle.

    requests: of the claims to allocate, in order. fits: the devices of first fit by node. unusable:
    allocated claims with devices on other nodes.
    """

    allocated: list[Claim]
    to_allocate: list[Claim]
    requests: PodClaims
    fits: dict[str, Fit] = field(default_factory=dict)
    unusable: list[Claim] = field(default_factory=list)


class DynamicResources:
    """Rejects nodes that lack the devices of the pod's claims, and allocates the claims."""

    name = "DynamicResources"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the scheduler watch claims and slices."""
        self._handle = handle or Handle()
        self._handle.uses_claims = True
        self._claims = self._handle.claims

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: changes of claims, slices, classes, taint rules or nodes."""
        any_change = ~Action(0)
        generated = Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM
        return (
            *(EventWithHint(kind, any_change) for kind in WATCHED),
            EventWithHint(Resource.TARGET_POD, generated),
            EventWithHint(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
        )

    def pre_enqueue(self, pod: PodView) -> fwk.Status:
        """Return Success, or the missing claim."""
        try:
            self._of(pod)
        except MessageError as error:
            return fwk.Status(fwk.Code.UNRESOLVABLE, (str(error),))
        return fwk.SUCCESS

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[fwk.NodeNames | None, fwk.Status]:
        """Return Success, Skip for a pod without claims, or an objection to one of the claims."""
        try:
            claims = self._of(pod)
            to_allocate = [claim for claim in claims if claim.holdings is None]
            for claim in to_allocate:
                if self._claims.is_assumed(claim.uid):
                    name = claim.raw["metadata"]["name"]
                    raise MessageError(
                        f"resource claim {name} is in the process of being allocated"
                    )
            requests = self._claims.requests(to_allocate)
        except MessageError as error:
            return None, fwk.Status(fwk.Code.UNRESOLVABLE, (str(error),))
        if not claims:
            return None, fwk.SKIP
        allocated = [claim for claim in claims if claim.holdings is not None]
        state.write(_STATE, _PodClaims(allocated, to_allocate, requests))
        return None, fwk.SUCCESS

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or an objection: devices of a claim are elsewhere or not free."""
        claims = state.read(_STATE, _PodClaims)
        for claim in claims.allocated:
            if not any_term(claim.node_terms, node.node):
                claims.unusable.append(claim)
                return _ELSEWHERE
        fit = self._claims.first_fit(claims.requests, node.node)
        if fit is NoFit.TOO_FEW_DEVICES:
            return _CANNOT
        if isinstance(fit, NoFit):
            return fwk.Status(fwk.Code.ERROR, (fit.value,))
        claims.fits[node.name] = fit
        return fwk.SUCCESS

    def post_filter(
        self, state: CycleState, pod: PodView, statuses: Mapping[str, fwk.Status]
    ) -> fwk.Status:
        """Deallocate a claim that keeps the pod alone from other nodes; return Unschedulable."""
        claims, api = state.find(_STATE, _PodClaims), self._handle.api
        if claims is None or api is None:
            return fwk.Status(fwk.Code.UNSCHEDULABLE)
        for claim in claims.unusable:
            if all(consumer["uid"] == pod.uid for consumer in claim.reserved):
                change: Json = {"status": {"allocation": None, "reservedFor": None}}
                try:
                    _patch(api, claim, change, "/status")
                except ApiError as error:
                    return fwk.Status(fwk.Code.UNSCHEDULABLE, (str(error),))
                text = "deallocation of ResourceClaim completed"
                return fwk.Status(fwk.Code.UNSCHEDULABLE, (text,))
        return fwk.Status(fwk.Code.UNSCHEDULABLE, ("still not schedulable",))

    def reserve(self, state: CycleState, pod: PodView, node_name: str) -> fwk.Status:
        """Count the devices of the pod's new allocations."""
        claims = state.find(_STATE, _PodClaims)
        if claims is not None and claims.to_allocate:
            uids = [claim.uid for claim in claims.to_allocate]
            self._claims.assume(uids, claims.fits[node_name])
        return fwk.SUCCESS

    def unreserve(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Stop counting the devices; a written allocation stays."""
        claims = state.find(_STATE, _PodClaims)
        for claim in claims.to_allocate if claims is not None else ():
            self._claims.forget(claim.uid)

    def pre_bind(self, state: CycleState, pod: PodView, node_name: str) -> fwk.Status:
        """Write the allocations, and reserve all claims for the pod."""
        claims, api = state.find(_STATE, _PodClaims), self._handle.api
        if claims is None or api is None:
            return fwk.SUCCESS
        consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        try:
            for claim in claims.allocated:
                if all(item["uid"] != pod.uid for item in claim.reserved):
                    change: Json = {"status": {"reservedFor": [*claim.reserved, consumer]}}
                    _patch(api, claim, change, "/status")
            for index, claim in enumerate(claims.to_allocate):
                devices = [item for item in claims.fits[node_name].taken if item.claim == index]
                status = {
                    "allocation": self._allocation(claim, devices, node_name),
                    "reservedFor": [consumer],
                }
                _patch(api, _protected(api, claim), {"status": status}, "/status")
        except (ApiError, MessageError) as error:
            return fwk.Status(fwk.Code.ERROR, (str(error),))
        return fwk.SUCCESS

    def _of(self, pod: PodView) -> list[Claim]:
        """Return the pod's claims. Raises MessageError for a missing claim."""
        claims = []
        for name in claims_of(pod.raw):
            if not name:
                text = "waiting for dynamic resource controller to create the resourceclaim"
                raise MessageError(f'{text} of pod "{pod.name}"')
            claim = self._claims.named(pod.namespace, name)
            if claim is None:
                raise MessageError(f'resourceclaim.resource.k8s.io "{name}" not found')
            claims.append(claim)
        return claims

    def _allocation(self, claim: Claim, allocated: Sequence[Taken], node_name: str) -> Json:
        """Return the allocation of a claim with these devices of the node."""
        devices = claim.raw["spec"]["devices"]
        config: list[Json] = [
            {"source": "FromClass", "requests": [name], **item}
            for name in dict.fromkeys(result.request for result in allocated)
            for item in self._claims.class_config(_class_of(devices, name))
        ]
        config += [{"source": "FromClaim", **item} for item in devices.get("config") or ()]
        node = {"key": "metadata.name", "operator": "In", "values": [node_name]}
        return {
            "allocationTimestamp": timestamp(),
            "devices": {"results": [_result(result) for result in allocated], "config": config},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]},
        }


def _result(allocated: Taken) -> Json:
    driver, pool, device = allocated.device.key
    result: dict[str, Any] = {
        "request": allocated.request,
        "driver": driver,
        "pool": pool,
        "device": device,
    }
    if allocated.has_admin_access:
        result["adminAccess"] = True
    if allocated.consumed is not None:
        result |= {
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": _quantities(allocated.consumed),
        }
    return result


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {
        name: f"{amount}m" if amount % THOUSANDTHS else str(amount // THOUSANDTHS)
        for name, amount in amounts.items()
    }


def _class_of(devices: Json, name: str) -> str:
    """Return the device class of a request; name: REQUEST, or REQUEST/ALTERNATIVE."""
    request, _, alternative = name.partition("/")
    named_request = next(item for item in devices["requests"] if item["name"] == request)
    choices = named_request.get("firstAvailable") or [{**named_request["exactly"], "name": ""}]
    return str(next(item for item in choices if item["name"] == alternative)["deviceClassName"])


def _protected(api: ApiClient, claim: Claim) -> Claim:
    """Return the claim with the finalizer; without it a deletion would free the devices."""
    finalizers = claim.raw["metadata"].get("finalizers") or []
    if FINALIZER in finalizers:
        return claim
    return _patch(api, claim, {"metadata": {"finalizers": [*finalizers, FINALIZER]}})


def _patch(api: ApiClient, claim: Claim, change: Json, part: str = "") -> Claim:
    """Patch the claim at the version read. Raises ApiError."""
    meta = claim.raw["metadata"]
    precondition = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    change = {**change, "metadata": {**precondition, **change.get("metadata", {})}}
    return read_claim(api.patch(f"{claim.path}{part}", change, MERGE_PATCH))
