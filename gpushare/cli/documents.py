"""Write the report as a document for programs, and documents as JSON or YAML.

The keys are a promise (docs/inspect.md): while apiVersion is gpushare.io/v1, keys may be added, but
no key is removed or changes its meaning. Unknown values are null. Keys of compute are there if a
pod has or requests compute; `share` and `limits` if a pod has one; `claims` if the cluster has the
device class of claims. Every other key is always there.

Tested in `tests/unit/cli/test_documents.py` and `tests/unit/cli/test_inspect_parts.py`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpushare.cli.report import NodeLine, Report

API_VERSION = "gpushare.io/v1"
KIND = "GPUShareReport"
_UNQUOTED = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_YAML_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"])


def dumped(document: Mapping[str, Any], form: str) -> str:
    """Return a document as "yaml", or as JSON that is indented as kubectl's, ASCII only."""
    return to_yaml(document) if form == "yaml" else json.dumps(document, indent=4) + "\n"


def as_one(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first document, with the following documents in it."""
    first, *following = documents
    return {**first, **({"others": following} if following else {})}


def to_yaml(document: object) -> str:
    """Return a JSON document as YAML in block style; mappings keep their order.

    YAML 1.1 and 1.2 read the text alike: texts with another meaning in either of them are quoted.
    """
    return "\n".join(_yaml_lines(document)) + "\n"


def _yaml_lines(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                yield f"{_yaml_scalar(key)}:"
                indent = "" if isinstance(item, list) else "  "
                yield from (indent + line for line in _yaml_lines(item))
            else:
                yield f"{_yaml_scalar(key)}: {_yaml_scalar(item)}"
    elif isinstance(value, list) and value:
        for item in value:
            first, *following = _yaml_lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in following)
    else:
        yield _yaml_scalar(value)


def _yaml_scalar(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _UNQUOTED.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    quoted = ""
    for char in value:
        if char in '"\\':
            quoted += "\\" + char
        elif char.isprintable():
            quoted += char
        else:
            quoted += f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
    return f'"{quoted}"'


def report_document(report: Report) -> dict[str, Any]:
    """Return the report as a document."""
    cores, holds, claims, policy = report.any_cores, None, {}, report.policy
    if report.holds is not None:
        from gpushare.wire.held import held_document

        holds = [held_document(place) for place in report.holds]
    if report.claims is not None:
        from gpushare.cli.claims import claims_document

        claims = {"claims": claims_document(report.claims)}
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
        "policy": None
        if policy is None
        else {
            "name": policy.name,
            "since": policy.since or None,
            "lead": policy.lead if policy.second else None,
            "error": policy.error if policy.second else None,
            "second": policy.second or None,
            "candidates": [
                {"name": name, "allocated": allocated, "refused": policy.refused_percent.get(name)}
                for name, allocated in policy.allocated_percent.items()
            ],
        },
        "nodes": [_node(node, cores=cores) for node in report.nodes],
        "pending": [
            {
                **asdict(pod.ref),
                "requested": pod.units,
                "devices": pod.devices,
                **({"cores": pod.cores} if cores else {}),
                **({"share": pod.share} if pod.share else {}),
                "reason": pod.reason,
            }
            for pod in report.pending
        ],
        "held": holds,
        **claims,
        "warnings": list(report.warnings),
    }


def _node(node: NodeLine, *, cores: bool) -> dict[str, Any]:
    state, compute = node.state, {}
    if cores:
        compute = {"strandedByCores": node.stranded, "coresUnplaced": node.unplaced_cores}
    devices = []
    for device in node.devices:
        fields = {
            "index": device.index,
            "uuid": device.uuid or None,
            "model": device.model or None,
            "healthy": device.healthy,
            "total": device.total,
            "allocated": device.allocated,
            "free": device.free,
        }
        if device.limits > device.allocated:
            fields["limits"] = device.limits
        if cores:
            fields["strandedByCores"] = device.stranded
            fields["coresAllocated"] = device.cores
            fields["coresFree"] = device.cores_free
        devices.append(fields)
    return {
        "name": node.name,
        "address": node.address or None,
        "unit": node.unit,
        "state": node.availability.value,
        "closed": node.closed_reason or None,
        "leftOut": node.left_out or None,
        "keptFromScaleDown": node.kept_reason or None,
        "scheduling": None
        if state is None
        else {
            "cordoned": state.cordoned,
            "ready": state.ready,
            "taints": [asdict(taint) for taint in state.taints],
            "labels": None if state.labels is None else dict(state.labels),
            "allocatable": None if state.allocatable is None else dict(state.allocatable),
        },
        "total": node.total,
        "allocated": node.allocated,
        "unplaced": node.unplaced,
        "free": node.free,
        **compute,
        "devices": devices,
        "pods": [
            {
                **asdict(pod.ref),
                "phase": pod.phase or None,
                "assigned": pod.assigned,
                "allocated": pod.units,
                **({"cores": pod.cores} if cores else {}),
                "devices": [{"index": device, "allocated": units} for device, units in pod.shares],
            }
            for pod in node.pods
        ],
    }
