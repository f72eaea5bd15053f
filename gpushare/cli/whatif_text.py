"""What `gpushare whatif` found, as lines for people and as a document for programs.

Tested in `tests/unit/cli/test_whatif.py`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from gpushare.cli.documents import API_VERSION
from gpushare.cli.listed_cluster import ListedResource
from gpushare.cli.plans import Plan
from gpushare.explain.placer import MOST, PlacementResult
from gpushare.explain.pod import GroupNeed
from gpushare.explain.text import amount, group_text
from gpushare.explain.whatif import Outcome, Sums

KIND = "GPUShareWhatIf"
_MOST_NODES = 5
_MOST_PODS = 5
_MOST_KINDS = 12
NOT_JUDGED = (
    "affinity to other pods, spread constraints, ports, volumes, quotas and preemption do not count"
)


def lines_of(outcome: Outcome, plan: Plan, policy: str) -> Iterator[str]:
    """Yield the lines. policy: by which it was judged."""
    books = plan.books
    yield from now_lines(outcome.before, plan)
    if plan.without:
        fit = sum(each.fit for each in outcome.moved)
        pods = f"{fit} of {len(outcome.moved)} pod{'s' * (len(outcome.moved) > 1)} fit elsewhere"
        yield f"Without:  {', '.join(plan.without)}: {pods if outcome.moved else 'no pods'}"
        yield from (f"          {_placed(each)}" for each in outcome.moved if not each.all_fit)
    if plan.added:
        nodes = "1 node" if len(plan.added) == 1 else f"{len(plan.added)} nodes"
        yield f"Added:    {nodes}: {some([spec.name for spec in plan.added])}"
    yield from _waiting(outcome)
    yield from _pods_lines(outcome.placed)
    for gang in outcome.gangs:
        when = "" if plan.without or plan.added or plan.wanted else " now"
        yield from (f"Gang:     {_at_once(each, books.unit, when)}" for each in gang.placed)
        if len(gang.placed) > 1 and not gang.fits:
            yield "          so none of these pods is placed"
    if outcome.unknown:
        pods = number_of(sum(outcome.unknown.values()))
        named = some(sorted(outcome.unknown))
        yield f"Left out: {pods}: only a model that no node has would do: {named}"
    yield f"Then:     {sums_text(outcome.after, books.unit)}"
    yield judged_line(books, policy)


def now_lines(before: Sums, plan: Plan) -> Iterator[str]:
    """Yield what there is now, and which nodes kube-scheduler leaves out."""
    yield f"Now:      {sums_text(before, plan.books.unit)} ({plan.books.title})"
    if plan.left_out:
        nodes = [f"{name} {label}" for name, label in plan.left_out.items()]
        yield f"Nodes:    {some(nodes, '; ')}"


def judged_line(books: ListedResource, policy: str) -> str:
    """Return how it was judged, and what does not count."""
    notes = [*books.notes, NOT_JUDGED]
    return f"Judged:   by policy {policy}; {'; '.join(notes)}"


def _pods_lines(placed: Sequence[PlacementResult]) -> Iterator[str]:
    """Yield how many of the wanted pods fit; of many, equal ones are told together."""
    if len(placed) > _MOST_KINDS:
        asked = sum(each.wanted.count or each.fit for each in placed)
        yield f"Pods:     {sum(each.fit for each in placed)} of {asked} fit"
        placed = together(placed)
    yield from (f"Pods:     {_placed(each)}" for each in placed[:_MOST_KINDS])
    if len(placed) > _MOST_KINDS:
        yield f"          and {len(placed) - _MOST_KINDS} more kinds"


def together(placed: Sequence[PlacementResult]) -> list[PlacementResult]:
    """Return one result for all equal pods, those first of which most did not fit."""
    found: dict[object, list[PlacementResult]] = {}
    for each in placed:
        wanted = each.wanted
        found.setdefault((wanted.kind, wanted.priority), []).append(each)
    merged = [_merged(alike) for alike in found.values()]
    return sorted(merged, key=lambda each: each.fit - (each.wanted.count or 0))


def _merged(alike: Sequence[PlacementResult]) -> PlacementResult:
    first = alike[0].wanted
    if len(alike) == 1 or first.count is None:
        return alike[0]
    on: Counter[str] = Counter()
    for each in alike:
        on.update(each.on)
    count = sum(each.wanted.count or 0 for each in alike)
    name = f"{first.name} and {count - 1} like it"
    reasons = next((each.reasons for each in alike if each.reasons), {})
    fit = sum(each.fit for each in alike)
    return PlacementResult(replace(first, name=name, count=count), fit, on, reasons)


def _waiting(outcome: Outcome) -> Iterator[str]:
    """Yield what becomes of the pods that wait already."""
    waiting, gated = outcome.waiting, outcome.gated
    if waiting:
        fit = sum(each.fit for each in waiting)
        yield f"Waiting:  {_pods(len(waiting))} already; {fit} of {len(waiting)} fit"
        yield from (f"          {_placed(each)}" for each in waiting[:_MOST_PODS])
        if len(waiting) > _MOST_PODS:
            yield f"          and {len(waiting) - _MOST_PODS} more"
    if gated:
        yield gated_line(gated)


def gated_line(gated: int) -> str:
    """Return how many pods scheduling gates hold back."""
    return f"Gated:    {_pods(gated)} until scheduling gates are removed, and take nothing"


def number_of(pods: int) -> str:
    """Return so many pods."""
    return "1 pod" if pods == 1 else f"{pods} pods"


def _pods(number: int) -> str:
    return "1 pod waits" if number == 1 else f"{number} pods wait"


def sums_text(sums: Sums, unit: str) -> str:
    """Return what is free, of how much, on how many devices and nodes."""
    free = f"{amount(sums.free, unit)} of {amount(sums.total, unit)} free"
    devices = f"{sums.devices} device{'s' * (sums.devices != 1)}"
    stranded = f", {amount(sums.stranded, unit)} stranded by compute" if sums.stranded else ""
    return f"{free} on {devices} of {sums.nodes} node{'s' * (sums.nodes != 1)}{stranded}"


def sums_document(sums: Sums) -> dict[str, int]:
    """Return the sums as a part of a document; what compute strands is there if it does."""
    document = asdict(sums)
    stranded = document.pop("stranded")
    return document | ({"strandedByCores": stranded} if stranded else {})


def _placed(placed: PlacementResult) -> str:
    """Return how many fit, where, and why no more."""
    wanted = placed.wanted
    if wanted.count is None:
        fit = f"{placed.fit} fit" if placed.fit < MOST else f"{MOST} fit, and more"
    else:
        fit = f"{placed.fit} of {wanted.count} fit"
    name = f"{wanted.name} (priority {wanted.priority})" if wanted.priority else wanted.name
    return f"{name}: {fit}{_where(placed)}"


def _at_once(placed: PlacementResult, unit: str, when: str) -> str:
    """Return how many of a group fit, in the words of explain."""
    wanted = placed.wanted
    need = GroupNeed(((wanted.request, wanted.count or 0, placed.fit),), at_once=True)
    return f"{wanted.name}: {group_text(need, unit, when)}{_where(placed)}"


def _where(placed: PlacementResult) -> str:
    """Return where they fit, and why no more do."""
    where = some([f"{count} on {node}" for node, count in placed.on.items()])
    text = f" ({where})" if where else ""
    if placed.fit and placed.all_fit:
        return text
    reasons = ", ".join(f"{count} {why}" for why, count in placed.reasons.items())
    return f"{text}; then: {reasons or 'there are no nodes'}"


def some(parts: Sequence[str], between: str = ", ") -> str:
    """Return the first of the parts, and how many more there are."""
    more = [f"{len(parts) - _MOST_NODES} more"] if len(parts) > _MOST_NODES else []
    return between.join([*parts[:_MOST_NODES], *more])


def document_of(outcome: Outcome, plan: Plan, policy: str) -> dict[str, Any]:
    """Return the document."""
    return {
        **first_fields(KIND, plan, policy, outcome.before),
        "moved": [placed_document(each) for each in outcome.moved],
        "waiting": [placed_document(each) for each in outcome.waiting],
        "gated": outcome.gated,
        "pods": [placed_document(each) for each in outcome.placed],
        "gangs": [
            {"fits": gang.fits, "pods": [placed_document(each) for each in gang.placed]}
            for gang in outcome.gangs
        ],
        "unknownModels": dict(outcome.unknown),
        "after": sums_document(outcome.after),
        "notes": [*plan.books.notes, NOT_JUDGED],
    }


def first_fields(kind: str, plan: Plan, policy: str, before: Sums) -> dict[str, Any]:
    """Return how a document begins."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "resource": plan.books.names.resource,
        "unit": plan.books.unit,
        "policy": policy,
        "before": sums_document(before),
        "leftOut": [{"node": node, "why": why} for node, why in plan.left_out.items()],
    }


def placed_document(placed: PlacementResult) -> dict[str, Any]:
    """Return what became of pods as a part of a document."""
    request = placed.wanted.request
    also = [{"units": each.units, "devices": each.devices} for each in placed.wanted.also]
    return {
        "name": placed.wanted.name,
        "units": request.units,
        "devices": request.devices,
        **({"cores": request.cores} if request.cores else {}),
        **({"also": also} if also else {}),
        "priority": placed.wanted.priority,
        "wanted": placed.wanted.count,
        "fit": placed.fit,
        "on": [{"node": node, "pods": count} for node, count in placed.on.items()],
        "reasons": [{"reason": why, "nodes": count} for why, count in placed.reasons.items()],
    }
