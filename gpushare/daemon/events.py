"""The event recorder: a bounded queue, and one thread that writes the events of the queue.

`record` never waits and never fails: an event without room is dropped and counted. No request may
be late or wrong because of an event. In the queue no namespace takes the place or the turn of
another. The thread writes a new event, or a count on an existing event, or nothing, at a bounded
rate. The decision needs no clock: time is an argument (seconds, monotonic).

Tested in `tests/unit/daemon/events`.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiConflict, ApiError, ApiUnavailable, WireError
from gpushare.kube.api import Api, merge_patch
from gpushare.logline import Line
from gpushare.turns import Turns
from gpushare.wire.codec import check_kind
from gpushare.wire.events import (
    CONTROLLER,
    NOTE_LIMIT,
    ObjectReference,
    encode_event,
    encode_series,
    event_name,
    events_path,
)

log = logging.getLogger("gpushare.events")

QUEUED = 512
"""Upper bound of queued events; at 5 a second the queue is empty within two minutes."""

QUEUED_OF_ONE = 64
"""Upper bound of queued events of one namespace; namespaces take turns."""

_TIMEOUT = 3.0
_MAX_PAUSE = 30.0
_FORBIDDEN, _TOO_MANY = 403, 429
_REFUSALS = 3
"""403 in a row that mean a missing right in a namespace, or a terminating namespace."""

_OFF = 600.0
"""Seconds without events in such a namespace; then a new try, since rights may come later."""

WINDOW = 600.0
"""Seconds after the last repetition in which the next repetition counts on the same event."""

SERIES_EVERY = 60.0
"""Seconds between two writes of one event's count."""

RATE = 5.0
BURST = 20.0

OBJECT_RATE, OBJECT_BURST = 1 / 300, 25.0
"""Warnings about one object: so many at once, then one in five minutes, as in client-go."""

_REST, _MAX_REST = 9.0, 1.0
"""A rest before further details: a multiple of the CPU time of the last ones; at most, in s."""

_MAX_SERIES = 4096
_MAX_OBJECTS = 4096

Details = Callable[[], str]

Key = tuple[str, ObjectReference, str, str, bool]


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event to be written."""

    regarding: ObjectReference
    reason: str
    action: str
    note: str
    warning: bool
    stamp: int
    """When, in ns since the epoch, no two alike."""
    details: Details | None = None
    """Makes the end of the note at the write; the key of an event is without this end."""

    @property
    def key(self) -> Key:
        """Equal for repetitions of the same thing."""
        return (self.reason, self.regarding, self.action, self.note, self.warning)


@dataclass(frozen=True, slots=True)
class Write:
    """Write a new event, or how often the event of that name has been seen."""

    name: str
    event: PendingEvent
    count: int = 1


@dataclass(slots=True)
class _Series:
    name: str
    last: float
    written_at: float
    count: int = 1


@dataclass(slots=True, eq=False)
class EventAggregator:
    """Finds repetitions: a repetition within WINDOW increases the count of the event."""

    _series: OrderedDict[Key, _Series] = field(default_factory=OrderedDict)
    _objects: "Buckets" = field(
        default_factory=lambda: Buckets(OBJECT_RATE, OBJECT_BURST, _MAX_OBJECTS)
    )

    def __len__(self) -> int:
        """Return the number of remembered events."""
        return len(self._series)

    def take(self, event: PendingEvent, now: float) -> Write | None:
        """Return the next write; None for a repetition that the next count includes."""
        while self._series and now > next(iter(self._series.values())).last + WINDOW:
            self._series.popitem(last=False)
        series = self._series.get(event.key)
        if series is None:
            about = event.regarding
            # The text of an Event cannot be changed, so each new text is an object more.
            if event.warning and not self._objects.take(f"{about.kind}/{about.uid}", now):
                return None
            name = event_name(event.regarding, event.stamp)
            self._series[event.key] = _Series(name, now, now)
            if len(self._series) > _MAX_SERIES:
                self._series.popitem(last=False)
            return Write(name, event)
        series.count, series.last = series.count + 1, now
        self._series.move_to_end(event.key)
        if now < series.written_at + SERIES_EVERY:
            return None
        series.written_at = now
        return Write(series.name, event, series.count)

    def forget(self, event: PendingEvent) -> None:
        """Forget the series of an event that does not exist (not accepted, or expired): a
        repetition makes a new one.
        """
        self._series.pop(event.key, None)


@dataclass(slots=True, eq=False)
class Bucket:
    """A token bucket: `burst` tokens at once, `rate` a second after that."""

    at: float
    """The time of the last use; before the first use the bucket is full."""
    rate: float = RATE
    burst: float = BURST
    _used_tokens: float = 0.0

    def take_or_wait(self, now: float) -> float:
        """Use a token and return 0; if there is none, return the seconds until there is."""
        self._used_tokens, self.at = self.used_tokens(now), now
        if self.burst - self._used_tokens < 1:
            return (1 - self.burst + self._used_tokens) / self.rate
        self._used_tokens += 1
        return 0.0

    def used_tokens(self, now: float) -> float:
        """Return the tokens that are lacking."""
        return max(0.0, self._used_tokens - (now - self.at) * self.rate)


@dataclass(slots=True, eq=False)
class Buckets:
    """A token bucket for each of many, such as namespaces: none takes another's tokens."""

    rate: float
    burst: float
    max_buckets: int
    """Upper bound of the kept buckets."""
    _buckets: OrderedDict[str, Bucket] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        """Return the number of kept buckets."""
        return len(self._buckets)

    def take(self, name: str, now: float) -> bool:
        """Use a token of that name; return whether there was one."""
        while self._buckets and not next(iter(self._buckets.values())).used_tokens(now):
            self._buckets.popitem(last=False)
        bucket = self._buckets.pop(name, None) or Bucket(now, self.rate, self.burst)
        self._buckets[name] = bucket
        if len(self._buckets) > self.max_buckets:
            # The least recently used bucket is full again, or nearly so.
            self._buckets.popitem(last=False)
        return bucket.take_or_wait(now) == 0


@dataclass(slots=True, eq=False)
class FairQueue:
    """Events by namespace, taken out in turn; any thread may call any method."""

    max_events: int
    """Events in all."""
    max_events_of_namespace: int
    """Of one namespace."""
    evicted: int = 0
    """Those that made room for others."""
    _turns: Turns[PendingEvent] = field(default_factory=Turns)
    _is_closed: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def put(self, namespace: str, event: PendingEvent) -> bool:
        """Return whether there was room for the event; never waits.

        If the queue is full, the newest event of the namespace with the largest number of events
        makes room for a namespace with fewer.
        """
        with self._condition:
            turns = self._turns
            if turns.count(namespace) >= self.max_events_of_namespace:
                return False
            if len(turns) >= self.max_events:
                longest = turns.longest()
                if turns.count(longest) <= turns.count(namespace) + 1:
                    return False
                turns.drop_newest(longest)
                self.evicted += 1
            turns.put(namespace, event)
            self._condition.notify()
            return True

    def get(self) -> PendingEvent | None:
        """Return the next event, waiting for one; None once the queue is closed."""
        with self._condition:
            self._condition.wait_for(lambda: len(self._turns) or self._is_closed)
            return None if self._is_closed else self._turns.take()

    def close(self) -> None:
        """Let `get` return None from now on."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()


class EventRecorder(Protocol):
    """Takes events; `record` neither waits nor fails."""

    def record(
        self,
        regarding: ObjectReference,
        reason: str,
        action: str,
        note: str,
        *,
        warning: bool = False,
        details: Details | None = None,
    ) -> None:
        """Queue an event; never waits, never fails."""
        ...


class NullRecorder:
    """A recorder that writes nothing: events are switched off."""

    def record(self, *_event: object, **_options: object) -> None:
        """Do nothing."""


@dataclass(eq=False)
class Recorder(LoopPart):
    """Writes events of the process called `instance`."""

    api: Api
    instance: str
    _: KW_ONLY
    controller: str = CONTROLLER
    clock: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
    queued: int = QUEUED

    def __post_init__(self) -> None:
        self._queue = FairQueue(self.queued, min(self.queued, QUEUED_OF_ONE))
        self._stamping = threading.Lock()
        self._stamp = 0
        self._dropped = 0
        self._aggregator = EventAggregator()
        self._bucket = Bucket(self.clock())
        self._sent = self._failed = 0
        self._failures = 0
        self._rested_at = self.clock()
        # By namespace: (refusals in a row, time of the last refusal).
        self._refusals: dict[str, tuple[int, float]] = {}
        self._off_logged = False
        failed = "event failed"
        self.loop = Loop("events", self._next, 0.0, log=log, failed=failed, at_once=True)

    def record(
        self,
        regarding: ObjectReference,
        reason: str,
        action: str,
        note: str,
        *,
        warning: bool = False,
        details: Details | None = None,
    ) -> None:
        """Queue an event to be written soon; never waits, never fails.

        details: makes the end of the note, which may take long, in the thread that writes.
        """
        if not regarding.is_sound:
            return
        with self._stamping:
            self._stamp = max(self.wall_ns(), self._stamp + 1)
            stamp, note = self._stamp, note[:NOTE_LIMIT]
            event = PendingEvent(regarding, reason, action, note, warning, stamp, details)
            if not self._queue.put(regarding.event_namespace, event):
                self._dropped += 1

    def stop(self) -> None:
        """End the thread within a second or so; unwritten events are lost."""
        self._queue.close()
        super().stop()

    def state(self) -> dict[str, float]:
        """Return counters for metrics.

        "dropped" counts events that found no room and events that were not accepted.
        """
        return {
            "events_written_total": self._sent,
            "events_dropped_total": self._dropped + self._queue.evicted + self._failed,
        }

    def _next(self) -> None:
        """Write the next event, waiting for one."""
        event = self._queue.get()
        if event is None:
            return
        now = self.clock()
        refusals, last = self._refusals.get(event.regarding.event_namespace, (0, now))
        if refusals >= _REFUSALS and now < last + _OFF:
            self._failed += 1
            return
        step = self._aggregator.take(event, now)
        if step is None:
            return
        while (pause := self._bucket.take_or_wait(self.clock())) > 0:
            if self.loop.rest(pause):
                return
        try:
            self._write(step)
        except ApiError as error:
            self._write_failed(event, error)
        else:
            self._sent += 1
            self._refusals.pop(event.regarding.event_namespace, None)
            self._failures = 0
            self._off_logged = False

    def _write(self, step: Write) -> None:
        """Send the write once. Raises ApiError. An event that exists was written before."""
        event, regarding = step.event, step.event.regarding
        if step.count > 1:
            path, series = events_path(regarding, step.name), encode_series(step.count, event.stamp)
            _check(merge_patch(self.api, path, series, _TIMEOUT))
            return
        note = event.note
        if event.details is not None:
            note = "; ".join(filter(None, (note, self._made(event.details, event.reason))))
        body = encode_event(
            step.name,
            regarding,
            reason=event.reason,
            action=event.action,
            note=note,
            warning=event.warning,
            stamp=event.stamp,
            instance=self.instance,
            controller=self.controller,
        )
        try:
            _check(self.api.request("POST", events_path(regarding), body=body, timeout=_TIMEOUT))
        except ApiConflict:
            return

    def _made(self, details: Details, reason: str) -> str:
        """Return the details after a rest, so that requests keep most of the interpreter; "" if
        the details fail, which must not lose the event.
        """
        self.loop.rest(max(0.0, self._rested_at - self.clock()))
        begin = time.thread_time()
        try:
            return details()
        except Exception:
            log.exception(Line("details of an event failed", reason=reason))
            return ""
        finally:
            rest = min(_MAX_REST, (time.thread_time() - begin) * _REST)
            self._rested_at = self.clock() + rest

    def _write_failed(self, event: PendingEvent, error: ApiError) -> None:
        self._failed += 1
        self._aggregator.forget(event)
        if error.refusal == _FORBIDDEN:
            namespace, now = event.regarding.event_namespace, self.clock()
            recent = {
                name: refusal for name, refusal in self._refusals.items() if now < refusal[1] + _OFF
            }
            refusals, _ = recent.get(namespace, (0, now))
            self._refusals = recent | {namespace: (refusals + 1, now)}
            if refusals + 1 == _REFUSALS and not self._off_logged:
                self._off_logged = True
                text = "events are off in a namespace, we may not create them"
                log.warning(Line(text, namespace=namespace, error=error))
        elif not error.is_definite or error.refusal == _TOO_MANY:
            # An overloaded API server must not be called five times a second. Another refusal, such
            # as that of a webhook, is about this event: events of other namespaces go on.
            self._failures += 1
            log.debug(Line("event not taken", reason=event.reason, error=error))
            self.loop.rest(min(_MAX_PAUSE, 0.5 * 2 ** min(self._failures, 8)))


def _check(answer: bytes) -> None:
    """Check that the API server shows the event as written. Raises ApiUnavailable if not."""
    try:
        check_kind(answer, "Event")
    except WireError as error:
        raise ApiUnavailable(str(error), 0) from error
