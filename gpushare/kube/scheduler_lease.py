"""Leadership by the Lease of kube-scheduler: a step machine that only reads.

For an extender that the kube-scheduler of its own host calls over loopback. A Lease of our own
could be held by another host than the scheduler's; so this process leads exactly while the
scheduler of *this* host holds the scheduler's Lease. Knows the Lease; no sockets, threads, clocks
or randomness.

kube-scheduler names itself `HOST_UUID` (os.Hostname, an underscore, a UUID, which has none). It
exits when it cannot renew, and another takes over a `leaseDurationSeconds` after the last renewal.
"""

import math
from dataclasses import dataclass, field

from gpushare.errors import ApiError, WireError
from gpushare.kube.lease import (
    NEVER,
    Action,
    Done,
    Lease,
    Read,
    Term,
    Wait,
    read_lease,
    seconds_of,
)


@dataclass(slots=True)
class SchedulerLease:
    """The state of one follower of its scheduler.

    `host` is the name the scheduler of this host has for itself. A renewal counts from when the
    Lease *before* it was asked for, which was surely earlier; so leading needs two looks, and a
    renewal between them. `bind_budget` is how many seconds a call sent at the end of a term may
    take to land. `term` is replaced whole, so other threads may read it at any time.
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
    # The last Lease seen that our scheduler held; None once another was seen to hold it.
    _last_own: Lease | None = None
    _stopping: bool = False

    def release(self) -> None:
        """Stop leading."""
        self.term = Term()
        self._stopping = True

    def tick(self, now: float, wall: float, jitter: float) -> Action:
        """Return what to do. `wall` is the clock of this host; `jitter` in [0, 1)."""
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
        # Another's term, seen to its end without a renewal, came right before.
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
        """Do nothing: it never writes."""

    def on_error(self, error: ApiError | WireError, now: float) -> None:
        """Take the failure of a read: the term runs on to its end."""
        self._next_at = max(self._next_at, now + self.poll / 2)

    def _observe_own(
        self, lease: Lease, others_expired: bool, read_before: float, now: float
    ) -> None:
        """Set the fence when the Lease may have come to our host from elsewhere."""
        last = self._last_own
        # A restart of our scheduler is one transition, so no other held it in between.
        restarts = 0 if last is None or lease.holder == last.holder else 1
        if last is None or lease.transitions_since(last) != restarts:
            # By the clock of this host, which is the clock that wrote it, and may have been set
            # since. An earlier holder may have given it away.
            held = self._requested_wall - seconds_of(lease.acquired)
            held = 0.0 if math.isnan(held) else min(max(0.0, held), now - read_before)
            remaining = 0.0 if others_expired else max(0.0, lease.duration - held)
            self._fence = now + remaining + self.bind_budget
        self._last_own = lease
