"""The truth about pods, nodes and devices, independent of any books.

Plain values, filled by those who make things true: the API server's log, the kubelets, the users.
Nothing of production code is used here, so that the same mistake cannot be on both sides.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RESOURCE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
CORES = "aliyun.com/gpu-core.percentage"
SHARE = "aliyun.com/gpu-mem.percentage"
SHARERS = "gpushare.io/max-sharers"
ANY_SHARERS = 10**6
APART = "gpushare.io/apart"
IDX, POD, DEV, ASSIGNED, ASSUMED = (
    f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "POD", "DEV", "ASSIGNED", "ASSUME_TIME")
)
ALLOCATION = "scheduler.framework.gpushare.allocation"
UUIDS = "gpushare.io/device-uuids"
INVENTORY = "gpushare.io/devices"
UNHEALTHY = "unhealthy-gpu-"
POLICY = "gpushare.io/policy"

HONEST, TENANT = "default", "tenant"
"""The namespaces of pods: of honest owners, and of one attacker."""

MAX_ANNOTATIONS = 262_144
"""Bytes; an object with more can never be updated again."""

AGES = 10**9
"""Seconds of grace that nobody can wait for."""

MAX_GRACE, MAX_LATE = 600.0, 60.0
"""Seconds for which a deleted pod may still exist, and may be overdue, to count
as one that ends by itself."""

UNCOUNTED_CPU = 7777
"""The request of each container of pods that must not count among those that come."""

MAX_SIZES = 8
"""Sizes of cards that an inventory may have."""

Json = dict[str, Any]
Shares = tuple[tuple[int, int], ...]
"""(device, units) of each device held, by rising device."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a pod: units on each device, devices, units of each regular container.

    inits: (units, whether it is a sidecar) of each init container; perhaps only these exist.
    cores: percent of the compute of each device; share: percent of the memory.
    """

    units: int
    devices: int
    containers: tuple[int, ...]
    inits: tuple[tuple[int, bool], ...] = ()
    cores: int = 0
    share: int = 0

    @property
    def calls(self) -> tuple[int, ...]:
        """Units of each call of the kubelet to the device plug-in: init containers come first."""
        return (*(units for units, _ in self.inits), *self.containers)

    @property
    def total(self) -> int:
        """Units over all devices."""
        return self.units * self.devices

    @property
    def all_cores(self) -> int:
        """The percents over all devices, at most a whole device."""
        return min(self.cores * self.devices, 100)

    def cores_on(self, units: int) -> int:
        """The percent of the compute of a device with so many units of the pod.

        Compute is where the memory is. Of several containers the first one has all the compute, and
        the containers of a device are unknown.
        """
        return self._percent_on(self.cores, units)

    def _percent_on(self, percent: int, units: int) -> int:
        """The part of a percent of each device on a device with so many units of the pod."""
        if not percent or units == self.units:
            return percent
        if len(self.containers) > 1:
            return min(percent * self.devices, 100)
        return min(-(-percent * self.devices * units // self.total), 100)

    def charged(self, units: int, size: int) -> int:
        """The charge of a device of this size, with so many units of the pod."""
        return max(units, math.ceil(self._percent_on(self.share, units) * size / 100))

    def charged_anywhere(self, size: int) -> int:
        """The charge of a device of this size where all of the pod may be."""
        return max(self.total, math.ceil(min(self.share * self.devices, 100) * size / 100))

    def on(self, devices: tuple[int, ...]) -> Shares:
        """The shares on these devices."""
        return tuple((device, self.total // len(devices)) for device in sorted(devices))

    def on_cards(self, cards: tuple[str, ...]) -> dict[str, int]:
        """The units on each of these cards."""
        return dict.fromkeys(cards, self.total // len(cards))


@dataclass(slots=True)
class PodTruth:
    """A pod from creation to end.

    by: the process of ours that bound the pod, "" for anybody else. claim: the placement of the
    annotations at binding, None if these name no usable device. edited: the version that changed
    the annotations afterwards, 0 for none; unstamped: the assume time too. runs: by phase. ended:
    the memory is free, by phase or deletion. cpu: requested thousandths of a CPU, and as many MiB
    of memory.

    put: units by card at binding, None if no cards are named. home: the index of each
    of these cards then. named: by the cards' uuids, not by index alone. odd: the annotations
    contradict each other. uuids: those of the annotations. cards: units by card that the
    containers truly hold, None until admission (or if the plug-in mistook the containers for
    another pod's).

    namespace: of the owner. refused: the reason why none of ours may ever bind the pod, "" if
    allowed. unseen: no scheduler calls us for the pod. priority: by the class. lasts: the
    containers continue when told to end. ends_by: the time when a terminating pod must be gone, by
    the clock of the server. stays_apart: no two such pods may come to one device.
    """

    uid: str
    name: str
    asked: Asked
    node: str = ""
    by: str = ""
    claim: Shares | None = None
    bound: int = 0
    edited: int = 0
    unstamped: bool = False
    terminating: bool = False
    runs: bool = False
    ended: bool = False
    gone: bool = False
    assigned: bool = False
    forged: bool = False
    cpu: int = 0
    put: dict[str, int] | None = None
    home: dict[str, int] = field(default_factory=dict)
    named: bool = False
    odd: bool = False
    uuids: tuple[str, ...] = ()
    cards: dict[str, int] | None = None
    namespace: str = HONEST
    refused: str = ""
    unseen: bool = False
    stays_apart: bool = False
    priority: int = 0
    lasts: bool = False
    ends_by: float = math.inf


@dataclass(frozen=True, slots=True)
class Cards:
    """The devices of a node, by the node object: units and health of each.

    closed: no placements there. plugin: how the device plug-in finds devices, see kubelet.
    ids: the card of each device. tells: the content of the object: "uuids" and "devices" have an
    inventory, with and without the cards' uuids; "totals" a total and a count; "memory" a total.
    sharers: the most pods of a device.
    """

    units: tuple[int, ...]
    healthy: tuple[bool, ...]
    closed: bool = False
    plugin: str = "own"
    ids: tuple[str, ...] = ()
    tells: str = "devices"
    sharers: int = ANY_SHARERS

    @property
    def named(self) -> bool:
        """Whether the node's object says which card each device is."""
        return self.tells == "uuids"

    @property
    def exact(self) -> bool:
        """Whether the node's object says that the plug-in serves cards by uuid."""
        return self.plugin == "exact" and self.tells == "uuids"

    def card(self, device: int) -> str:
        """The card at this index; "" for none."""
        return self.ids[device] if device < len(self.ids) else ""

    def room(self, device: int) -> int:
        """Units the device has for pods; 0 where none may be placed."""
        is_open = device < len(self.units) and self.healthy[device] and not self.closed
        return self.units[device] if is_open else 0


def claim_of(annotations: Mapping[str, str], request: Asked) -> Shares | None:
    """The placement of the annotations: IDX, if it names devices that can share the total.

    Device plug-ins read IDX; the rest of the annotations is `mapped` and `uuids_of`.
    """
    if not request.devices:
        return None
    tokens = annotations.get(IDX, "").split(",")
    if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in tokens):
        return None
    devices = tuple(sorted({int(token) for token in tokens}))
    if len(devices) != len(tokens) or request.total % len(devices):
        return None
    return request.on(devices)


def granted(annotations: Mapping[str, str]) -> dict[int, int]:
    """Units by device over all containers in the allocation map; empty where there is none."""
    sums: dict[int, int] = {}
    grants = json.loads(annotations.get(ALLOCATION, "{}"))
    for grant in grants.values() if isinstance(grants, dict) else ():
        for device, units in grant.items():
            sums[int(device)] = sums.get(int(device), 0) + units
    return sums


def mapped(annotations: Mapping[str, str], request: Asked) -> frozenset[int] | None:
    """The devices of an allocation map that gives each container the requested units."""
    try:
        grants = {
            int(container): {int(device): int(units) for device, units in grant.items()}
            for container, grant in json.loads(annotations.get(ALLOCATION, "")).items()
        }
    except (ValueError, AttributeError):
        return None
    expected = dict(enumerate(request.containers))
    if {container: sum(grant.values()) for container, grant in grants.items()} != expected:
        return None
    return frozenset(device for grant in grants.values() for device in grant)


def uuids_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The uuids that the annotations name."""
    text = annotations.get(UUIDS, "")
    return tuple(text.split(",")) if text else ()


def put_by(pod: PodTruth, annotations: Mapping[str, str], cards: Cards | None) -> None:
    """Record the cards of a pod that somebody else bound, as the plug-in would read the
    annotations.
    """
    pod.uuids, claim = uuids_of(annotations), pod.claim
    by_map = mapped(annotations, pod.asked)
    by_map_alone = by_map is not None and not by_map <= {device for device, _ in claim or ()}
    pod.odd = by_map_alone or bool(pod.uuids)
    is_on_node = cards is not None and all(device < len(cards.ids) for device, _ in claim or ())
    if claim is None or cards is None or not is_on_node:
        return
    pod.put = {cards.ids[device]: units for device, units in claim}
    pod.home = {cards.ids[device]: device for device, _ in claim}
    agrees = bool(pod.uuids) and pod.uuids == tuple(cards.ids[device] for device, _ in claim)
    pod.named = agrees and cards.named
    pod.odd = by_map_alone or (bool(pod.uuids) and not pod.named)
    if cards.exact and pod.uuids and set(pod.uuids) <= set(cards.ids):
        pod.put, pod.named = pod.asked.on_cards(pod.uuids), True


def least_charged(
    pod: PodTruth, cards: Cards, loose: frozenset[str], names: bool
) -> dict[int, int]:
    """Units by index that books must charge for the pod, if the books know these cards of the node.

    The units that the containers hold, or will hold by the placement. A card that has left the
    node holds nothing. By index alone a card is known as long as the card stays there. loose: the
    other cards that count, see Known; nobody can know that a pod holds a card outside these.
    names: whether the node ever named cards to these books.
    """
    beyond = pod.claim is None or any(device >= len(cards.units) for device, _ in pod.claim)
    if pod.claim is None or (beyond and not (pod.named or names)):
        # A pod that also names another device is charged there: the plug-in serves none. If the
        # cards had names, the cards at the indices may have been known by name before they went:
        # one device is then one of these cards, and does not hold the units of all.
        return {} if pod.odd else dict(enumerate(map(pod.asked.charged_anywhere, cards.units)))
    if pod.put is None:
        return {}
    if pod.cards is not None and not pod.cards.keys() <= {*pod.put, *loose}:
        return {}
    cards_held = pod.put if pod.cards is None else pod.cards
    units_by_index = {}
    for device, card in enumerate(cards.ids):
        if card in cards_held and ((cards.named and pod.named) or pod.home.get(card) == device):
            units_by_index[device] = cards_held[card]
    if pod.cards is None:
        units_by_index |= {
            device: units for device, units in pod.claim if cards.card(device) in loose
        }
    return {
        device: pod.asked.charged(units, cards.units[device])
        for device, units in units_by_index.items()
    }


def can_find(pod: PodTruth, cards: Cards, order: tuple[str, ...], indexed: bool) -> bool:
    """Whether books can know the devices of the pod on the node, which has these cards.

    order: the cards in the last order of the node. Without names now, the cards are believed to be
    at the old places. indexed: see Known. If the plug-in serves cards by uuid, books that have
    never known another plug-in believe the uuids, though an earlier one may have read the index.
    """
    if pod.uuids and not pod.named and cards.exact:
        return indexed
    return cards.named or not pod.named or order == cards.ids


@dataclass(slots=True)
class Known:
    """The knowledge of one process, by the lines and lists that reached it.

    identity: of the process. pods: uid -> the first version with a node. nodes,
    closed: the devices of each node, by the object and by the last readable ConfigMap.
    led: the last time of leading, by the process's own account. admitted: pods that the kubelet has
    admitted. changes: how often the node object's report of cards has changed. since: pods,
    and the count of changes at the placement or first sight. loose: for pods not
    known to be admitted, the cards reported since at the indices of the placement: a plug-in that
    reads indices may serve those. orders: the cards of each node in the last order of the
    object. named: the nodes whose objects ever named cards. indexed: pods
    that existed while the node's object said that the plug-in reads indices. ending: pods that
    are being deleted.
    """

    identity: str = ""
    pods: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, Cards] = field(default_factory=dict)
    closed: dict[str, frozenset[int]] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    led: float = -math.inf
    pages: dict[str, list[Json]] = field(default_factory=dict)
    admitted: set[str] = field(default_factory=set)
    changes: Counter[str] = field(default_factory=Counter)
    since: dict[str, int] = field(default_factory=dict)
    loose: dict[str, frozenset[str]] = field(default_factory=dict)
    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    indexed: set[str] = field(default_factory=set)
    ending: set[str] = field(default_factory=set)
    _reported: dict[str, Cards | None] = field(default_factory=dict)

    def show_node(self, name: str, cards: Cards | None) -> None:
        """Take over a node's object; None: the node is gone."""
        before = self._reported.get(name)
        same = before and cards and (before.ids, before.tells) == (cards.ids, cards.tells)
        self.changes[name] += not same
        self._reported[name] = cards
        if cards is None:
            self.nodes.pop(name, None)
            self.orders.pop(name, None)
        else:
            self.nodes[name] = cards
            if cards.named:
                self.orders[name] = cards.ids
                self.named.add(name)

    def can_find(self, pod: PodTruth, cards: Cards) -> bool:
        """Whether the process can know the devices of the pod's cards."""
        return can_find(pod, cards, self.orders.get(pod.node, cards.ids), pod.uid in self.indexed)

    def show_pod(self, pod: PodTruth) -> None:
        """Take over that a pod is on the node."""
        self.meet(pod.uid, pod.node)
        self.loosen(pod)

    def meet(self, uid: str, node: str) -> None:
        """Take over that the news of the pod's node is on the way."""
        self.since.setdefault(uid, self.changes[node])

    def at_home(self, pod: PodTruth) -> bool:
        """Whether the pod is at the placement, and the node has been the same since."""
        cards = self.nodes.get(pod.node)
        return (
            cards is not None
            and pod.put is not None
            and not pod.odd
            and pod.named <= cards.named
            and self.since.get(pod.uid) == self.changes[pod.node]
            and all(cards.card(device) == card for card, device in pod.home.items())
        )

    def loosen(self, pod: PodTruth) -> None:
        """Note which cards a plug-in that reads indices may give the pod from now on."""
        cards = self.nodes.get(pod.node)
        if cards is not None and cards.units and not (cards.exact or cards.closed):
            self.indexed.add(pod.uid)
        if cards is None or pod.put is None or pod.ended or pod.uid in self.admitted:
            return
        now = frozenset(cards.card(device) for device in pod.home.values())
        uncertain = now - {*pod.home, ""}
        if uncertain and cards.named and pod.named and not cards.exact:
            self.loose[pod.uid] = uncertain | self.loose.get(pod.uid, frozenset())

    def room(self, node: str, device: int) -> int:
        """Units of the device for pods, by the last report."""
        cards = self.nodes.get(node)
        if cards is None or device in self.closed.get(node, frozenset()):
            return 0
        return cards.room(device)
