"""The cards of a DRA driver as a resource with its ledger, the claims of them and their templates,
and the pods that ask by claims.

Knows the lists of claims and pods, and what the books of claims count. Allocations that are being
written, and what names of devices meant before, are known to the extender alone.

Tested in `tests/unit/cli/test_whatif_claims.py`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpushare.cli.claims import ListedClaims
from gpushare.cli.cluster import NOT_ENDED, items
from gpushare.cli.listed_cluster import DriverCards, ListedResource
from gpushare.cli.lister import CLAIMS, DRA
from gpushare.core.model import PodRef
from gpushare.core.node_filters import OwnFilters
from gpushare.errors import ApiError, ApiNotFound, MessageError, WireError
from gpushare.explain import claim_pods
from gpushare.explain.claims import BY_ANNOTATION, UNKNOWN_NODE, ClaimFilters
from gpushare.explain.placer import Wanted
from gpushare.explain.text import NO_UNIT
from gpushare.explain.whatif import CurrentPods
from gpushare.kube.api import Getter
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra import counted
from gpushare.wire.dra.claims import CLASS, ClaimRequest, Part, given_devices
from gpushare.wire.dra.objects import CLAIM_TEMPLATES, CLAIMS_PODS, RESOURCE_CLAIMS, ResourceClaim
from gpushare.wire.dra.slices import DeviceKey, SliceCard
from gpushare.wire.dra.templates import sized_template
from gpushare.wire.inventory import mib_of
from gpushare.wire.objects import Metadata
from gpushare.wire.pods import names_any, pod_ref

_TIMEOUT = 30.0
_NO_UNIT = "the file of nodes counts in units of its own, unless --unit says which"
_MOST_NAMED = 3
"""Pods that are left out and named."""


class Claims(ListedClaims):
    """Claims with templates (see `explain.claim_pods.ClaimSource`), those of manifests too.

    api: None: there is no cluster. cards: what is dealt out. namespace: returns that of what names
    none. why_not: "", or why claims do not count.
    """

    def __init__(
        self,
        api: Getter | None,
        unit: int,
        cards: Mapping[DeviceKey, SliceCard] = MappingProxyType({}),
        claims: Iterable[ResourceClaim] = (),
        *,
        namespace: Callable[[], str] = lambda: "default",
        why_not: str = "",
    ) -> None:
        super().__init__(cards, claims, unit)
        self._api = api
        self.namespace = namespace
        self.why_not = why_not
        self.templates: dict[tuple[str, str], ResourceClaim | None] = {}
        """As a claim that each makes, by namespace and name; None: there is none."""
        self._dealt: dict[int, int] = {}

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim as the template of that name makes it; None if there is no template."""
        key = namespace, name
        if key not in self.templates:
            # One by size is written as soon as a pod waits for it.
            sized = sized_template(namespace, name)
            by_size = CLAIM_TEMPLATES.decode(sized.body(CLASS)).claim() if sized else None
            self.templates[key] = self._listed_template(namespace, name) or by_size
        return self.templates[key]

    def least_dealt(self, memory: int) -> int:
        """Return the fewest bytes that a claim for so many takes."""
        if memory not in self._dealt:
            self._dealt[memory] = claim_pods.least_dealt(self.cards.values(), memory)
        return self._dealt[memory]

    def in_words(self, pods: Wanted) -> Wanted:
        """Return pods that ask for so many units as pods with one claim each."""
        parts = (Part("", units * self.unit) for units in pods.request.parts)
        asked = claim_pods.asked_of(ClaimRequest(tuple(parts)), self)
        request = pods.request.of_parts(asked.request.parts)
        return replace(pods, request=request, exact=asked.exact)

    def _listed_template(self, namespace: str, name: str) -> ResourceClaim | None:
        if self._api is None:
            return None
        path = f"{DRA}/namespaces/{namespace}/resourceclaimtemplates/{name}"
        try:
            body = self._api.request("GET", path, query={}, timeout=_TIMEOUT)
        except ApiNotFound:
            return None
        except ApiError as error:
            text = f"ResourceClaimTemplate {namespace}/{name} cannot be read: {error}"
            raise MessageError(text) from error
        return CLAIM_TEMPLATES.decode_answer(body, namespace, name).claim()


@dataclass(frozen=True)
class ListedCards(ListedResource):
    """The cards of a driver, as a resource named after the class; its pods are claims."""

    host: ListedResource = field(kw_only=True)
    """The nodes and pods by annotation, of the same nodes."""
    claims: Claims = field(kw_only=True)
    users: CurrentPods = field(kw_only=True)
    """The pods that have, or wait for, cards by claims."""
    by_annotation: frozenset[str] = frozenset()

    @property
    def filters(self) -> OwnFilters:
        """kube-scheduler's own filters, and the mode of each node; of a table there are none."""
        if not self.driver:
            return OwnFilters(self.states)
        return ClaimFilters(self.host.filters, self.by_annotation.__contains__)

    @property
    def current_pods(self) -> CurrentPods:
        """The pods that have cards, and those that wait for some."""
        return self.users

    def left_out(self, node: str, units: int) -> str:
        """Return what keeps pods with claims from the node whoever asks; "" if nothing does."""
        if not self.driver:
            return ""
        state = self.states.get(node)
        labels = [state.label("", 0) if state else UNKNOWN_NODE.text]
        if node in self.by_annotation:
            labels.append(BY_ANNOTATION.text)
        return ", ".join(filter(None, labels))


def listed_cards(
    api: Getter,
    host: ListedResource,
    cards: DriverCards,
    policy: str,
    namespace: Callable[[], str] = lambda: "default",
) -> ListedCards:
    """Return the cards with what claims have of them, and the pods.

    host: as listed. namespace: returns that of manifests that name none. Raises ApiError,
    MessageError.
    """
    notes = [*cards.notes]
    unit = mib_of(host.unit) << 20
    listed = items(api, CLAIMS, RESOURCE_CLAIMS, {}, notes)
    claims = Claims(api, unit, cards.cards, listed, namespace=namespace)
    ledger, on_nodes = Ledger(), counted.cards_by_node(cards.cards)
    for node, its_cards in on_nodes.items():
        ledger.node_changed(counted.node_of_cards(node, its_cards, unit))
    for name, claim in claims.claims.items():
        taken: Counter[tuple[str, str]] = Counter()
        for device in given_devices(claim.allocation) if claim.allocation else ():
            card = cards.cards.get(device.key)
            if card is not None:
                memory = card.memory if device.memory is None else device.memory
                taken[card.node, card.uuid] += counted.units_up(memory, unit)
        uid = (claim.metadata and claim.metadata.uid) or ""
        for holder in counted.holders_of(PodRef(*name, uid), taken, on_nodes, unit):
            ledger.pod_changed(holder)
    users = _users(api, host, claims, notes) if host.claiming else CurrentPods({}, ())
    given_out = (card for card in cards.cards.values() if card.shared and card.open)
    kinds = frozenset(counted.DealsInUnits(card.deals, unit) for card in given_out)
    return ListedCards(
        replace(ALIYUN, resource=CLASS),
        ledger,
        host.unit,
        policy,
        notes,
        host.states,
        daemons=host.daemons,
        host=host,
        driver=cards.driver,
        deals=(claim_pods.DealsAsAny(kinds, unit),) if kinds else (),
        claims=claims,
        users=users,
        by_annotation=frozenset(name for name in on_nodes if host.ledger.serves(name)),
    )


def cards_of_table(table: ListedResource) -> ListedCards:
    """Return a table of nodes as nodes of a driver that is not named."""
    return ListedCards(
        replace(ALIYUN, resource=CLASS),
        table.ledger,
        table.unit,
        table.ranking_policy,
        table.notes,
        host=table,
        claims=Claims(None, 1, why_not=_NO_UNIT)
        if table.unit == NO_UNIT
        else Claims(None, mib_of(table.unit) << 20),
        users=CurrentPods({}, ()),
    )


def _users(api: Getter, host: ListedResource, claims: Claims, notes: list[str]) -> CurrentPods:
    """Return the pods that ask by claims of our class."""
    on = defaultdict[str, list[claim_pods.ClaimsUser]](list)
    waiting: list[tuple[str, claim_pods.ClaimsUser]] = []
    wrong: list[str] = []
    gated = 0
    for pod in items(api, "/api/v1/pods", CLAIMS_PODS, NOT_ENDED, notes):
        metadata, node = pod.metadata or Metadata(), (pod.spec and pod.spec.node_name) or ""
        if not (pod.spec and pod.spec.resource_claims) or (
            metadata.deletion_timestamp and not node
        ):
            continue
        try:
            if names_any(pod, [host.names.resource]):
                continue
            ref = pod_ref(pod)
            user = claim_pods.user_of(
                pod,
                host.names,
                claims,
                name=str(ref),
                namespace=ref.namespace,
                anew=bool(node),
            )
        except WireError as error:
            wrong.append(f"{metadata.namespace}/{metadata.name}: {error}")
            continue
        if user is None or not user.claims:
            continue
        if node:
            on[node].append(user)
        elif user.demands.gated:
            gated += 1
        else:
            waiting.append((metadata.creation_timestamp or "", user))
    if wrong:
        more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        notes.append(f"pods with claims are left out: {'; '.join(wrong[:_MOST_NAMED])}{more}")
    waiting.sort(key=lambda each: each[0])
    return CurrentPods(
        {name: claim_pods.wanted_of(users) for name, users in on.items()},
        claim_pods.wanted_of(user for _, user in waiting),
        gated,
    )
