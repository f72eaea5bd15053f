"""Leadership by a Lease of our own: a step machine; answers and a time in, the next call out.

Knows the Lease and no sockets, threads, clocks or randomness. It decides whether this process may
bind; it must not know what binding is.

Why not the official client's elector: a dropped connection ends its thread while the work that it
should stop goes on. What is promised here, for any loss, delay or order of calls:

- Two processes never lead at one time. Ours ends `renew_deadline` after a renewal was *sent*;
  another begins `duration` after it *saw* the last renewal, at the earliest.
- Between the end of one term and the begin of the next by another process lies `bind_budget`: what
  the old leader sent at the last moment has landed, or never will.
- Only times of the local monotonic clock count. Those in the Lease are other machines' wall clocks.

A process that was paused (SIGSTOP, a stalled machine) does not know it. So a bind asks `Term.until`
right before its call, and the term must outlast the call.
"""

from dataclasses import dataclass, field, replace

from gpushare.errors import ApiConflict, ApiError, SettingsError, WireError
from gpushare.kube.lease import (
    NEVER,
    RELEASED_DURATION,
    Action,
    Create,
    Done,
    Lease,
    Read,
    Term,
    Update,
    Wait,
    new_lease,
    read_lease,
    stamp,
)


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """Seconds; client-go's defaults (leaderelection: 15, 10, 2, spread by up to 1.2 times)."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0
    spread: float = 1.2

    def __post_init__(self) -> None:
        """Refuse times by which a leader would outlast its Lease or have no second try."""
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise SettingsError("election: need 0 < retry < renew deadline < lease duration")


@dataclass(slots=True)
class Elector:
    """The state of one candidate.

    `identity` should belong to this process alone (host name and a random part), for those who read
    the Lease; what makes it ours is the time at which we took it. `bind_budget` is how many seconds
    a call sent at the end of a term may take to land. `term` is replaced whole, so other threads
    may read it at any time.
    """

    namespace: str
    name: str
    identity: str
    bind_budget: float
    timing: ElectionTiming = field(default_factory=ElectionTiming)
    term: Term = field(default_factory=Term)
    _lease: Lease | None = None
    _changed_at: float = NEVER
    _lease_is_current: bool = False
    # The acquire time that we last wrote to take the Lease; "": it was another's since.
    _acquire_time: str = ""
    # The renew time that we last wrote.
    _renew_time: str = ""
    _fence: float = NEVER
    _sent_at: float = NEVER
    _next_at: float = NEVER
    _stopping: bool = False
    _releasing: bool = False
    _done: bool = False

    def release(self) -> None:
        """Stop leading, and give the Lease away with the next step.

        Only to be called when every call of this process has been answered: the next leader will
        not wait. Otherwise end without it, and let the Lease run out.
        """
        self.term = Term()
        self._stopping = True

    def tick(self, now: float, wall: float, jitter: float) -> Action:
        """Return what to do. `wall` is for the Lease's readers; `jitter` in [0, 1)."""
        if self._stopping:
            lease = self._lease
            # Within our fence an earlier leader's calls may still land: the next must wait too.
            known = self._lease_is_current and now >= self._fence
            if self._done or not known or lease is None or not self._is_ours(lease):
                self._done = True
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
        changed = lease is None or self._lease is None or not lease.same_term(self._lease)
        if changed:
            self._changed_at = now
        self._lease = lease
        self._lease_is_current = True
        if lease is not None and not self._is_ours(lease):
            self.term = Term()
            # If our name comes back (by hand, or with an older etcd), another may still lead.
            self._acquire_time = ""

    def on_written(self, body: bytes, now: float) -> None:
        """Take the answer to an accepted write.

        Raises WireError if it does not show the Lease as written: an older one, from a cache on
        the way, renews nothing.
        """
        if self._releasing:
            self._done = True
            return
        lease = read_lease(body)
        if not self._is_ours(lease):
            raise WireError("Lease: the answer to our write names another holder")
        if lease.renewed != self._renew_time:
            raise WireError("Lease: the answer to our write does not have its renew time")
        self._lease = lease
        self._changed_at = now
        if not self._stopping:
            self.term = Term(self._fence, self._sent_at + self.timing.renew_deadline)
        self._next_at = self._sent_at + self.timing.retry

    def on_error(self, error: ApiError | WireError, now: float) -> None:
        """Handle a refused or unanswered call: the Lease must be read again."""
        if self._releasing:
            self._done = True
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
            # Somebody may have deleted the Lease of a leader who does not know it yet.
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
            lease = replace(lease, holder="")  # it changes hands, though it may be in our name
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

    def _is_ours(self, lease: Lease) -> bool:
        """Return whether it has our identity and was acquired by this process, not by one before
        it.
        """
        return lease.holder == self.identity and lease.acquired == self._acquire_time != ""
