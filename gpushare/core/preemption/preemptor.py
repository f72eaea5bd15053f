"""Preemption: the victims to remove so that a pod really fits the devices of a node.

Pure, one node at a time. kube-scheduler proposes victims by sums over a node, without
distinguishing devices. The rules for the answer (extender/v1, verb preempt):

- Up to 1.37 kube-scheduler sends only nodes with at least one victim that its own filters need.
  Since 1.38 kube-scheduler also sends nodes that pass its filters without victims, with an empty
  list. An empty list may stay empty, since another extender may fill it.
- Victims that run on the node may be added. A node may be omitted.
- A victim may be omitted if the node passes kube-scheduler's filters while that pod stays. The
  proposed list has no needless victim: each one is needed for a sum; in doubt the victim is kept
  (see `_removable_pods`).
- kube-scheduler treats the priority of the first victim as the highest, so the most important
  victim comes first.

A terminating pod is never added as a victim: a second deletion shortens nothing. A terminating pod
within the grace period will free the devices, and if such pods free enough, no other pod has to be
removed. A pod with a longer grace period, or long overdue, frees nothing, even if kube-scheduler,
which ignores deletion times, proposes that pod as a victim.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from gpushare.core.model import Request
from gpushare.core.preemption.selection import Budget, VictimSelection, importance
from gpushare.core.preemption.victim_search import Pods, StepBudget
from gpushare.core.states.entry import Entry, NodeBooks, Phase


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict on a node, by uid, and the number of budget violations."""

    uids: tuple[str, ...] = ()
    violations: int = 0


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod that preempts."""

    request: Request
    priority: int = 0
    counted_by_scheduler: bool = True
    """kube-scheduler counts device memory too, as a sum."""
    now: float = 0.0
    """Seconds since the epoch."""


def trim_victims(
    books: NodeBooks,
    preemptor: Preemptor,
    proposed: Victims,
    steps: StepBudget,
    budgets: Sequence[Budget] = (),
) -> Victims | None:
    """Return the victims to remove so that the pod fits the node's devices; None: impossible here.

    `proposed`: kube-scheduler's victims, returned unchanged if their removal frees enough.
    Otherwise pods of lower priority are added (see `VictimSelection.choose`), and needless victims
    are omitted. `steps`: upper bound of the search; with none left, any set that frees enough is
    returned. `budgets`: the known budgets that cover pods of the node.
    """
    uids = tuple(dict.fromkeys(proposed.uids))
    entries_by_uid = {entry.ref.uid: entry for entry in books.entries}
    proposed_pods = tuple(entries_by_uid[uid] for uid in uids if uid in entries_by_uid)
    lower_priority = tuple(
        entry
        for entry in books.entries
        if entry.phase is Phase.BOUND and entry.priority < preemptor.priority
    )
    if any(
        entry.phase is Phase.BOUND and entry.priority >= preemptor.priority
        for entry in proposed_pods
    ):
        return None
    selection = VictimSelection(books, preemptor.request, budgets)
    # Pods that terminate too late: victims or not, such pods free nothing.
    stuck = tuple(e for e in books.entries if e.terminating and not e.ends_soon(preemptor.now))
    freeing = _without(proposed_pods, stuck)
    if selection.fits(freeing):
        return Victims(uids, proposed.violations)
    ending = tuple(e for e in books.entries if e.ends_soon(preemptor.now))
    terminating_pods = _without(ending, proposed_pods)
    candidates = _without(lower_priority, proposed_pods + terminating_pods + stuck)
    removable = _removable_pods(books, preemptor, proposed_pods)
    required = _without(proposed_pods, removable)
    sure = _without(required, stuck)
    chosen = selection.choose(terminating_pods + sure, candidates + removable, steps)
    if chosen is None:
        return None
    if _without(removable, chosen) and not _host_fits(books, preemptor.request, sure + chosen):
        required = proposed_pods
        chosen = selection.choose(terminating_pods + freeing, candidates, steps) or ()
    return _answer(proposed, uids, proposed_pods, required + chosen, selection)


def _removable_pods(books: NodeBooks, preemptor: Preemptor, proposed_pods: Pods) -> Pods:
    """Return the proposed victims that kube-scheduler probably chose for their device memory.

    kube-scheduler's filters pass with all proposed victims removed, and kube-scheduler reprieved
    each pod that it could: if any victim stays, a filter fails. If the node's sum of device memory
    is too small while a victim stays, the victim was chosen for the sum; and a set that frees whole
    devices also makes the sum large enough. CPU and memory are checked later, for the whole set
    (`_host_fits`). If another filter needs the victim too, the next attempt proposes the victim
    again, and no pod is evicted for nothing.
    """
    if not preemptor.counted_by_scheduler:
        return ()
    # All devices, healthy or not: the largest sum that kube-scheduler can have used.
    free = sum(books.spec.capacity) - sum(entry.request.total for entry in books.entries)
    free += sum(entry.request.total for entry in proposed_pods)
    requested_units = preemptor.request.total
    return tuple(
        entry
        for entry in proposed_pods
        if free - entry.request.total < requested_units and not entry.terminating
    )


def _host_fits(books: NodeBooks, request: Request, removed: Pods) -> bool:
    """Return whether CPU and memory are surely enough once these pods are gone."""
    if books.cpu_free is None or books.memory_free is None:
        return False
    cpu = books.cpu_free + sum(entry.request.cpu for entry in removed)
    memory = books.memory_free + sum(entry.request.memory for entry in removed)
    return cpu >= request.cpu and memory >= request.memory


def _without(entries: Iterable[Entry], left_out: Pods) -> Pods:
    """Return the entries without `left_out`, by uid: comparing entries is ten times slower."""
    uids = {entry.ref.uid for entry in left_out}
    return tuple(entry for entry in entries if entry.ref.uid not in uids)


def _answer(
    proposed: Victims,
    uids: tuple[str, ...],
    proposed_pods: Pods,
    final: Pods,
    selection: VictimSelection,
) -> Victims | None:
    """Return the victims, the most important first, with the number of budget violations."""
    left_out = {entry.ref.uid for entry in _without(proposed_pods, final)}
    kept_uids = [uid for uid in uids if uid not in left_out]
    added = _without(final, proposed_pods)
    if uids and not kept_uids and not added:
        # Terminating pods free the devices; the proposed victims do not. kube-scheduler treats a
        # list that an extender emptied as an error; without the node the pod stays pending until
        # the terminating pods are gone.
        return None
    # Which of the proposed victims violate a budget is not known: assume as many as possible.
    violations = min(proposed.violations, len(kept_uids))
    if added:
        stayed = _without(final, added)
        violations += selection.violations(stayed + added) - selection.violations(stayed)
    return Victims(_in_order(kept_uids, proposed_pods, added), violations)


def _in_order(kept_uids: list[str], proposed_pods: Pods, added: Pods) -> tuple[str, ...]:
    """Return the uids by falling priority: `kept_uids` in order, with `added` inserted.

    The ledger has no priority of pods without device memory; kube-scheduler sent the uids sorted.
    """
    priorities = {entry.ref.uid: entry.priority for entry in proposed_pods + added}
    order = kept_uids.copy()
    for entry in sorted(added, key=importance):
        lower = (at for at, uid in enumerate(order) if priorities.get(uid, inf) < entry.priority)
        order.insert(next(lower, len(order)), entry.ref.uid)
    return tuple(order)
