"""Preemption: the victims whose removal makes a pod really fit the devices of a node.

Pure, one node at a time. kube-scheduler proposes victims by what it counts itself; it cannot
distinguish the devices of a node. The rules for the answer (extender/v1, verb preempt):

- Up to 1.37 it sends only nodes with at least one victim that its own filters need. Since 1.38 it
  also sends nodes that pass its filters without victims, with an empty list to be filled. A list
  that came empty may stay empty, since another extender may fill it.
- Victims that run on the node may be added. A node may be left out.
- A victim may be left out if the node passes kube-scheduler's filters without it. Its list has no
  needless victim, so each one is needed for something that it counts; in doubt the victim stays
  (see `_removable_pods`).
- It takes the priority of the first victim as the highest, so the most important one comes first.

A terminating pod is never added as a victim: deleting it once more shortens nothing. One that is
within its grace frees its devices by itself, and if such pods free enough, no other pod has to be
removed. One that has longer, or is long overdue, frees nothing, even if kube-scheduler, which looks
at no time, proposes it as a victim.
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
    """The pods to be evicted on a node, by uid, and how many of them violate a budget."""

    uids: tuple[str, ...] = ()
    violations: int = 0


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod for which room is made."""

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
    """Return the victims whose end makes the pod fit the node's devices; None: not on this node.

    `proposed`: kube-scheduler's victims; they are returned unchanged if they free enough. Otherwise
    pods of lower priority are added (see `VictimSelection.choose`), and victims that are not needed
    any more are left out. `steps`: how long the search may take; with none left, any set that frees
    enough is returned. `budgets`: those that cover pods of the node, as far as known.
    """
    uids = tuple(dict.fromkeys(proposed.uids))
    held = {entry.ref.uid: entry for entry in books.entries}
    proposed_pods = tuple(held[uid] for uid in uids if uid in held)
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
    # Those that stay for longer than anybody waits: victims or not, they free nothing.
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
    """Return the proposed victims that were chosen for their device memory, as far as is known.

    kube-scheduler's filters pass with all its victims removed, and it has reprieved each one it
    could: if any one of them stays, a filter fails. If the node's sum of device memory is too small
    while a victim stays, that is why it was chosen; and a set that frees whole devices also makes
    the sum large enough. CPU and memory are checked when the set is known (`_host_fits`). If some
    other filter needs the pod too, the next round proposes it again, and no pod is evicted for
    nothing.
    """
    if not preemptor.counted_by_scheduler:
        return ()
    # All devices, healthy or not: the largest sum that kube-scheduler can have used.
    free = sum(books.spec.capacity) - sum(entry.request.total for entry in books.entries)
    free += sum(entry.request.total for entry in proposed_pods)
    wanted = preemptor.request.total
    return tuple(
        entry
        for entry in proposed_pods
        if free - entry.request.total < wanted and not entry.terminating
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
    """Return the victims, the most important first, with how many of them violate a budget."""
    left_out = {entry.ref.uid for entry in _without(proposed_pods, final)}
    kept_uids = [uid for uid in uids if uid not in left_out]
    added = _without(final, proposed_pods)
    if uids and not kept_uids and not added:
        # Terminating pods free the devices; the proposed victims do not. kube-scheduler treats a
        # list that we emptied as an error; without the node the pod waits for the terminating ones.
        return None
    # Which of the proposed victims violate a budget is not known: assume as many as possible.
    violations = min(proposed.violations, len(kept_uids))
    if added:
        stayed = _without(final, added)
        violations += selection.violations(stayed + added) - selection.violations(stayed)
    return Victims(_in_order(kept_uids, proposed_pods, added), violations)


def _in_order(kept_uids: list[str], proposed_pods: Pods, added: Pods) -> tuple[str, ...]:
    """Return the uids by falling priority: the kept ones in their order, with `added` inserted.

    The ledger does not know the priority of pods without device memory; kube-scheduler sent them in
    their order.
    """
    priorities = {entry.ref.uid: entry.priority for entry in proposed_pods + added}
    order = kept_uids.copy()
    for entry in sorted(added, key=importance):
        lower = (at for at, uid in enumerate(order) if priorities.get(uid, inf) < entry.priority)
        order.insert(next(lower, len(order)), entry.ref.uid)
    return tuple(order)
