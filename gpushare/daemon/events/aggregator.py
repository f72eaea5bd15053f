"""Aggregation of events: a new event, a count on an existing one, or nothing.

Pure: time is an argument (seconds of a monotonic clock), nothing is sent here. One thread at a
time.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.wire.events import ObjectReference, event_name

WINDOW = 600.0
"""Seconds after the last repetition in which another one belongs to the same event."""

SERIES_EVERY = 60.0
"""Seconds between two writes of one event's count."""

RATE = 5.0
BURST = 20.0

OBJECT_RATE, OBJECT_BURST = 1 / 300, 25.0
"""Warnings about one object: so many at once, then one in five minutes, as client-go's filter has
it."""

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
    """Makes the end of the note, when the event is written; repetitions are found without it."""

    @property
    def key(self) -> Key:
        """Equal for repetitions of the same thing."""
        return (self.reason, self.regarding, self.action, self.note, self.warning)


@dataclass(frozen=True, slots=True)
class Post:
    """Write a new event."""

    name: str
    event: PendingEvent


@dataclass(frozen=True, slots=True)
class Patch:
    """Write how often the event of that name has been seen."""

    name: str
    event: PendingEvent
    count: int


@dataclass(slots=True)
class _Series:
    name: str
    last: float
    written: float
    count: int = 1


class EventAggregator:
    """Finds repetitions: one within WINDOW increases the count of its event."""

    def __init__(self) -> None:
        self._series: OrderedDict[Key, _Series] = OrderedDict()
        self._objects = Buckets(OBJECT_RATE, OBJECT_BURST, _MAX_OBJECTS)

    def take(self, event: PendingEvent, now: float) -> Post | Patch | None:
        """Return what to write; None for a repetition that the next count includes."""
        series = self._series.get(event.key)
        if series is None or now > series.last + WINDOW:
            about = event.regarding
            # The text of an Event cannot be changed, so each new text is an object more.
            if event.warning and not self._objects.take(f"{about.kind}/{about.uid}", now):
                return None
            return self._new_series(event, now)
        series.count, series.last = series.count + 1, now
        self._series.move_to_end(event.key)
        if now < series.written + SERIES_EVERY:
            return None
        series.written = now
        return Patch(series.name, event, series.count)

    def forget(self, event: PendingEvent) -> None:
        """Forget the series of an event that does not exist (not accepted, or expired): a
        repetition makes a new one.
        """
        self._series.pop(event.key, None)

    def _new_series(self, event: PendingEvent, now: float) -> Post:
        name = event_name(event.regarding, event.stamp)
        self._series[event.key] = _Series(name, now, now)
        self._series.move_to_end(event.key)
        while len(self._series) > _MAX_SERIES:
            self._series.popitem(last=False)
        return Post(name, event)


class Bucket:
    """A token bucket: BURST at once, RATE a second after that."""

    def __init__(self, now: float, rate: float = RATE, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def wait(self, now: float) -> float:
        """Return the seconds until a token is available."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._tokens) / self._rate)

    def take(self) -> None:
        """Use a token, after the last `wait` was 0."""
        self._tokens -= 1


class Buckets:
    """A token bucket for each of many, such as namespaces: none takes another's tokens."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        self._rate = rate
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, name: str, now: float) -> bool:
        """Use a token of that name; return whether there was one."""
        bucket = self._buckets.pop(name, None) or Bucket(now, self._rate, self._burst)
        self._buckets[name] = bucket
        if len(self._buckets) > self._most:
            # Used longest ago: it is full again, or nearly so.
            self._buckets.popitem(last=False)
        if bucket.wait(now) > 0:
            return False
        bucket.take()
        return True
