"""One process of ours over the played API server: our books, handlers, allocator and readiness.

What follows the API server and the Lease is played; what is told to the handlers, and when, is the
story's. A process that is killed is thrown away.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gpushare.core.node_filters import NodeState
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.claims.allocator import Allocator
from gpushare.extender.claims.books import ClaimBooks, claim_ref
from gpushare.extender.claims.handlers import ClaimHandler, SliceHandler, WaitingPods
from gpushare.extender.follow.readiness import Readiness, Source
from gpushare.kube.api import Calls
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.claims import ClaimRequest
from gpushare.wire.dra.objects import ResourceClaim
from gpushare.wire.dra.slices import SliceCard
from tests.simulation.claims.server import CLAIMS, KINDS, PODS, SLICES, Event, Json, Store
from tests.unit.extender.kit import managed_resources
from tests.unit.wire.dra.objects import DRIVER, GIB, device_class

_SETTINGS = {"opaque": {"driver": DRIVER, "parameters": {"sharing": "memory"}}}
"""Of our device class, for the driver."""
_RANKING = Ranking(load_policy("device-bestfit"))

Told = Callable[["Replica", str, str, Json], None]
"""Called with each object that a process is told of: kind, event ("LISTED" too), object."""


def gang_of(pod: Json) -> tuple[str, int] | None:
    """Return the name of the pod's gang, and how many pods it needs at once."""
    labels = pod["metadata"].get("labels") or {}
    name = labels.get("scheduling.x-k8s.io/pod-group")
    return (name, int(labels["pod-group.scheduling.sigs.k8s.io/min-available"])) if name else None


def _uids(events: list[Event]) -> list[str]:
    return [each.raw["metadata"]["uid"] for each in events]


@dataclass(slots=True)
class _Status:
    synced: bool = False
    listed_at: float = float("-inf")
    last_contact: float = 0.0


class _Follower:
    """Lists and watches one kind, as a Reflector does; it goes on when the story says so."""

    def __init__(self, store: Store, kind: str, handler: Any) -> None:
        self.status = _Status()
        self.wanted = True
        """A list is to be begun."""
        self.hangs = False
        """The watch tells nothing any more, until there is another one."""
        self._store, self._kind, self._handler = store, kind, handler
        self._at = 0
        self._listing: tuple[float, int, list[Event]] | None = None

    def request_relist(self) -> None:
        self.wanted = True

    def begin(self, now: float) -> None:
        """Send a list; what it holds is as of now, whenever it arrives."""
        latest = {each.raw["metadata"]["uid"]: each for each in self._store.events[self._kind]}
        there = [each for each in latest.values() if each.kind != "DELETED"]
        self._listing = now, len(self._store.events[self._kind]), there
        self.wanted = self.hangs = False

    def step(self, now: float, most: int) -> list[Event]:
        """Return and tell what comes next: a list as one, or some events."""
        self.status.last_contact = now
        if self._listing is None and (self.wanted or not self.status.synced):
            self.begin(now)
            return []
        if self._listing is not None:
            listed_at, self._at, there = self._listing
            self._listing = None
            self._handler.replace([Decoded([each.object for each in there], "")], listed_at)
            self.status.synced, self.status.listed_at = True, listed_at
            return [Event("LISTED", each.object, each.raw) for each in there]
        if self.hangs:
            return []
        new = self._store.events[self._kind][self._at : self._at + most]
        self._at += len(new)
        for each in new:
            self._handler.apply(WatchEvent(each.kind, each.object))
        return new


@dataclass(slots=True)
class Lease:
    """Who leads, until when; the next one may not begin before."""

    holder: "Replica | None" = None
    until: float = 0.0
    since: float = 0.0


class _Term:
    """What a process knows of the Lease."""

    def __init__(self, owner: "Replica", lease: Lease) -> None:
        self._owner, self._lease = owner, lease

    def leads_until(self, now: float) -> float:
        del now
        return self._lease.until if self._lease.holder is self._owner else 0.0

    def fenced_until(self) -> float:
        return self._lease.since


class Replica:
    """A process: alive until it is killed or stopped."""

    def __init__(
        self,
        name: str,
        store: Store,
        api: Calls,
        lease: Lease,
        *,
        clock: Callable[[], float],
        nodes: tuple[str, ...],
        told: Told,
        between: Callable[[], None],
    ) -> None:
        self.name, self.store, self._clock, self._told = name, store, clock, told
        self.alive = True
        self.shown: dict[str, Json] = {}
        """Slices by name, as last told to it."""
        resources = managed_resources()
        self.holds = next(iter(resources)).holds
        for node in nodes:
            resources.node_states.put(NodeState(node))
        ledger = next(iter(resources)).ledger
        self.books = ClaimBooks(DRIVER, GIB, _RANKING, lend=ledger.lend)
        self.taken: set[str] = set()
        """The claims that were charged in this round, by name."""
        take = self.books.take

        def noted(
            claim: ResourceClaim, asked: ClaimRequest, nodes: Callable[[str], bool]
        ) -> tuple[SliceCard, ...]:
            cards = take(claim, asked, nodes)
            self.taken |= {claim_ref(claim).name} if cards else set()
            return cards

        self.books.take = noted  # type: ignore[method-assign]
        changed = threading.Event()
        waiting = WaitingPods(changed.set)
        slices = SliceHandler(self.books, changed.set, clock)
        handlers: Mapping[str, Any] = {
            CLAIMS: ClaimHandler(self.books, changed.set),
            SLICES: slices,
            PODS: waiting,
        }
        self.followers = {kind: _Follower(store, kind, handlers[kind]) for kind in KINDS}
        sources = {kind: Source(cast(Any, each)) for kind, each in self.followers.items()}
        sources["waiting"] = sources[PODS]
        self.readiness = Readiness(sources, cast(Any, _Term(self, lease)), clock)

        def not_ready() -> str:
            between()
            return self.readiness.not_ready_for_claims()

        self.allocator = Allocator(
            api,
            self.books,
            waiting,
            resources,
            changed,
            device_class=lambda: device_class(_SETTINGS),
            take_over=slices.take_over,
            not_ready=not_ready,
            leads_until=self.readiness.leads_until,
            clock=clock,
        )

    def show(self, kind: str, most: int) -> None:
        """Tell it the next of this kind: a list, or at most so many events."""
        self.readiness.tick()
        events = self.followers[kind].step(self._clock(), most)
        if kind == PODS:
            self._show_members(events)
        if kind == SLICES and events and events[0].kind == "LISTED":
            self.shown = {}
        for each in events:
            if kind == SLICES and each.kind == "DELETED":
                self.shown.pop(each.raw["metadata"]["name"], None)
            elif kind == SLICES:
                self.shown[each.raw["metadata"]["name"]] = each.raw
            self._told(self, kind, each.kind, each.raw)

    def _show_members(self, events: list[Event]) -> None:
        """Tell it of members of gangs, as the watch of all pods does."""
        there = {each["metadata"]["uid"]: each for each in self.store.objects[PODS].values()}
        if events and events[0].kind == "LISTED":
            self.holds.keep((), there)
        for uid in there if events and events[0].kind == "LISTED" else _uids(events):
            gang = gang_of(there[uid]) if uid in there else None
            if gang is None:
                self.holds.gone(uid)
            else:
                waits = not there[uid]["spec"].get("nodeName")
                self.holds.placed(uid, f"coscheduling default/{gang[0]}", by_claim=waits)

    def hangs(self) -> bool:
        """Return whether a watch of it tells nothing."""
        return any(each.hangs for each in self.followers.values())

    def catch_up(self) -> None:
        """Tell it all that there is."""
        for kind, follower in self.followers.items():
            follower.hangs = False
            for _ in range(3):
                self.show(kind, 10_000)

    def rebuilt(self) -> ClaimBooks:
        """Return the books that are made of what there is now alone."""
        books = ClaimBooks(DRIVER, GIB, _RANKING)
        made = _Follower(self.store, SLICES, SliceHandler(books, lambda: None))
        claims = _Follower(self.store, CLAIMS, ClaimHandler(books, lambda: None))
        for follower in (made, claims):
            follower.step(0.0, 0)
            follower.step(0.0, 0)
        return books
