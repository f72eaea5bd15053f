"""`gpushare whatif`: would these pods fit, now, or once nodes have gone or come; how many nodes are
needed so that they do.

The root of the command: words to options, a cluster or a file to books, what would be to text.
Reads, and changes nothing.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from gpushare.cli.documents import dumped
from gpushare.cli.exit_codes import ended_as_kubectl
from gpushare.cli.listed_cluster import (
    DEFAULT_POLICY,
    ListedResource,
    add_cluster_flags,
    list_priorities,
    list_resources,
)
from gpushare.cli.need_text import need_document, need_lines
from gpushare.cli.options import connection, make_parser, report_format
from gpushare.cli.overlay_text import overlay_text
from gpushare.cli.pod_specs import (
    Priorities,
    holds_rows,
    pods_of_documents,
    pods_of_rows,
    pods_of_words,
)
from gpushare.cli.saved_report import resource_of_report
from gpushare.cli.shapes import check_prices, nodes_added, shape_of_words, shapes_of_cluster
from gpushare.cli.style import style_of
from gpushare.cli.tables import printable
from gpushare.cli.trace_books import resource_of_nodes
from gpushare.cli.whatif_text import document_of, lines_of
from gpushare.core.model import NodeSpec
from gpushare.core.policy import Policy, load_policy
from gpushare.errors import SettingsError
from gpushare.explain.need import Asked, Need, more_of, need
from gpushare.explain.placer import Wanted
from gpushare.explain.text import NO_UNIT
from gpushare.explain.tries import Counts, Tell
from gpushare.explain.whatif import what_if
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.inventory import check_unit
from gpushare.yamlfile import read_documents

_EPILOG = """\
pods:   8GiB            how many of 8 GiB fit
        8GiB x 3        whether three do
        8GiB on 2 x 3   the same, with 8 GiB on each of two devices
        8GiB + 30% x 3  three with 30 % of the compute of their device, too; 100%: a device alone
        FILE            manifests of Pods, Deployments, StatefulSets, Jobs; or a table of pods, as
                        of `gpushare simulate`
group:  --gang '8GiB x 3', or --gang FILE: all of these pods at once, or none
nodes:  --without gpu-a --add 3:8x80GiB, or --add 3:gpu-a for three like that one
need:   --need          the fewest nodes so that the pods that wait fit, and those of --pods
        --more 20%      and so much more of what runs
        --shape 8x80GiB,cpu=96,memory=768Gi,model=A100,price=12.5, or --shape gpu-a,price=9: nodes
                        that may come (default: like those that are there); with prices the cheapest
        --overlay       prints them as Karpenter and cluster-autoscaler are told of them
exit codes: 0 answered, 1 an error (one line on stderr), 130 ended by Ctrl-C.
docs/explain.md tells what counts and what does not.
"""
_SHARE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)%", re.ASCII)


def main(argv: Sequence[str] | None = None, prog: str = "gpushare whatif") -> int:
    """Return the exit code: 0, 1 for an error, 130 after Ctrl-C, 141 if nobody reads it."""
    words = sys.argv[1:] if argv is None else argv
    return ended_as_kubectl(lambda: print(_answer(_parser(prog).parse_args(words)), end=""))


def _answer(options: argparse.Namespace) -> str:
    """Return the text to print."""
    _check(options)
    every = [Names.for_resource(resource) for resource in options.resource or [ALIYUN.resource]]
    policy = load_policy(options.policy)
    books = _books(options, every)
    every[0] = books.names
    added: list[NodeSpec] = []
    for spec, state in nodes_added(options.add, books):
        books.states.put(state)
        added.append(spec)
    left_out = _left_out(books, options.without)
    read = _Reader(options, books, every)
    wanted = [each for word in options.pods for each in read.wanted("--pods", word)]
    gangs = [read.wanted("--gang", word) for word in options.gang]
    if options.need:
        pods = [*wanted, *(pod for gang in gangs for pod in gang)]
        found = _need(options, books, policy, pods, added)
        if options.overlay:
            return overlay_text(found, books.names, books.unit)
        if options.output:
            return dumped(need_document(found, books, options, left_out), options.output)
        style = style_of(sys.stdout, os.environ)
        return need_lines(found, books, options, left_out, style)
    outcome = what_if(
        books.ledger,
        wanted,
        policy,
        without=options.without,
        added=added,
        gangs=gangs,
        own=books.filters,
        demands=books.demands,
    )
    if options.output:
        return dumped(document_of(outcome, books, options, left_out), options.output)
    lines = lines_of(outcome, books, options, added, left_out)
    return "".join(f"{printable(line)}\n" for line in lines)


def _check(options: argparse.Namespace) -> None:
    """Raise SettingsError if nothing is asked, or what does not go together."""
    if not options.need and (options.shape or options.more):
        raise SettingsError("--shape and --more go with --need: how many more nodes are needed")
    if options.overlay and (options.output or not options.need):
        raise SettingsError("--overlay goes with --need, and without -o: it is YAML of its own")
    asked = options.pods or options.gang or options.without or options.add
    if not (asked or options.need):
        raise SettingsError(
            "nothing is asked: --pods, --gang, --without, --add or --need say it (see --help)"
        )
    if options.nodes and options.snapshot:
        raise SettingsError("--nodes and --snapshot both say which nodes there are: leave one out")
    if options.unit:
        check_unit(options.unit)


def _books(options: argparse.Namespace, every: Sequence[Names]) -> ListedResource:
    if options.nodes:
        unit = options.unit or NO_UNIT
        return resource_of_nodes(options.nodes, every[0], unit, options.policy)
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


def _need(
    options: argparse.Namespace,
    books: ListedResource,
    policy: Policy,
    wanted: list[Wanted],
    added: Sequence[NodeSpec],
) -> Need:
    endless = next((each.name for each in wanted if each.count is None), None)
    if endless is not None:
        raise SettingsError(f"--need: {endless!r}: how many? write '{endless} x 3'")
    if options.more:
        share = _SHARE.fullmatch(options.more.strip())
        if share is None or not (part := Fraction(share[1]) / 100):
            raise SettingsError(f"--more: {options.more[:40]!r} is not like 20%")
        running = books.ledger.entries_and_specs()[0].values()
        if not running:
            raise SettingsError("--more: no pod runs there, so nothing is more of it")
        wanted = [*wanted, *more_of(running, part, books.demands)]
    demands = {pod.demands for pod in wanted} | {pod.demands for pod in books.ledger.waiting()}
    if options.without:
        demands |= {*books.demands.values()}
    told = [shape_of_words(word, "--shape", books) for word in options.shape]
    check_prices(told)
    asked = Asked(
        wanted,
        told or shapes_of_cluster(books, demands),
        books.names.resource,
        options.without,
        added,
        books.demands,
    )
    with _progress() as tell:
        return need(books.ledger, asked, policy, books.filters, tell)


@contextmanager
def _progress() -> Iterator[Tell]:
    """Show on stderr, if it is a terminal, which number of nodes is tried; yield what is told."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:  # an image has what the extender needs
        yield lambda _counts, _tries: None
        return
    form = "{desc} [{elapsed}]"
    with tqdm(disable=None, leave=False, bar_format=form, desc="whatif") as shown:

        def tell(counts: Counts, tries: int) -> None:
            shown.set_description_str(f"whatif: try {tries + 1}, of {sum(counts)} more nodes")

        yield tell


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
        if word != "-" and holds_rows(Path(word)):
            return pods_of_rows(Path(word), books.names.resource, priority)
        return pods_of_documents(read_documents(word), word, self._every, self._priorities)

    @cached_property
    def _priorities(self) -> Priorities:
        if self._options.snapshot or self._options.nodes:
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
    add("--need", action="store_true", help="how many more nodes take all pods: see below")
    add("--shape", action="append", default=[], metavar="SHAPE", help="of nodes that may come")
    add("--overlay", action="store_true", help="with --need: the nodes, for autoscalers, as YAML")
    add("--more", default="", metavar="20%", help="with --need: so much more of what runs")
    add("--without", action="append", default=[], metavar="NODE", help="a node that goes")
    add("--add", action="append", default=[], metavar="N:SHAPE", help="nodes that come")
    add("--snapshot", default="", metavar="FILE", help="of `inspect -o json`, not a live cluster")
    add("--nodes", default="", metavar="FILE", help="a table as of `gpushare simulate`, likewise")
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
