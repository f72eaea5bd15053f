"""Matching of node selector terms and pod affinity terms (core/v1).

Terms are plain dicts of the API. The rules are in `gpushare.core.selectors`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushare.core.selectors import NodeSelectorTerm
from gpushare.wire.label_selectors import requirement_of, selects
from gpushare_localcluster.scheduler.objects import Json, NodeView, PodView

NamespaceLabels = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True)
class AffinityTerm:
    """A pod affinity or anti-affinity term.

    weight: 0 for a required term. selector: None matches no pod. namespaces: the named ones, or the
    pod's own. namespace_selector: more namespaces by labels; None: no more.
    """

    topology_key: str
    selector: Json | None
    namespaces: frozenset[str]
    namespace_selector: Json | None
    weight: int = 0

    def matches(self, candidate: PodView, namespace_labels: NamespaceLabels) -> bool:
        """Return whether the term matches the pod."""
        if candidate.namespace not in self.namespaces and not (
            self.namespace_selector is not None
            and selects(self.namespace_selector, namespace_labels(candidate.namespace))
        ):
            return False
        return selects(self.selector, candidate.labels)


def affinity_terms(pod: PodView, kind: str, when: str) -> tuple[AffinityTerm, ...]:
    """Return the pod's terms. kind: podAffinity or podAntiAffinity; when: required or preferred."""
    affinity = (pod.spec.get("affinity") or {}).get(kind) or {}
    items = affinity.get(f"{when}DuringSchedulingIgnoredDuringExecution") or ()
    if when == "required":
        return tuple(_term(pod, item) for item in items)
    return tuple(
        _term(pod, item.get("podAffinityTerm") or {}, int(item.get("weight") or 0))
        for item in items
    )


def _term(pod: PodView, item: Json, weight: int = 0) -> AffinityTerm:
    namespaces = frozenset(item.get("namespaces") or ())
    selector = item.get("namespaceSelector")
    if not namespaces and selector is None:
        namespaces = frozenset({pod.namespace})
    return AffinityTerm(
        str(item.get("topologyKey") or ""),
        item.get("labelSelector"),
        namespaces,
        selector,
        weight,
    )


def any_term(terms: tuple[Json, ...] | None, node: NodeView) -> bool:
    """Return whether any term matches; an empty list of terms matches no node."""
    return terms is None or any(term_matches(term, node) for term in terms)


def term_matches(term: Json, node: NodeView) -> bool:
    """Return whether all expressions and fields of one term hold; an empty term matches no node."""
    labels = tuple(map(requirement_of, term.get("matchExpressions") or ()))
    fields = tuple(map(requirement_of, term.get("matchFields") or ()))
    return NodeSelectorTerm(labels, fields).matches(node.name, node.labels)
