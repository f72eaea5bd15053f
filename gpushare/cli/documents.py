"""The report as a document for programs: JSON, YAML, names.

Knows the keys, which are a promise (docs/inspect.md): new ones may come, none goes or changes its
meaning while apiVersion is gpushare.io/v1. Every key is always there; what is not known is null.
Those of compute are there if a pod has compute, or waits for some; `claims` if the cluster has the
device class of claims.

Tested in `tests/contract/test_golden_inspect.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpushare.cli.facts import PendingFacts
from gpushare.cli.report import DeviceLine, NodeLine, PodLine, Report
from gpushare.cli.yaml_writer import to_yaml
from gpushare.core.node_filters import NodeState

if TYPE_CHECKING:  # it loads more than the rest of the command
    from gpushare.cli.claims import ClaimsReport
    from gpushare.wire.held import HeldPlace
    from gpushare.wire.metrics import RankingPolicy

API_VERSION = "gpushare.io/v1"
KIND = "GPUShareReport"


def dumped(document: Mapping[str, Any], form: str) -> str:
    """Return a document as "yaml", or as JSON that is indented as kubectl's, ASCII only."""
    return to_yaml(document) if form == "yaml" else json.dumps(document, indent=4) + "\n"


def as_names(report: Report) -> str:
    """Return the nodes as kubectl names them, one a line."""
    return "".join(f"node/{node.name}\n" for node in report.nodes)


def report_document(report: Report) -> dict[str, Any]:
    """Return the report as a document."""
    cores = report.any_cores
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "resource": report.resource,
        "unit": report.unit,
        "unitFrom": report.unit_from,
        "total": report.total,
        "allocated": report.allocated,
        "unplaced": sum(node.unplaced for node in report.nodes),
        "free": sum(node.free for node in report.nodes),
        "policy": _policy(report.policy),
        "nodes": [_node(node, cores=cores) for node in report.nodes],
        "pending": [_pending(pod, cores=cores) for pod in report.pending],
        "held": _held(report.held),
        **_claims(report.claims),
        "warnings": list(report.warnings),
    }


def _policy(policy: "RankingPolicy | None") -> dict[str, Any] | None:
    if policy is None:
        return None
    return {
        "name": policy.name,
        "since": policy.since or None,
        "lead": policy.lead if policy.second else None,
        "error": policy.error if policy.second else None,
        "second": policy.second or None,
        "candidates": [
            {"name": name, "allocated": allocated, "refused": policy.refused.get(name)}
            for name, allocated in policy.allocated.items()
        ],
    }


def _held(places: "tuple[HeldPlace, ...] | None") -> list[dict[str, Any]] | None:
    if places is None:
        return None
    from gpushare.wire.held import held_document

    return [held_document(place) for place in places]


def _claims(claims: "ClaimsReport | None") -> dict[str, Any]:
    if claims is None:
        return {}
    from gpushare.cli.claims import claims_document

    return {"claims": claims_document(claims)}


def _node(node: NodeLine, *, cores: bool) -> dict[str, Any]:
    compute = {"strandedByCores": node.stranded, "coresUnplaced": node.unplaced_cores}
    return {
        "name": node.name,
        "address": node.address or None,
        "unit": node.unit,
        "closed": node.closed or None,
        "leftOut": node.left_out or None,
        "keptFromScaleDown": node.kept or None,
        "scheduling": _scheduling(node.state),
        "total": node.total,
        "allocated": node.allocated,
        "unplaced": node.unplaced,
        "free": node.free,
        **(compute if cores else {}),
        "devices": [_device(device, cores=cores) for device in node.devices],
        "pods": [_pod(pod, cores=cores) for pod in node.pods],
    }


def _scheduling(state: NodeState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "cordoned": state.cordoned,
        "ready": state.ready,
        "taints": [asdict(taint) for taint in state.taints],
        "labels": None if state.labels is None else dict(state.labels),
        "allocatable": None if state.allocatable is None else dict(state.allocatable),
    }


def _device(device: DeviceLine, *, cores: bool) -> dict[str, Any]:
    compute = {
        "strandedByCores": device.stranded,
        "coresAllocated": device.cores,
        "coresFree": device.cores_free,
    }
    return {
        "index": device.index,
        "uuid": device.uuid or None,
        "model": device.model or None,
        "healthy": device.healthy,
        "total": device.total,
        "allocated": device.allocated,
        "free": device.free,
        **(compute if cores else {}),
    }


def _pod(pod: PodLine, *, cores: bool) -> dict[str, Any]:
    return {
        **asdict(pod.ref),
        "phase": pod.phase or None,
        "assigned": pod.assigned,
        "allocated": pod.units,
        **({"cores": pod.cores} if cores else {}),
        "devices": [{"index": device, "allocated": units} for device, units in pod.shares],
    }


def _pending(pod: PendingFacts, *, cores: bool) -> dict[str, Any]:
    return {
        **asdict(pod.ref),
        "requested": pod.units,
        "devices": pod.devices,
        **({"cores": pod.cores} if cores else {}),
        "reason": pod.reason,
    }
