"""What `gpushare defrag` found, and what came of a plan that was carried out: lines for people, and
documents for programs.

Tested in `tests/unit/cli/test_defrag.py` and `tests/unit/cli/test_defrag_apply.py`.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gpushare.cli.defrag_apply import Look, Outcome
from gpushare.cli.documents import API_VERSION
from gpushare.cli.tables import align
from gpushare.cli.whatif_text import NOT_JUDGED, judged_line, number_of, some
from gpushare.core.model import Request
from gpushare.explain.defrag import DefragAnswer, PodMove, Rule, Stays
from gpushare.explain.text import units_text

KIND = "GPUShareDefragPlan"
_UNCHANGED = "Nothing was changed: --apply evicts them, each once the one before runs again."
_HEAD = ("MOVE", "POD", "SIZE", "FROM", "TO", "OWNER", "BUDGET", "LOST")


def lines_of(look: Look, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines."""
    answer, unit = look.answer, look.books.unit
    asked = _size_text(look.hole.request, unit)
    if look.pod is not None:
        asked = f"{asked} for {look.name}"
    place = f"{answer.node} device{'s' * (len(answer.devices) != 1)} {_indices(answer.devices)}"
    if answer.moves:
        moves = "1 move" if len(answer.moves) == 1 else f"{len(answer.moves)} moves"
        yield f"Room:     {moves} would open {asked} on {place}"
        cost = "not known: the file does not tell since when pods run"
        if answer.unit_seconds is not None:
            hours = sum(move.gpu_hours for move in answer.moves)
            cost = f"{hours:.2g} GPU-hours of work at most, and the restarts"
        yield f"Cost:     {cost}"
    elif answer.node:
        yield f"Room:     {asked} fits now on {place}: nothing has to move"
        yield judged_line(look.books, options.policy)
        return
    else:
        yield f"Room:     {_no_plan(answer, asked, options.moves)}"
    yield from _staying(answer)
    yield judged_line(look.books, options.policy)
    if answer.moves:
        if options.apply:
            yield "Next:     they are evicted one at a time, each once the one before runs again"
        else:
            yield _UNCHANGED
        yield ""
        rows = [_row(at, move, unit) for at, move in enumerate(answer.moves, 1)]
        yield from align([_HEAD, *rows]).splitlines()


def _size_text(request: Request, unit: str) -> str:
    """Return what a request asks for of devices, as `2 x 40 GiB` or `30 + 10 GiB`."""
    size = units_text(request, unit)
    if request.devices > 1 and not request.split:
        size = f"{request.devices} x {size}"
    return f"{size} and {request.cores} % of the compute" if request.cores else size


def _indices(devices: Sequence[int]) -> str:
    return ", ".join(map(str, devices))


def _no_plan(answer: DefragAnswer, asked: str, most: int) -> str:
    if not answer.able:
        return f"no node has devices for {asked} that the pod may use, even if it were empty"
    nodes = "the 1 node" if answer.able == 1 else f"any of the {answer.able} nodes"
    if not answer.every:
        return f"no plan was found for {asked}, and not all of them were tried"
    at_most = "1 move does not open" if most == 1 else f"no {most} moves or fewer open"
    return f"{at_most} {asked} on {nodes} that would have it if empty"


def _staying(answer: DefragAnswer) -> Iterator[str]:
    """Yield by rule who is not moved, the commonest first."""
    by_rule: defaultdict[Rule, list[Stays]] = defaultdict(list)
    for staying in answer.stays:
        by_rule[staying.rule].append(staying)
    label, where = "Stays:", f"on {answer.node}: " if answer.node else ""
    for rule, some_of_them in sorted(by_rule.items(), key=lambda item: -len(item[1])):
        names = some([str(each.entry.ref) for each in some_of_them])
        yield f"{label:<10}{where}{number_of(len(some_of_them))}: {rule.value} ({names})"
        label, where = "", ""
    if not answer.node and answer.able and not answer.stays:
        yield f"{label:<10}nobody: each pod there may move and has a place, but not enough at once"


def _row(at: int, move: PodMove, unit: str) -> list[str]:
    entry = move.entry
    devices = [device for device, _ in entry.placement or ()]
    return [
        str(at),
        str(entry.ref),
        _size_text(entry.request, unit),
        f"{entry.node}:{_indices(devices)}",
        f"{move.node}:{_indices(move.devices)}",
        move.owner or "-",
        "-" if move.allowed is None else f"allows {move.allowed}",
        "-" if move.lost is None else _duration(move.lost),
    ]


def _duration(seconds: float) -> str:
    """Return a time as kubectl shows ages."""
    minutes = int(seconds) // 60
    if minutes < 2 * 60:
        return f"{minutes}m"
    return f"{minutes // 60}h" if minutes < 48 * 60 else f"{minutes // 1440}d"


def document_of(look: Look, options: argparse.Namespace) -> dict[str, Any]:
    """Return the document."""
    books, answer, request = look.books, look.answer, look.hole.request
    plan = {
        "node": answer.node,
        "devices": list(answer.devices),
        "moves": [_move(move) for move in answer.moves],
        "lostUnitSeconds": answer.unit_seconds,
        "lostGpuHours": None
        if answer.unit_seconds is None
        else sum(move.gpu_hours for move in answer.moves),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "resource": books.names.resource,
        "unit": books.unit,
        "policy": options.policy,
        "for": {
            "name": look.name,
            "units": request.units,
            "devices": request.devices,
            "split": list(request.split) or None,
            "cores": request.cores,
            "priority": look.hole.priority,
        },
        "mostMoves": options.moves,
        "plan": plan if answer.node else None,
        "nodes": answer.able,
        "every": answer.every,
        "stays": [
            asdict(staying.entry.ref)
            | {"node": staying.entry.node, "rule": staying.rule.name, "reason": staying.rule.value}
            for staying in answer.stays
        ],
        "notes": [*books.notes, NOT_JUDGED],
    }


def _move(move: PodMove) -> dict[str, Any]:
    entry = move.entry
    return asdict(entry.ref) | {
        "units": entry.request.units,
        "split": list(entry.request.split) or None,
        "from": {"node": entry.node, "devices": [device for device, _ in entry.placement or ()]},
        "to": {"node": move.node, "devices": list(move.devices)},
        "owner": move.owner or None,
        "disruptionsAllowed": move.allowed,
        "lostSeconds": move.lost,
    }


def lines_of_run(done: Outcome) -> Iterator[str]:
    """Yield where a run stands, for people."""
    for move, name in done.moved:
        yield f"Moved:    {move.entry.ref} from {move.entry.node} to {move.node}, as {name}"
    if done.evicted:
        yield f"Evicted:  {done.evicted.entry.ref}; what comes in its stead was not seen to run"
    if done.unsettled:
        yield f"Unknown:  whether {done.unsettled.entry.ref} was evicted"
    if done.untouched:
        yield f"Left:     {', '.join(str(move.entry.ref) for move in done.untouched)}"
    if done.stopped:
        yield f"Stopped:  {done.stopped}"
    elif done.bound:
        yield f"Done:     the pod that waited is bound to {done.bound}"
    else:
        yield "Done:     the room is open"


def document_of_run(done: Outcome) -> dict[str, Any]:
    """Return where a run stands, for programs."""

    def short(move: PodMove) -> dict[str, Any]:
        return asdict(move.entry.ref) | {"from": move.entry.node, "to": move.node}

    return {
        "moved": [short(move) | {"as": name} for move, name in done.moved],
        "evicted": short(done.evicted) if done.evicted else None,
        "unknown": short(done.unsettled) if done.unsettled else None,
        "left": [short(move) for move in done.untouched],
        "boundTo": done.bound or None,
        "stopped": done.stopped or None,
    }
