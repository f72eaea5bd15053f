"""`gpushare defrag`: plan the few moves that make room for a pod, and carry the plan out.

The root of the command: command line to options, cluster or file to books, plan and outcome to
lines for people and documents for programs. Nothing is changed without --apply (defrag_apply.py).
"""

import argparse
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from gpushare.cli.cluster_files import resource_of_report
from gpushare.cli.defrag_apply import DefragRun, Look, RunOutcome
from gpushare.cli.documents import API_VERSION, dumped
from gpushare.cli.exit_codes import ended
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.listed_cluster import ListedResource, list_resources, list_rules
from gpushare.cli.options import connection
from gpushare.cli.parsers import MOST_MOVES_ASKED, defrag_parser
from gpushare.cli.pod_specs import host_amount, units_of_words, values_of_words
from gpushare.cli.pod_words import pod_named
from gpushare.cli.rights import without_cluster
from gpushare.cli.tables import align
from gpushare.cli.whatif_text import NOT_JUDGED, judged_line, number_of, some
from gpushare.commandline import USAGE, columns_of
from gpushare.core.amounts import compute, memory_percent
from gpushare.core.model import ALL_CORES, PodRef, Request
from gpushare.core.node_filters import CPU, MEMORY
from gpushare.core.policy import load_policy
from gpushare.errors import ApiError, GpuShareError, SettingsError
from gpushare.explain.defrag import (
    DefragAnswer,
    Hole,
    MoveRules,
    NamedPods,
    PodMove,
    Rule,
    UnmovedPod,
    find_moves,
)
from gpushare.explain.text import units_text
from gpushare.wire.annotations import MAX_DEVICES_PER_POD, Names
from gpushare.wire.gpu_models import label_value
from gpushare.wire.inventory import check_unit
from gpushare.wire.printable import printable, wrapped
from gpushare.yamlfile import read_documents

KIND = "GPUShareDefragPlan"
_UNCHANGED = "Nothing was changed: --apply evicts them, each once the one before runs again."
_HEAD = ("MOVE", "POD", "SIZE", "FROM", "TO", "OWNER", "BUDGET", "LOST")
_PLACE = re.compile(r"(?:(\d{1,3})x)?(\d{1,9})(GiB|MiB)?", re.ASCII)
_KEYS = ("cpu", "memory", "cores", "model")
_NO_PLAN = 1
_LONGEST_WAIT = 86_400


def main(argv: Sequence[str] | None = None, prog: str = "gpushare defrag") -> int:
    """Return the exit code: 0, 1 without a plan, 2 for an error, 130 after Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    return ended(lambda: _run(words, prog))


def _run(words: Sequence[str], prog: str) -> int:
    try:
        return _answer(defrag_parser(prog).parse_args(words))
    except GpuShareError as error:
        text = without_cluster(error, "defrag") if isinstance(error, ApiError) else error
        print(f"{prog}: {printable(str(text))}", file=sys.stderr)
        return USAGE


def _answer(options: argparse.Namespace) -> int:
    """Print the plan, or the reason without one; return the exit code."""
    if not 0 < options.moves <= MOST_MOVES_ASKED:
        raise SettingsError(f"--moves: {options.moves} is not from 1 to {MOST_MOVES_ASKED}")
    if options.unit:
        check_unit(options.unit)
    if options.apply and options.snapshot:
        raise SettingsError("--apply goes with a live cluster, not with --snapshot")
    if options.yes and not options.apply:
        raise SettingsError("--yes goes with --apply")
    if not 0 < options.wait <= _LONGEST_WAIT:
        raise SettingsError(f"--wait: {options.wait} is not from 1 to {_LONGEST_WAIT} seconds")
    kubectl = connection(vars(options), os.environ)
    look = _look(options, kubectl, options.moves)
    if options.apply and look.answer.moves:
        return _carry_out(look, options, kubectl)
    if options.output:
        print(dumped(document_of(look, options), options.output), end="")
    else:
        print(_text(look, options), end="")
    return 0 if look.answer.node else _NO_PLAN


def _look(options: argparse.Namespace, kubectl: Kubectl, max_moves: int) -> Look:
    """Return the books, and the plan with at most this number of moves."""
    policy = load_policy(options.policy)
    books, rules = _books(options, kubectl)
    name, hole, pod = _hole(options, books, kubectl)
    answer = find_moves(
        books.ledger, hole, rules, policy, books.filters, max_moves=max_moves, demands=books.demands
    )
    return Look(books, rules, name, hole, pod, answer)


def _text(look: Look, options: argparse.Namespace) -> str:
    text = "".join(f"{printable(line)}\n" for line in lines_of(look, options))
    return wrapped(text, columns_of(sys.stdout))


def _carry_out(look: Look, options: argparse.Namespace, kubectl: Kubectl) -> int:
    """Show the plan, carry it out if the user agrees, and return the exit code."""
    out = sys.stderr if options.output else sys.stdout
    print(_text(look, options), end="", file=out, flush=True)
    if not options.yes:
        if not sys.stdin.isatty():
            raise SettingsError("--apply: nobody can be asked here, so say --yes, too")
        print("Evict them? [y/N] ", end="", file=out, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing was changed.", file=out)
            return _NO_PLAN

    def say(line: str) -> None:
        print(printable(line), file=out, flush=True)

    again, namespace = partial(_look, options, kubectl), options.extender_namespace
    run = DefragRun(kubectl, look, again, namespace=namespace, wait=options.wait, say=say)
    outcome = run.outcome()
    for line in lines_of_run(outcome):
        say(line)
    if options.output:
        plan = document_of(look, options) | {"apply": document_of_run(outcome)}
        print(dumped(plan, options.output), end="")
    if outcome.interrupted:
        raise KeyboardInterrupt
    return _NO_PLAN if outcome.stopped else 0


def _books(options: argparse.Namespace, kubectl: Kubectl) -> tuple[ListedResource, MoveRules]:
    if options.snapshot:
        if not options.movable:
            raise SettingsError(
                "--snapshot: the file has no labels, owners and budgets of pods: say which may"
                " move, as --movable 'team-a/*'"
            )
        document = read_documents(options.snapshot)[0]
        books = resource_of_report(document, options.snapshot, options.policy)
        return books, NamedPods(options.movable)
    if options.movable:
        raise SettingsError("--movable goes with --snapshot: in a cluster pods say it by a label")
    (books,) = list_resources(kubectl, [Names.for_resource(options.resource)], options)
    return books, list_rules(kubectl, books, books.notes, time.time())


def _hole(
    options: argparse.Namespace, books: ListedResource, kubectl: Kubectl
) -> tuple[str, Hole, PodRef | None]:
    """Return (the text of --for, the place to open, the pending pod or None)."""
    match options.wanted:
        case ["pod", word]:
            pass
        case [word] if word.startswith("pod/"):
            word = word.removeprefix("pod/")
        case [word] if word != "pod":
            return word, Hole(_request(word, books), options.priority or 0), None
        case _:
            raise SettingsError("--for: write 2x40GiB, or pod NAMESPACE/NAME (see --help)")
    if options.priority is not None:
        raise SettingsError("--priority goes with a size: a pod that waits has its own")
    usual = "default" if options.snapshot else ""
    namespace, name = pod_named(word, options.namespace or usual, kubectl)
    for pod in books.ledger.waiting():
        if (pod.ref.namespace, pod.ref.name) == (namespace, name):
            return f"pod {pod.ref}", Hole(pod.request, pod.priority, pod.demands), pod.ref
    raise SettingsError(
        f"no pod {namespace}/{name} waits for {books.names.resource}: is it bound, or does it ask"
        " for none?"
    )


def _request(word: str, books: ListedResource) -> Request:
    """Return the request that a place such as `2x40GiB,cpu=8,cores=50` names."""
    first, *parts = word.split(",")
    wrong = f"--for: {word[:80]!r}"
    match = _PLACE.fullmatch(first.strip())
    if match is None:
        raise SettingsError(f"{wrong}: write 2x40GiB, or pod NAMESPACE/NAME (see --help)")
    more = values_of_words(parts, _KEYS, wrong)
    devices, size, unit = match.groups()
    request = Request(units_of_words(int(size), unit, books.unit, word), int(devices or 1))
    if not 0 < request.devices <= MAX_DEVICES_PER_POD:
        raise SettingsError(f"{wrong}: a pod may have from 1 to {MAX_DEVICES_PER_POD} devices")
    cores = more.get("cores", "0").removesuffix("%")
    if not re.fullmatch(r"\d{1,3}", cores, re.ASCII) or int(cores) > ALL_CORES:
        raise SettingsError(f"{wrong}: cores={more['cores'][:40]} is not from 0 to {ALL_CORES}")
    asks = "a pod may ask for"
    return replace(
        request,
        cpu=host_amount(CPU, more, wrong, minimum=0, of=asks) or 0,
        memory=host_amount(MEMORY, more, wrong, minimum=0, of=asks) or 0,
        percents=compute(int(cores)),
        models=(label_value(more["model"]),) if "model" in more else (),
        resources=((books.names.resource, request.total),),
    )


def lines_of(look: Look, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines about the plan."""
    answer, unit = look.answer, look.books.unit
    size = _size_text(look.hole.request, unit)
    if look.pod is not None:
        size = f"{size} for {look.name}"
    devices = ", ".join(map(str, answer.devices))
    place = f"{answer.node} device{'s' * (len(answer.devices) != 1)} {devices}"
    if answer.moves:
        moves = "1 move" if len(answer.moves) == 1 else f"{len(answer.moves)} moves"
        yield f"Room:     {moves} would open {size} on {place}"
        cost = "not known: the file does not tell since when pods run"
        if answer.unit_seconds is not None:
            hours = sum(move.gpu_hours for move in answer.moves)
            cost = f"{hours:.2g} GPU-hours of work at most, and the restarts"
        yield f"Cost:     {cost}"
    elif answer.node:
        yield f"Room:     {size} fits now on {place}: nothing has to move"
        yield judged_line(look.books, options.policy)
        return
    else:
        yield f"Room:     {_no_plan(answer, size, options.moves)}"
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
    """Return the units and compute of a request, such as `2 x 40 GiB` or `30 + 10 GiB`."""
    size = units_text(request, unit)
    if request.devices > 1 and not request.split:
        size = f"{request.devices} x {size}"
    return f"{size} and {request.cores} % of the compute" if request.cores else size


def _share(request: Request) -> dict[str, int]:
    percent = memory_percent(request.percents)
    return {"share": percent} if percent else {}


def _no_plan(answer: DefragAnswer, size: str, max_moves: int) -> str:
    if not answer.candidates:
        return f"no node has devices for {size} that the pod may use, even if it were empty"
    nodes = "the 1 node" if answer.candidates == 1 else f"any of the {answer.candidates} nodes"
    if not answer.is_complete:
        return f"no plan was found for {size}, and not all of them were tried"
    at_most = "1 move does not open" if max_moves == 1 else f"no {max_moves} moves or fewer open"
    return f"{at_most} {size} on {nodes} that would have it if empty"


def _staying(answer: DefragAnswer) -> Iterator[str]:
    """Yield a line for each rule with the pods that stay, the commonest rule first."""
    by_rule: defaultdict[Rule, list[UnmovedPod]] = defaultdict(list)
    for staying in answer.stays:
        by_rule[staying.rule].append(staying)
    label, place = "Stays:", f"on {answer.node}: " if answer.node else ""
    for rule, pods in sorted(by_rule.items(), key=lambda item: -len(item[1])):
        names = some([str(pod.entry.ref) for pod in pods])
        yield f"{label:<10}{place}{number_of(len(pods))}: {rule.value} ({names})"
        label, place = "", ""
    if not answer.node and answer.candidates and not answer.stays:
        yield f"{label:<10}nobody: each pod there may move and has a place, but not enough at once"


def _row(at: int, move: PodMove, unit: str) -> list[str]:
    entry, lost = move.entry, "-"
    devices = [device for device, _ in entry.placement or ()]
    if move.lost is not None:  # as kubectl shows ages
        minutes = int(move.lost) // 60
        lost = f"{minutes // 60}h" if minutes < 48 * 60 else f"{minutes // 1440}d"
        lost = f"{minutes}m" if minutes < 2 * 60 else lost
    return [
        str(at),
        str(entry.ref),
        _size_text(entry.request, unit),
        f"{entry.node}:{', '.join(map(str, devices))}",
        f"{move.node}:{', '.join(map(str, move.devices))}",
        move.owner or "-",
        "-" if move.disruptions is None else f"allows {move.disruptions}",
        lost,
    ]


def document_of(look: Look, options: argparse.Namespace) -> dict[str, Any]:
    """Return the document about the plan."""
    books, answer, request = look.books, look.answer, look.hole.request
    plan = {
        "node": answer.node,
        "devices": list(answer.devices),
        "moves": [
            {
                **asdict(move.entry.ref),
                "units": move.entry.request.units,
                "split": list(move.entry.request.split) or None,
                **_share(move.entry.request),
                "from": {
                    "node": move.entry.node,
                    "devices": [device for device, _ in move.entry.placement or ()],
                },
                "to": {"node": move.node, "devices": list(move.devices)},
                "owner": move.owner or None,
                "disruptionsAllowed": move.disruptions,
                "lostSeconds": move.lost,
            }
            for move in answer.moves
        ],
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
            **_share(request),
            "priority": look.hole.priority,
        },
        "mostMoves": options.moves,
        "plan": plan if answer.node else None,
        "nodes": answer.candidates,
        "every": answer.is_complete,
        "stays": [
            asdict(staying.entry.ref)
            | {"node": staying.entry.node, "rule": staying.rule.name, "reason": staying.rule.value}
            for staying in answer.stays
        ],
        "notes": [*books.notes, NOT_JUDGED],
    }


def lines_of_run(outcome: RunOutcome) -> Iterator[str]:
    """Yield the lines about the outcome of a run."""
    for move, name in outcome.finished:
        yield f"Moved:    {move.entry.ref} from {move.entry.node} to {move.node}, as {name}"
    evicted, unsettled = outcome.run.evicted, outcome.run.sent
    if evicted:
        yield f"Evicted:  {evicted.entry.ref}; what comes in its stead was not seen to run"
    if unsettled:
        yield f"Unknown:  whether {unsettled.entry.ref} was evicted"
    if outcome.untouched:
        yield f"Left:     {', '.join(str(move.entry.ref) for move in outcome.untouched)}"
    if outcome.stopped:
        yield f"Stopped:  {outcome.stopped}"
    elif outcome.bound_node:
        yield f"Done:     the pod that waited is bound to {outcome.bound_node}"
    else:
        yield "Done:     the room is open"


def document_of_run(outcome: RunOutcome) -> dict[str, Any]:
    """Return the outcome of a run as part of the document."""

    def short(move: PodMove) -> dict[str, Any]:
        return asdict(move.entry.ref) | {"from": move.entry.node, "to": move.node}

    return {
        "moved": [short(move) | {"as": name} for move, name in outcome.finished],
        "evicted": short(outcome.run.evicted) if outcome.run.evicted else None,
        "unknown": short(outcome.run.sent) if outcome.run.sent else None,
        "left": [short(move) for move in outcome.untouched],
        "boundTo": outcome.bound_node or None,
        "stopped": outcome.stopped or None,
    }
