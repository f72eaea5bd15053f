"""What we write to a ResourceClaim: merge patches, each of the claim as it was read.

uid and resourceVersion are preconditions: of two who allocate one wins, and a claim that was made
anew under its name is never met. The API server checks next to nothing of an allocation: a part
that is missing or wrong is found by a pod that never starts, or by two on one card.

Tested in `tests/unit/wire/dra` and, with a real API server, in `tests/e2e/test_claims.py`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.core.model import PodRef
from gpushare.errors import InvariantError, MessageError
from gpushare.wire.dra.claims import FINALIZER, ClaimRequest, is_protected
from gpushare.wire.dra.objects import DeviceClass, ResourceClaim
from gpushare.wire.dra.slices import MEMORY, SliceCard

SETTLED = "gpushare.io/settled"
"""Annotation of a claim: an allocation got no answer, and was settled by this write."""


def protection(claim: ResourceClaim) -> bytes:
    """Return the patch of the claim itself that protects it; the first of two writes.

    The API server drops finalizers from a patch of the status without a word.
    """
    before = (claim.metadata and claim.metadata.finalizers) or []
    return _patch(claim, {"finalizers": [*before, FINALIZER]}, None)


def allocation(
    claim: ResourceClaim,
    request: ClaimRequest,
    cards: Sequence[SliceCard],
    device_class: DeviceClass,
    *,
    pod: PodRef,
    share_ids: Sequence[str],
    now: str,
) -> bytes:
    """Return the patch of the claim's status that gives it these cards of one node.

    cards: one for each part of the request, in that order.
    pod: for which it is, and is reserved by the same write. A pod with the claim that has ended and
    is still there would else be the first: the controller of claims reserves what is allocated for
    every pod that is on a node, finds that this one has ended, and takes the allocation back. If
    the pod goes before it is bound, the controller frees the devices.
    share_ids: a new UUID for each card, in lower case. now: RFC 3339 in UTC. Raises InvariantError
    if the claim is not protected, has devices already or is being deleted, or if these are not the
    cards that it asks for.
    """
    if not (is_protected(claim) and claim.is_open and claim.spec and not claim.spec.refusal):
        raise InvariantError("the claim is not one that may be allocated")
    nodes = {card.node for card in cards}
    uuids = {card.uuid for card in cards}
    if len(nodes) != 1 or not len(uuids) == len(cards) == len(request.parts):
        raise InvariantError("the cards are not what the claim asks for")
    results = []
    for part, card, share_id in zip(request.parts, cards, share_ids, strict=True):
        amount = card.consumed(part.memory)
        if amount is None or not card.open:
            raise InvariantError("the card cannot be given out by such an amount")
        driver, pool, device = card.key
        result: dict[str, Any] = {
            "request": part.request,
            "driver": driver,
            "pool": pool,
            "device": device,
        }
        if card.shared:
            result |= {"shareID": share_id, "consumedCapacity": {MEMORY: str(amount)}}
        results.append(result)
    of_class = (device_class.spec and device_class.spec.config) or []
    config = [{"source": "FromClass", **item, "requests": [*request.requests]} for item in of_class]
    config += [{"source": "FromClaim", **item} for item in claim.spec.config]
    field = {"key": "metadata.name", "operator": "In", "values": [*nodes]}
    written = {
        "allocation": {
            "allocationTimestamp": now,
            "devices": {"results": results, "config": config},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid}],
    }
    return _patch(claim, {}, written)


def release(claim: ResourceClaim, waiting: PodRef | None = None) -> bytes:
    """Return the patch of the claim's status that takes its devices back.

    waiting: the pod for which it was allocated, if it is on no node, or is gone. Raises
    InvariantError if any other has them reserved.
    """
    if any(waiting is None or consumer.uid != waiting.uid for consumer in claim.reserved):
        raise InvariantError("the claim is reserved")
    return _patch(claim, {}, {"allocation": None, "reservedFor": None})


def withdrawal(claim: ResourceClaim) -> bytes:
    """Return the patch of the claim's status that leaves its devices reserved for nobody."""
    return _patch(claim, {}, {"reservedFor": None})


def settlement(ref: PodRef, token: str) -> bytes:
    """Return the patch of the claim itself after which no earlier write can land any more.

    It changes an annotation and with it the resourceVersion, which each write of ours demands. ref:
    of the claim. token: another one each time.
    """
    return json.dumps({"metadata": {"uid": ref.uid, "annotations": {SETTLED: token}}}).encode()


def _patch(claim: ResourceClaim, metadata: Mapping[str, Any], status: object) -> bytes:
    read = claim.metadata
    if not (read and read.uid and read.resource_version):
        raise MessageError("ResourceClaim.metadata: uid or resourceVersion is missing")
    precondition = {"uid": read.uid, "resourceVersion": read.resource_version}
    patch: dict[str, Any] = {"metadata": {**precondition, **metadata}}
    return json.dumps(patch if status is None else patch | {"status": status}).encode()
