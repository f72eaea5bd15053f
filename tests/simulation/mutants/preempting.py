"""Bugs of preemption: who is evicted in vain, who must not be, and who is not and should be."""

from dataclasses import replace
from typing import Any

from gpushare.core.preemption.selection import PERCENTS, VictimSelection
from gpushare.core.states import records
from gpushare.core.states.entry import Entry
from gpushare.extender.verbs import preempt
from tests.simulation.mutants.museum import mutant


@mutant("P1", "ours, once: what is being deleted counts as freed, whatever its grace", Entry,
        "ends_soon")  # fmt: skip
def frees_what_never_ends(original: Any) -> Any:
    del original
    return lambda self, now: self.terminating


@mutant("P1", "what is being deleted already is as good a victim as any other", preempt,
        "trim_victims")  # fmt: skip
def believes_in_deleting_twice(original: Any) -> Any:
    def trim(books: Any, *of: Any) -> Any:
        entries = tuple(replace(entry, terminating=False) for entry in books.entries)
        return original(replace(books, entries=entries), *of)

    return trim


@mutant("P2", "pods of the same priority make room for each other in turn", preempt,
        "trim_victims")  # fmt: skip
def evicts_equals(original: Any) -> Any:
    def trim(books: Any, preemptor: Any, *of: Any) -> Any:
        return original(books, replace(preemptor, priority=preemptor.priority + 1), *of)

    return trim


@mutant("P3", "the original has no preempt: kube-scheduler evicts by the sum of a node", preempt,
        "trim_candidates")  # fmt: skip
def evicts_by_the_sum(original: Any) -> Any:
    del original
    return lambda ledger, preemptor, candidates, budgets_of: dict(candidates)


@mutant("P3", "an end frees the units of all a pod's devices on each of them", VictimSelection,
        "frees")  # fmt: skip
def frees_more_than_is_held(original: Any) -> Any:
    def frees(self: Any, entry: Any) -> Any:
        freed = original(self, entry)
        total = entry.request.total
        return {part: freed[part] if part[1] in PERCENTS else total for part in freed}

    return frees


@mutant("P4", "only the victims that kube-scheduler has found are looked at", preempt,
        "trim_victims")  # fmt: skip
def adds_no_victims(original: Any) -> Any:
    def trim(books: Any, preemptor: Any, proposed: Any, *of: Any) -> Any:
        victims = original(books, preemptor, proposed, *of)
        return victims if victims is None or set(victims.uids) <= set(proposed.uids) else None

    return trim


@mutant("P4", "all pods are equal: nobody's priority is read", records, "observed")
def reads_no_priority(original: Any) -> Any:
    return lambda record, pod: original(record, pod._replace(priority=0))
