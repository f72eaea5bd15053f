"""`gpushare whatif`: would these pods fit, now, or once nodes have gone or come.

The root of the command: words to options, a cluster or a saved report to books, what would be to
text. Reads, and changes nothing.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from gpushare.cli.documents import API_VERSION, dumped
from gpushare.cli.exit_codes import ended_as_kubectl
from gpushare.cli.listed_cluster import (
    DEFAULT_POLICY,
    ListedResource,
    add_cluster_flags,
    list_priorities,
    list_resources,
)
from gpushare.cli.options import connection, make_parser, report_format
from gpushare.cli.pod_specs import (
    Priorities,
    nodes_added,
    pods_of_documents,
    pods_of_words,
)
from gpushare.cli.saved_report import resource_of_report
from gpushare.cli.tables import printable
from gpushare.core.model import NodeSpec
from gpushare.core.policy import load_policy
from gpushare.errors import SettingsError
from gpushare.explain.placer import MOST, PlacementResult, Wanted
from gpushare.explain.pod import GroupNeed
from gpushare.explain.shapes import state_like
from gpushare.explain.text import amount, group_text
from gpushare.explain.whatif import Outcome, Sums, what_if
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.inventory import check_unit
from gpushare.yamlfile import read_documents

KIND = "GPUShareWhatIf"
_EPILOG = """\
pods:   8GiB            how many of 8 GiB fit
        8GiB x 3        whether three do
        8GiB on 2 x 3   the same, with 8 GiB on each of two devices
        FILE            manifests of Pods, Deployments, StatefulSets, Jobs
group:  --gang '8GiB x 3', or --gang FILE: all of these pods at once, or none
nodes:  --without gpu-a --add 3:8x80GiB, or --add 3:gpu-a for three like that one
exit codes: 0 answered, 1 an error (one line on stderr), 130 ended by Ctrl-C.
docs/explain.md tells what counts and what does not.
"""
_MOST_NODES = 5
_MOST_PODS = 5
_NOT_JUDGED = (
    "affinity to other pods, spread constraints, ports, volumes, quotas and preemption do not count"
)


def main(argv: Sequence[str] | None = None, prog: str = "gpushare whatif") -> int:
    """Return the exit code: 0, 1 for an error, 130 after Ctrl-C, 141 if nobody reads it."""
    words = sys.argv[1:] if argv is None else argv
    return ended_as_kubectl(lambda: print(_answer(_parser(prog).parse_args(words)), end=""))


def _answer(options: argparse.Namespace) -> str:
    """Return the text to print."""
    if not (options.pods or options.gang or options.without or options.add):
        raise SettingsError(
            "nothing is asked: --pods, --gang, --without or --add say it (see --help)"
        )
    every = [Names.for_resource(resource) for resource in options.resource or [ALIYUN.resource]]
    policy = load_policy(options.policy)
    books = _books(options, every)
    every[0] = books.names
    there = books.ledger.entries_and_specs()[1]
    added: list[NodeSpec] = []
    for word in options.add:
        new = nodes_added(word, books.unit, there | {spec.name: spec for spec in added})
        like = books.states.get(word.partition(":")[2].strip())
        for spec in new:
            books.states.put(state_like(spec, like, books.names.resource))
        added += new
    left_out = _left_out(books, options.without)
    read = _Reader(options, books, every)
    wanted = [each for word in options.pods for each in read.wanted("--pods", word)]
    gangs = [read.wanted("--gang", word) for word in options.gang]
    outcome = what_if(
        books.ledger,
        wanted,
        policy,
        without=options.without,
        added=added,
        gangs=gangs,
        own=books.filters,
    )
    if options.output:
        return dumped(_document(outcome, books, options, left_out), options.output)
    lines = _lines(outcome, books, options, added, left_out)
    return "".join(f"{printable(line)}\n" for line in lines)


def _books(options: argparse.Namespace, every: Sequence[Names]) -> ListedResource:
    if options.unit:
        check_unit(options.unit)
    if options.snapshot:
        document = read_documents(options.snapshot)[0]
        return resource_of_report(document, options.snapshot, options.policy)
    kubectl = connection(vars(options), os.environ)
    return list_resources(
        kubectl,
        every[:1],
        options.unit,
        policy=options.policy,
        namespace=options.extender_namespace,
    )[0]


class _Reader:
    """Reads what is wanted. every: the managed resources, the one of the books first."""

    def __init__(
        self, options: argparse.Namespace, books: ListedResource, every: Sequence[Names]
    ) -> None:
        self._options = options
        self._books = books
        self._every = every

    def wanted(self, flag: str, word: str) -> list[Wanted]:
        """Return the pods of one --pods or --gang."""
        books, priority = self._books, self._options.priority
        found = pods_of_words(word, books.unit, books.names.resource, priority)
        if found is not None:
            if flag == "--gang" and found.count is None:
                text = f"{word!r}: how many at once? write '{word.strip()} x 3'"
                raise SettingsError(f"--gang: {text}")
            return [found]
        if word != "-" and not Path(word).exists():
            raise SettingsError(
                f"{flag}: {word!r} is no file, nor is it as '8GiB x 3' (see --help)"
            )
        return pods_of_documents(read_documents(word), word, self._every, self._priorities)

    @cached_property
    def _priorities(self) -> Priorities:
        if self._options.snapshot:
            return Priorities()
        kubectl = connection(vars(self._options), os.environ)
        return list_priorities(kubectl, self._books.notes)


def _left_out(books: ListedResource, without: Sequence[str]) -> dict[str, str]:
    """Return by node what keeps kube-scheduler from it, whoever asks."""
    specs = books.ledger.entries_and_specs()[1]
    units = {name: sum(spec.capacity) for name, spec in specs.items() if spec.capacity}
    states = ((name, books.states.get(name)) for name in sorted(units) if name not in without)
    labels = (
        (name, state.label(books.names.resource, units[name])) for name, state in states if state
    )
    return {name: label for name, label in labels if label}


def _lines(
    outcome: Outcome,
    books: ListedResource,
    options: argparse.Namespace,
    added: Sequence[NodeSpec],
    left_out: Mapping[str, str],
) -> Iterator[str]:
    yield f"Now:      {_sums(outcome.before, books.unit)} ({books.names.resource})"
    if left_out:
        yield f"Nodes:    {_some([f'{name} {label}' for name, label in left_out.items()], '; ')}"
    if options.without:
        fit = sum(each.fit for each in outcome.moved)
        pods = f"{fit} of {len(outcome.moved)} pod{'s' * (len(outcome.moved) > 1)} fit elsewhere"
        yield f"Without:  {', '.join(options.without)}: {pods if outcome.moved else 'no pods'}"
        yield from (f"          {_placed(each)}" for each in outcome.moved if not each.all_fit)
    if added:
        nodes = "1 node" if len(added) == 1 else f"{len(added)} nodes"
        yield f"Added:    {nodes}: {_some([spec.name for spec in added])}"
    yield from _waiting(outcome)
    yield from (f"Pods:     {_placed(each)}" for each in outcome.placed)
    for gang in outcome.gangs:
        when = "" if options.without or options.add or options.pods else " now"
        yield from (f"Gang:     {_at_once(each, books.unit, when)}" for each in gang.placed)
        if len(gang.placed) > 1 and not gang.fits:
            yield "          so none of these pods is placed"
    yield f"Then:     {_sums(outcome.after, books.unit)}"
    notes = [*books.notes, _NOT_JUDGED]
    yield f"Judged:   by policy {options.policy}; {'; '.join(notes)}"


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
        yield f"Gated:    {_pods(gated)} until scheduling gates are removed, and take nothing"


def _pods(number: int) -> str:
    return "1 pod waits" if number == 1 else f"{number} pods wait"


def _sums(sums: Sums, unit: str) -> str:
    free = f"{amount(sums.free, unit)} of {amount(sums.total, unit)} free"
    devices = f"{sums.devices} device{'s' * (sums.devices != 1)}"
    return f"{free} on {devices} of {sums.nodes} node{'s' * (sums.nodes != 1)}"


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
    where = _some([f"{count} on {node}" for node, count in placed.on.items()])
    text = f" ({where})" if where else ""
    if placed.fit and placed.all_fit:
        return text
    reasons = ", ".join(f"{count} {why}" for why, count in placed.reasons.items())
    return f"{text}; then: {reasons or 'there are no nodes'}"


def _some(parts: Sequence[str], between: str = ", ") -> str:
    more = [f"{len(parts) - _MOST_NODES} more"] if len(parts) > _MOST_NODES else []
    return between.join([*parts[:_MOST_NODES], *more])


def _document(
    outcome: Outcome,
    books: ListedResource,
    options: argparse.Namespace,
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "resource": books.names.resource,
        "unit": books.unit,
        "policy": options.policy,
        "before": asdict(outcome.before),
        "leftOut": [{"node": node, "why": why} for node, why in left_out.items()],
        "moved": [_placed_document(each) for each in outcome.moved],
        "waiting": [_placed_document(each) for each in outcome.waiting],
        "gated": outcome.gated,
        "pods": [_placed_document(each) for each in outcome.placed],
        "gangs": [
            {"fits": gang.fits, "pods": [_placed_document(each) for each in gang.placed]}
            for gang in outcome.gangs
        ],
        "after": asdict(outcome.after),
        "notes": [*books.notes, _NOT_JUDGED],
    }


def _placed_document(placed: PlacementResult) -> dict[str, Any]:
    request = placed.wanted.request
    return {
        "name": placed.wanted.name,
        "units": request.units,
        "devices": request.devices,
        "priority": placed.wanted.priority,
        "wanted": placed.wanted.count,
        "fit": placed.fit,
        "on": [{"node": node, "pods": count} for node, count in placed.on.items()],
        "reasons": [{"reason": why, "nodes": count} for why, count in placed.reasons.items()],
    }


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = make_parser(
        prog,
        "Say whether pods would fit, now or with nodes gone or added. Changes nothing.",
        _EPILOG,
    )
    add = parser.add_argument
    add("--pods", action="append", default=[], metavar="PODS", help="see below; can be repeated")
    add("--priority", type=int, default=0, metavar="N", help="of pods in words (default: 0)")
    add("--gang", action="append", default=[], metavar="PODS", help="a group: all at once, or none")
    add("--without", action="append", default=[], metavar="NODE", help="a node that goes")
    add("--add", action="append", default=[], metavar="N:SHAPE", help="nodes that come")
    add("--snapshot", default="", metavar="FILE", help="of `inspect -o json`, not a live cluster")
    add("-o", "--output", metavar="FORMAT", type=report_format, help="json|yaml: all of it")
    add("--policy", default=DEFAULT_POLICY, metavar="NAME", help="(default: %(default)s)")
    add(
        "--resource",
        action="append",
        metavar="NAME",
        help=f"the first is judged; others only tell pods of two (default: {ALIYUN.resource})",
    )
    add_cluster_flags(parser)
    return parser
