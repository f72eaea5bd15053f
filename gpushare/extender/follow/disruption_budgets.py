"""PodDisruptionBudgets as the watch shows them: which pods are protected from eviction.

Knows the wire type and the entries of the ledger; no I/O. Without the right to list budgets this
stays empty, and preemption takes less care.

Tested in `tests/unit/extender/verbs/test_preempt.py`.
"""

from collections.abc import Collection, Mapping, Sequence

from gpushare.core.model import Labels
from gpushare.core.preemption.selection import Budget
from gpushare.core.states.entry import Entry
from gpushare.extender.follow.shown import ObjectHandler
from gpushare.wire.budgets import DisruptionBudget, read_budget
from gpushare.wire.objects import PodDisruptionBudget

_MAX_CACHED = 10_000
"""Sets of labels with cached budgets: the pods of one controller share their labels."""


class DisruptionBudgets(ObjectHandler[PodDisruptionBudget, DisruptionBudget]):
    """The budgets by namespace and name: an event handler of a reflector, read by any thread."""

    def __init__(self) -> None:
        super().__init__(budget_of, self._replace, self._change)
        self._index = _BudgetIndex({})

    def _replace(self, budgets: Mapping[str, DisruptionBudget], unread: Collection[str]) -> None:
        before = {key: budget for key, budget in self._index.budgets.items() if key in unread}
        self._index = _BudgetIndex(before | dict(budgets))

    def _change(self, key: str, budget: DisruptionBudget | None) -> None:
        budgets = {name: index for name, index in self._index.budgets.items() if name != key}
        # A new value, never a changed one: readers take no lock.
        self._index = _BudgetIndex(budgets | ({} if budget is None else {key: budget}))

    def budgets_of(self, entries: Sequence[Entry]) -> tuple[Budget, ...]:
        """Return the budgets that cover any of these pods."""
        index = self._index
        covered: dict[DisruptionBudget, set[str]] = {}
        for entry in entries if index.budgets else ():
            key = entry.ref.namespace, entry.labels
            budgets = index.by_labels.get(key)
            if budgets is None:
                labels = dict(entry.labels)
                of_namespace = index.by_namespace.get(entry.ref.namespace, ())
                budgets = tuple(b for b in of_namespace if b.selects(entry.ref.namespace, labels))
                if len(index.by_labels) < _MAX_CACHED:
                    index.by_labels[key] = budgets
            for budget in budgets:
                if entry.ref.name not in budget.disrupted:
                    covered.setdefault(budget, set()).add(entry.ref.uid)
        return tuple(
            Budget(budget.allowed_disruptions, frozenset(uids)) for budget, uids in covered.items()
        )


class _BudgetIndex:
    """All budgets at one moment, also by namespace, and by namespace and labels as asked for."""

    def __init__(self, budgets: dict[str, DisruptionBudget]) -> None:
        self.budgets = budgets
        self.by_namespace: dict[str, list[DisruptionBudget]] = {}
        for budget in budgets.values():
            self.by_namespace.setdefault(budget.namespace, []).append(budget)
        self.by_labels: dict[tuple[str, Labels], tuple[DisruptionBudget, ...]] = {}


def budget_of(item: PodDisruptionBudget) -> DisruptionBudget:
    """Return the budget as the API server shows it."""
    return read_budget((item.metadata and item.metadata.namespace) or "", item.spec, item.status)
