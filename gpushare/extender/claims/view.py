"""What may be told of claims: what the allocator found and did, and the one view of this and of the
books for events, metrics, pages and commands.

Nothing is decided or changed by this. Any thread may call, and none waits.

Tested in `tests/unit/extender/claims`.
"""

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from gpushare.core.dealing import Asked
from gpushare.core.model import PodRef
from gpushare.core.ranking import Ranking
from gpushare.errors import MessageError
from gpushare.explain.claims import ClaimFilters, ClaimsLack, DriverNodes
from gpushare.extender.claims.books import ClaimBooks, claim_ref
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.claims import CLASS, ClaimRequest, claim_request
from gpushare.wire.dra.slices import SliceCard

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the durations that are counted together, in seconds."""

_MOST_GIVEN = 512


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a pod has no cards for its claims."""

    pod: PodRef
    why: str
    """For its user."""
    refused: bool = False
    """The claim or the pod has to be another one; no other node or time helps."""
    claim: str = ""
    """The one for which no node has room."""
    lack: ClaimsLack | None = None
    """What no node has room for; None: that is not why."""


@dataclass(frozen=True, slots=True)
class Given:
    """Cards that a claim was given for a pod that waited."""

    pod: PodRef
    claim: PodRef
    cards: tuple[SliceCard, ...]
    asked: ClaimRequest
    """What the claim asks for, a part for each card."""


class Journal:
    """Why each pod waits, what was given, and how the writes of allocations ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[str, Wait] = {}
        self._given: deque[Given] = deque(maxlen=_MOST_GIVEN)
        self._unanswered: dict[str, Given] = {}
        self._outcomes: Counter[str] = Counter(allocated=0, refused=0, in_doubt=0)
        self._durations = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self.version = 0
        """It differs after each change of what waits, and why."""

    def waits(self, wait: Wait) -> bool:
        """Note why the pod waits; return whether that is new."""
        with self._lock:
            before = self._waits.get(wait.pod.uid)
            self._waits[wait.pod.uid] = wait
            self.version += before != wait
            return before is None or before.why != wait.why

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        with self._lock:
            for gone in self._waits.keys() - uids:
                del self._waits[gone]
                self.version += 1

    def wrote(self, outcome: str, seconds: float, given: Given) -> None:
        """Note how the write of an allocation ended: allocated, refused or in_doubt."""
        with self._lock:
            self._outcomes[outcome] += 1
            self._durations[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds
            if outcome != "refused":  # it has its devices, or may have
                self.version += self._waits.pop(given.pod.uid, None) is not None
            if outcome == "allocated":
                self._given.append(given)
            elif outcome == "in_doubt":
                self._unanswered[given.claim.uid] = given

    def settle(self, in_flight: Collection[str], landed: Callable[[PodRef, PodRef], bool]) -> None:
        """Note the writes in doubt of which it is known by now whether they have landed.

        in_flight: the claims of which it is not known. landed: of a claim and its pod.
        """
        with self._lock:
            known = [uid for uid in self._unanswered if uid not in in_flight]
            settled = [self._unanswered.pop(uid) for uid in known]
        allocated = [each for each in settled if landed(each.claim, each.pod)]
        with self._lock:
            self._outcomes["allocated"] += len(allocated)
            self._given.extend(allocated)

    # -- for those who tell ---------------------------------------------------------------------

    def waiting(self) -> dict[str, Wait]:
        """Return all that wait, by the pod's uid."""
        with self._lock:
            return dict(self._waits)

    def take_given(self) -> list[Given]:
        """Return what was given since the last call; of very much, the end."""
        with self._lock:
            given, self._given = list(self._given), deque(maxlen=_MOST_GIVEN)
            return given

    def outcomes(self) -> tuple[Mapping[str, int], list[int], float]:
        """Return the writes by outcome, by duration (as BUCKETS, and longer ones), and the sum of
        their seconds.
        """
        with self._lock:
            return dict(self._outcomes), list(self._durations), self._seconds


class ClaimsView:
    """The books of claims, and what the allocator found.

    driver: whose cards they are. source: the driver's nodes as a resource named after the class,
    whose pods are claims; it serves no verb. ranking: by the policy of that name.
    """

    def __init__(
        self,
        driver: str,
        books: ClaimBooks,
        journal: Journal,
        resources: ManagedResources,
        *,
        policy: str,
        ranking: Ranking,
    ) -> None:
        self.driver = driver
        self.alone = resources.scope.claims_alone
        """Whether claims are all that is served."""
        self.books = books
        self.journal = journal
        self.problems: Callable[[], Mapping[str, str]] = lambda: {"unread": books.held_back()}
        """Returns by kind what keeps back all claims; the allocator knows more than the books."""
        self.source = ManagedResource(
            replace(ALIYUN, resource=CLASS),
            books.ledger,
            {policy: ranking},
            policy,
            filters=ClaimFilters(
                next(iter(resources)).filters,
                lambda node: any(managed.ledger.serves(node) for managed in resources),
            ),
        )

    @property
    def nodes(self) -> DriverNodes:
        """The driver's nodes, as claims are explained on them."""
        return DriverNodes(self.source, self.books.dealing)

    def users(self) -> dict[str, tuple[str, ...]]:
        """Return the pods for which each claim that has devices is reserved: names by its uid."""
        return {
            claim_ref(claim).uid: tuple(each.name or "" for each in claim.reserved)
            for claim in self.books.allocated()
        }

    def reserved(self) -> dict[str, tuple[str, ...]]:
        """Return the same with the uids of the pods."""
        return {
            claim_ref(claim).uid: tuple(each.uid or "" for each in claim.reserved)
            for claim in self.books.allocated()
        }

    def asked(self) -> dict[str, Asked]:
        """Return what each claim that has devices asks for, by its uid, if that can be told."""
        asked = {}
        for claim in self.books.allocated():
            try:
                request = claim_request(claim, CLASS)
                if request is not None:
                    asked[claim_ref(claim).uid] = request.asked(self.books.unit)
            except MessageError:
                continue
        return asked

    def why_held_back(self) -> str:
        """Return why nothing is given out, whatever is free; "" if that is not so."""
        why = next(filter(None, self.problems().values()), "")
        return why and f"{why}: nothing is given out"

    def why(self, uid: str) -> str:
        """Return why the pod waits, as was last found; "" if nothing was."""
        wait = self.journal.waiting().get(uid)
        if wait is not None and wait.refused:
            return wait.why
        return self.why_held_back() or (wait.why if wait else "")
