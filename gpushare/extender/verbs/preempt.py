"""Preemption over all the nodes that kube-scheduler proposes, one by one.

Knows the ledger and the decision about one node (core/preemption/preemptor.py); nothing of JSON.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushare.core.entry import Entry
from gpushare.core.preemption.preemptor import Preemptor, Victims, trim_victims
from gpushare.core.preemption.removals import Budget
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.errors import UnknownNode
from gpushare.ledger import Ledger

STEPS = 500_000
"""Steps of one call: one to two seconds, of the 10 that our files let kube-scheduler wait."""

BudgetsOf = Callable[[Sequence[Entry]], Sequence[Budget]]
"""Returns the known budgets that cover any of these pods."""


def no_budgets(entries: Sequence[Entry]) -> Sequence[Budget]:
    """Return no budgets: they are not followed."""
    del entries
    return ()


def trim_candidates(
    ledger: Ledger, preemptor: Preemptor, candidates: Mapping[str, Victims], budgets_of: BudgetsOf
) -> dict[str, Victims]:
    """Return the nodes whose devices have room once their victims are gone, and those victims.

    Each node may look for the best victims with its share of the steps that are left.
    """
    trimmed_by_node: dict[str, Victims] = {}
    spare = STEPS
    for done, (node, given) in enumerate(candidates.items()):
        if _is_charged_elsewhere(ledger, node, given.uids):
            continue
        try:
            found = ledger.dump(node)
        except UnknownNode:
            continue
        for books in found:
            steps = StepBudget(spare // (len(candidates) - done))
            spare -= steps.left
            trimmed = trim_victims(books, preemptor, given, steps, budgets_of(books.entries))
            spare += steps.left
            if trimmed is not None:
                trimmed_by_node[node] = trimmed
    return trimmed_by_node


def _is_charged_elsewhere(ledger: Ledger, node: str, uids: Iterable[str]) -> bool:
    """Return whether a pod named as a victim is charged to another node.

    In that case kube-scheduler and the ledger see different clusters, and an answer that names a
    pod which is not on the node would fail the whole call.
    """
    charged = (ledger.entry(uid) for uid in uids)
    return any(entry is not None and entry.node != node for entry in charged)
