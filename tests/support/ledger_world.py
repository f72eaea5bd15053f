"""An API server, its watch and its clients as plain dictionaries: the oracle for the books.

Slow and obvious. Events come late, lists are older than they look, answers are lost, and bindings
land after the client has given up.
"""

from dataclasses import dataclass, field, replace

from gpushare.core.amounts import charged_units
from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Request, Shares

REQUEST_TIMEOUT = 60.0
"""Seconds after which kube-apiserver ends a request: a binding sent earlier lands no more."""

READ_TIMEOUT = 5.0
"""Upper bound on the seconds of a client between sending a read and settling by its answer."""


Shards = tuple[tuple[str, int], ...]
"""(card, units)."""


@dataclass
class Rig:
    """The true cards of a node by index; the inventory may say otherwise.

    names_cards: the inventory names them. identity: the device plug-in gives the cards that a
    Binding names; otherwise it gives the cards at the indexes. version: rises with each change.
    pure_since: the version since both have been true.
    """

    order: tuple[str, ...] = ()
    names_cards: bool = False
    identity: bool = False
    version: int = 0
    pure_since: float = float("inf")

    def becomes(self, order: tuple[str, ...], *, names: bool, identity: bool) -> None:
        if (order, names, identity) == (self.order, self.names_cards, self.identity):
            return
        self.order, self.names_cards, self.identity = order, names, identity
        self.version += 1
        pure = names and identity
        self.pure_since = min(self.pure_since, self.version) if pure else float("inf")

    def given(self, shares: Shares, uuids: tuple[str, ...]) -> Shards:
        """The devices that a device plug-in gives a pod with this Binding now."""
        units = [amount for _, amount in shares]
        if self.identity and uuids:
            return tuple(zip(uuids, units, strict=True))
        return tuple(
            (self.order[index], amount) for index, amount in shares if index < len(self.order)
        )


@dataclass
class Pod:
    """The true state of a pod. bound_shares: the place of the Binding. placement: by annotations.

    cards: the cards of the device plug-in, once given. bound_at: the version of the node by then.
    """

    ref: PodRef
    request: Request
    node: str = ""
    bound_shares: Shares = ()
    placement: Shares | None = None
    assigned: bool = False
    ended: bool = False
    is_own: bool = False
    started: float = 0.0
    running: bool = False
    uuids: tuple[str, ...] = ()
    cards: Shards | None = None
    bound_at: int = 0

    def seen(self) -> ObservedPod:
        return ObservedPod(
            self.ref,
            self.request,
            self.node,
            self.placement,
            self.assigned,
            self.ended,
            1.0,
            self.started,
            running=self.running,
            uuids=self.uuids if self.placement else (),
        )


@dataclass
class Post:
    """A binding under way to the API server, with the answer once there is one."""

    uid: str
    allocation: Allocation
    sent_at: float
    version: int = 0
    status: int = 0
    is_reported: bool = False


@dataclass
class World:
    """The true state of the cluster, and the part that the watch has shown.

    sent_bindings: the pod, the shares and the version of the node for each Binding of ours.
    """

    now: float = 0.0
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    rigs: dict[str, Rig] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    posts: list[Post] = field(default_factory=list)
    log: list[ObservedPod | str] = field(default_factory=list)
    cursor: int = 0
    shown_uids: set[str] = field(default_factory=set)
    sent_bindings: set[tuple[str, Shares, int]] = field(default_factory=set)
    listing: tuple[list[ObservedPod], int] | None = None

    def create(self, uid: str, request: Request) -> None:
        self.pods[uid] = Pod(PodRef("default", uid, uid), request)
        self.log.append(self.pods[uid].seen())

    def change(self, uid: str, **fields: object) -> None:
        pod = replace(self.pods[uid], **fields)  # type: ignore[arg-type]  # fields of Pod
        self.pods[uid] = pod
        self.log.append(pod.seen())

    def delete(self, uid: str) -> None:
        del self.pods[uid]
        self.log.append(uid)

    def send(self, post: Post) -> None:
        self.posts.append(post)
        self.sent_bindings.add((post.uid, post.allocation.shares, post.version))

    def land(self, post: Post) -> None:
        """Let the API server store or refuse the binding: 404, 409, or 504 for a late one."""
        pod = self.pods.get(post.uid)
        if self.now >= post.sent_at + REQUEST_TIMEOUT:
            post.status = 504
        elif pod is None:
            post.status = 404
        elif pod.node or pod.ended:
            post.status = 409
        else:
            post.status = 201
            path = post.allocation
            self.change(
                post.uid,
                node=path.node,
                bound_shares=path.shares,
                placement=path.shares,
                uuids=path.uuids,
                is_own=True,
                bound_at=post.version,
            )

    def may_land(self, post: Post) -> bool:
        pod = self.pods.get(post.uid)
        on_its_way = not post.status and self.now < post.sent_at + REQUEST_TIMEOUT
        return on_its_way and pod is not None and not pod.node and not pod.ended

    def read(self, uid: str) -> ObservedPod | None:
        return self.pods[uid].seen() if uid in self.pods else None

    def list_pods(self) -> None:
        self.listing = ([pod.seen() for pod in self.pods.values()], len(self.log))

    def note_shown(self, pod: ObservedPod) -> None:
        now = self.pods.get(pod.ref.uid)
        # For a pod of a late event the meaning of its indices at the binding is unknown.
        if pod.node and now and (now.is_own or now.bound_at == self.rigs[now.node].version):
            self.shown_uids.add(pod.ref.uid)

    def serve(self, uid: str) -> None:
        """Give the pod the devices that the node's plug-in gives now, if it has none yet."""
        pod = self.pods[uid]
        if pod.cards is None:
            self.pods[uid] = replace(
                pod, cards=self.rigs[pod.node].given(pod.bound_shares, pod.uuids)
            )

    def waiting(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if not pod.node and not pod.ended]

    def running(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node and not pod.ended]

    def held(self, node: str) -> list[tuple[int, int]]:
        """(units, cores) by device that are used or may become used: no book may count these as
        free.

        Pods bound by others count after the watch has shown them.
        """
        rig = self.rigs[node]
        values = {
            pod.ref.uid: rig.given(pod.bound_shares, pod.uuids) if pod.cards is None else pod.cards
            for pod in self.running()
            if pod.node == node and (pod.is_own or pod.ref.uid in self.shown_uids)
        }
        landing = {
            post.uid: rig.given(post.allocation.shares, post.allocation.uuids)
            for post in self.posts
            if post.allocation.node == node and self.may_land(post)
        }
        used = [(0, 0)] * len(self.nodes[node].capacity)
        for uid, shards in (*values.items(), *landing.items()):
            for card, units in shards:
                if card in rig.order:
                    at = rig.order.index(card)
                    (before, cores), request = used[at], self.pods[uid].request
                    capacity = self.nodes[node].capacity[at]
                    charged = charged_units(units, request.percents, capacity)
                    used[at] = (before + charged, cores + request.cores)
        return used

    def charged(self, node: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(least, most) units by device that right books charge once everything has been shown,
        and the same of cores.

        They differ only for pods whose cards may have moved since they were bound.
        """
        capacity, rig = self.nodes[node].capacity, self.rigs[node]
        count = len(capacity)
        minimum, maximum, least_cores, most_cores = ([0] * count for _ in range(4))
        for pod in self.running():
            if pod.node != node or not pod.request.devices:
                continue
            sure, request = self._surely(pod, rig), pod.request
            all_items = min(request.cores * request.devices, 100)
            if sure is None:
                everything = [
                    charged_units(request.total, request.all_percents, units) for units in capacity
                ]
                maximum = [units + more for units, more in zip(maximum, everything, strict=True)]
                most_cores = [cores + all_items for cores in most_cores]
                continue
            for device, units in enumerate(sure):
                is_exact = units == request.units
                if units:
                    least, most = (
                        charged_units(units, percents, capacity[device])
                        for percents in (
                            request.percents if is_exact else (),
                            request.percents if is_exact else request.all_percents,
                        )
                    )
                    minimum[device] += least
                    maximum[device] += most
                    least_cores[device] += request.cores
                    most_cores[device] += request.cores if is_exact else all_items
        return [*zip(minimum, maximum, strict=True)], [*zip(least_cores, most_cores, strict=True)]

    def _surely(self, pod: Pod, rig: Rig) -> list[int] | None:
        """Units by device where there can be no doubt."""
        count = len(rig.order)
        if pod.is_own and pod.uuids and pod.bound_at >= rig.pure_since:
            if not {*pod.uuids} <= {*rig.order, *self.nodes[pod.node].gone}:
                return (
                    None  # the node does not report the removal of the card: its named cards count
                )
            charges = dict(zip(pod.uuids, (units for _, units in pod.bound_shares), strict=True))
            return [charges.get(card, 0) for card in rig.order]
        if pod.bound_at != rig.version or (not pod.is_own and pod.ref.uid not in self.shown_uids):
            return None
        if not pod.is_own and any(
            (uid, shares) == (pod.ref.uid, pod.placement) and version != rig.version
            for uid, shares, version in self.sent_bindings
        ):
            return None  # the Binding reads as an older one of ours, for other cards
        if pod.placement is None or any(device >= count for device, _ in pod.placement):
            return [pod.request.total] * count
        return [dict(pod.placement).get(device, 0) for device in range(count)]
