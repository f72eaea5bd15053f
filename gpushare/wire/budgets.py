"""PodDisruptionBudgets (policy/v1).

Plain dicts in; stdlib only. An unreadable budget covers nothing: a budget is advice to preemption
and must not stop preemption.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.wire.label_selectors import selects

MAX_SELECTOR = 8 * 1024
"""Characters of a selector that are kept."""


@dataclass(frozen=True, eq=False)
class DisruptionBudget:
    """A PodDisruptionBudget with the last count of the disruption controller."""

    namespace: str
    selector: object
    allowed_disruptions: int = 0
    disrupted: frozenset[str] = frozenset()
    """Names of pods with an eviction that `allowed_disruptions` already counts."""

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether the budget selects pods with these labels."""
        return namespace == self.namespace and selects(self.selector, labels)

    def covers(self, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the eviction of the pod counts against this budget."""
        return name not in self.disrupted and self.selects(namespace, labels)


def read_budget(namespace: str, spec: object, status: object) -> DisruptionBudget:
    """Return the budget of the parts of a PodDisruptionBudget object.

    A budget with a selector longer than MAX_SELECTOR covers all pods of the namespace.
    """
    status = _mapping(status)
    selector = _mapping(spec).get("selector")
    if len(str(selector)) > MAX_SELECTOR:
        # On the safe side, and in this namespace alone.
        selector = {}
    allowed_disruptions = status.get("disruptionsAllowed")
    return DisruptionBudget(
        namespace=namespace,
        selector=selector,
        allowed_disruptions=allowed_disruptions if type(allowed_disruptions) is int else 0,
        disrupted=frozenset(_mapping(status.get("disruptedPods"))),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
