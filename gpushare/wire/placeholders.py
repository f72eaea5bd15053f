"""Placeholders: pods that gpushare creates and nobody binds, so that an autoscaler adds a node.

An autoscaler drops a waiting pod that fits a node by sums. The placeholder of that pod asks for the
same, and the node affinity of the placeholder excludes the nodes without a device with room. No
scheduler has the placeholder's schedulerName, so gpushare writes the status.

Tested in `tests/unit/wire/test_placeholders.py`.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.core.model import PodRef, Request
from gpushare.errors import MessageError
from gpushare.wire.objects import Pod, seconds_of

SCHEDULER = "gpushare-placeholder"
"""The schedulerName of all placeholders."""

FOR = "gpushare.io/placeholder-for"
"""Label: the uid of the pending pod; annotation: namespace and name of that pod."""

GROUP = "gpushare.io/placeholder-group"
"""Annotation: the group of the pending pod; missing without a group."""

IMAGE = "registry.k8s.io/pause:3.10"
HOSTNAME = "kubernetes.io/hostname"
_UID = re.compile(r"[a-z0-9]([a-z0-9-]{0,57}[a-z0-9])?")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_UNSCHEDULABLE = ("PodScheduled", "False", "Unschedulable")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder as the API server shows it."""

    namespace: str
    name: str
    uid: str
    """The uid of the pending pod."""
    unschedulable: bool
    """Whether the status says that the placeholder is unschedulable."""
    nodes: frozenset[str]
    """The nodes that the node affinity excludes."""
    created: float = 0.0
    """In seconds since the epoch."""
    group: str = ""
    """The group of the pending pod, "" without a group."""
    gated: bool = False
    """Whether the placeholder has a scheduling gate, so that no autoscaler counts it."""


def placeholder_of(pod: Pod) -> Placeholder | None:
    """Return the pod as a placeholder; None for any other pod."""
    metadata, spec = pod.metadata, pod.spec
    if metadata is None or spec is None or not is_placeholder(pod):
        return None
    uid = (metadata.labels or {}).get(FOR)
    if not (uid and metadata.name and metadata.namespace):
        return None
    affinity = spec.affinity and spec.affinity.node_affinity
    terms = (affinity and affinity.required and affinity.required.node_selector_terms) or ()
    excluded_nodes = (
        expression.values or ()
        for term in terms
        for expression in term.match_expressions or ()
        if (expression.key, expression.operator) == (HOSTNAME, "NotIn")
    )
    # A pod of the user may leave out nodes itself: ours are in each term, and come last.
    *_, nodes = ((), *excluded_nodes)
    created = seconds_of(metadata.creation_timestamp)
    group = (metadata.annotations or {}).get(GROUP, "")
    gated = bool(spec.scheduling_gates)
    return Placeholder(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=uid,
        unschedulable=is_unschedulable(pod),
        nodes=frozenset(nodes),
        created=created,
        group=group,
        gated=gated,
    )


def is_placeholder(pod: Pod) -> bool:
    """Return whether the pod is a placeholder, which only autoscalers read."""
    return pod.spec is not None and pod.spec.scheduler_name == SCHEDULER and not pod.spec.node_name


def is_unschedulable(pod: Pod) -> bool:
    """Return whether the status says that no node passes the scheduler's filters."""
    return any(
        (condition.type, condition.status, condition.reason) == _UNSCHEDULABLE
        for condition in (pod.status and pod.status.conditions) or ()
    )


def name_for(uid: str) -> str:
    """Return the name of the placeholder of the pod: one pod has one. "" if there can be none."""
    return f"for-{uid}" if _UID.fullmatch(uid) else ""


def placeholder(
    body: bytes,
    ref: PodRef,
    request: Request,
    nodes: Iterable[str],
    namespace: str,
    *,
    group: str = "",
) -> bytes | None:
    """Return the placeholder to be created for the pod of this body, as the API server has it.

    None if the body has another uid, or the pod is bound or nominated, has gates, or has no
    condition Unschedulable of kube-scheduler. group: of the pod, or "". Raises MessageError for a
    body that is no pod.
    """
    try:
        pod = json.loads(body)
        if not _waits(pod, ref.uid):
            return None
        document = _document(pod, ref, request, sorted(nodes), namespace)
        document["metadata"]["annotations"] |= {GROUP: group} if group else {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MessageError(f"pod {ref}: is not as the API server writes pods") from error
    return json.dumps(document).encode()


def status_patch(now: str) -> bytes:
    """Return the merge patch of a placeholder's status: unschedulable. now: as the API server
    writes times.
    """
    kind, status, reason = _UNSCHEDULABLE
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "no device has room; a placeholder of gpushare asks for a node",
        "lastTransitionTime": now,
    }
    return json.dumps({"status": {"conditions": [condition]}}).encode()


def _waits(pod: Mapping[str, Any], uid: str) -> bool:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    if metadata["uid"] != uid or metadata.get("deletionTimestamp") or spec.get("nodeName"):
        return False
    if spec.get("schedulingGates") or status.get("nominatedNodeName"):
        return False
    return any(
        (condition.get("type"), condition.get("status"), condition.get("reason")) == _UNSCHEDULABLE
        for condition in status.get("conditions") or ()
    )


def _document(
    pod: Mapping[str, Any], ref: PodRef, request: Request, nodes: Collection[str], namespace: str
) -> dict[str, Any]:
    spec = pod["spec"]
    amounts = {"cpu": f"{request.cpu}m", "memory": str(request.memory)}
    amounts |= {name: str(amount) for name, amount in request.resources if amount}
    limits = {name: amount for name, amount in amounts.items() if "/" in name}
    copied = {
        key: spec[key] for key in ("nodeSelector", "tolerations") if spec.get(key) is not None
    }
    # A system- class is for kube-system alone; without the class the pod has no priority.
    priority = spec.get("priorityClassName") or ""
    if priority and not priority.startswith("system-"):
        copied["priorityClassName"] = priority
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name_for(ref.uid),
            "namespace": namespace,
            "labels": {FOR: ref.uid},
            "annotations": {FOR: str(ref)},
        },
        "spec": copied
        | {
            "schedulerName": SCHEDULER,
            "affinity": {"nodeAffinity": {_REQUIRED: _elsewhere(spec, nodes)}},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65535,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "pause",
                    "image": IMAGE,
                    "resources": {"requests": amounts, "limits": limits},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def _elsewhere(spec: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """Return the node affinity that is required of the pod, on none of these nodes."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get(_REQUIRED)
    terms = [{}] if required is None else required["nodeSelectorTerms"]
    exclusion = {"key": HOSTNAME, "operator": "NotIn", "values": [*nodes]}
    return {
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), exclusion]}
            for term in terms
            # A term without conditions selects nothing.
            if required is None or any(term.values())
        ]
    }
