"""DynamicResources: pods with ResourceClaims. First fit, and what others have allocated is bound.

A claim that has its devices keeps the pod to the nodes that these are on. One that has none gets
the first devices of the node that fit, in the order of the driver's slice; which node that is,
other plug-ins decide. What a pod cannot use is taken back. Texts are kube-scheduler's. Not there:
scores of `firstAvailable`, two requests of a claim on one device, and whatever `gpushare.wire.dra`
refuses to read.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.core.model import PodRef
from gpushare.errors import ApiError, InvariantError, MessageError
from gpushare.wire.dra.claims import (
    ClaimRequest,
    GivenDevice,
    claim_request,
    is_protected,
    nodes_of,
)
from gpushare.wire.dra.objects import ResourceClaim
from gpushare.wire.dra.slices import SliceCard
from gpushare.wire.dra.writes import allocation, protection
from gpushare.wire.fields import Fields
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json
from gpushare_localcluster.controllers.claims import claims_of
from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.claims import API, WATCHED, read_claim
from gpushare_localcluster.scheduler.cluster_events import Action, EventWithHint, Resource
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView

_STATE = "DynamicResources"
_CANNOT = fwk.Status(fwk.Code.UNSCHEDULABLE, ("cannot allocate all claims",))
_ELSEWHERE = fwk.Status(fwk.Code.UNSCHEDULABLE, ("resourceclaim not available on the node",))


@dataclass(frozen=True)
class _Wanted:
    """A claim without devices, and what it asks of a class."""

    claim: ResourceClaim
    uid: str
    class_name: str
    request: ClaimRequest


@dataclass
class _Asked:
    """The claims of a pod: those with devices, and the others.

    found: by node, the devices that each of the latter would be given, by its uid. elsewhere: those
    of the former whose devices some node has not.
    """

    given: list[ResourceClaim] = field(default_factory=list)
    wanted: list[_Wanted] = field(default_factory=list)
    found: dict[str, dict[str, tuple[SliceCard, ...]]] = field(default_factory=dict)
    elsewhere: list[ResourceClaim] = field(default_factory=list)


class DynamicResources:
    """Rejects nodes whose devices the pod's claims do not have, or cannot be given."""

    name = "DynamicResources"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Have claims and slices watched."""
        self._handle = handle or Handle()
        self._handle.uses_claims = True
        self._claims = self._handle.claims

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return that claims, slices, classes or nodes may come or change."""
        any_change = ~Action(0)
        made = Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM
        return (
            *(EventWithHint(kind, any_change) for kind in WATCHED),
            EventWithHint(Resource.TARGET_POD, made),
            EventWithHint(Resource.NODE, Action.ADD),
        )

    def pre_enqueue(self, pod: PodView) -> fwk.Status:
        """Return Success, or which claim is not there yet."""
        try:
            self._of(pod)
        except MessageError as error:
            return fwk.Status(fwk.Code.UNRESOLVABLE, (str(error),))
        return fwk.SUCCESS

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[fwk.NodeNames | None, fwk.Status]:
        """Return Success, Skip for a pod without claims, or what is wrong with one of them."""
        asked = _Asked()
        try:
            for claim in self._of(pod):
                if claim.allocation:
                    asked.given.append(claim)
                else:
                    asked.wanted.append(self._wanted(claim))
        except MessageError as error:
            return None, fwk.Status(fwk.Code.UNRESOLVABLE, (str(error),))
        if not asked.given and not asked.wanted:
            return None, fwk.SKIP
        state.write(_STATE, asked)
        return None, fwk.SUCCESS

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or that the claims' devices are elsewhere, or are not to be had here."""
        asked = state.read(_STATE, _Asked)
        for claim in asked.given:
            names = claim.allocation and nodes_of(claim.allocation)
            if names and node.name not in names:
                asked.elsewhere.append(claim)
                return _ELSEWHERE
        try:
            found = self._first_fit(asked, node.name)
        except MessageError as error:
            return fwk.Status(fwk.Code.UNRESOLVABLE, (str(error),))
        if found is None:
            return _CANNOT
        asked.found[node.name] = found
        return fwk.SUCCESS

    def post_filter(
        self, state: CycleState, pod: PodView, statuses: Mapping[str, fwk.Status]
    ) -> fwk.Status:
        """Take back the devices of a claim that keep the pod from other nodes; it is Unschedulable.

        Only where no other pod has the claim.
        """
        asked, api = state.find(_STATE, _Asked), self._handle.api
        if asked is None or api is None:
            return fwk.Status(fwk.Code.UNSCHEDULABLE)
        for claim in asked.elsewhere:
            reserved = (claim.status and claim.status.reserved_for) or ()
            if all(each.uid == pod.uid for each in reserved):
                change: Json = {"status": {"allocation": None, "reservedFor": None}}
                try:
                    _patch_status(api, claim, change)
                except ApiError as error:
                    return fwk.Status(fwk.Code.UNSCHEDULABLE, (str(error),))
                why = "deallocation of ResourceClaim completed"
                return fwk.Status(fwk.Code.UNSCHEDULABLE, (why,))
        return fwk.Status(fwk.Code.UNSCHEDULABLE, ("still not schedulable",))

    def reserve(self, state: CycleState, pod: PodView, node_name: str) -> fwk.Status:
        """Count what the pod's claims will be given."""
        asked = state.find(_STATE, _Asked) or _Asked()
        for each in asked.wanted:
            pairs = zip(each.request.parts, asked.found[node_name][each.uid], strict=True)
            given = (GivenDevice(card.key, card.consumed(part.memory)) for part, card in pairs)
            self._claims.assume(each.uid, tuple(given))
        return fwk.SUCCESS

    def unreserve(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Count it no more; what has been written stays the claim's."""
        asked = state.find(_STATE, _Asked) or _Asked()
        for each in asked.wanted:
            self._claims.forget(each.uid)

    def pre_bind(self, state: CycleState, pod: PodView, node_name: str) -> fwk.Status:
        """Write the allocations, and reserve all claims for the pod."""
        asked, api = state.find(_STATE, _Asked), self._handle.api
        if asked is None or api is None:
            return fwk.SUCCESS
        try:
            for claim in asked.given:
                _reserve(api, claim, pod)
            for each in asked.wanted:
                self._allocate(api, each, asked.found[node_name][each.uid], pod)
        except (ApiError, InvariantError, MessageError) as error:
            return fwk.Status(fwk.Code.ERROR, (str(error),))
        return fwk.SUCCESS

    def _of(self, pod: PodView) -> list[ResourceClaim]:
        """Return the pod's claims. Raises MessageError if one is not there."""
        found = []
        for name in claims_of(pod.raw):
            if not name:
                why = "waiting for dynamic resource controller to create the resourceclaim"
                raise MessageError(f'{why} of pod "{pod.name}"')
            claim = self._claims.named(pod.namespace, name)
            if claim is None:
                raise MessageError(f'resourceclaim "{name}" not found')
            if claim.metadata and claim.metadata.deletion_timestamp:
                raise MessageError(f'resourceclaim "{name}" is being deleted')
            found.append(claim)
        return found

    def _wanted(self, claim: ResourceClaim) -> _Wanted:
        """Return what the claim asks for. Raises MessageError, also if its class is not there."""
        requests = ((claim.spec and claim.spec.devices) or {}).get("requests") or [{}]
        class_name = str((requests[0].get("exactly") or {}).get("deviceClassName") or "")
        self._claims.device_class(class_name)
        request = claim_request(claim, class_name)
        if request is None:
            raise MessageError("a claim without requests of devices")
        return _Wanted(claim, (claim.metadata and claim.metadata.uid) or "", class_name, request)

    def _first_fit(self, asked: _Asked, node: str) -> dict[str, tuple[SliceCard, ...]] | None:
        """Return the devices of the node for each claim, None if there are not enough."""
        if not asked.wanted:
            return {}
        used = self._claims.used()
        found: dict[str, tuple[SliceCard, ...]] = {}
        for each in asked.wanted:
            cards = [*self._claims.selected(each.class_name, node)]
            chosen: list[SliceCard] = []
            for part in each.request.parts:
                fitting = (
                    (card, amount)
                    for card in cards
                    if (amount := card.consumed(part.memory)) is not None
                    and amount + used[card.key] <= card.memory
                )
                card, amount = next(fitting, (None, 0))
                if card is None:
                    return None
                used[card.key] += amount
                cards.remove(card)
                chosen.append(card)
            found[each.uid] = tuple(chosen)
        return found

    def _allocate(
        self, api: ApiClient, wanted: _Wanted, cards: tuple[SliceCard, ...], pod: PodView
    ) -> None:
        device_class = self._claims.device_class(wanted.class_name)
        claim = wanted.claim
        if not is_protected(claim):
            patch = json.loads(protection(claim))
            claim = read_claim(api.patch(_path(claim), patch, MERGE_PATCH))
        body = allocation(
            claim,
            wanted.request,
            cards,
            device_class,
            pod=PodRef(pod.namespace, pod.name, pod.uid),
            share_ids=[str(uuid.uuid4()) for _ in cards],
            now=timestamp(),
        )
        api.patch(f"{_path(claim)}/status", json.loads(body), MERGE_PATCH)


def _reserve(api: ApiClient, claim: ResourceClaim, pod: PodView) -> None:
    """Add the pod to those that may use the claim, if it is none of them."""
    reserved = (claim.status and claim.status.reserved_for) or []
    if any(each.uid == pod.uid for each in reserved):
        return
    every: list[Json] = [
        {"resource": each.resource, "name": each.name, "uid": each.uid} for each in reserved
    ]
    every.append({"resource": "pods", "name": pod.name, "uid": pod.uid})
    _patch_status(api, claim, {"status": {"reservedFor": every}})


def _patch_status(api: ApiClient, claim: ResourceClaim, change: Json) -> None:
    """Change the status of the claim as it was read, and of no later one. Raises ApiError."""
    meta = claim.metadata
    read = {"uid": meta and meta.uid, "resourceVersion": meta and meta.resource_version}
    api.patch(f"{_path(claim)}/status", {"metadata": read, **change}, MERGE_PATCH)


def _path(claim: ResourceClaim) -> str:
    meta = claim.metadata
    namespace, name = (meta and meta.namespace) or "", (meta and meta.name) or ""
    return f"{API}/namespaces/{namespace}/resourceclaims/{name}"
