"""PodDisruptionBudgets as the watch shows them: which pods are protected from eviction.

Knows the wire type and the entries of the ledger; no I/O. Without the right to list budgets this
stays empty, and preemption takes less care.

Tested in `tests/unit/extender/verbs/test_preempt.py`.
"""

from collections.abc import Sequence

from gpushare.core.model import Labels
from gpushare.core.preemption.selection import Budget
from gpushare.core.states.entry import Entry
from gpushare.wire.budgets import DisruptionBudget, read_budget
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.objects import PodDisruptionBudget

_MAX_CACHED = 10_000
"""Sets of labels with cached budgets: the pods of one controller share their labels."""

Key = tuple[str, str]
_Read = tuple[Key, DisruptionBudget]


class DisruptionBudgets:
    """The budgets by namespace and name: an event handler of a reflector, read by any thread."""

    def __init__(self) -> None:
        self._index = _BudgetIndex({})

    def trim(self, page: Decoded[PodDisruptionBudget]) -> Decoded[_Read]:
        """Return the page with small records instead of budgets: selectors may be large."""
        return page.with_items([_read(item) for item in page.items])

    def replace(
        self, pages: Sequence[Decoded[PodDisruptionBudget] | Decoded[_Read]], started: float
    ) -> None:
        """Set all budgets; an unreadable budget stays as before."""
        del started
        unread = {(bad.ref.namespace, bad.ref.name) for page in pages for bad in page.bad}
        before = {key: budget for key, budget in self._index.budgets.items() if key in unread}
        self._index = _BudgetIndex(
            before
            | dict(
                item if isinstance(item, tuple) else _read(item)
                for page in pages
                for item in page.items
            )
        )

    def apply(self, event: WatchEvent[PodDisruptionBudget]) -> None:
        """Take over one budget."""
        if event.object is not None:
            key, budget = _read(event.object)
        elif event.bad is not None and event.kind == "DELETED":
            key, budget = (event.bad.ref.namespace, event.bad.ref.name), None
        else:
            return
        budgets = {name: index for name, index in self._index.budgets.items() if name != key}
        if event.kind != "DELETED" and budget is not None:
            budgets[key] = budget
        # A new value, never a changed one: readers take no lock.
        self._index = _BudgetIndex(budgets)

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

    def __init__(self, budgets: dict[Key, DisruptionBudget]) -> None:
        self.budgets = budgets
        self.by_namespace: dict[str, list[DisruptionBudget]] = {}
        for budget in budgets.values():
            self.by_namespace.setdefault(budget.namespace, []).append(budget)
        self.by_labels: dict[tuple[str, Labels], tuple[DisruptionBudget, ...]] = {}


def _read(item: PodDisruptionBudget) -> _Read:
    namespace = (item.metadata and item.metadata.namespace) or ""
    name = (item.metadata and item.metadata.name) or ""
    return (namespace, name), read_budget(namespace, item.spec, item.status)
