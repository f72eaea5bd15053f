"""What pods demand of nodes: the rules of core/v1 for taints, tolerations and node selectors.

Values and rules only, shared by all that reads pods and nodes. Standard library only.

Tested in `tests/unit/core/test_node_filters.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HARD_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects of a taint that keep pods out; the third one only asks them to go elsewhere."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str


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
    covering = tuple(tolerations)
    hard = (taint for taint in taints if taint.effect in HARD_EFFECTS)
    return next(
        (t for t in hard if not any(toleration.tolerates(t) for toleration in covering)), None
    )


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement of a selector (core/v1 NodeSelectorRequirement, meta/v1 alike)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet it; an operator that nobody knows is never met."""
        value = labels.get(self.key)
        match self.operator:
            case "Gt" | "Lt":
                try:
                    have, bound = int(value or ""), int(self.values[0])
                except (ValueError, IndexError):  # what is no integer is neither
                    return False
                return have > bound if self.operator == "Gt" else have < bound
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return False


@dataclass(frozen=True, slots=True)
class Term:
    """A node selector term: requirements of labels, and of fields, of which there is the name."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether all of it holds for a node; an empty term matches none."""
        if not self.labels and not self.fields:
            return False
        named = {"metadata.name": name}
        return all(requirement.holds(labels) for requirement in self.labels) and all(
            requirement.holds(named) for requirement in self.fields
        )


@dataclass(frozen=True, slots=True)
class Demands:
    """What a pod demands of nodes, besides amounts."""

    node_selector: tuple[tuple[str, str], ...] = ()
    """(key, value) of each label."""
    terms: tuple[Term, ...] | None = None
    """Alternatives, of which one must match; None: none is required."""
    tolerations: tuple[Toleration, ...] = ()
    gated: bool = False
    """Scheduling gates hold it back."""
    known: bool = True
    """What it says was kept; it is not if it was too much, and then keeps no node out."""

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node is one of those that the pod may use."""
        return all(labels.get(key) == value for key, value in self.node_selector) and (
            self.terms is None or any(term.matches(name, labels) for term in self.terms)
        )

    def both(self, other: "Demands") -> "Demands":
        """Return what pods demand of one node that is to take all of them.

        Of tolerations those count that all of them have to the letter.
        """
        terms = self.terms if other.terms is None else other.terms
        if self.terms is not None and other.terms is not None:
            terms = tuple(
                Term(one.labels + another.labels, one.fields + another.fields)
                for one in self.terms
                for another in other.terms
                if (one.labels or one.fields) and (another.labels or another.fields)
            )
        return Demands(
            tuple(sorted({*self.node_selector, *other.node_selector})),
            terms,
            tuple(toleration for toleration in self.tolerations if toleration in other.tolerations),
            self.gated or other.gated,
            self.known and other.known,
        )


NO_DEMANDS = Demands()
