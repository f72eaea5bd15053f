"""The demands of pods on nodes: rules of core/v1 for taints, tolerations and node selectors.

Values and rules only, shared by all readers of selectors, pods and nodes. Standard library only.

Tested in `tests/unit/core/test_node_filters.py` and `tests/unit/core/test_selectors.py`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")
"""As long as the value of a label may be."""

HARD_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects of a taint that exclude pods; the third one, PreferNoSchedule, is only a preference."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """Return the taint as kubectl writes it."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod; an empty `effect` matches every effect, an empty `key` every key."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether this toleration covers the taint (core/v1 Toleration.ToleratesTaint)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or self.value == taint.value


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Return a hard taint that none of the tolerations covers; None if there is none."""
    return next(all_untolerated(taints, tolerations), None)


def all_untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Iterator[Taint]:
    """Yield the hard taints that none of the tolerations covers."""
    covering = tuple(tolerations)
    hard = (taint for taint in taints if taint.effect in HARD_EFFECTS)
    return (t for t in hard if not any(toleration.tolerates(t) for toleration in covering))


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement of a selector (core/v1 NodeSelectorRequirement, meta/v1 alike)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet the requirement (labels.Requirement.Matches).

        Never met are an unknown operator, and a number of values that the operator does not take
        (labels.NewRequirement).
        """
        value, values = labels.get(self.key), self.values
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return bool(values) and value not in values
            case "Exists":
                return value is not None and not values
            case "DoesNotExist":
                return value is None and not values
            case "Gt" | "Lt" if value is not None and len(values) == 1:
                number, limit = _integer(value), _integer(values[0])
                if number is None or limit is None:
                    return False
                return number > limit if self.operator == "Gt" else number < limit
        return False


def _integer(text: str) -> int | None:
    """Return the decimal integer of 64 bits, None for other text (strconv.ParseInt)."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """A node selector term: requirements of labels, and of fields (only metadata.name exists)."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Return whether a node meets all requirements; an empty term matches no node.

        labels: None for unknown labels, which meet all requirements.
        """
        if not self.labels and not self.fields:
            return False
        fields_of_node = {"metadata.name": name}
        return (
            labels is None or all(requirement.holds(labels) for requirement in self.labels)
        ) and all(requirement.holds(fields_of_node) for requirement in self.fields)


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of a pod on nodes, besides amounts."""

    node_selector: tuple[tuple[str, str], ...] = ()
    """(key, value) of each label."""
    terms: tuple[NodeSelectorTerm, ...] | None = None
    """Alternative terms; at least one must match. None: no term is required."""
    tolerations: tuple[Toleration, ...] = ()
    gated: bool = False
    """Whether the pod has scheduling gates."""
    is_complete: bool = True
    """False if the demands were too large to keep; then they exclude no node."""

    def selects(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Return whether the node selector and the terms allow a node.

        labels: None for unknown labels, which meet all requirements.
        """
        return (
            labels is None or all(labels.get(key) == value for key, value in self.node_selector)
        ) and (self.terms is None or any(term.matches(name, labels) for term in self.terms))

    def both(self, second: "Demands") -> "Demands":
        """Return the combined demands on one node that must accept both pods.

        Only tolerations that both pods have literally count.
        """
        terms = self.terms if second.terms is None else second.terms
        if self.terms is not None and second.terms is not None:
            terms = tuple(
                NodeSelectorTerm(one.labels + another.labels, one.fields + another.fields)
                for one in self.terms
                for another in second.terms
                if (one.labels or one.fields) and (another.labels or another.fields)
            )
        return Demands(
            tuple(sorted({*self.node_selector, *second.node_selector})),
            terms,
            tuple(
                toleration for toleration in self.tolerations if toleration in second.tolerations
            ),
            self.gated or second.gated,
            self.is_complete and second.is_complete,
        )


def tolerating(taints: Iterable[Taint]) -> Demands:
    """Return the demands of pods that tolerate these taints."""
    return Demands(
        tolerations=tuple(
            Toleration(taint.key, value=taint.value, effect=taint.effect) for taint in taints
        )
    )


NO_DEMANDS = Demands()
