"""An explanation as programs read it.

Knows the keys, which are a promise (docs/explain.md): while apiVersion is gpushare.io/v1, keys may
be added, but none is removed or changes its meaning. Every key is always there; unknown values are
null.

Tested in `tests/unit/explain/test_pod.py`.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gpushare.core.explanation import BoundPodScore, Explanation
from gpushare.core.model import ANY_CARD, Request, Shares
from gpushare.core.states.entry import Entry
from gpushare.explain.node_wishes import NodeAsk
from gpushare.explain.pod import ClaimSaid, GroupNeed, PodExplanation
from gpushare.explain.text import lines
from gpushare.wire.held import held_document

API_VERSION = "gpushare.io/v1"
KIND = "GPUShareExplanation"


def document(said: PodExplanation) -> dict[str, Any]:
    """Return the document, ready for JSON."""
    view = said.scheduler
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "pod": asdict(said.ref),
        "resource": said.resource,
        "unit": said.unit,
        "state": said.state,
        "detail": said.detail or None,
        "mistake": said.mistake or None,
        "request": _request(said.request),
        "node": said.node or None,
        "devices": _shares(said.shares),
        "scheduler": {
            "name": view.name,
            "served": said.served,
            "asked": said.asked,
            "gated": view.gates,
            "message": view.message,
            "nodes": view.nodes or None,
            "removed": [{"reason": text, "nodes": count} for text, count in view.own.items()],
        },
        "explanation": said.explanation and _explanation(said.explanation),
        "group": said.outstanding.group and _group(said.outstanding.group),
        "held": [held_document(each) for each in said.outstanding.held],
        "moves": said.moves or None,
        "newNode": said.node_ask and _node_ask(said.node_ask),
        "judgement": said.judgement and _judgement(said.judgement),
        "claims": [_claim(each) for each in said.claims] or None,
        "waits": said.waits or None,
        "lines": lines(said),
    }


def given_documents(claim: ClaimSaid) -> list[dict[str, Any]]:
    """Return the devices that the claim has, for programs."""
    return [
        {
            "driver": each.driver,
            "pool": each.pool,
            "device": each.device,
            "uuid": each.uuid or None,
            "allocated": each.units,
        }
        for each in claim.cards
    ]


def _claim(claim: ClaimSaid) -> dict[str, Any]:
    return asdict(claim.ref) | {
        "state": claim.state,
        "detail": claim.detail or None,
        "request": _request(claim.asked.request if claim.asked else None),
        "node": claim.node or None,
        "devices": given_documents(claim),
        "pods": list(claim.pods),
    }


def _group(group: GroupNeed) -> dict[str, Any]:
    kinds = [
        {
            "units": asks.units,
            "devices": asks.devices,
            "split": list(asks.split) or None,
            "cores": asks.cores or None,
            "needed": needed,
            "fitting": fitting,
        }
        for asks, needed, fitting in group.kinds
    ]
    own = {key: kinds[0][key] for key in ("needed", "fitting")}
    return own | {"atOnce": group.at_once, "kinds": kinds}


def _explanation(found: Explanation) -> dict[str, Any]:
    largest = found.largest
    return {
        "nodes": found.nodes,
        "fit": list(found.fit),
        "reasons": [{"reason": why.value, "nodes": n} for why, n in found.reasons.items()],
        "unknownNodes": found.unknown,
        "keptOut": [{"reason": why, "nodes": n} for why, n in found.kept_out.items()],
        "otherModels": found.other_models,
        "largestFree": largest
        and {"node": largest.node, "device": largest.device, "free": largest.units},
        "fitsNow": found.fits_now,
        "partsNow": list(found.parts_now) or None,
        "never": found.never,
        "mostUnits": found.most_units,
        "mostParts": list(found.most_parts) or None,
        "mostDevices": found.most_devices,
        "largestDevice": found.most_alone,
        "devicesWithMemory": found.with_memory,
        "devicesWithCores": found.with_cores,
        "devicesWithBoth": found.with_both,
        "mostCores": found.most_cores,
        "remedies": [
            {
                "node": remedy.node,
                "ends": [_pod(entry) for entry in remedy.ends],
                "opens": list(remedy.opens),
                "serves": [_pod(entry) for entry in remedy.serves],
                "lacks": list(remedy.lacks),
                "cures": list(remedy.cures),
            }
            for remedy in found.remedies
        ],
    }


def _node_ask(ask: NodeAsk) -> dict[str, Any]:
    moment = None if ask.asked is None else datetime.fromtimestamp(ask.asked, UTC)
    asked = moment and f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    return {"askedAt": asked, "whyNot": ask.why_not or None}


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
            {"index": each.device, "free": each.free, "value": each.value}
            for each in scored.devices
        ],
    }


def _pod(entry: Entry) -> dict[str, Any]:
    return asdict(entry.ref) | {
        "allocated": entry.request.total,
        "devices": _shares(entry.placement),
        "terminating": entry.terminating,
    }


def _request(request: Request | None) -> dict[str, Any] | None:
    if request is None:
        return None
    return {
        "units": request.units,
        "devices": request.devices,
        "split": list(request.split) or None,
        "cores": request.cores or None,
        "cards": None if request.cards == ANY_CARD else request.cards._asdict(),
        "policy": request.policy or None,
        "models": list(request.models),
    }


def _shares(shares: Shares | None) -> list[dict[str, int]] | None:
    if shares is None:
        return None
    return [{"index": device, "allocated": units} for device, units in shares]
