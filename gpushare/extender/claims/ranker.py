"""The order of nodes for a pod with claims: by the policy's score of the devices of first fit.

kube-scheduler allocates the devices. The ranker only orders the nodes that kube-scheduler offers; a
node without a prediction ranks last. The devices predicted on the best node count as taken, since a
burst is ranked before the API server shows the allocations: that is an offer.

Knows no HTTP and no watch. Tested in `tests/unit/extender/claims/test_ranker.py` and
`test_large_claims.py`.
"""

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import DeviceKey, Fit, Holding, NoFit, PodClaims
from gpushare.core.decide import BEST
from gpushare.core.held_snapshot import HeldSnapshotBuilder
from gpushare.core.model import Request
from gpushare.core.node_names import NodeNames
from gpushare.core.policy import ClusterPricing
from gpushare.core.snapshot import Floats, Snapshot
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_records import ClaimRecord, PodRequests
from gpushare.explain.claim_score import (
    ClaimPredictions,
    Part,
    Prediction,
    best_place,
    parts_of,
    values_of,
)
from gpushare.extender.managed_resources import ManagedResource
from gpushare.logline import Line
from gpushare.wire.dra.selectors import Selectors
from gpushare.wire.objects import Pod
from gpushare.wire.pods import names_any, pod_name

log = logging.getLogger("gpushare.claims")

OFFER_SECONDS = 60.0
"""Upper bound on the time that an offer counts. kube-scheduler writes the allocation before the
binding, mostly within milliseconds."""
_CLAIM_WAIT = 0.1
"""Seconds to wait for claims that kube-scheduler has seen and the watch here has not."""
_NODE_STEPS = 2_000
_CALL_STEPS = 200_000
"""Upper bounds on the steps of first fit, for one node and for one call; a step takes some 1 us."""
_MAX_KINDS = 16
"""Kinds of request with predictions."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The order of some nodes for a pod."""

    names: NodeNames
    values: Floats
    """float64 (len(names),): the value of each node; -inf for a node that ranks last."""
    at: int
    """Index of the best node."""

    @property
    def best(self) -> str:
        """The best node."""
        return self.names[self.at]

    def scores(self) -> dict[int, list[str]]:
        """Return the nodes by score, from 10 (the best alone) down to 1; all others score 0."""
        values: list[float] = self.values.tolist()
        ranked = [value for value in values if value > -math.inf]
        low, span = min(ranked), max(ranked) - min(ranked) or 1.0
        by_score: dict[int, list[str]] = {score: [] for score in range(BEST, 0, -1)}
        for at, (name, value) in enumerate(zip(self.names, values, strict=True)):
            grade = max(int((value - low) / span * (BEST - 1)), 0) if value > -math.inf else 0
            if score := BEST if at == self.at else grade:
                by_score[score].append(name)
        return {score: nodes for score, nodes in by_score.items() if nodes}


@dataclass(slots=True)
class _NodeOffer:
    """A node that filter has answered, until the API server shows the allocation."""

    node: str
    fit: Fit
    """Without the claims that show an allocation."""
    claims: dict[str, int]
    """By uid ("" for extended resources), the index of each claim that shows no allocation yet."""
    expires_at: float
    parts: tuple[Part, ...] = ()
    """Parts of the fit, for the cards that the node had when the offer was counted."""


class _NodeOffers:
    """The offers on one node, and the sums of them: an offer costs itself, however many there are.

    Sums that were kept up to date equal sums that are made anew.
    """

    def __init__(self, books: ClaimBooks, node: str) -> None:
        self._books = books
        self._node = node
        self._offers: dict[str, _NodeOffer] = {}
        # By device and whether the device is held whole.
        self._holdings: Counter[tuple[DeviceKey, bool]] = Counter()
        self._amounts: dict[DeviceKey, Counter[str]] = defaultdict(Counter)
        self._units: Counter[int] = Counter()
        # The devices of the node in the books for which units are counted; the books replace the
        # whole object.
        self._devices: object = None

    def __len__(self) -> int:
        """Return the number of offers."""
        return len(self._offers)

    def add(self, uid: str, offer: _NodeOffer) -> None:
        """Add the offer to a pod."""
        self._offers[uid] = offer
        offer.parts = tuple(parts_of(self._books, self._node, offer.fit))
        self._count(offer, 1)

    def remove(self, uid: str) -> None:
        """Remove the offer to a pod."""
        self._count(self._offers.pop(uid), -1)

    def holdings(self) -> Iterator[Holding]:
        """Yield what the offers hold: of each device that is shared the sum."""
        for key, is_whole in self._holdings:
            yield Holding(key, None if is_whole else self._amounts[key])

    def units(self) -> Mapping[int, int]:
        """Return the units by card."""
        devices = self._books.devices(self._node)
        if devices is not self._devices:
            self._devices = devices
            self._units.clear()
            for offer in self._offers.values():
                offer.parts = tuple(parts_of(self._books, self._node, offer.fit))
                self._count_units(offer, 1)
        return self._units

    def _count(self, offer: _NodeOffer, sign: int) -> None:
        self._count_units(offer, sign)
        for key, consumed in offer.fit.holdings():
            holding = key, consumed is None
            self._holdings[holding] += sign
            if consumed is not None:
                for name, amount in consumed.items():
                    self._amounts[key][name] += sign * amount
            if not self._holdings[holding]:
                del self._holdings[holding]
                if consumed is not None:
                    self._amounts.pop(key, None)

    def _count_units(self, offer: _NodeOffer, sign: int) -> None:
        for index, units in offer.parts:
            self._units[index] += sign * units
            if not self._units[index]:
                del self._units[index]


@dataclass(eq=False)
class ClaimRanker:
    """Ranks nodes for pods with claims. Any thread may call.

    source: the driver's devices, with the policy. is_ready: returns whether the books are filled.
    """

    books: ClaimBooks
    source: ManagedResource
    selectors: Selectors
    _: KW_ONLY
    is_ready: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        policy = self.source.rankings[self.source.ranking_policy].policy
        self._has_prices = isinstance(policy, ClusterPricing)
        self._lock = threading.Lock()
        self._kinds: dict[PodClaims, ClaimPredictions] = {}
        self._offers: dict[str, _NodeOffer] = {}
        self._on_node: dict[str, _NodeOffers] = {}
        self._pods_of: dict[str, str] = {}
        self.predictions: Counter[str] = Counter(right=0, other_device=0, other_node=0)
        self.pods: Counter[str] = Counter(ranked=0, not_ranked=0)

    def concerns(self, pod: Pod) -> bool:
        """Return whether kube-scheduler may have to allocate devices for the pod."""
        spec = pod.spec
        if spec is None:
            return False
        resources = self.books.resources
        return bool(spec.resource_claims) or bool(resources and names_any(pod, resources.keys()))

    def rank(self, pod: Pod, names: NodeNames) -> Ranked | None:
        """Return the order of the named nodes; None if none of these nodes can be ranked.

        The devices predicted on the best node count as taken until the claims of the pod show an
        allocation, the pod is gone, this is called again for the pod, or OFFER_SECONDS are over.
        """
        uid = (pod.metadata and pod.metadata.uid) or ""
        ranked = None
        try:
            if names and self.is_ready():
                requests = self._requests(pod)
                with self._lock:
                    self._withdraw(uid)
                    self._expire()
                    if requests.claims.claims:
                        ranked = self._rank(uid, requests, names)
        except Exception:
            # kube-scheduler allocates without an order, too.
            log.exception(Line("nodes not ranked", pod=pod_name(pod)))
            with self._lock:
                self._kinds.clear()  # some predictions may lack a value
        self.pods["not_ranked" if ranked is None else "ranked"] += 1
        return ranked

    def shown(self, claim: ClaimRecord) -> None:
        """Take over a claim from the API server; an allocation ends a part of an offer."""
        if not claim.is_allocated:
            return
        with self._lock:
            pods = [self._pods_of.get(claim.ref.uid, ""), *(uid for _, uid in claim.users)]
            for pod in pods:
                offer = self._offers.get(pod)
                key = claim.ref.uid if offer and claim.ref.uid in offer.claims else ""
                if offer is not None and key in offer.claims:
                    self._count(offer, offer.claims[key], claim.holdings)
                    self._end_part(pod, offer, key)
                    return

    def pod_gone(self, uid: str) -> None:
        """End the offer to a pod that is gone."""
        with self._lock:
            self._withdraw(uid)

    def offers(self) -> int:
        """Return how many offers count."""
        with self._lock:
            self._expire()
            return len(self._offers)

    # -- under the lock -------------------------------------------------------------------------

    def _requests(self, pod: Pod) -> PodRequests:
        requests = self.books.requests(pod)
        if requests.missing:
            namespace = (pod.metadata and pod.metadata.namespace) or ""
            self.books.await_claims(namespace, requests.missing, _CLAIM_WAIT)
            requests = self.books.requests(pod)
        return requests

    def _rank(self, uid: str, requests: PodRequests, names: NodeNames) -> Ranked | None:
        claims = requests.claims
        kind = self._kinds.pop(claims, None) or ClaimPredictions()
        self._kinds[claims] = kind
        if len(self._kinds) > _MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        # Before the snapshot: a later change is one of the next call, too.
        kind.version, changed_nodes = self.books.changed_since(kind.version)
        books = self.books.ledger.snapshot()
        # Values do not last if prices depend on the whole cluster, or capacities differ.
        is_stale = kind.take_over(books, changed_nodes) or self._has_prices
        # Only nodes with cards of the driver are in the ledger, and only these rank before others.
        missing_nodes = kind.missing(names, books)
        self._predict(kind, claims, missing_nodes, books)
        self._score(kind, kind.by_node if is_stale else missing_nodes, books)
        values = kind.values(names, books)
        at = best_place(names, values, books)
        if at is None:
            return None
        if fit := kind.by_node[names[at]].fit:
            self._offer(uid, names[at], fit, requests.uids)
        return Ranked(names, values, at)

    def _predict(
        self, kind: ClaimPredictions, claims: PodClaims, nodes: Iterable[str], books: Snapshot
    ) -> None:
        """Predict the fit on these nodes, as far as the steps of a call go."""
        remaining = _CALL_STEPS
        for node in nodes:
            if remaining <= 0:
                break
            prediction = Prediction()
            steps = Steps(min(_NODE_STEPS, remaining))
            remaining -= steps.left
            fit = self._fit(node, claims, steps)
            remaining += steps.left
            if isinstance(fit, Fit):
                prediction.fit = fit
                prediction.parts = tuple(parts_of(self.books, node, fit, claims))
            kind.put(node, prediction, books)

    def _fit(self, node: str, claims: PodClaims, steps: Steps) -> Fit | NoFit:
        devices, use = self.books.devices(node), self.books.use(node)
        if devices is None:
            return NoFit.TOO_FEW_DEVICES
        if offers := self._on_node.get(node):
            use = use.plus(offers.holdings())
        return first_fit(devices, claims, use, self.selectors.matches, steps)

    def _score(self, kind: ClaimPredictions, nodes: Iterable[str], books: Snapshot) -> None:
        """Score the predictions for these nodes by the free units of the books less the offers."""
        placements: list[tuple[int, tuple[Part, ...]]] = []
        reduced: HeldSnapshotBuilder | None = None
        for node in nodes:
            prediction, row = kind.by_node.get(node), books.row.get(node)
            if prediction is None or row is None or not prediction.parts:
                continue
            placements.append((row, prediction.parts))
            if node in self._on_node:
                reduced = reduced or HeldSnapshotBuilder(books)
                self._take_offers(reduced, node, row)
        if placements:
            snapshot = reduced.build() if reduced else books
            values = values_of(self.source.scorer(Request()), snapshot, placements)
            kind.score([row for row, _ in placements], values)

    def _take_offers(self, builder: HeldSnapshotBuilder, node: str, row: int) -> None:
        """Take the units that are offered on a node."""
        units_by_card, free = self._on_node[node].units(), builder.free[row]
        shares = tuple(
            (index, min(units, int(free[index]))) for index, units in units_by_card.items()
        )
        if shares:
            builder.take(row, shares, Request().of_parts(units_by_card.values()))

    def _offer(self, uid: str, node: str, fit: Fit, claim_uids: Sequence[str]) -> None:
        claims = {claim: index for index, claim in enumerate(claim_uids)}
        offer = _NodeOffer(node, fit, claims, self.clock() + OFFER_SECONDS)
        self._offers[uid] = offer
        if node not in self._on_node:
            self._on_node[node] = _NodeOffers(self.books, node)
        self._on_node[node].add(uid, offer)
        self._pods_of.update((claim, uid) for claim in claims if claim)
        self.books.touch(node)

    def _end_part(self, uid: str, offer: _NodeOffer, claim: str) -> None:
        """End the part of an offer that is one claim's."""
        index = offer.claims.pop(claim)
        self._pods_of.pop(claim, None)
        if not offer.claims:
            self._withdraw(uid)
            return
        self._on_node[offer.node].remove(uid)
        offer.fit = replace(
            offer.fit, taken=tuple(result for result in offer.fit.taken if result.claim != index)
        )
        self._on_node[offer.node].add(uid, offer)
        self.books.touch(offer.node)

    def _withdraw(self, uid: str) -> None:
        offer = self._offers.pop(uid, None)
        if offer is None:
            return
        for claim in offer.claims:
            if self._pods_of.get(claim) == uid:
                del self._pods_of[claim]
        self._on_node[offer.node].remove(uid)
        if not self._on_node[offer.node]:
            del self._on_node[offer.node]
        self.books.touch(offer.node)

    def _expire(self) -> None:
        now = self.clock()
        for uid in [uid for uid, offer in self._offers.items() if offer.expires_at <= now]:
            self._withdraw(uid)

    def _count(self, offer: _NodeOffer, index: int, holdings: Sequence[Holding]) -> None:
        """Count whether first fit had predicted the devices of a claim."""
        predicted_keys = [
            result.device.key
            for result in offer.fit.taken
            if result.claim == index and not result.has_admin_access
        ]
        allocated_keys: list[DeviceKey] = [holding.key for holding in holdings]
        if sorted(predicted_keys) == sorted(allocated_keys):
            outcome = "right"
        elif all(offer.node in self.books.nodes_of(key) for key in allocated_keys):
            outcome = "other_device"
        else:
            outcome = "other_node"
        self.predictions[outcome] += 1
