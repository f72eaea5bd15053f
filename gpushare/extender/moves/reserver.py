"""Reserves places for pods that have waited for long, so that smaller pods do not starve them.

Where each pod that fits is bound at once, the devices of a large pod never become free together. So
a pod that has waited for `after` seconds gets a reservation: the node that is expected to open
first (core/openings.py) is held for the pod, device by device as these become free, against younger
pods of no higher priority (verbs/holds.py). The reservations have at most a part of the memory; of
equal priority the namespace comes first that was served longest ago, then the oldest pod. Nothing
is stored: a new leader reserves anew by the ages of the pods. The time with closed gates counts
only where this process did not see the gates.
"""

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial

from gpushare.core.mutable_cluster import Placement
from gpushare.core.openings import Outlook, ReservedPart, Resident
from gpushare.core.policy import load_policy
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import MOST_LATE, Entry, Waiting
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.explain.defrag import CopiedBooks
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.verbs.holds import Hold
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.pods import Claimant, claimant, may_have_place, read_pod

log = logging.getLogger("gpushare.reservations")

EVERY = 10.0
_REST = 50.0
"""The pause after a round, as a multiple of the time of the round."""

MOST_PODS = 20
"""Upper bound of the reservations of a resource, and of the pods that one round looks at."""

PATIENCE = 600.0
"""Seconds that a place stays reserved while it is free and the pod is not bound: kube-scheduler
tries a refused pod again within 300."""

PAUSE = 60.0
"""Seconds until a place is looked for again where none was found."""

AFTER_END = 3600.0
"""Seconds until a pod that left its free place may have another."""

_LEAST_REST = 60.0
"""Seconds that pods without a known end run on in the mean, at least."""

_TIMEOUT = 10.0
_ENDLESS = ("pod-template-hash", "controller-revision-hash")
"""Labels of pods that a Deployment, StatefulSet or DaemonSet keeps running."""


@dataclass(eq=False)
class Reserver(LoopPart):
    """Makes and ends reservations: `round` once, a started part again and again.

    after: seconds that a pod must have waited. not_ready: why not to act now, or "". wall:
    seconds since the epoch.
    """

    api: Calls
    resources: ManagedResources
    _: KW_ONLY
    after: float
    not_ready: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._not_before: dict[str, float] = {}
        # By uid, since when the whole place of a pod is free.
        self._free_since: dict[str, float] = {}
        # By namespace with pods that wait: the time of its last new reservation.
        self._served_at: dict[str, float] = {}
        self._begun = self._given_up = 0
        self.loop = Loop("reservations", self._step, EVERY, log=log, failed="reservations failed")

    def stop(self) -> None:
        """End all reservations."""
        super().stop()
        self._end_all()

    def state(self) -> dict[str, float]:
        """Return the values for metrics."""
        return {
            "reservations": sum(len(r.holds.reservations()) for r in self.resources),
            "reservations_total": self._begun,
            "reservations_given_up_total": self._given_up,
        }

    def _step(self) -> float:
        """Make a round; return the pause after it, so that rounds take 2 % of the time at most."""
        begin = time.thread_time()
        self.round()
        return max(EVERY, _REST * (time.thread_time() - begin))

    def round(self) -> None:
        """End and make reservations. Raises ApiError."""
        if self.not_ready():
            self._end_all()
            return
        now, waiting = self.clock(), dict[str, Waiting]()
        holds = [hold for resource in self.resources for hold in resource.holds.reservations()]
        reserved = {hold.pod.ref.uid for hold in holds}
        self._free_since = {uid: at for uid, at in self._free_since.items() if uid in reserved}
        for resource in self.resources:
            pods = {pod.uid: pod for pod in resource.ledger.waiting()}
            waiting |= pods
            # The API server keeps no time at which gates were removed.
            gated_pods = [uid for uid, pod in pods.items() if pod.demands.gated]
            self._not_before |= dict.fromkeys(gated_pods, now + self.after)
            self._renew(resource, pods)
        namespaces = {pod.ref.namespace for pod in waiting.values()}
        self._not_before = {
            uid: at for uid, at in self._not_before.items() if uid in waiting and at > now
        }
        served = self._served_at.items()
        self._served_at = {name: at for name, at in served if name in namespaces}

    def _end_all(self) -> None:
        self._free_since.clear()
        for resource in self.resources:
            for hold in resource.holds.reservations():
                resource.holds.end_reservation(hold.pod.ref.uid)

    def _renew(self, resource: ManagedResource, waiting: dict[str, Waiting]) -> None:
        """End the reservations of a resource that have lost their reason, and choose the place of
        each other one anew: by now another node may open earlier.
        """
        snapshot, reserved = resource.ledger.snapshot(), dict[str, Hold]()
        for hold in resource.holds.reservations():
            if why := self._why_ended(resource, hold, waiting, snapshot):
                self._end(resource, hold, why)
            else:
                reserved[hold.pod.ref.uid] = hold
        free = [hold for uid, hold in reserved.items() if uid in self._free_since]
        pods = [
            pod
            for pod in self._candidates(waiting.values(), reserved)
            if pod.uid not in self._free_since and resource.holds.may_be_reserved(pod.uid)
        ]
        if not pods:
            return
        outlook = _outlook(resource, self.clock(), self.wall())
        part = ReservedPart(outlook.cluster)
        for hold in free:
            place = _place_of(hold, outlook)
            if place is not None:
                outlook.take(place)
                part.add(place)
        self._choose(resource, pods, outlook, part, reserved)

    def _why_ended(
        self, resource: ManagedResource, hold: Hold, waiting: dict[str, Waiting], snapshot: Snapshot
    ) -> str:
        """Return why a reservation ends, or ""."""
        uid, now = hold.pod.ref.uid, self.clock()
        pod, row = waiting.get(uid), snapshot.row.get(hold.node)
        if pod is None:
            return "the pod is bound or gone"
        if (pod.request, pod.priority) != (hold.pod.request, hold.pod.priority):
            return "the pod has changed"
        shares = hold.reserved.shares if hold.reserved is not None else ()
        devices = [device for device, _ in shares if device < snapshot.capacity.shape[1]]
        if (
            row is None
            or len(devices) < len(shares)
            or not snapshot.open[row, devices].all()
            or resource.filters.refuses(hold.node, pod.demands)
        ):
            return "the node does not take the pod any more"
        if any(resource.places(pod.request, pod.demands, [hold.node])):
            if now >= self._free_since.setdefault(uid, now) + PATIENCE:
                self._given_up += 1
                self._not_before[uid] = now + AFTER_END
                return "kube-scheduler does not use the free place"
        else:
            self._free_since.pop(uid, None)
        return ""

    def _end(self, resource: ManagedResource, hold: Hold, why: str) -> None:
        self._free_since.pop(hold.pod.ref.uid, None)
        resource.holds.end_reservation(hold.pod.ref.uid)
        log.info(Line("reservation ends", pod=hold.pod.ref, node=hold.node, why=why))

    # -- new reservations -------------------------------------------------------------------------

    def _candidates(self, waiting: Iterable[Waiting], reserved: Collection[str]) -> list[Waiting]:
        """Return the pods that have waited for long enough, or have a reservation."""
        now, oldest = self.clock(), self.wall() - self.after
        return [
            pod
            for pod in waiting
            if pod.served
            and 0 < pod.created <= oldest
            and (pod.uid in reserved or now >= self._not_before.get(pod.uid, -math.inf))
        ]

    def _choose(
        self,
        resource: ManagedResource,
        pods: list[Waiting],
        outlook: Outlook,
        part: ReservedPart,
        reserved: Mapping[str, Hold],
    ) -> None:
        """Choose places in the order of the pods, up to the largest part of the memory.

        A namespace comes later by each of its pods that fit now or nowhere: there are few tries.
        """
        now, names = self.clock(), outlook.cluster.view.names
        passed_over = {pod.uid for pod in pods} & reserved.keys()
        failed_tries = Counter[str]()

        def turn(pod: Waiting) -> tuple[int, int, bool, float, float]:
            failures = failed_tries[pod.ref.namespace]
            served_at = self._served_at.get(pod.ref.namespace, -math.inf)
            is_new = pod.uid not in reserved
            return failures, -pod.priority, is_new, served_at if is_new else 0.0, pod.created

        for _ in range(min(2 * MOST_PODS, len(pods))):
            if part.count == MOST_PODS:
                break
            pod = min(pods, key=turn)
            pods.remove(pod)
            hold = reserved.get(pod.uid)
            is_late = hold is not None or not any(resource.places(pod.request, pod.demands))
            kept = _place_of(hold, outlook) if hold is not None else None
            opening = outlook.first_opening(pod.request, pod.demands, kept) if is_late else None
            holder = None
            if opening is not None:
                holder = hold.pod if hold is not None else self._holder(pod)
            if opening is None or holder is None:
                self._not_before[pod.uid] = now + PAUSE
                failed_tries[pod.ref.namespace] += 1
                continue
            if not part.allows(opening.placement):
                break  # a later pod that is smaller does not overtake
            row, shares, _ = opening.placement
            node, since = names[row], hold.since if hold is not None else now
            if not resource.holds.begin_reservation(holder, node, shares, opening.at, since):
                continue
            passed_over.discard(pod.uid)
            outlook.take(opening.placement)
            part.add(opening.placement)
            if hold is None:
                self._served_at[pod.ref.namespace] = now
                self._begun += 1
            if hold is None or hold.node != node:
                opens_in = round(opening.at - now)
                log.info(Line("reservation", pod=pod.ref, node=node, opens_in=opens_in))
        for uid in passed_over:
            self._end(resource, reserved[uid], "no node opens, or another pod comes first")

    def _holder(self, pod: Waiting) -> Claimant | None:
        """Return the pod for its reservation; None if the pod may have none. Raises ApiError."""
        shown = read_pod(partial(self.api.request, "GET", timeout=_TIMEOUT), pod.ref)
        if shown is None or not may_have_place(shown):
            return None
        return claimant(shown, pod.request)


def _outlook(resource: ManagedResource, now: float, wall: float) -> Outlook:
    """Return the books as they are. now: monotonic; wall: seconds since the epoch."""
    books = CopiedBooks.of(resource.ledger, resource.filters, load_policy(FALLBACK_POLICY))
    residents: defaultdict[int, list[Resident]] = defaultdict(list)
    ages: list[float] = []
    for entry in books.entries.values():
        placement = books.placement(entry) if _may_end(entry, wall) else None
        if placement is None:
            continue
        ends_by = now + entry.ends_by - wall if entry.ends_by else None
        if ends_by is None and entry.started:
            ages.append(wall - entry.started)
        residents[placement.row].append(Resident(placement, ends_by))
    rest = max(sum(ages) / max(len(ages), 1), _LEAST_REST)
    return Outlook(books.cluster, books.host, residents, now, rest)


def _place_of(hold: Hold, outlook: Outlook) -> Placement | None:
    """Return the place of a reservation; None if the node is gone."""
    row = outlook.cluster.view.row.get(hold.node)
    if row is None or hold.reserved is None:
        return None
    return Placement(row, hold.reserved.shares, hold.pod.request)


def _may_end(entry: Entry, wall: float) -> bool:
    """Return whether the pod may end by itself. wall: seconds since the epoch."""
    if entry.terminating:
        return entry.ends_soon(wall)
    if entry.ends_by:
        # The kubelet of an overdue pod is away.
        return entry.ends_by >= wall - MOST_LATE
    return not any(key in _ENDLESS for key, _ in entry.labels)
