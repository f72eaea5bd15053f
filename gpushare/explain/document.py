"""Write an explanation as a document for programs.

The keys are a promise (docs/explain.md): while apiVersion is gpushare.io/v1, keys may be added, but
no key is removed or changes its meaning. Every key is always there; unknown values are null.

Tested in `tests/unit/explain/test_pod.py`.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gpushare.core.amounts import NO_PERCENTS, PERCENT_AMOUNTS, Percents
from gpushare.core.bound_pod import BoundPodScore
from gpushare.core.explain import Explanation, Remedy
from gpushare.core.model import ANY_CARD, Request, Shares
from gpushare.core.states.entry import Entry
from gpushare.explain.pod import (
    ClaimExplanation,
    DeviceReading,
    GroupNeed,
    GroupProgress,
    PodExplanation,
)
from gpushare.explain.text import lines
from gpushare.wire.held import held_document

API_VERSION = "gpushare.io/v1"
KIND = "GPUShareExplanation"


def document(pod: PodExplanation) -> dict[str, Any]:
    """Return the document, ready for JSON."""
    view, ask = pod.scheduler, pod.node_ask
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "pod": asdict(pod.ref),
        "resource": pod.resource,
        "unit": pod.unit,
        "state": pod.state,
        "detail": pod.detail or None,
        "mistake": pod.mistake or None,
        "request": _request(pod.request),
        "node": pod.node or None,
        "devices": _shares(pod.shares),
        "scheduler": {
            "name": view.name,
            "served": pod.served,
            "asked": pod.was_called,
            "gated": bool(view.gates),
            "message": view.message,
            "nodes": view.nodes or None,
            "removed": [
                {"reason": text, "nodes": count} for text, count in view.by_scheduler.items()
            ],
        },
        "explanation": pod.explanation and _explanation(pod.explanation),
        "group": pod.outstanding.group and _group(pod.outstanding.group),
        "groupProgress": pod.group and progress_document(pod.group),
        "held": [held_document(place) for place in pod.outstanding.holds],
        "reserved": pod.outstanding.reserved and held_document(pod.outstanding.reserved),
        "rollout": pod.rollout
        and {
            "deployment": pod.rollout.deployment,
            "oldPods": [asdict(ref) for ref in pod.rollout.old_pods],
        },
        "moves": pod.moves or None,
        "newNode": ask and {"askedAt": _moment(ask.asked_at), "whyNot": ask.why_not or None},
        "judgement": pod.judgement and _judgement(pod.judgement),
        "claims": [claim_document(claim) for claim in pod.claims] or None,
        "claimDevices": pod.reading and _reading(pod.reading),
        "basis": pod.basis or None,
        "events": [
            {"at": _moment(event.at), "reason": event.reason, "note": event.note}
            for event in pod.events
        ],
        "lines": lines(pod),
    }


def claim_document(claim: ClaimExplanation) -> dict[str, Any]:
    """Return a claim for programs."""
    return asdict(claim.ref) | {
        "state": claim.state,
        "requests": list(claim.requests),
        "node": claim.node or None,
        "devices": [
            {**card.key._asdict(), "uuid": card.uuid or None, "allocated": card.units}
            for card in claim.cards
        ],
        "pods": list(claim.pods),
    }


def _reading(reading: DeviceReading) -> dict[str, Any]:
    ends = reading.remedy.ends if reading.remedy else ()
    return {
        "nodes": reading.nodes,
        "fit": list(reading.fit),
        "keptOut": [{"reason": reason, "nodes": n} for reason, n in reading.kept_out.items()],
        "notJudged": [{"reason": reason, "nodes": n} for reason, n in reading.not_judged.items()],
        "never": reading.never,
        "remedy": reading.remedy
        and {
            "node": reading.remedy.node,
            "ends": [asdict(claim.ref) | {"pods": list(claim.pods)} for claim in ends],
        },
        "detail": reading.detail or None,
    }


def _group(group: GroupNeed) -> dict[str, Any]:
    kinds = [
        {
            "units": asks.units,
            "devices": asks.devices,
            "split": list(asks.split) or None,
            **_percents(asks.percents),
            "needed": needed,
            "fitting": fitting,
        }
        for asks, needed, fitting in group.kinds
    ]
    pod_kind = {key: kinds[0][key] for key in ("needed", "fitting")}
    return pod_kind | {"atOnce": group.at_once, "kinds": kinds}


def progress_document(group: GroupProgress) -> dict[str, Any]:
    """Return the progress of a group for programs."""
    return {
        "name": group.name,
        "size": group.size or None,
        "existing": group.existing,
        "bound": group.bound_pods,
        "waiting": group.waiting_pods,
        "waitsUntil": _moment(group.until),
    }


def _moment(at: float | None) -> str | None:
    """Return a time as RFC 3339; None without one. at: seconds since the epoch."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at else None


def _explanation(explanation: Explanation) -> dict[str, Any]:
    largest = explanation.largest
    return {
        "nodes": explanation.nodes,
        "fit": list(explanation.fit),
        "reasons": [
            {"reason": reason.value, "nodes": n} for reason, n in explanation.reasons.items()
        ],
        "unknownNodes": explanation.unknown,
        "keptOut": [{"reason": reason, "nodes": n} for reason, n in explanation.kept_out.items()],
        "otherModels": explanation.other_models,
        "largestFree": largest
        and {"node": largest.node, "device": largest.device, "free": largest.units},
        "fitsNow": explanation.fits_now,
        "partsNow": list(explanation.parts_now) or None,
        "never": explanation.never,
        "mostUnits": explanation.most_units,
        "mostParts": list(explanation.most_parts) or None,
        "mostDevices": explanation.most_devices,
        "largestDevice": explanation.most_alone,
        "devicesWithMemory": explanation.with_memory,
        "devicesWithCores": explanation.with_percents,
        "devicesWithBoth": explanation.with_both,
        "closedByFellows": {
            node: list(devices) for node, devices in explanation.closed_by_fellows.items()
        },
        **{
            f"most{amount.title}": percent
            for amount, percent in zip(PERCENT_AMOUNTS, explanation.most_percents, strict=False)
        },
        "remedies": [
            {
                "node": remedy.node,
                "ends": [_pod(entry, remedy) for entry in remedy.ends],
                "opens": list(remedy.opens),
                "serves": [_pod(entry, remedy) for entry in remedy.serves],
                "lacks": list(remedy.lacks),
                "cures": list(remedy.cures),
            }
            for remedy in explanation.remedies
        ],
    }


def _judgement(scored: BoundPodScore) -> dict[str, Any]:
    return {
        "asOf": "now",
        "policy": scored.policy,
        "fits": scored.fits,
        "score": scored.score,
        "best": scored.best or None,
        "fitting": scored.fitting,
        "chosen": list(scored.chosen),
        "devices": [
            {"index": device.device, "free": device.free, "value": device.value}
            for device in scored.devices
        ],
    }


def _pod(entry: Entry, remedy: Remedy) -> dict[str, Any]:
    """Return a pod of a remedy, with the units that it is charged."""
    return asdict(entry.ref) | {
        "allocated": entry.units(remedy.capacity),
        "devices": _shares(entry.placement and entry.charges(remedy.capacity)),
        "terminating": entry.terminating,
    }


def _request(request: Request | None) -> dict[str, Any] | None:
    if request is None:
        return None
    return {
        "units": request.units,
        "devices": request.devices,
        "split": list(request.split) or None,
        **_percents(request.percents),
        "cards": None if request.cards == ANY_CARD else request.cards._asdict(),
        "policy": request.policy or None,
        "models": list(request.models),
    }


def _percents(percents: Percents) -> dict[str, int | None]:
    """Return the percent of each amount by its name; None for 0."""
    values = percents or NO_PERCENTS
    return {
        amount.name: percent or None
        for amount, percent in zip(PERCENT_AMOUNTS, values, strict=True)
    }


def _shares(shares: Shares | None) -> list[dict[str, int]] | None:
    if shares is None:
        return None
    return [{"index": device, "allocated": units} for device, units in shares]
