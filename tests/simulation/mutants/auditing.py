"""Bugs of an audit: late or unfinished changes are mistaken for mistakes in the books."""

from dataclasses import replace
from typing import Any

from gpushare.core.states.entry import Phase
from gpushare.extender.follow import auditor
from gpushare.extender.follow.auditor import LEAKED, Auditor, UnconfirmedFindings
from tests.simulation.mutants.museum import mutant


@mutant("B22", "a difference counts when it is first seen", UnconfirmedFindings, "confirm")
def counts_at_the_first_look(original: Any) -> Any:
    def confirm(self: Any, found: Any, shown: str, listed_at: str) -> Any:
        original(self, found, shown, listed_at)
        return frozenset(found)

    return confirm


@mutant(
    "B22", "a difference counts when it is seen again, however far the watch is", auditor, "_is_at"
)
def counts_without_the_watch(original: Any) -> Any:
    del original

    def is_at(shown: str, listed: str) -> bool:
        return True

    return is_at


def _frees_leaks(original: Any) -> Any:
    def heal(self: Any, finding: Any) -> bool:
        if finding.what != LEAKED:
            return bool(original(self, finding))
        self.resources.find(finding.resource).ledger.pod_gone(finding.pod.uid)
        return True

    return heal


@mutant(
    "B22",
    "a bind under way is taken for a leak, and freed",
    auditor,
    "compare_pods",
    also=[(Auditor, "_heal", _frees_leaks)],
)
def frees_binds_under_way(original: Any) -> Any:
    def compare_pods(resource: str, entries: Any, listed: Any, unread: Any) -> Any:
        bound_entries = {
            uid: replace(entry, assumption=None, phase=Phase.BOUND)
            for uid, entry in entries.items()
        }
        return original(resource, bound_entries, listed, unread)

    return compare_pods


@mutant(
    "B22",
    "ours took a node that changed to and fro for wrong",
    UnconfirmedFindings,
    "_was_found_before",
)
def suspects_by_looks(original: Any) -> Any:
    del original

    def suspected(self: Any, finding: Any) -> bool:
        return finding in self._unconfirmed

    return suspected


@mutant("B22", "ours took a node that went and came for the same", auditor, "compare_nodes")
def suspects_by_name(original: Any) -> Any:
    def compare_nodes(*of: Any) -> Any:
        return [replace(finding, uid="") for finding in original(*of)]

    return compare_nodes
