"""The cards of one DRA driver, and which claims have how much of them.

A Ledger of its own, whose nodes are those of the driver's slices, and whose holders are claims.
What is counted follows from the slices and the claims as last shown, and from what is being
written: of each claim that changes, and each node, it is counted anew. A charge ends by what the
API server shows alone: the claim is gone, or has no allocation and our write of one cannot land any
more. That is so once its resourceVersion is a later one than our write demanded.

Any thread may call; nothing here waits for anything.

Tested in `tests/unit/extender/claims`.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from gpushare.core.dealing import Dealing
from gpushare.core.model import NodeSpec, PodRef
from gpushare.core.pairing import Pairing
from gpushare.core.ranking import Ranking
from gpushare.errors import MessageError
from gpushare.ledger import Ledger
from gpushare.wire.dra.claims import ClaimRequest, given_devices, nodes_of
from gpushare.wire.dra.counted import Cards, cards_by_node, holders_of, node_of_cards, units_up
from gpushare.wire.dra.objects import ResourceClaim, ResourceSlice
from gpushare.wire.dra.slices import NO_SUCH_AMOUNT, DeviceKey, SliceCard, cards_of

_NEVER_SENT = -1


@dataclass(frozen=True, slots=True)
class _Sent:
    """Cards that we mean to give to a claim."""

    cards: tuple[SliceCard, ...]
    asked: ClaimRequest
    """What the claim asks for, a part for each card."""
    version: int = _NEVER_SENT
    """The resourceVersion of the claim that our write demands."""


def version_of(claim: ResourceClaim) -> int:
    """Return the claim's resourceVersion, by which it is older or newer. Raises MessageError."""
    text = (claim.metadata and claim.metadata.resource_version) or ""
    if not (text.isascii() and text.isdigit()):
        raise MessageError("ResourceClaim.metadata: resourceVersion is no number")
    return int(text)


def claim_ref(claim: ResourceClaim) -> PodRef:
    """Return by what the claim is known. Raises MessageError."""
    read = claim.metadata
    if not (read and read.namespace and read.name and read.uid):
        raise MessageError("ResourceClaim.metadata: namespace, name or uid is missing")
    return PodRef(read.namespace, read.name, read.uid)


class ClaimBooks:
    """The books of the driver's cards, in units of so many bytes.

    lend: called with each node that is, or may be, the driver's, before a card of it is given out.
    knows: returns whether the cluster has such a node.
    """

    def __init__(
        self,
        driver: str,
        unit: int,
        ranking: Ranking,
        lend: Callable[[str], None] = lambda _: None,
        knows: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.ledger = Ledger(Pairing.OFF)
        self.driver = driver
        self.unit = unit
        self._ranking = ranking
        self._lend = lend
        self._knows = knows
        self._lock = threading.Lock()
        # As last shown; one whose slice has gone is not open, until its node is gone too.
        self._cards: dict[DeviceKey, SliceCard] = {}
        self._on_node: dict[str, Cards] = {}
        self._specs: dict[str, NodeSpec] = {}
        # Nodes of which no slice is there; replaced whole.
        self._unlisted: set[str] = set()
        self.dealing = Dealing()
        """How the driver's cards are dealt out."""
        self._claims: dict[str, ResourceClaim] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._unread: frozenset[str] = frozenset()
        self._sent: dict[str, _Sent] = {}
        # By claim and device, every card that the name has meant since the claim has the device.
        self._meant: dict[str, dict[DeviceKey, dict[str, SliceCard]]] = {}
        self._charged: dict[str, frozenset[str]] = {}

    # -- what is shown --------------------------------------------------------------------------

    def slices_changed(self, slices: Iterable[ResourceSlice]) -> None:
        """Take over all slices as they are now."""
        cards = {key: card for key, card in cards_of(slices).items() if key.driver == self.driver}
        listed = {card.node for card in cards.values()}
        for name in listed:
            self._lend(name)
        with self._lock:
            self._unlisted = {*self._on_node} - listed
        self.forget_nodes()
        with self._lock:
            closed = {key: replace(card, open=False) for key, card in self._cards.items()}
            self._cards = closed | cards
            for name, now in cards_by_node(self._cards).items():
                if self._on_node.get(name) != now:
                    self._on_node[name] = now
                    self._specs[name] = node_of_cards(name, now, self.unit)
                    # Anew: which card is at which index may have changed.
                    self.ledger.node_gone(name)
                    self.ledger.node_changed(self._specs[name])
            self.dealing = Dealing(self._specs.values())
            for uid in self._claims:
                self._count(uid)

    def forget_nodes(self) -> None:
        """Forget the nodes that the cluster has no more, and of which nobody has a card."""
        gone = {name for name in self._unlisted if not self._knows(name)}
        if not gone:
            return
        with self._lock:
            gone &= self._unlisted
            sent = [card for each in self._sent.values() for card in each.cards]
            meant = (by_uuid for by_key in self._meant.values() for by_uuid in by_key.values())
            for card in chain(sent, *(by_uuid.values() for by_uuid in meant)):
                gone.discard(card.node)
            for name in gone:
                self.ledger.node_gone(name)
                del self._on_node[name], self._specs[name]
            self._cards = {key: card for key, card in self._cards.items() if card.node not in gone}
            self._unlisted = self._unlisted - gone

    def replace_claims(self, claims: Iterable[ResourceClaim], keep: Collection[str]) -> None:
        """Take over a whole list; keep: uids of claims that could not be read."""
        listed = {claim_ref(claim).uid: claim for claim in claims}
        for claim in listed.values():
            self.claim_changed(claim)
        with self._lock:
            gone = self._claims.keys() - listed.keys() - set(keep)
            self._unread = frozenset(keep)
        for uid in gone:
            self.claim_gone(uid)

    def claim_changed(self, claim: ResourceClaim, *, read: bool = False) -> None:
        """Take over a claim as it was shown; what is older than what is known tells nothing.

        read: it was read or written, and may have been shown gone since.
        """
        ref, version = claim_ref(claim), version_of(claim)
        allocation = claim.allocation
        if allocation:
            devices = given_devices(allocation)
            ours = [each.key for each in devices if each.key.driver == self.driver]
            # Before its slices are there the pool's name tells, with what we write ourselves.
            for name in nodes_of(allocation).union(key.pool for key in ours) if ours else ():
                self._lend(name)
        with self._lock:
            known = self._claims.get(ref.uid)
            if (known is None and read) or (known is not None and version_of(known) > version):
                return
            self._claims[ref.uid] = claim
            self._by_name[ref.namespace, ref.name] = ref.uid
            self._unread -= {ref.uid}
            sent = self._sent.get(ref.uid)
            if sent and (allocation or _NEVER_SENT < sent.version < version):
                del self._sent[ref.uid]
            self._count(ref.uid)

    def claim_unread(self, uid: str) -> None:
        """Note that the claim cannot be read: what it has stays as it was."""
        with self._lock:
            self._unread |= {uid}

    def claim_gone(self, uid: str) -> None:
        """Free what the claim had: no write of ours can land any more."""
        with self._lock:
            claim = self._claims.pop(uid, None)
            self._unread -= {uid}
            self._sent.pop(uid, None)
            if claim is not None:
                ref = claim_ref(claim)
                if self._by_name.get((ref.namespace, ref.name)) == uid:
                    del self._by_name[ref.namespace, ref.name]
            self._count(uid)

    # -- what is given out ----------------------------------------------------------------------

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name, as last shown."""
        with self._lock:
            return self._claims.get(self._by_name.get((namespace, name), ""))

    def is_given_to(self, claim: PodRef, pod: PodRef) -> bool:
        """Return whether the claim is shown to have devices, and to be reserved for the pod."""
        shown = self.named(claim.namespace, claim.name)
        if shown is None or claim_ref(shown).uid != claim.uid or shown.allocation is None:
            return False
        return pod.uid in {each.uid for each in shown.reserved}

    def take(
        self, claim: ResourceClaim, asked: ClaimRequest, nodes: Callable[[str], bool]
    ) -> tuple[SliceCard, ...]:
        """Charge the best cards of one of these nodes, and return one for each part of what is
        asked; () if none has room now.

        claim: as last shown, and not allocated. Raises MessageError if it can never have any.
        """
        wanted = asked.asked(self.unit)
        with self._lock:
            ref = claim_ref(claim)
            if self._unread or self._claims.get(ref.uid) is not claim or ref.uid in self._sent:
                return ()
            best = self.dealing.place(self.ledger.snapshot(), wanted, nodes, self._ranking)
            if best is None:
                given_out = (card for card in self._cards.values() if card.open and card.shared)
                large = any(card.memory >= wanted.exact[0] for card in given_out)
                if large and not self.dealing.where(wanted):
                    raise MessageError(NO_SUCH_AMOUNT)
                return ()
            node, shares = best
            cards = tuple(self._on_node[node][device] for device, _ in shares)
            self._sent[ref.uid] = _Sent(cards, asked)
            self._count(ref.uid)
            return cards

    def sending(self, uid: str, version: int) -> bool:
        """Note that the allocation is sent now, and lands if the claim is in that version; return
        whether it may be.

        It may not if it is charged no more, or not open, or if its cards have come to be charged
        with more than they have: another process may have led since they were taken.
        """
        with self._lock:
            sent = self._sent.get(uid)
            if sent is None or not all(map(self._has_what_it_gave, sent.cards)):
                return False
            self._sent[uid] = replace(sent, version=version)
            return True

    def forget(self, uid: str) -> None:
        """Give back what was never sent, or definitely refused."""
        with self._lock:
            if self._sent.pop(uid, None):
                self._count(uid)

    def card(self, key: DeviceKey) -> SliceCard | None:
        """Return the card that a slice last gave this name."""
        with self._lock:
            return self._cards.get(key)

    def allocated(self) -> tuple[ResourceClaim, ...]:
        """Return the claims that are shown to have devices of the driver."""
        with self._lock:
            charged = [self._claims[uid] for uid in self._charged if uid in self._claims]
        return tuple(claim for claim in charged if claim.allocation)

    def held_back(self) -> str:
        """Return why nothing is given out, whatever is free; "" if nothing is in the way."""
        with self._lock:
            unread = sorted(self._unread)
        return f"it cannot be read which cards claim {unread[0]} has" if unread else ""

    def in_flight(self) -> frozenset[str]:
        """Return the claims of which nobody knows yet whether our allocation lands."""
        with self._lock:
            return frozenset(self._sent)

    # -- under the lock -------------------------------------------------------------------------

    def _has_what_it_gave(self, card: SliceCard) -> bool:
        now = self._cards[card.key]
        if not now.open or (now.node, now.uuid) != (card.node, card.uuid):
            return False
        snapshot = self.ledger.snapshot()
        device = [each.uuid for each in self._on_node[card.node]].index(card.uuid)
        at = snapshot.row[card.node], device
        return bool(snapshot.healthy[at] and snapshot.used[at] <= snapshot.capacity[at])

    def _taken(self, uid: str) -> Mapping[tuple[str, str], int]:
        """Return the units that the claim has, by node and card."""
        taken: dict[tuple[str, str], int] = defaultdict(int)
        sent = self._sent.get(uid)
        if sent is not None:
            for part, card in zip(sent.asked.parts, sent.cards, strict=True):
                taken[card.node, card.uuid] += units_up(card.given(part.memory), self.unit)
        claim = self._claims.get(uid)
        allocation = claim.allocation if claim else None
        if not allocation:
            self._meant.pop(uid, None)
            return taken
        meant = self._meant.setdefault(uid, {})
        for device in given_devices(allocation):
            if device.key.driver == self.driver:
                cards = meant.setdefault(device.key, {})
                if device.key in self._cards:
                    cards[self._cards[device.key].uuid] = self._cards[device.key]
                for card in cards.values():
                    whole = card.memory if device.memory is None else device.memory
                    taken[card.node, card.uuid] += units_up(whole, self.unit)
        return taken

    def _count(self, uid: str) -> None:
        """Count the claim anew, with a charge on each node of which it has cards."""
        claim = self._claims.get(uid)
        taken = self._taken(uid) if claim is not None else {}
        ref = claim_ref(claim) if claim is not None else PodRef("", "", uid)
        held = {pod.node: pod for pod in holders_of(ref, taken, self._on_node, self.unit)}
        for name in self._charged.pop(uid, frozenset()) - {*held}:
            self.ledger.pod_gone(f"{uid}/{name}")
        if claim is None:
            self._meant.pop(uid, None)
        for pod in held.values():
            # The ledger keeps a pod where it was first seen; a claim is where it is now.
            self.ledger.pod_gone(pod.ref.uid)
            self.ledger.pod_changed(pod)
        if held:
            self._charged[uid] = frozenset(held)
