"""Demands of pods, and the states of nodes that answer the demands: from objects.py to core values.

A bounded part of each object is kept, and equal parts are one object: most pods have a controller,
and nodes have the labels of their pool.

Tested in `tests/unit/wire/test_demands.py`.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from sys import intern

from gpushare.core.node_filters import CORDON, NodeState
from gpushare.core.selectors import Demands, NodeSelectorTerm, Requirement, Taint, Toleration
from gpushare.errors import MessageError
from gpushare.wire import objects
from gpushare.wire.quantity import Quantity, node_amount

MOST_TEXT = 8 * 1024
"""Characters that are kept of the labels of a node."""

MOST_DEMANDS = 32 * 1024
"""Bytes that are kept of the demands of a pod: characters, and TEXT for each text."""
TEXT = 64
"""Bytes of a text besides the characters, with the reference to the text."""

MOST_RESOURCES = 64
"""Upper bound of the resources kept of one pod's requests, and of a node."""

_MOST_TAINTS = 64


def demands_of(pod: objects.Pod) -> Demands:
    """Return the pod's demands of nodes; unknown (`known=False`) if larger than MOST_DEMANDS."""
    spec = pod.spec or objects.PodSpec()
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required
    gated = bool(spec.scheduling_gates)
    selector = tuple(sorted((spec.node_selector or {}).items()))
    terms = None if not required else tuple(map(read_term, required.node_selector_terms or ()))
    tolerations = tuple(map(read_toleration, spec.tolerations or ()))
    if _size(selector, terms or (), tolerations) > MOST_DEMANDS:
        return Demands(gated=gated, is_complete=False)
    return _once(selector, terms, tolerations, gated)


def node_state(node: objects.Node) -> NodeState:
    """Return the node as kube-scheduler's own filters look at it. Raises MessageError without a
    name.
    """
    metadata, spec = node.metadata or objects.Metadata(), node.spec or objects.NodeFields()
    if not metadata.name:
        raise MessageError("Node.metadata: name is missing")
    status = node.status or objects.NodeStatus()
    taints = tuple(read_taint(taint) for taint in (spec.taints or ())[:_MOST_TAINTS])
    amounts = status.capacity if status.allocatable is None else status.allocatable
    return NodeState(
        name=metadata.name,
        labels=_labels(metadata.labels or {}),
        taints=tuple(taint for taint in taints if taint != CORDON),
        cordoned=bool(spec.unschedulable) or CORDON in taints,
        ready=all(
            condition.status == "True"
            for condition in status.conditions or ()
            if condition.type == "Ready"
        ),
        allocatable=None if amounts is None else _amounts(amounts),
    )


@lru_cache(maxsize=1 << 10)
def _once(
    selector: tuple[tuple[str, str], ...],
    terms: tuple[NodeSelectorTerm, ...] | None,
    tolerations: tuple[Toleration, ...],
    gated: bool,
) -> Demands:
    """Return the demands, one for all pods that demand the same."""
    return Demands(selector, terms, tolerations, gated)


def read_term(term: objects.NodeSelectorTerm) -> NodeSelectorTerm:
    """Return a node selector term."""
    return NodeSelectorTerm(_requirements(term.match_expressions), _requirements(term.match_fields))


def _requirements(
    items: Iterable[objects.NodeSelectorRequirement] | None,
) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            requirement.key or "", requirement.operator or "", tuple(requirement.values or ())
        )
        for requirement in items or ()
    )


def read_toleration(item: objects.Toleration) -> Toleration:
    """Return a toleration of a pod, or of a request for devices."""
    return Toleration(item.key or "", item.operator or "Equal", item.value or "", item.effect or "")


def read_taint(item: objects.Taint) -> Taint:
    """Return a taint of a node, or of a device."""
    return Taint(intern(item.key or ""), intern(item.value or ""), intern(item.effect or ""))


def _size(
    selector: Iterable[tuple[str, str]],
    terms: Iterable[NodeSelectorTerm],
    tolerations: Iterable[Toleration],
) -> int:
    """Return the approximate bytes of the demands: each part counts as some texts more."""
    texts = [text for pair in selector for text in (*pair, "")]
    for toleration in tolerations:
        texts += [toleration.key, toleration.value]
    for term in terms:
        texts += ["", ""]
        for requirement in (*term.labels, *term.fields):
            texts += ["", "", requirement.key, *requirement.values]
    return sum(TEXT + len(text) for text in texts)


def _labels(labels: Mapping[str, str]) -> Mapping[str, str] | None:
    if sum(len(key) + len(value) for key, value in labels.items()) > MOST_TEXT:
        return None
    return {intern(key): intern(value) for key, value in labels.items()}


def _amounts(quantities: Mapping[str, Quantity]) -> Mapping[str, int] | None:
    """Return the amounts; None if there are too many. One that makes no sense counts as 0."""
    if len(quantities) > MOST_RESOURCES:
        return None
    return {intern(name): node_amount(name, quantity) for name, quantity in quantities.items()}
