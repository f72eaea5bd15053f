"""What the allocator found and did, for those who tell of it.

It decides nothing by this. Any thread may call, and none waits.

Tested in `tests/unit/extender/claims`.
"""

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpushare.core.model import PodRef
from gpushare.explain.claims import ClaimsLack
from gpushare.wire.dra.claims import ClaimRequest
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

    def why(self, uid: str) -> Wait | None:
        """Return why the pod waits, as was last found."""
        with self._lock:
            return self._waits.get(uid)

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
