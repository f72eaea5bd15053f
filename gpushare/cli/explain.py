"""`gpushare explain POD`: explain why a pod is pending, with remedies, or why a pod is on its node.

The root of the command: command line to options, cluster to books, books to lines or a document.
Reads the API server through kubectl, or the explanation of a running extender. Without the right to
read the cluster it explains by the pod alone (tenant.py).

Tested in `tests/unit/cli/test_explain.py` and `tests/unit/test_cli.py`.
"""

import argparse
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from gpushare.cli.claims import books_of, class_resources, list_claims
from gpushare.cli.documents import as_one, dumped
from gpushare.cli.exit_codes import ended_as_kubectl
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.listed_cluster import (
    ListedResource,
    list_books,
    list_cards,
    list_resources,
    list_rules,
)
from gpushare.cli.options import connection
from gpushare.cli.parsers import explain_parser
from gpushare.cli.pod_words import PodName, pods_named
from gpushare.cli.rights import FORBIDDEN
from gpushare.cli.whatif_text import some
from gpushare.commandline import columns_of
from gpushare.core.model import Request
from gpushare.errors import ApiError, MessageError, WireError
from gpushare.explain.claims import by_claims, explain_claims
from gpushare.explain.defrag import A_GLANCE, MOST_MOVES, Hole, find_moves
from gpushare.explain.document import document
from gpushare.explain.pod import NodeAsk, PodExplanation, explain_pod
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.demands import demands_of
from gpushare.wire.inventory import check_unit, mib_of
from gpushare.wire.objects import PODS, Pod
from gpushare.wire.placeholders import FOR, placeholder_of
from gpushare.wire.pods import names_any, priority_of, request_of
from gpushare.wire.printable import printable, wrapped

_MOST_PODS = 5
"""The most pods that are explained as text; the document has all."""
_OWN_POLICY = "the extender may rank by another policy: --policy names it, or --extender asks it"


def main(argv: Sequence[str] | None = None, prog: str = "gpushare explain") -> int:
    """Return the exit code: 0, 1 for an error, 2 for wrong usage, or that of `ended`."""
    words = sys.argv[1:] if argv is None else argv
    return ended_as_kubectl(lambda: _explain(explain_parser(prog).parse_intermixed_args(words)))


def _explain(options: argparse.Namespace) -> None:
    if options.unit:
        check_unit(options.unit)
    kubectl = connection(vars(options), os.environ)
    pods = pods_named(options.pod or "", options.selector, options.namespace, kubectl)
    shown = list(pods)[: None if options.output else _MOST_PODS]
    documents = list(_documents({name: pods[name] for name in shown}, options, kubectl))
    if options.output:
        print(dumped(as_one(documents), options.output), end="")
        return
    texts = ("".join(f"{printable(line)}\n" for line in part) for part in _parts(documents))
    print(wrapped("\n".join(texts), columns_of(sys.stdout)), end="")
    if len(shown) < len(pods):
        print(f"\nand {len(pods) - len(shown)} more pods: -o json has all, or name one")


def _parts(documents: Iterable[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield the lines about each pod; pods with equal facts are named below the first of them."""
    alike: dict[tuple[str, ...], list[str]] = {}
    lines_by_facts: dict[tuple[str, ...], Sequence[str]] = {}
    for part in documents:
        ref = part.get("pod", {})
        name = f"{ref.get('namespace')}/{ref.get('name')}"
        facts = tuple(line.replace(name, "") for line in part["lines"])
        lines_by_facts.setdefault(facts, part["lines"])
        alike.setdefault(facts, []).append(name)
    for facts, (_, *others) in alike.items():
        yield [*lines_by_facts[facts], *([f"{'Alike:':<12}{some(others)}"] if others else [])]


def _documents(
    pods: Mapping[PodName, Pod | None], options: argparse.Namespace, kubectl: Kubectl
) -> Iterator[dict[str, Any]]:
    """Yield the documents about the pods.

    A pod among several that cannot be explained is a warning; if none can, that is the error.
    """
    explainer = _Explainer(options, kubectl)
    unexplained: list[MessageError] = []
    for name, pod in pods.items():
        try:
            yield explainer.document(name, pod)
        except MessageError as error:
            unexplained.append(error)
    if len(unexplained) == len(pods):
        raise unexplained[0]
    for reason in unexplained:
        print(f"Warning: {printable(str(reason))}", file=sys.stderr)


class _Explainer:
    """Explains pods by the books of the cluster, which are listed once."""

    def __init__(self, options: argparse.Namespace, kubectl: Kubectl) -> None:
        self._options, self._kubectl = options, kubectl
        self._names = [
            Names.for_resource(resource) for resource in options.resource or [ALIYUN.resource]
        ]

    def document(self, name: PodName, pod: Pod | None) -> dict[str, Any]:
        """Return the document about the pod. pod: None if it is not read yet.

        Raises ApiError, MessageError, SettingsError.
        """
        options, kubectl = self._options, self._kubectl
        if options.extender:
            from gpushare.cli.running_extender import ask_explanation

            return ask_explanation(options.extender, *name)
        if pod is None:
            path = "/api/v1/namespaces/{}/pods/{}".format(*name)
            pod = PODS.decode_answer(kubectl.request("GET", path, query={}), *name)
        managed_names = [names.resource for names in self._names]
        claims = by_claims(pod, managed_names, _class_resources(pod, managed_names, kubectl))
        try:
            if claims:
                return document(_by_claims(pod, self._names, kubectl, options))
            return document(self._by_books(pod))
        except ApiError as error:
            if error.refusal != FORBIDDEN:
                raise
            from gpushare.cli.tenant import explain_alone

            names = () if claims else self._names
            return document(explain_alone(pod, names, options.unit, kubectl, error))

    def _by_books(self, pod: Pod) -> PodExplanation:
        resources, kubectl, policy = self._resources, self._kubectl, self._options.policy
        answer = explain_pod(pod, resources, resources[0].unit, now=time.time())
        moves, node_ask = _moves(answer, pod, resources, kubectl), _ask_for(answer, kubectl)
        answer = replace(answer, moves=moves, node_ask=node_ask)
        if answer.judgement and answer.request and not (policy or answer.request.policy):
            answer = replace(answer, detail=_OWN_POLICY)
        return answer

    @cached_property
    def _resources(self) -> Sequence[ListedResource]:
        resources = list_resources(self._kubectl, self._names, self._options)
        for note in resources[0].notes:
            print(f"Warning: {printable(note)}", file=sys.stderr)
        return resources


def _class_resources(pod: Pod, managed: Collection[str], kubectl: Kubectl) -> Collection[str]:
    """Return the extended resources that kube-scheduler makes claims for; none without need."""
    try:
        resources = request_of(pod, ALIYUN).resources
    except WireError:
        return ()
    if names_any(pod, managed) or not any("/" in name for name, _ in resources):
        return ()
    return class_resources(kubectl)


def _by_claims(
    pod: Pod, resource_names: Sequence[Names], kubectl: Kubectl, options: argparse.Namespace
) -> PodExplanation:
    """Return the explanation of a pod with claims, by the devices and claims of the API server."""
    cards = list_cards(kubectl, "")
    host, *_ = list_books(kubectl, resource_names, cards, options)
    books = books_of(cards.driver, mib_of(host.unit) << 20, host.states)
    claims = list_claims(kubectl, books, cards.slices, host.notes)
    for note in host.notes:
        print(f"Warning: {printable(note)}", file=sys.stderr)
    return explain_claims(pod, books, host.filters, claims.matches, host.unit)


def _moves(
    answer: PodExplanation, pod: Pod, resources: Sequence[ListedResource], kubectl: Kubectl
) -> int:
    """Return the number of moves that make room for a pending pod; 0 if none are found quickly."""
    explanation, demands = answer.explanation, demands_of(pod)
    if explanation is None or explanation.fit or explanation.never or demands.gated:
        return 0
    books = next(resource for resource in resources if resource.names.resource == answer.resource)
    plan = find_moves(
        books.ledger,
        Hole(explanation.request, priority_of(pod), demands),
        list_rules(kubectl, books, [], time.time()),
        books.ranking(Request()).policy,
        books.filters,
        max_moves=MOST_MOVES,
        demands=books.demands,
        steps=A_GLANCE,
    )
    return len(plan.moves)


def _ask_for(answer: PodExplanation, kubectl: Kubectl) -> NodeAsk | None:
    """Return the request for a new node for a pending pod; None if there is no placeholder."""
    if answer.explanation is None or answer.explanation.fit:
        return None
    uid = answer.ref.uid
    body = kubectl.request("GET", "/api/v1/pods", query={"labelSelector": f"{FOR}={uid}"})
    asks = [placeholder_of(item) for item in PODS.decode_list(body).items]
    unschedulable = [
        ask for ask in asks if ask is not None and ask.unschedulable and ask.uid == uid
    ]
    return NodeAsk.by(unschedulable[0]) if unschedulable else None
