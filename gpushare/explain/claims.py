"""The explanation of a pod that asks by ResourceClaims, from the pod and the books of claims.

kube-scheduler allocates, and the condition PodScheduled says why a pod is pending. The model of
first fit adds the claims that hold the devices, and the claims that have to end. Pure; the books
are read and not changed.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpushare.core.claims.first_fit import Matcher, Steps, first_fit
from gpushare.core.claims.model import (
    THOUSANDTHS,
    ClaimRequest,
    DeviceKey,
    DeviceRequest,
    Fit,
    Holding,
    NodeDevices,
    NoFit,
    PodClaims,
    Use,
)
from gpushare.core.model import PodRef, Request
from gpushare.core.node_filters import OwnFilters
from gpushare.core.selectors import Demands
from gpushare.errors import WireError
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_records import ClaimRecord, claim_names
from gpushare.explain.pod import (
    ClaimExplanation,
    ClaimRemedy,
    DeviceReading,
    GivenCard,
    PodExplanation,
)
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.conditions import scheduler_view
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.objects import Pod
from gpushare.wire.pods import has_ended, names_any, pod_ref, request_of

NOT_SHOWN = "known by ResourceSlices alone"
"""Reason of a node that the API server does not show."""

REASONS = {
    NoFit.TOO_FEW_DEVICES: "no devices for its claims",
    NoFit.ERROR: "kube-scheduler's attempt would end with an error",
    NoFit.NOT_MODELLED: "the search for devices would take too long",
}
"""Reasons of nodes, as the texts after a number of nodes."""

TOO_LARGE = "its ResourceSlices are too large to be read"

_NODE_STEPS = 20_000
"""Steps of first fit on one node: about 20 ms."""

_ALL_STEPS = 100_000
"""Steps for all nodes of one explanation: at most about half a second."""

_MAX_NODES = 8
"""Upper bound on the nodes where the claims that have to end are searched, fewest claims first."""

Readings = dict[Hashable, DeviceReading]
"""Readings of one state of the books, by the claims, the nodes and the demands of the pod."""

_BYTES = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def by_claims(pod: Pod, resources: Collection[str], by_class: Collection[str] = ()) -> bool:
    """Return whether the pod has claims, and asks for none of the managed resources.

    by_class: extended resources that kube-scheduler makes claims for.
    """
    has_claims = bool(pod.spec and pod.spec.resource_claims) or names_any(pod, by_class)
    return has_claims and not names_any(pod, resources)


def explain_claims(
    pod: Pod,
    books: ClaimBooks,
    filters: OwnFilters,
    matches: Matcher,
    unit: str,
    *,
    readings: Readings | None = None,
) -> PodExplanation:
    """Return the explanation of a pod with claims.

    filters: kube-scheduler's other filters over the nodes. matches: evaluates selectors. unit: the
    name of a memory unit. readings: as of `read_devices`.
    """
    ref = pod_ref(pod)
    answer = PodExplanation(ref, CLASS, unit, "ended", scheduler_view(pod))
    if has_ended(pod):
        return answer
    claims_by_name = {name: books.named(ref.namespace, name) for name in claim_names(pod) or ()}
    claims = tuple(
        explain_claim(claim, books)
        if claim is not None
        else ClaimExplanation(PodRef(ref.namespace, name, ""), "missing")
        for name, claim in claims_by_name.items()
    )
    node = (pod.spec and pod.spec.node_name) or ""
    if node:
        return replace(answer, state="bound", node=node, claims=claims)
    answer = replace(answer, state="pending", claims=claims)
    return replace(answer, reading=read_devices(pod, books, filters, matches, readings))


def explain_claim(claim: ClaimRecord, books: ClaimBooks) -> ClaimExplanation:
    """Return the explanation of a claim."""
    if not claim.is_allocated:
        requests = request_texts(claim.request) if claim.request else ()
        return ClaimExplanation(claim.ref, "waiting", requests)
    devices: list[GivenCard] = []
    nodes: list[str] = []
    for holding in claim.holdings:
        card = books.card(holding.key)
        is_whole = card is None or (holding.consumed is None and not card.parts)
        units = None if card is None or is_whole else books.units_of(holding, card)
        devices.append(GivenCard(holding.key, card.uuid if card else "", units))
        nodes += books.nodes_of(holding.key)
    pods = tuple(name for name, _ in claim.users)
    node_names = ", ".join(sorted({*nodes}))
    return ClaimExplanation(claim.ref, "allocated", (), node_names, tuple(devices), pods)


def request_texts(claim: ClaimRequest) -> tuple[str, ...]:
    """Return each request of a claim in words: 2 x gpushare.io with memory 10Gi."""
    return tuple(" or ".join(map(_request_text, item.alternatives)) for item in claim.requests)


def _request_text(request: DeviceRequest) -> str:
    text = f"{'all' if request.count is None else request.count} x {request.device_class}"
    amounts = [f"{name} {_quantity(amount)}" for name, amount in request.amounts]
    if amounts:
        text += f" with {', '.join(amounts)}"
    return f"{text}, by CEL selectors" if request.selectors else text


def _quantity(thousandths: int) -> str:
    if thousandths % THOUSANDTHS:
        return f"{thousandths}m"
    amount = thousandths // THOUSANDTHS
    for suffix, factor in _BYTES:
        if amount and amount % factor == 0:
            return f"{amount // factor}{suffix}"
    return str(amount)


def read_devices(
    pod: Pod,
    books: ClaimBooks,
    filters: OwnFilters,
    matches: Matcher,
    readings: Readings | None = None,
) -> DeviceReading | None:
    """Return how the claims of a pending pod stand on the devices; None if all have devices.

    readings: of equal requests, by the books and filters as these are; a new one is added.
    """
    requests = books.requests(pod)
    if requests.missing:
        names = ", ".join(requests.missing)
        return DeviceReading(detail=f"there is no claim {names} yet")
    if requests.mistake:
        return DeviceReading(detail=requests.mistake)
    if not requests.claims.claims:
        return None
    try:
        host, demands = request_of(pod, ALIYUN), demands_of(pod)
        # kube-scheduler makes a claim of these, so no node has to advertise such a resource.
        other_resources = tuple(item for item in host.resources if item[0] not in books.resources)
        host = replace(host, resources=other_resources)
    except WireError as error:
        return DeviceReading(detail=str(error))
    readings = {} if readings is None else readings
    usable_nodes = allowed_nodes(pod, books)
    question = requests.claims, usable_nodes, host, demands
    if question not in readings:
        reader = _DeviceReader(books, requests.claims, matches)
        readings[question] = reader.read(usable_nodes, filters, host, demands)
    return readings[question]


def allowed_nodes(pod: Pod, books: ClaimBooks) -> frozenset[str] | None:
    """Return the nodes that can use all devices of the pod's allocated claims; None: any node.

    A claim that is reserved for this pod alone does not count: kube-scheduler may free it.
    """
    ref, nodes = pod_ref(pod), None
    for name in claim_names(pod) or ():
        claim = books.named(ref.namespace, name)
        if claim is None or not claim.is_allocated or {uid for _, uid in claim.users} == {ref.uid}:
            continue
        claim_nodes = books.common_nodes(claim)
        if claim_nodes is not None:
            nodes = claim_nodes if nodes is None else nodes & claim_nodes
    return nodes


def _holdings(claim: ClaimRecord, keys: Collection[DeviceKey]) -> Iterator[Holding]:
    return (holding for holding in claim.holdings if holding.key in keys)


class _DeviceReader:
    def __init__(self, books: ClaimBooks, claims: PodClaims, matches: Matcher) -> None:
        self._books = books
        self._claims = claims
        self._matches = matches
        self._left = _ALL_STEPS

    def read(
        self,
        usable_nodes: frozenset[str] | None,
        filters: OwnFilters,
        host: Request,
        demands: Demands,
    ) -> DeviceReading:
        """Return the reading. host, demands: of the pod. usable_nodes: None: all."""
        fit: list[str] = []
        full: list[str] = []
        kept_out: Counter[str] = Counter()
        not_judged: Counter[str] = Counter()
        for node in sorted(self._books.nodes()):
            if usable_nodes is not None and node not in usable_nodes:
                continue
            if node not in filters.states:
                kept_out[NOT_SHOWN] += 1
            elif obstacles := filters.obstacles(node, host, demands):
                kept_out[obstacles[0].text] += 1
            else:
                outcome = self._fit(node, self._books.use(node))
                if isinstance(outcome, Fit):
                    fit.append(node)
                elif outcome is NoFit.TOO_FEW_DEVICES:
                    full.append(node)
                else:
                    not_judged[REASONS[outcome]] += 1
        if unmodelled := self._books.unmodelled_nodes():
            not_judged[TOO_LARGE] = len(unmodelled)
        remedy = None if fit else self._remedy(full)
        is_complete = self._left > 0 and not not_judged
        return DeviceReading(
            nodes=len(fit) + len(full),
            fit=tuple(fit),
            kept_out=kept_out,
            not_judged=not_judged,
            remedy=remedy,
            never=bool(full) and is_complete and not fit and remedy is None,
        )

    def _remedy(self, nodes: Iterable[str]) -> ClaimRemedy | None:
        """Return the fewest claims that have to end on one of these nodes; None if none help."""
        holders = {node: self._holders(node) for node in nodes}
        candidates: list[tuple[str, list[ClaimRecord]]] = []
        for node in sorted(holders, key=lambda node: len(holders[node])):
            if len(candidates) < _MAX_NODES and isinstance(self._fit(node, Use()), Fit):
                ends = self._ends(node, holders[node])
                # Once no steps remain, some of these claims need not end.
                if self._left > 0:
                    candidates.append((node, ends))
        if not candidates:
            return None
        node, ends = min(candidates, key=lambda item: (len(item[1]), item[0]))
        return ClaimRemedy(node, tuple(explain_claim(claim, self._books) for claim in ends))

    def _fit(self, node: str, use: Use) -> Fit | NoFit:
        devices = self._books.devices(node)
        if devices is None or self._left <= 0:
            return NoFit.NOT_MODELLED
        steps = Steps(min(_NODE_STEPS, self._left))
        before = steps.left
        outcome = first_fit(devices, self._claims, use, self._matches, steps)
        self._left -= before - max(steps.left, 0)
        return outcome

    def _holders(self, node: str) -> list[ClaimRecord]:
        """Return the claims that hold devices of the node, or counters of the node's pools."""
        claims = (
            claim for key in _keys(self._books.devices(node)) for claim in self._books.holders(key)
        )
        return [*{claim.ref.uid: claim for claim in claims}.values()]

    def _ends(self, node: str, holders: Sequence[ClaimRecord]) -> list[ClaimRecord]:
        """Return claims that have to end so that first fit finds devices on the node; no claim
        ends needlessly.
        """
        keys = _keys(self._books.devices(node))
        use, ends = Use(), []
        # The smallest stay first, so that few large ones end.
        for claim in sorted(holders, key=lambda claim: _size(claim, keys)):
            self._left -= len(keys)
            more = use.plus(_holdings(claim, keys))
            if isinstance(self._fit(node, more), Fit):
                use = more
            else:
                ends.append(claim)
        return ends


def _size(claim: ClaimRecord, keys: Collection[DeviceKey]) -> tuple[int, int, str]:
    """Return the sort key of a claim: number of whole devices, then amounts."""
    holdings = [*_holdings(claim, keys)]
    whole = sum(holding.consumed is None for holding in holdings)
    return whole, sum(sum((holding.consumed or {}).values()) for holding in holdings), claim.ref.uid


def _keys(devices: NodeDevices | None) -> frozenset[DeviceKey]:
    return frozenset(device.key for device in devices.counted_devices()) if devices else frozenset()
