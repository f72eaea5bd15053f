"""The books of claims: devices of DRA drivers, and claims, as the API server last showed both.

The books keep slices, device classes, taint rules and claims of all drivers, and for each node the
values that first fit needs. An incremental state equals one that is built anew. The devices with
memory of one driver also count in a Ledger, in memory units, with claims as holders. The extender
fills the books by watches, the command line by lists.

Any thread may call; nothing here waits for anything, except `await_claims`.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain, takewhile
from types import MappingProxyType

from gpushare.core.claims.model import (
    Amounts,
    ClaimRequest,
    ClassRecord,
    DeviceKey,
    Holding,
    NodeDevices,
    PodClaims,
    Slice,
    TaintRule,
    Use,
)
from gpushare.core.claims.pools import gather_pools
from gpushare.core.model import NodeSpec, ObservedPod, Request
from gpushare.core.pairing import Pairing
from gpushare.errors import MessageError
from gpushare.explain.claim_records import (
    ClaimCard,
    ClaimRecord,
    PodRequests,
    cards_of,
    claim_names,
    memory_units,
)
from gpushare.ledger import Ledger
from gpushare.wire.dra.requests import classes_by_resource, extended_request
from gpushare.wire.objects import Pod, PodSpec

MAX_NODE_WEIGHT = 16384
"""Upper bound on the devices, attributes, capacities and counters that are kept of the slices of
one node. A node with more is not modelled."""

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class ClaimBooks:
    """The books of claims.

    driver: the devices of this driver count in the ledger. unit: bytes of a memory unit. labels:
    returns the labels of a node, for slices that select nodes by labels. published: called with
    each node that the driver publishes a card of.

    ledger: the driver's nodes; the pods there are claims, one record for each node of a claim, with
    the uid `CLAIM_UID/NODE`. A device that a taint closes is not healthy there.
    """

    def __init__(
        self,
        driver: str,
        unit: int,
        labels: Callable[[str], Mapping[str, str]] = lambda _: _NO_LABELS,
        published: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.driver = driver
        self.unit = unit
        self.ledger = Ledger(Pairing.OFF)
        self._labels = labels
        self._published = published
        self._changed = threading.Condition(threading.RLock())
        self._slices: dict[str, Slice] = {}
        self._slice_nodes: dict[str, set[str]] = {}
        # By node, by name of the slice; "" for slices that name no node.
        self._weights: dict[str, dict[str, int]] = defaultdict(dict)
        self._by_node: dict[str, dict[str, Slice]] = defaultdict(dict)
        self.misses_slices = False
        """Whether slices that were too heavy for a node, and so were not kept, have room now."""
        self._pools: dict[tuple[str, str], tuple[Slice, ...]] = {}
        self._rules: dict[str, TaintRule] = {}
        self._classes: dict[str, ClassRecord] = {}
        self._by_resource: dict[str, ClassRecord] = {}
        self._nodes: dict[str, NodeDevices] = {}
        self.version = 0
        """A number that grows with each change of the books."""
        self.versions: dict[str, int] = {}
        """By modelled node, a number that changes with the devices and with what claims hold, the
        last changed node last; only to be read."""
        self._nodes_of: dict[DeviceKey, tuple[str, ...]] = {}
        # By node: several nodes can use a device that is attached by a network.
        self._cards: dict[DeviceKey, dict[str, ClaimCard]] = defaultdict(dict)
        self._on_node: dict[str, tuple[ClaimCard, ...]] = {}
        self._specs: dict[str, NodeSpec] = {}
        self._claims: dict[str, ClaimRecord] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._holders: dict[DeviceKey, dict[str, tuple[Holding, ...]]] = defaultdict(dict)
        # The sum of the holdings of a device; a cache.
        self._device_uses: dict[DeviceKey, Use] = {}
        self._charged: dict[str, frozenset[str]] = {}

    # -- changes --------------------------------------------------------------------------------

    def replace_slices(self, slices: Iterable[Slice]) -> None:
        """Take over a whole list of slices."""
        slices_by_name = {item.name: item for item in slices}
        with self._changed:
            nodes: set[str] = set()
            for name in self._slice_nodes.keys() - slices_by_name.keys():
                nodes |= self._put_slice(name, None)
            for item in slices_by_name.values():
                nodes |= self._put_slice(item.name, item)
            self._gather(nodes)
            self.misses_slices = any(map(self._has_room, self._weights))

    def slice_changed(self, item: Slice) -> None:
        """Take over a new or changed slice."""
        self._put_and_gather(item.name, item)

    def slice_gone(self, name: str) -> None:
        """Forget a slice."""
        self._put_and_gather(name, None)

    def _put_and_gather(self, name: str, item: Slice | None) -> None:
        with self._changed:
            nodes = self._put_slice(name, item)
            self._gather(nodes)
            self.misses_slices = self.misses_slices or any(map(self._has_room, nodes))

    def replace_rules(self, rules: Mapping[str, TaintRule]) -> None:
        """Take over all taint rules, by name."""
        with self._changed:
            if rules != self._rules:
                self._rules = dict(rules)
                self._gather({*self._by_node})

    def rule_changed(self, name: str, rule: TaintRule | None) -> None:
        """Take over a taint rule; None: the rule is deleted."""
        rules = {key: value for key, value in self._rules.items() if key != name}
        self.replace_rules(rules if rule is None else rules | {name: rule})

    def replace_classes(self, classes: Iterable[ClassRecord]) -> None:
        """Take over a whole list of device classes."""
        with self._changed:
            self.version += 1
            self._classes = {record.name: record for record in classes}
            self._by_resource = classes_by_resource(self._classes.values())

    def class_changed(self, name: str, record: ClassRecord | None) -> None:
        """Take over a device class; None: the class is deleted."""
        classes = {key: value for key, value in self._classes.items() if key != name}
        self.replace_classes((classes if record is None else classes | {name: record}).values())

    def replace_claims(self, claims: Iterable[ClaimRecord]) -> None:
        """Take over a whole list of claims."""
        claims_by_uid = {claim.ref.uid: claim for claim in claims}
        with self._changed:
            for uid in self._claims.keys() - claims_by_uid.keys():
                self.claim_gone(uid)
            for claim in claims_by_uid.values():
                self.claim_changed(claim)

    def claim_changed(self, claim: ClaimRecord) -> None:
        """Take over a new or changed claim."""
        ref = claim.ref
        with self._changed:
            self.version += 1
            before = self._claims.get(ref.uid)
            self._claims[ref.uid] = claim
            self._uids[ref.namespace, ref.name] = ref.uid
            self._hold(ref.uid, before.holdings if before else (), claim.holdings)
            self._changed.notify_all()

    def claim_gone(self, uid: str) -> None:
        """Free the devices of a claim."""
        with self._changed:
            claim = self._claims.pop(uid, None)
            if claim is not None:
                self.version += 1
                key = claim.ref.namespace, claim.ref.name
                if self._uids.get(key) == uid:
                    del self._uids[key]
                self._hold(uid, claim.holdings, ())

    def touch(self, node: str) -> None:
        """Give a modelled node another version."""
        with self._changed:
            if self.versions.pop(node, None) is not None:
                self.version += 1
                self.versions[node] = self.version

    # -- queries --------------------------------------------------------------------------------

    def changed_since(self, version: int) -> tuple[int, list[str]]:
        """Return the version of the books, and the modelled nodes that changed after an earlier
        one.
        """
        with self._changed:
            versions = self.versions
            changed_nodes = takewhile(lambda node: versions[node] > version, reversed(versions))
            return self.version, list(changed_nodes)

    def named(self, namespace: str, name: str) -> ClaimRecord | None:
        """Return the claim of that name, as last shown."""
        with self._changed:
            return self._claims.get(self._uids.get((namespace, name), ""))

    def allocated(self) -> dict[str, ClaimRecord]:
        """Return the claims that have devices of the driver, by uid."""
        with self._changed:
            return {
                uid: claim
                for uid, claim in self._claims.items()
                if any(holding.key.driver == self.driver for holding in claim.holdings)
            }

    def classes(self) -> tuple[ClassRecord, ...]:
        """Return the device classes."""
        with self._changed:
            return tuple(self._classes.values())

    @property
    def resources(self) -> Mapping[str, ClassRecord]:
        """The class of each extended resource that is allocated by a claim."""
        return self._by_resource

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that are modelled, with devices of any driver."""
        with self._changed:
            return tuple(self._nodes)

    def unmodelled_nodes(self) -> tuple[str, ...]:
        """Return the nodes with too many or too large slices."""
        with self._changed:
            return tuple(node for node in self._weights if node and not self._is_modelled(node))

    def devices(self, node: str) -> NodeDevices | None:
        """Return the devices of a node; None if the node is not modelled."""
        return self._nodes.get(node)

    def nodes_of(self, key: DeviceKey) -> tuple[str, ...]:
        """Return the modelled nodes that can use a device."""
        return self._nodes_of.get(key, ())

    def common_nodes(self, claim: ClaimRecord) -> frozenset[str] | None:
        """Return the nodes that can use all devices of an allocated claim; None: not known."""
        # The nodes of a device without a slice are unknown.
        node_sets = [frozenset(self.nodes_of(holding.key)) for holding in claim.holdings]
        node_sets = [nodes for nodes in node_sets if nodes]
        return frozenset.intersection(*node_sets) if node_sets else None

    def use(self, node: str) -> Use:
        """Return the use of the devices of a node by claims."""
        exclusive: set[DeviceKey] = set()
        shares: dict[DeviceKey, Amounts] = {}
        with self._changed:
            devices = self._nodes.get(node)
            for device in devices.counted_devices() if devices else ():
                holdings_by_claim = self._holders.get(device.key)
                if holdings_by_claim is None:
                    continue
                use = self._device_uses.get(device.key)
                if use is None:
                    use = Use().plus(chain.from_iterable(holdings_by_claim.values()))
                    self._device_uses[device.key] = use
                exclusive.update(use.exclusive)
                shares.update(use.shares)
        return Use(exclusive, shares)

    def card(self, key: DeviceKey, node: str = "") -> ClaimCard | None:
        """Return the card of the ledger that this device is, or is a partition of, on this node or
        on the first by name; None if the device is no card.
        """
        cards = self._cards.get(key, {})
        return cards.get(node or min(cards, default=""))

    def holders(self, key: DeviceKey) -> tuple[ClaimRecord, ...]:
        """Return the claims that hold the device or a part of the device."""
        with self._changed:
            return tuple(self._claims[uid] for uid in self._holders.get(key, ()))

    def requests(self, pod: Pod) -> PodRequests:
        """Return the requests that kube-scheduler has to allocate for the pod."""
        namespace = (pod.metadata and pod.metadata.namespace) or ""
        names = claim_names(pod)
        if names is None:
            return PodRequests(PodClaims(()), mistake="a claim is still to be made of its template")
        with self._changed:
            claims_by_name = {name: self.named(namespace, name) for name in names}
            classes, by_resource = self._classes, self._by_resource
        missing = tuple(name for name, claim in claims_by_name.items() if claim is None)
        open_claims = [
            claim for claim in claims_by_name.values() if claim and not claim.is_allocated
        ]
        mistake = next((claim.mistake for claim in open_claims if claim.mistake), "")
        open_requests = [(claim.ref.uid, claim.request) for claim in open_claims if claim.request]
        try:
            extended = extended_request(pod.spec or PodSpec(), by_resource)
        except MessageError as error:
            mistake = mistake or str(error)
        else:
            open_requests += [("", extended)] if extended else []
        requests: list[ClaimRequest] = []
        for _, request in open_requests:
            complete = request.with_classes(classes)
            if complete is None:
                mistake = mistake or "a DeviceClass of its claims does not exist"
                continue
            requests.append(complete)
        if missing or mistake:
            return PodRequests(PodClaims(()), (), missing, mistake)
        return PodRequests(PodClaims(tuple(requests)), tuple(uid for uid, _ in open_requests))

    def await_claims(self, namespace: str, names: Iterable[str], seconds: float) -> None:
        """Wait until all these claims have been shown, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(
                lambda: all((namespace, name) in self._uids for name in names), seconds
            )

    # -- under the lock -------------------------------------------------------------------------

    def _is_modelled(self, node: str) -> bool:
        """Return whether the books keep all slices that name the node."""
        return self._weights.get(node, {}).keys() <= self._by_node.get(node, {}).keys()

    def _has_room(self, node: str) -> bool:
        """Return whether slices of the node that are not kept have room there."""
        weights = self._weights.get(node, {})
        return not self._is_modelled(node) and sum(weights.values()) <= MAX_NODE_WEIGHT

    def _put_slice(self, name: str, item: Slice | None) -> set[str]:
        """Keep a slice, or forget the slice (None); return the nodes that this may change."""
        before = self._slices.pop(name, None)
        affected = self._slice_nodes.pop(name, set())
        for node in affected:
            del self._weights[node][name]
            self._by_node[node].pop(name, None)
            if not self._weights[node]:
                del self._weights[node], self._by_node[node]
        if item is not None:
            nodes, weight = _nodes_of(item), _weight(item)
            affected = affected | nodes
            self._slice_nodes[name] = nodes
            for node in nodes:
                self._weights[node][name] = weight
            if all(sum(self._weights[node].values()) <= MAX_NODE_WEIGHT for node in nodes):
                self._slices[name] = item
                for node in nodes:
                    self._by_node[node][name] = item
        for key in {(version.driver, version.pool) for version in (before, item) if version}:
            members = [member for member in self._pools.get(key, ()) if member.name != name]
            if item is not None and name in self._slices and key == (item.driver, item.pool):
                members.append(item)
            self._pools[key] = tuple(members)
            if not members:
                del self._pools[key]
            affected = affected.union(*map(_nodes_of, members))
        return {*self._by_node, *affected} if "" in affected else affected

    def _gather(self, nodes: Iterable[str]) -> None:
        """Make the devices of these nodes anew, and count the claims that hold such devices."""
        holders: set[str] = set()
        for node in nodes:
            if not node:
                continue
            before, after = self._nodes.pop(node, None), None
            if self._by_node.get(node) and self._is_modelled(node):
                slices = [*self._by_node[node].values(), *self._by_node.get("", {}).values()]
                # In one order, whatever has come first, should the slices contradict each other.
                slices.sort(key=lambda item: item.name)
                after = gather_pools(
                    node, self._labels(node), slices, self._pools, tuple(self._rules.values())
                )
                self._nodes[node] = after
            self.version += 1
            self.versions.pop(node, None)
            if after is not None:
                self.versions[node] = self.version
            keys_before = [device.key for device in before.counted_devices()] if before else []
            keys_after = [device.key for device in after.counted_devices()] if after else []
            for key in keys_before:
                nodes_without = tuple(n for n in self._nodes_of.get(key, ()) if n != node)
                self._nodes_of[key] = nodes_without
                if not nodes_without:
                    del self._nodes_of[key]
            for key in keys_after:
                self._nodes_of[key] = (*self._nodes_of.get(key, ()), node)
            self._count_node(node, after)
            for key in (*keys_before, *keys_after):
                holders.update(self._holders.get(key, ()))
        for uid in holders:
            self._count(uid)

    def _count_node(self, node: str, devices: NodeDevices | None) -> None:
        """Count the node's cards in the ledger."""
        for card in self._on_node.pop(node, ()):
            for key in card.keys:
                del self._cards[key][node]
                if not self._cards[key]:
                    del self._cards[key]
        cards = tuple(cards_of(node, devices, self.driver, self.unit)) if devices else ()
        for card in cards:
            for key in card.keys:
                self._cards[key][node] = card
        if cards:
            self._on_node[node] = cards
        spec = NodeSpec(
            node,
            tuple(card.units for card in cards),
            tuple(card.is_offered for card in cards),
            tuple(card.model for card in cards),
            tuple(card.uuid for card in cards),
            serves_by_identity=True,
        )
        if cards and node not in self._specs:
            self._published(node)
        if cards and self._specs.get(node) != spec:
            # Anew: another card may be at an index.
            self.ledger.node_gone(node)
            self.ledger.node_changed(spec)
            self._specs[node] = spec
        elif not cards and node in self._specs:
            del self._specs[node]
            self.ledger.node_gone(node)

    def _hold(self, uid: str, before: tuple[Holding, ...], after: tuple[Holding, ...]) -> None:
        """Take over which devices a claim holds."""
        if before == after:
            return
        for holding in before:
            holdings_by_claim = self._holders[holding.key]
            holdings_by_claim.pop(uid, None)
            if not holdings_by_claim:
                del self._holders[holding.key]
        for holding in after:
            holdings_by_claim = self._holders[holding.key]
            holdings_by_claim[uid] = (*holdings_by_claim.get(uid, ()), holding)
        for holding in (*before, *after):
            self._device_uses.pop(holding.key, None)
        nodes = {
            node for holding in (*before, *after) for node in self._nodes_of.get(holding.key, ())
        }
        for node in nodes:
            self.touch(node)
        self._count(uid)

    def _count(self, uid: str) -> None:
        """Count the claim anew, with a charge on each node that the claim has cards of."""
        claim = self._claims.get(uid)
        by_node: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for holding in claim.holdings if claim else ():
            for card in self._cards.get(holding.key, {}).values():
                if units := self.units_of(holding, card):
                    by_node[card.node][card.index] += units
        # Also where the claim stays: the ledger keeps the first charge of a pod, and the allocation
        # of a claim may change.
        for node in self._charged.pop(uid, frozenset()):
            self.ledger.pod_gone(f"{uid}/{node}")
        if claim is None or not by_node:
            return
        self._charged[uid] = frozenset(by_node)
        for node, units_by_index in by_node.items():
            cards = self._on_node[node]
            # Whatever the claim says, a claim has the whole card at most.
            shares = tuple(
                (index, min(units, cards[index].units))
                for index, units in sorted(units_by_index.items())
            )
            pod = ObservedPod(
                replace(claim.ref, uid=f"{uid}/{node}"),
                Request().of_parts(share for _, share in shares),
                node,
                shares,
                assigned=True,
                running=True,
                uuids=tuple(cards[index].uuid for index, _ in shares),
            )
            self.ledger.pod_changed(pod)

    def units_of(self, holding: Holding, card: ClaimCard) -> int:
        """Return the units that a holding takes of a card, rounded up; all of the card or of the
        partition for a holding without an amount.
        """
        units = memory_units(holding.consumed or {}, self.unit)
        return card.parts.get(holding.key, card.units) if units is None else min(units, card.units)


def _nodes_of(item: Slice) -> set[str]:
    """Return the nodes that a slice names; "" stands for nodes that a selector may match."""
    choices = [item.nodes] if item.nodes else [device.nodes for device in item.devices]
    return {choice.node if choice else "" for choice in choices} or {""}


def _weight(item: Slice) -> int:
    """Return how much a slice counts for MAX_NODE_WEIGHT."""
    counters = sum(1 + len(counters) for counters in item.counters.values())
    return counters + sum(
        1 + len(device.attributes) + len(device.capacities) + len(device.counters)
        for device in item.devices
    )
