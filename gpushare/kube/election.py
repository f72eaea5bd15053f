"""Leadership by a Lease: the document, and two step machines; answers and a time in, calls out.

Knows `coordination.k8s.io/v1` Leases as kube-scheduler's leader election writes them, and no
sockets, threads, clocks or randomness. Times in the document are the wall clock of the writer; the
local monotonic clock decides on leadership. A machine decides whether this process may bind, and
knows nothing about binding.

`Elector` leads by a Lease of gpushare. The elector of the official client does not do: a dropped
connection ends its thread while the work of the leader goes on. The promises, for any loss, delay
or order of calls:

- Two processes never lead at one time. A term ends `renew_deadline` after the last renewal was
  *sent*; another process begins `duration` after it *saw* the last renewal, at the earliest.
- Unless the old leader released the Lease, at least `bind_budget` passes between its term and the
  next one. By then each write of the old leader has landed, or never will.
- Only times of the local monotonic clock count. The times in the Lease are foreign wall clocks.

A process does not notice a pause (SIGSTOP, a stalled machine). So a bind reads `Term.until` right
before its call, and the term must outlast the call.

`SchedulerLease` only reads the Lease of kube-scheduler. This is for an extender that the
kube-scheduler of the same host calls over loopback: another host could hold a separate Lease of
gpushare. So this process leads exactly while the kube-scheduler of *this* host holds the Lease of
kube-scheduler. kube-scheduler names itself `HOST_UUID` (os.Hostname, an underscore, a UUID without
underscores). A kube-scheduler that cannot renew exits, and another takes over
`leaseDurationSeconds` after the last renewal.
"""

import json
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpushare.errors import ApiConflict, ApiError, SettingsError, WireError

NEVER = float("-inf")

RELEASED_DURATION = 1.0
"""The duration that a holder writes to release a Lease, as client-go does."""

_UNREADABLE = (
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
    OverflowError,  # a number too large for a float, or infinite if a whole one belongs
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease to read or write: the holder, the seconds of a renewal, and the document, since a PUT
    must keep all other fields.

    `renewed` and `acquired` are texts of the document: compared, but never computed with to lead.
    """

    holder: str
    duration: float
    acquired: str
    renewed: str
    transitions: int
    uid: str
    version: str
    document: bytes

    def same_term(self, other: "Lease") -> bool:
        """Return whether the Lease was not renewed, taken, released or edited between the two."""
        return replace(self, document=b"") == replace(other, document=b"")

    def transitions_since(self, other: "Lease") -> float:
        """Return how often the holder changed since the other was read; infinity if the Lease was
        deleted and made again: then its transitions count from 0.
        """
        return self.transitions - other.transitions if self.uid == other.uid else math.inf

    @property
    def released(self) -> bool:
        """Whether the last holder released the Lease; a holder removed by hand may still lead."""
        return not self.holder and self.duration == RELEASED_DURATION

    def held_by(self, holder: str, wall: float, duration: float) -> bytes:
        """Return the document to PUT: `holder` ("" releases) holds the Lease from now on.

        The document has the resourceVersion of the read, so the API server answers 409 if another
        client wrote meanwhile. A change of holder counts as a transition, as in client-go.
        """
        document: dict[str, Any] = json.loads(self.document)
        now = stamp(wall)
        spec = {**(document.get("spec") or {})}
        if holder and holder != self.holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = self.transitions + 1
        spec["holderIdentity"] = holder
        spec["leaseDurationSeconds"] = max(1, math.ceil(duration))
        spec["renewTime"] = now
        return json.dumps({**document, "spec": spec}).encode()


def new_lease(namespace: str, name: str, holder: str, wall: float, duration: float) -> bytes:
    """Return the document of a Lease to POST."""
    now = stamp(wall)
    document = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, math.ceil(duration)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        },
    }
    return json.dumps(document).encode()


def read_lease(body: bytes) -> Lease:
    """Return the Lease in an answer. Raises WireError for another document."""
    try:
        document: dict[str, Any] = json.loads(body)
        if document.get("kind") != "Lease":
            raise ValueError("of another kind")
        spec = document.get("spec") or {}
        duration = float(spec.get("leaseDurationSeconds") or 0)
        if not math.isfinite(duration):
            raise ValueError("leaseDurationSeconds")
        return Lease(
            holder=str(spec.get("holderIdentity") or ""),
            duration=duration,
            acquired=str(spec.get("acquireTime") or ""),
            renewed=str(spec.get("renewTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
            uid=str(document["metadata"].get("uid") or ""),
            version=str(document["metadata"]["resourceVersion"]),
            document=body,
        )
    except _UNREADABLE as error:
        raise WireError(f"Lease: not readable ({type(error).__name__}: {error})") from error


def seconds_of(stamp: str) -> float:
    """Return the wall seconds of a time in a Lease; NaN for another text."""
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return float("nan")
    return when.timestamp() if when.tzinfo else float("nan")


def stamp(wall: float) -> str:
    """Return a MicroTime, which always has six digits of a second."""
    return datetime.fromtimestamp(wall, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Read:
    """GET the Lease; answer with `on_lease` (None: there is none) or `on_error`."""


@dataclass(frozen=True, slots=True)
class Create:
    """POST the body; answer with `on_written` or `on_error`."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Update:
    """PUT the body; answer with `on_written` or `on_error`."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """Stop: nothing more is to be done."""


Action = Wait | Read | Create | Update | Done


@dataclass(frozen=True, slots=True)
class Term:
    """Leading from `begin`, when all that an earlier leader sent has surely landed, to `end`."""

    begin: float = NEVER
    end: float = NEVER

    def until(self, now: float) -> float:
        """Return the end of the time in which this process may bind; `now` or earlier: no bind."""
        return self.end if now >= self.begin else NEVER


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """Seconds; client-go's defaults. A candidate adds up to `spread` times `retry`."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0
    spread: float = 1.2

    def __post_init__(self) -> None:
        """Check that no leader outlasts the Lease and that a renewal has a second try."""
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise SettingsError("election: need 0 < retry < renew deadline < lease duration")


@dataclass(slots=True)
class Elector:
    """The state of one candidate.

    `identity` should belong to this process alone (host name and a random part), for readers of the
    Lease; the acquire time decides whether this process holds the Lease. `bind_budget`: seconds
    that a call sent at the end of a term may take to land. `term` is replaced whole, so other
    threads may read `term` at any time.
    """

    namespace: str
    name: str
    identity: str
    bind_budget: float
    timing: ElectionTiming = field(default_factory=ElectionTiming)
    term: Term = field(default_factory=Term)
    earlier_end: float = math.nan
    """When the term of the holder before us ended at the latest, in seconds of our monotonic clock;
    NaN: there was no holder. Only for the readers of figures: no decision depends on it."""
    _lease: Lease | None = None
    _changed_at: float = NEVER
    _read_at: float = NEVER
    # The last time when the Lease was not yet as it is.
    _not_before: float = NEVER
    _lease_is_current: bool = False
    # The acquire time of our last take-over; "": another process has held the Lease since.
    _acquire_time: str = ""
    # The renew time that we last wrote.
    _renew_time: str = ""
    _fence: float = NEVER
    _sent_at: float = NEVER
    _next_at: float = NEVER
    _stopping: bool = False
    _releasing: bool = False
    _is_done: bool = False

    def release(self) -> None:
        """Stop leading, and release the Lease with the next step.

        Only to be called when every call of this process has been answered: the next leader will
        not wait. Otherwise the Lease must run out.
        """
        self.term = Term()
        self._stopping = True

    def tick(self, now: float, wall: float, jitter: float) -> Action:
        """Return the next step. wall: for the readers of the Lease; jitter: in [0, 1)."""
        if self._stopping:
            lease = self._lease
            # Within our fence an earlier leader's calls may still land: the next must wait too.
            may_write = self._lease_is_current and now >= self._fence
            if self._is_done or not may_write or lease is None or not self._is_ours(lease):
                self._is_done = True
                return Done()
            self._sent_at = now
            self._releasing = True
            return Update(lease.held_by("", wall, RELEASED_DURATION))
        if now < self._next_at:
            return Wait(self._next_at - now)
        if not self._lease_is_current:
            self._sent_at = now
            return Read()
        return self._acquire_or_renew(now, wall, jitter)

    def on_lease(self, body: bytes | None, now: float) -> None:
        """Take the Lease that was read; None: it does not exist.

        Raises WireError if the body is no Lease.
        """
        lease = read_lease(body) if body is not None else None
        is_new_term = lease is None or self._lease is None or not lease.same_term(self._lease)
        if is_new_term:
            self._not_before, self._changed_at = self._read_at, now
        self._read_at = now
        self._lease = lease
        self._lease_is_current = True
        if lease is not None and not self._is_ours(lease):
            self.term = Term()
            # If our name comes back (by hand, or with an older etcd), another may still lead.
            self._acquire_time = ""

    def on_written(self, body: bytes, now: float) -> None:
        """Take the answer to an accepted write.

        Raises WireError if the answer has another Lease than the written one: an older Lease, of a
        cache on the way, renews nothing.
        """
        if self._releasing:
            self._is_done = True
            return
        lease = read_lease(body)
        if not self._is_ours(lease):
            raise WireError("Lease: the answer to our write names another holder")
        if lease.renewed != self._renew_time:
            raise WireError("Lease: the answer to our write does not have its renew time")
        self._lease = lease
        self._changed_at = self._read_at = now
        if not self._stopping:
            self.term = Term(self._fence, self._sent_at + self.timing.renew_deadline)
        self._next_at = self._sent_at + self.timing.retry

    def on_error(self, error: ApiError | WireError, now: float) -> None:
        """Handle a refused or unanswered call: the Lease must be read again."""
        if self._releasing:
            self._is_done = True
            return
        self._lease_is_current = False
        # After a conflict there is news to be read; still never in a hot loop.
        pause = self.timing.retry / 4 if isinstance(error, ApiConflict) else self.timing.retry
        self._next_at = max(now, self._sent_at) + pause

    def _acquire_or_renew(self, now: float, wall: float, jitter: float) -> Action:
        """Return the write that makes or keeps us leader, or a wait for the other's end."""
        lease = self._lease
        duration = self.timing.duration
        if lease is None:
            # The Lease may have been deleted, and the last leader may not know yet.
            self._acquire(now, wall, fence=now + duration + self.bind_budget)
            self._renew_time = stamp(wall)
            return Create(new_lease(self.namespace, self.name, self.identity, wall, duration))
        if not self._is_ours(lease):
            expiry = self._changed_at + max(lease.duration, duration)
            if not lease.released and now < expiry:
                self._lease_is_current = False
                pause = self.timing.retry * (1 + self.timing.spread * jitter)
                self._next_at = min(now + pause, expiry)
                return Wait(self._next_at - now)
            self._acquire(now, wall, fence=now if lease.released else expiry + self.bind_budget)
            self.earlier_end = self._end_of(lease, now, wall)
            lease = replace(lease, holder="")  # a transition, though the identity may be ours
        self._sent_at = now
        self._renew_time = stamp(wall)
        return Update(lease.held_by(self.identity, wall, duration))

    def _acquire(self, now: float, wall: float, *, fence: float) -> None:
        """Record that a Lease with this acquire time is ours, although the answer to the write may
        get lost.
        """
        self._acquire_time = stamp(wall)
        self._fence = max(self._fence, fence)
        self._sent_at = now

    def _end_of(self, lease: Lease, now: float, wall: float) -> float:
        """Return when the term of another holder ended; NaN if the Lease does not say.

        The clock of that holder counts only between the two reads that the renewal was between.
        """
        age = wall - seconds_of(lease.renewed)
        if math.isnan(age):
            return math.nan
        renewal = min(max(now - age, self._not_before), self._changed_at)
        return renewal if lease.released else renewal + self.timing.renew_deadline

    def _is_ours(self, lease: Lease) -> bool:
        """Return whether this process, not an earlier one of the same identity, holds the Lease."""
        return lease.holder == self.identity and lease.acquired == self._acquire_time != ""


@dataclass(slots=True)
class SchedulerLease:
    """The state of one follower of the kube-scheduler of this host.

    `host`: the host name in the identity of the kube-scheduler of this host. A renewal counts from
    the request of the Lease *before* the renewal, which was surely earlier; so leading needs two
    reads with a renewal between the reads. `bind_budget`: seconds that a call sent at the end of a
    term may take to land. `term` is replaced whole, so other threads may read `term` at any time.
    """

    host: str
    bind_budget: float
    poll: float = 1.0
    term: Term = field(default_factory=Term)
    _lease: Lease | None = None
    _changed_at: float = NEVER
    _read_at: float = NEVER
    _requested_at: float = NEVER
    _requested_wall: float = NEVER
    _next_at: float = NEVER
    _fence: float = NEVER
    # The last Lease of the kube-scheduler of this host; None after a Lease of another holder.
    _last_own: Lease | None = None
    _stopping: bool = False

    def release(self) -> None:
        """Stop leading."""
        self.term = Term()
        self._stopping = True

    def tick(self, now: float, wall: float, jitter: float) -> Action:
        """Return the next step. wall: the clock of this host; jitter: in [0, 1)."""
        if self._stopping:
            return Done()
        if now < self._next_at:
            return Wait(self._next_at - now)
        self._requested_at = now
        self._requested_wall = wall
        self._next_at = now + self.poll * (1 + jitter / 10)
        return Read()

    def on_lease(self, body: bytes | None, now: float) -> None:
        """Take the Lease that was read; None: it does not exist.

        Raises WireError if the body is no Lease.
        """
        lease = read_lease(body) if body is not None else None
        before, read_before = self._lease, self._read_at
        # The term of another holder, which ended without a renewal, came right before.
        others_expired = (
            lease is not None
            and before is not None
            and before.holder != ""
            and read_before >= self._changed_at + before.duration
            and lease.transitions_since(before) == 1
        )
        self._lease, self._read_at = lease, self._requested_at
        if before is None or lease is None or not lease.same_term(before):
            self._changed_at = now
        host, underscore, unique = (lease.holder if lease else "").rpartition("_")
        if lease is None or not (underscore and unique) or host != self.host:
            self.term = Term()
            if lease is None or lease.holder:
                self._last_own = None
            return
        self._observe_own(lease, others_expired, read_before, now)
        renewed = before is not None and lease.renewed != before.renewed
        if renewed and not self._stopping:
            self.term = Term(self._fence, read_before + lease.duration)

    def on_written(self, body: bytes, now: float) -> None:
        """Do nothing: a follower never writes."""

    def on_error(self, error: ApiError | WireError, now: float) -> None:
        """Take the failure of a read: the term goes on to the end."""
        self._next_at = max(self._next_at, now + self.poll / 2)

    def _observe_own(
        self, lease: Lease, others_expired: bool, read_before: float, now: float
    ) -> None:
        """Set the fence when the Lease may have come to our host from elsewhere."""
        last = self._last_own
        # A restart of this host's kube-scheduler is one transition: no other holder in between.
        restarts = 0 if last is None or lease.holder == last.holder else 1
        if last is None or lease.transitions_since(last) != restarts:
            # By the wall clock of this host, which also wrote the time, and may have been set
            # since. An earlier holder may have released the Lease.
            age = self._requested_wall - seconds_of(lease.acquired)
            age = 0.0 if math.isnan(age) else min(max(0.0, age), now - read_before)
            remaining = 0.0 if others_expired else max(0.0, lease.duration - age)
            self._fence = now + remaining + self.bind_budget
        self._last_own = lease
