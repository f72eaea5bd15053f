"""`gpushare whatif`: say whether pods fit with nodes removed or added, or the nodes that they need.

The root of the command: command line to options, cluster or file to books, answers to text. Nothing
is changed.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache, partial
from itertools import chain

from gpushare.cli import listed_cluster
from gpushare.cli.claims import Claims, no_claims
from gpushare.cli.cluster_files import resource_of_nodes, resource_of_report
from gpushare.cli.documents import as_one, dumped
from gpushare.cli.exit_codes import ended_as_kubectl
from gpushare.cli.listed_cluster import ListedResource
from gpushare.cli.options import connection
from gpushare.cli.parsers import whatif_parser
from gpushare.cli.plans import Plans, ResourcePlan, shapes_of_cluster, tolerated_taints
from gpushare.cli.pod_specs import ManifestReader, PodReader
from gpushare.cli.rights import without_cluster
from gpushare.cli.tables import style_of
from gpushare.cli.whatif_text import (
    document_of,
    lines_of,
    need_document,
    need_lines,
    overlay_text,
    some,
)
from gpushare.commandline import USAGE, columns_of
from gpushare.core.policy import Policy, load_policy
from gpushare.core.selectors import tolerating
from gpushare.errors import ApiError, SettingsError
from gpushare.explain.need import Counts, NodeNeed, Progress, more_of, need
from gpushare.explain.text import NO_UNIT
from gpushare.explain.whatif import what_if
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.inventory import check_unit
from gpushare.wire.metrics import check_health_url
from gpushare.wire.printable import printable, wrapped
from gpushare.yamlfile import read_documents

_DOES_NOT_FIT = 1
_SHARE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)%", re.ASCII)


def main(argv: Sequence[str] | None = None, prog: str = "gpushare whatif") -> int:
    """Return the exit code: 0, 1 if a requested pod does not fit, 2 for an error, or that of
    `ended`.
    """
    words = sys.argv[1:] if argv is None else argv

    def answer() -> int:
        options = whatif_parser(prog).parse_args(words)
        try:
            text, fits = _answer(options)
        except ApiError as error:
            raise without_cluster(error, "whatif") from error
        is_document = options.output or options.overlay
        print(wrapped(text, 0 if is_document else columns_of(sys.stdout)), end="")
        return 0 if fits else _DOES_NOT_FIT

    return ended_as_kubectl(answer, USAGE)


def _answer(options: argparse.Namespace) -> tuple[str, bool]:
    """Return (the text to print, whether all requested pods fit)."""
    _check(options)
    resources = options.resource or [ALIYUN.resource]
    resource_names = [Names.for_resource(name) for name in resources if name != CLASS] or [ALIYUN]
    policy = load_policy(options.policy)
    plans, claims = _plans(options, resource_names, by_claims=resources[0] == CLASS)
    resource_names[0] = plans.host.books.names
    plans.change_nodes(options.without, options.add)
    plans.may_come(options.shape)
    books = plans.first.books
    offline = options.snapshot or options.nodes
    kubectl = connection(vars(options), os.environ)
    priorities = partial(listed_cluster.list_priorities, kubectl, books.notes)
    tolerated = tolerated_taints(books, options.tolerate)
    manifests = ManifestReader(
        resource_names,
        listed_cluster.Priorities if offline else cache(priorities),
        claims,
        plans.nodes(),
        plans.host.books.workloads,
    )
    reader = PodReader(books, manifests, claims, options.priority, tolerating(tolerated))
    for word in options.pods:
        plans.add_pods(reader.wanted("--pods", word))
    for word in options.gang:
        plans.add_gang(reader.wanted("--gang", word), word)
    plans.leave_out(tolerated if reader.has_words else ())
    for warning in manifests.warnings:
        print(printable(warning), file=sys.stderr)
    requested_plans = [
        plan
        for plan in plans.every
        if (plan.pods or plan.gangs or plan.without or plan.added or plan.shapes)
        # --need counts nodes for pending and running pods, too.
        or (
            options.need
            and (plan.books.current_pods.pending or (options.more and plan.books.current_pods.on))
        )
    ] or [plans.first]
    if options.need:
        return _needed(_by_annotation(requested_plans, plans), options, policy)
    outcomes = []
    for plan in requested_plans:
        outcome = what_if(
            plan.books.ledger,
            plan.pods,
            policy,
            without=plan.without,
            added=plan.added,
            gangs=plan.gangs,
            filters=plan.books.filters,
            current=plan.books.current_pods,
            placer_over=plan.books.placer_over,
        )
        outcomes.append((outcome, plan))
    fits = all(outcome.all_fit for outcome, _ in outcomes)
    if options.output:
        documents = [document_of(outcome, plan, options.policy) for outcome, plan in outcomes]
        return dumped(as_one(documents), options.output), fits
    texts = [
        [printable(line) for line in lines_of(outcome, plan, options.policy)]
        for outcome, plan in outcomes
    ]
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in texts), fits


def _check(options: argparse.Namespace) -> None:
    """Raise SettingsError for options without a question, or that exclude each other."""
    if not options.need and (options.shape or options.more):
        raise SettingsError("--shape and --more go with --need: how many more nodes are needed")
    if options.overlay and (options.output or not options.need):
        raise SettingsError("--overlay goes with --need, and without -o: it is YAML of its own")
    is_asked = options.pods or options.gang or options.without or options.add
    if not (is_asked or options.need):
        raise SettingsError(
            "nothing is asked: --pods, --gang, --without, --add or --need say it (see --help)"
        )
    if options.nodes and options.snapshot:
        raise SettingsError("--nodes and --snapshot both say which nodes there are: leave one out")
    if options.as_shared and (options.nodes or options.snapshot):
        raise SettingsError("--as-shared goes with a live cluster, whose nodes have labels")
    if options.extender:
        check_health_url(options.extender)
        if options.nodes or options.snapshot:
            raise SettingsError("--extender goes with the live cluster of the extender")
    if options.unit:
        check_unit(options.unit)


def _plans(
    options: argparse.Namespace, resource_names: Sequence[Names], *, by_claims: bool
) -> tuple[Plans, Claims]:
    """Return the plans without pods and changes, and the claims for manifests.

    by_claims: pods and shapes in words are of cards of claims.
    """
    if options.nodes or options.snapshot:
        if options.nodes:
            unit, why_not = options.unit or NO_UNIT, "a table has no ResourceSlices"
            host = resource_of_nodes(options.nodes, resource_names[0], unit, options.policy)
        else:
            document = read_documents(options.snapshot)[0]
            host = resource_of_report(document, options.snapshot, options.policy)
            why_not = "a saved report does not say all of the cards"
        if by_claims:
            raise SettingsError(f"--resource {CLASS}: {why_not}")
        return Plans(host, None, claims_first=False), no_claims(why_not)
    kubectl = connection(vars(options), os.environ)
    driver_cards = listed_cluster.list_cards(kubectl, options.claims)
    (host,) = listed_cluster.list_books(
        kubectl, resource_names[:1], driver_cards, options, as_shared=options.as_shared
    )
    if options.extender:
        _take_holds(options.extender, host)
    why_not = driver_cards.why_not
    if not why_not:
        try:
            cards = listed_cluster.list_card_books(
                kubectl, host, driver_cards, options.policy, kubectl.namespace
            )
            return Plans(host, cards, claims_first=by_claims or not host.shares), cards.claims
        except ApiError as error:
            why_not = f"claims are not known: {error}"
            host.notes.append(why_not)
    if by_claims or options.claims:
        flag = f"--resource {CLASS}" if by_claims else f"--claims {options.claims}"
        raise SettingsError(f"{flag}: {why_not}")
    listed_cluster.check_shared([host])
    return Plans(host, None, claims_first=False), no_claims(why_not, kubectl.namespace)


def _take_holds(url: str, books: ListedResource) -> None:
    """Add the places that filter of this extender holds for pending pods."""
    from gpushare.cli.running_extender import read_held

    holds, why_not = read_held(url, books.names.resource, books.unit)
    if holds is None:
        books.notes.append(why_not)
        return
    books.held_nodes.update({place.pod.uid: place.node for place in holds})
    reserved_nodes = {place.node for place in holds if place.reserved_since}
    if reserved_nodes:
        books.notes.append(
            f"free parts of reserved places count as free: {some([*reserved_nodes])}"
        )


def _by_annotation(requested_plans: Sequence[ResourcePlan], plans: Plans) -> list[ResourcePlan]:
    """Return the plans of nodes by annotation. Raises SettingsError for pods with claims."""
    cards = plans.cards
    if cards is not None and (plans.first is cards or cards.pods or cards.gangs or cards.shapes):
        raise SettingsError(
            "--need counts nodes for pods by annotation; for claims --add 3:NODE says whether so"
            " many more do"
        )
    if cards is not None and cards.books.current_pods.pending:
        plans.host.books.notes.append("pods with claims do not count for --need")
    return [plan for plan in requested_plans if plan is not cards] or [plans.host]


def _needed(
    plans: Sequence[ResourcePlan], options: argparse.Namespace, policy: Policy
) -> tuple[str, bool]:
    """Return (the text about the needed nodes, whether all pods fit with these nodes)."""
    needs = [(_need(plan, options, policy), plan) for plan in plans]
    fits = not any(plan_need.left_out for plan_need, _ in needs)
    if options.overlay:
        (first, plan), *_ = needs
        return overlay_text(first, plan.books.names, plan.books.unit), fits
    if options.output:
        documents = [need_document(plan_need, plan, options.policy) for plan_need, plan in needs]
        return dumped(as_one(documents), options.output), fits
    style = style_of(sys.stdout, os.environ)
    texts = (need_lines(plan_need, plan, options.policy, style) for plan_need, plan in needs)
    return "\n".join(texts), fits


def _need(plan: ResourcePlan, options: argparse.Namespace, policy: Policy) -> NodeNeed:
    books, current = plan.books, plan.books.current_pods
    requested = [*plan.pods, *chain.from_iterable(plan.gangs)]
    endless = next((batch.name for batch in requested if batch.count is None), None)
    if endless is not None:
        raise SettingsError(f"--need: {endless!r}: how many? write '{endless} x 3'")
    if options.more:
        share = _SHARE.fullmatch(options.more.strip())
        if share is None or not (part := Fraction(share[1]) / 100):
            raise SettingsError(f"--more: {options.more[:40]!r} is not like 20%")
        running = [*chain.from_iterable(current.on.values())]
        if not running:
            raise SettingsError("--more: no pod runs there, so nothing is more of it")
        requested += more_of(running, part)
    moved_pods = chain.from_iterable(current.on.get(name, ()) for name in plan.without)
    demands = {pod.demands for pod in (*requested, *current.pending, *moved_pods)}
    shapes = plan.shapes or shapes_of_cluster(books, demands)
    with _progress() as progress:
        return need(
            books.ledger,
            requested,
            shapes,
            policy,
            books.filters,
            resource=books.names.resource,
            without=plan.without,
            added=plan.added,
            current=current,
            progress=progress,
            demands=tolerating(plan.tolerated),
        )


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yield a callback for `need` that shows each try on stderr, if stderr is a terminal."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:  # the extender's image lacks tqdm
        yield lambda _counts, _tries: None
        return
    form = "{desc} [{elapsed}]"
    with tqdm(disable=None, leave=False, bar_format=form, desc="whatif") as bar:

        def show(counts: Counts, tries: int) -> None:
            bar.set_description_str(f"whatif: try {tries + 1}, of {sum(counts)} more nodes")

        yield show
