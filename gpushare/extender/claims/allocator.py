"""Allocates the claims of pods that wait: decide, charge, protect the claim, write the allocation.

All claims of a pod are on one node or none. If some of its allocations are not taken, the next try
is on the node of the others; if that has no room, they are taken back. A gang is given
devices whole or not at all.

One thread takes cards, the oldest pod first, and a few write (writer.py), each for another pod.
kube-scheduler takes back what it cannot use; such a node comes last for the pod.

Tested in `tests/unit/extender/claims` and, with a real control plane, in
`tests/e2e/test_claims_served.py`.
"""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial

from gpushare.core.model import Amounts, Request
from gpushare.core.node_filters import amounts_of
from gpushare.errors import MessageError, WireError
from gpushare.extender.claims.books import ClaimBooks, claim_ref
from gpushare.extender.claims.cases import Case, Gang, Gangs, WaitingPod, case_of, has_devices
from gpushare.extender.claims.handlers import WaitingPods
from gpushare.extender.claims.view import Journal, Wait
from gpushare.extender.claims.writer import ClaimWriter
from gpushare.extender.managed_resources import ManagedResources
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.dra.claims import CLASS
from gpushare.wire.dra.objects import DeviceClass
from gpushare.wire.dra.slices import SliceCard
from gpushare.wire.dra.writes import release

log = logging.getLogger("gpushare.claims")

_EVERY = 1.0
"""Seconds between rounds in which nothing changes."""
_REST = 0.002
"""Seconds between rounds, so that what comes at once is looked at at once."""
_LEAST, _MOST = 1.0, 16.0
"""Seconds until a pod is tried again that nothing was found for, or that failed."""
_SHOWN = 1.0
"""Seconds within which all watches have shown that a pod is bound."""


@dataclass(slots=True)
class _Tries:
    """What became of a pod's tries."""

    due: float = 0.0
    delay: float = 0.0
    seen: tuple[int, int] | None = None
    """The version of the books in which there was no room for it; it is tried in another at once.
    """
    nodes: set[str] = field(default_factory=set)
    """Where its claim was allocated; as it waits again, kube-scheduler took that back."""

    def later(self, now: float, seen: tuple[int, int] | None = None) -> None:
        self.seen = seen
        self.delay = min(max(self.delay * 2, _LEAST), _MOST)
        self.due = now + self.delay


class _Arrivals:
    """What pods take of the nodes of their cards until they are bound and counted there.

    kube-scheduler would send those away for whom CPU, host memory or places are not left.
    """

    def __init__(self) -> None:
        self._node: dict[str, tuple[str, Request]] = {}
        self._gone: dict[str, float] = {}
        """When each was seen to have gone, the first one first."""
        self.taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """What is to come, by node."""

    def expected(self, uid: str, node: str, request: Request) -> None:
        """Count a pod on the node that it is to be bound to."""
        self._node[uid] = node, request
        self.taken[node].update(amounts_of(request))

    def keep(self, waiting: Collection[str], now: float) -> None:
        """Count no more who has waited no more for a while. If it was bound, another watch than
        that of those who wait may tell the books later.
        """
        for uid in self._node:
            if uid in waiting:
                self._gone.pop(uid, None)
            else:
                self._gone.setdefault(uid, now)
        for uid in [uid for uid, since in self._gone.items() if now - since >= _SHOWN]:
            del self._gone[uid]
            self.not_expected(uid)

    def not_expected(self, uid: str) -> None:
        """Count it no more: it is to go elsewhere."""
        if uid in self._node:
            node, request = self._node.pop(uid)
            self.taken[node].subtract(amounts_of(request))
            if not self.taken[node].total():
                del self.taken[node]


_Taken = list[tuple[Case, Sequence[tuple[SliceCard, ...]]]]
"""Pods, and the cards of each claim that they want."""


class Allocator:
    """Gives the driver's cards to claims, while this process leads and its books are full.

    device_class: returns our class as it is now, None if there is none. take_over: called before
    each round, shows the books what else has come. journal: is told what becomes of each pod.
    writers: the pods whose claims are written at once; their cards are taken one pod after the
    other in any case.
    """

    def __init__(
        self,
        api: Calls,
        books: ClaimBooks,
        waiting: WaitingPods,
        resources: ManagedResources,
        changed: threading.Event,
        *,
        device_class: Callable[[], DeviceClass | None],
        take_over: Callable[[], None] = lambda: None,
        journal: Journal | None = None,
        not_ready: Callable[[], str],
        leads_until: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        writers: int = 1,
    ) -> None:
        self._books = books
        self._waiting = waiting
        self._resources = resources
        self._changed = changed
        self._device_class = device_class
        self._take_over = take_over
        self._journal = journal or Journal()
        self._not_ready = not_ready
        self._clock = clock
        self._writes = ClaimWriter(
            api,
            books,
            self._journal,
            not_ready=not_ready,
            leads_until=leads_until,
            clock=clock,
        )
        self._held_back = ""
        self._tries: dict[str, _Tries] = {}
        self._arrivals = _Arrivals()
        self._gangs = Gangs(resources.gate.bound_members, clock)
        self._thread: threading.Thread | None = None
        self._most = writers
        self._writers: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []

    def start(self) -> None:
        """Begin, in a thread."""
        if self._most > 1:
            self._writers = ThreadPoolExecutor(self._most, "claims")
        self._thread = threading.Thread(target=self._run, name="claims", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no write any more; one that is under way is waited for a little."""
        self._writes.stopped = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def settled(self) -> bool:
        """Return whether nothing sent from here can still land."""
        return not self._books.in_flight()

    def held_back(self) -> str:
        """Return why no claim is given a card now, whatever is free; "" if nothing is in the way.

        Of a process that does not lead it says no more than that.
        """
        return self._not_ready() or next(filter(None, self.problems().values()), "")

    def problems(self) -> Mapping[str, str]:
        """Return by kind what keeps back all claims while this process leads, or "" if nothing."""
        problems = {"fence": "", "class": "", "unread": self._books.held_back()}
        if not self._not_ready():
            problems["fence"] = self._writes.fence_problem
            problems["class"] = "" if self._device_class() else f"there is no DeviceClass {CLASS}"
        return problems

    def round(self) -> None:
        """Try all pods that wait and are due: those of higher priority first, then the oldest."""
        try:
            self._round()
        finally:
            wait(self._under_way)

    def _round(self) -> None:
        """Do what `round` does, without waiting for what the writers are to write."""
        self._under_way = [each for each in self._under_way if not each.done()]
        self._take_over()
        if not self._not_ready():
            self._writes.look_at_fence()
        self._writes.settle()
        self._writes.sweep()
        held_back = self.held_back()
        if held_back != self._held_back:
            self._held_back = held_back
            log.info(Line("claims are given out", held_back=held_back or "no"))
        pods = self._waiting.all()
        self._arrivals.keep(pods.keys(), self._clock())
        for gone in self._tries.keys() - pods.keys():
            del self._tries[gone]
        self._journal.keep(pods.keys())
        now, version = self._clock(), self._books.ledger.version()
        tried = [(self._tries.setdefault(uid, _Tries()), pod) for uid, pod in pods.items()]
        self._gangs.look(pods)
        due = [
            (tries, pod)
            for tries, pod in tried
            if now >= tries.due or tries.seen not in (None, version)
        ]
        for tries, pod in sorted(due, key=lambda each: self._turn(each[1])):
            if self._writes.stopped or self._not_ready():
                return
            try:
                if not self._try(pod, tries):
                    return
            except Exception:
                # What one tenant writes must not keep the others waiting.
                log.exception(Line("claim not allocated", pod=pod.ref))
                tries.later(self._clock())

    def _turn(self, pod: WaitingPod) -> tuple[bool, int, str, str]:
        """Return by what the pods that wait are sorted."""
        first = self._gangs.comes_first(self._gangs.of.get(pod.ref.uid))
        return not first, -pod.priority, pod.created, pod.ref.name

    def _try(self, pod: WaitingPod, tries: _Tries) -> bool:
        """Try a pod, with its gang if it is of one; return whether others may be tried now."""
        gang = self._gangs.of.get(pod.ref.uid)
        if gang is None:
            case = self._case(pod)
            cases = [case] if case else []
        elif gang.tried:
            return True
        else:
            gang.tried = True
            self._look_at(gang)
            cases = [case for each in gang.pods if (case := self._case(each))]
        if not cases:
            return True
        if held_back := self.held_back():
            for case in cases:
                self._tries[case.pod.uid].due = self._clock() + _LEAST
                self._tell(Wait(case.pod, held_back))
            return True
        device_class = self._device_class()
        if device_class is None:
            return True
        if gang is not None:
            return self._allocate_gang(gang, cases, device_class)
        self._allocate(cases[0], tries, device_class)
        return True

    # -- one gang -------------------------------------------------------------------------------

    def _allocate_gang(self, gang: Gang, cases: Sequence[Case], device_class: DeviceClass) -> bool:
        """Give devices to as many of its pods as it needs to start, or to none; return whether
        others may be tried now: they may not have the room of those whose write was refused.
        """
        with_devices = sum(has_devices(pod, self._books) for pod in gang.pods)
        needed = gang.needed(with_devices)
        if not needed:
            for case in cases:
                self._allocate(case, self._tries[case.pod.uid], device_class)
            return True
        for case in cases:
            self._tries[case.pod.uid].later(self._clock())
            self._arrivals.not_expected(case.pod.uid)
        why = gang.why_not_yet(needed, len(cases), with_devices)
        taken = [] if why else self._take_whole(sorted(cases, key=Case.size)[:needed][::-1])
        if len(taken) == needed:
            return self._send_gang(gang, taken, device_class)
        many = "1 more pod" if needed == 1 else f"{needed} pods at once"
        why = why or f"its group needs devices for {many}: {len(taken)} fit now"
        version = self._books.ledger.version()
        for case in cases:
            tries = self._tries[case.pod.uid]
            self._tell(Wait(case.pod, why))
            if not self._release(case):
                tries.nodes.clear()
                tries.seen = version
        return True

    def _send_gang(self, gang: Gang, taken: _Taken, device_class: DeviceClass) -> bool:
        """Write what was taken for a gang, and wait for it; return whether others may be tried."""
        for case, cards in taken:
            if cards:
                self._dispatch(case, cards, self._tries[case.pod.uid], device_class)
        wait(self._under_way)
        self._look_at(gang)
        if not self._gangs.comes_first(gang):
            return True
        for case, _ in taken:
            self._tries[case.pod.uid].due = self._clock()
        return False

    def _look_at(self, gang: Gang) -> None:
        """Note whether a part of it alone has devices; give them back if that is so for long."""
        with_devices = sum(has_devices(pod, self._books) for pod in gang.pods)
        self._gangs.note(gang, in_part=with_devices > 0 and gang.needed(with_devices) > 0)
        if self._gangs.is_overdue(gang):
            self._writes.withdraw(gang.pods)

    def _take_whole(self, cases: Sequence[Case]) -> _Taken:
        """Charge the cards of all these pods, and return them; if not all fit, charge nothing and
        return those that would.
        """
        taken: _Taken = []
        homes: dict[str, str] = {}
        for member in cases:
            case = member.sharing(homes)
            try:
                cards = self._take(case, self._tries[case.pod.uid].nodes)
            except WireError as error:
                self._tell(Wait(case.pod, str(error), refused=True))
                continue
            node = cards[0][0].node if cards else ""
            if not case.wanted and case.nodes and len(case.nodes) == 1:
                (node,) = case.nodes  # where all that it has is
            if node:
                self._arrivals.expected(case.pod.uid, node, case.request)
                homes |= {claim_ref(claim).uid: node for claim, _ in case.wanted}
                taken.append((case, cards))
        if len(taken) < len(cases):
            for case, _ in taken:
                self._arrivals.not_expected(case.pod.uid)
                for claim, _ in case.wanted:
                    self._books.forget(claim_ref(claim).uid)
        return taken

    # -- one pod --------------------------------------------------------------------------------

    def _case(self, pod: WaitingPod) -> Case | None:
        """Return the pod's case; None if nothing can be done for it now."""
        try:
            return case_of(pod, self._books)
        except WireError as error:
            self._tell(Wait(pod.ref, str(error), refused=True))
            return None

    def _allocate(self, case: Case, tries: _Tries, device_class: DeviceClass) -> None:
        seen = self._books.ledger.version()
        tries.later(self._clock())
        self._arrivals.not_expected(case.pod.uid)
        try:
            taken = self._take(case, tries.nodes)
        except WireError as error:
            self._tell(Wait(case.pod, str(error), refused=True))
            return
        if not taken:
            self._tell(case.no_room(self._books.unit))
            if self._release(case):
                return
            tries.nodes.clear()
            tries.seen = seen
            return
        self._arrivals.expected(case.pod.uid, taken[0][0].node, case.request)
        self._dispatch(case, taken, tries, device_class)

    def _dispatch(
        self,
        case: Case,
        taken: Sequence[tuple[SliceCard, ...]],
        tries: _Tries,
        device_class: DeviceClass,
    ) -> None:
        if self._writers is None:
            self._send(case, taken, tries, device_class)
        else:
            self._under_way.append(
                self._writers.submit(self._send, case, taken, tries, device_class)
            )

    def _send(
        self,
        case: Case,
        taken: Sequence[tuple[SliceCard, ...]],
        tries: _Tries,
        device_class: DeviceClass,
    ) -> None:
        """Write what was taken for a pod; several threads may, each for another one."""
        if self._writes.give(case, taken, device_class):
            tries.nodes.add(taken[0][0].node)

    def _take(self, case: Case, tried: Collection[str]) -> Sequence[tuple[SliceCard, ...]]:
        """Charge the cards of all its claims on one node, or none of them: ().

        The node where kube-scheduler makes room for the pod comes first, also if it was tried.
        """
        if case.nominated:
            there = frozenset({case.nominated})
            there = there if case.nodes is None else there & case.nodes
            if cards_there := self._take(replace(case, nodes=there, nominated=""), ()):
                return cards_there
        left_out = {*tried}
        allowed = partial(self._may_go, case, left_out)
        while True:
            taken: list[tuple[SliceCard, ...]] = []
            try:
                for claim, asked in case.wanted:
                    nodes = taken[0][0].node.__eq__ if taken else allowed
                    try:
                        cards = self._books.take(claim, asked, nodes)
                    except MessageError as error:
                        raise MessageError(f"claim {claim_ref(claim)}: {error}") from error
                    if not cards:
                        break
                    taken.append(cards)
            finally:
                if len(taken) < len(case.wanted):
                    for (claim, _), _ in zip(case.wanted, taken, strict=False):
                        self._books.forget(claim_ref(claim).uid)
            if not taken or len(taken) == len(case.wanted):
                return taken
            left_out.add(taken[0][0].node)

    def _release(self, case: Case) -> bool:
        """Take back what only this pod has, so that all its claims can be on another node; return
        whether there was anything to be taken back.

        It cannot be bound meanwhile: one of its claims has no devices.
        """
        taken_back = False
        for claim in case.held:
            if [each.uid for each in claim.reserved] == [case.pod.uid]:
                taken_back = self._writes.take_back(claim, release(claim, case.pod)) or taken_back
        return taken_back

    def _may_go(self, case: Case, left_out: set[str], node: str) -> bool:
        """Return whether the node is the driver's alone, and kube-scheduler would not refuse it.

        left_out: the nodes that are not asked about; one that will not do is added.
        """
        if node in left_out:
            return False
        filters = next(iter(self._resources)).filters
        coming: Amounts = self._arrivals.taken.get(node, {})
        if (
            (case.nodes is None or node in case.nodes)
            and not any(managed.ledger.serves(node) for managed in self._resources)
            and node in filters.states
            and not filters.obstacles(node, case.request, case.demands, coming)
        ):
            return True
        left_out.add(node)
        return False

    def _tell(self, wait: Wait) -> None:
        if self._journal.waits(wait):
            log.info(Line("claim waits", pod=wait.pod, why=wait.why))

    def _run(self) -> None:
        while not self._writes.stopped:
            self._changed.wait(_EVERY)
            self._changed.clear()
            try:
                self._round()
            except Exception:
                # The thread must go on: without it no claim would get cards any more.
                log.exception("a round of claims failed")
            time.sleep(_REST)
        if self._writers is not None:
            self._writers.shutdown(wait=False)
