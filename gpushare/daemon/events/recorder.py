"""The event recorder: a bounded queue, and the one thread that writes what comes out of it.

`record` never waits and never fails: what has no room is dropped and counted. No request may be
late or wrong because of an event. Repetitions and the rate of writes are decided in aggregator.py.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from gpushare.daemon.events.aggregator import (
    Bucket,
    Details,
    EventAggregator,
    Patch,
    PendingEvent,
    Post,
)
from gpushare.daemon.events.fair_queue import FairQueue
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable, WireError
from gpushare.kube.api import Api
from gpushare.logline import Line
from gpushare.wire.codec import check_kind
from gpushare.wire.events import (
    CONTROLLER,
    MERGE_PATCH,
    NOTE_LIMIT,
    ObjectReference,
    encode_event,
    encode_series,
    events_path,
)

log = logging.getLogger("gpushare.events")

QUEUED = 512
"""Events that may wait; at 5 a second that is under two minutes of them."""

QUEUED_OF_ONE = 64
"""Of these events about the objects of one namespace; they are written in turn with others'."""

_TIMEOUT = 3.0
_MAX_PAUSE = 30.0
_FORBIDDEN = 403
_REFUSALS = 3
"""403 in a row that mean we have no right in a namespace, or that it is being deleted."""

_OFF = 600.0
"""Seconds without its events after that; then they are tried, since rights may be given later."""


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


class Recorder:
    """Writes events of this process, called `instance`; `start` sets it going."""

    def __init__(
        self,
        api: Api,
        instance: str,
        *,
        controller: str = CONTROLLER,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        queued: int = QUEUED,
    ) -> None:
        self._api = api
        self._instance = instance
        self._controller = controller
        self._clock = clock
        self._wall_ns = wall_ns
        self._queue = FairQueue(queued, min(queued, QUEUED_OF_ONE))
        self._stamping = threading.Lock()
        self._stamp = 0
        self._dropped = 0
        self._aggregator = EventAggregator()
        self._bucket = Bucket(clock())
        self._sent = self._failed = 0
        self._failures = 0
        # By namespace: how often its events have been refused in a row, and when last.
        self._refusals: dict[str, tuple[int, float]] = {}
        self._off_logged = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

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
            self._stamp = max(self._wall_ns(), self._stamp + 1)
            stamp, note = self._stamp, note[:NOTE_LIMIT]
            event = PendingEvent(regarding, reason, action, note, warning, stamp, details)
            if not self._queue.put(regarding.event_namespace, event):
                self._dropped += 1

    def start(self) -> None:
        """Begin to write, in a thread."""
        # Made here: one made before a fork counts as ended in the child, and is not waited for.
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread within a second or so; what is not written is lost."""
        self._stopping.set()
        self._queue.close()
        if self._thread is not None:
            self._thread.join(1.0)

    def state(self) -> dict[str, float]:
        """Return counters for metrics.

        "dropped" counts events that found no room and events that were not accepted.
        """
        return {
            "events_written_total": self._sent,
            "events_dropped_total": self._dropped + self._queue.evicted + self._failed,
        }

    def _run(self) -> None:
        while not self._stopping.is_set():
            event = self._queue.get()
            if event is None:
                return
            try:
                self._handle(event)
            except Exception:
                # The thread must go on; an event is never worth more than the next one.
                log.exception(Line("event failed", reason=event.reason))

    def _handle(self, event: PendingEvent) -> None:
        now = self._clock()
        refused, last = self._refusals.get(event.regarding.event_namespace, (0, now))
        if refused >= _REFUSALS and now < last + _OFF:
            self._failed += 1
            return
        step = self._aggregator.take(event, now)
        if step is None:
            return
        while (pause := self._bucket.wait(self._clock())) > 0:
            if self._stopping.wait(pause):
                return
        self._bucket.take()
        try:
            self._write(step)
        except ApiError as error:
            self._write_failed(event, error)
        else:
            self._sent += 1
            self._refusals.pop(event.regarding.event_namespace, None)
            self._failures = 0
            self._off_logged = False

    def _write(self, step: Post | Patch) -> None:
        """Send it once. Raises ApiError; an event that is there already was taken before."""
        event, regarding = step.event, step.event.regarding
        if isinstance(step, Patch):
            answer = self._api.request(
                "PATCH",
                events_path(regarding, step.name),
                body=encode_series(step.count, event.stamp),
                content_type=MERGE_PATCH,
                timeout=_TIMEOUT,
            )
            _check(answer)
            return
        body = encode_event(
            step.name,
            regarding,
            reason=event.reason,
            action=event.action,
            note=_note(event),
            warning=event.warning,
            stamp=event.stamp,
            instance=self._instance,
            controller=self._controller,
        )
        try:
            _check(self._api.request("POST", events_path(regarding), body=body, timeout=_TIMEOUT))
        except ApiConflict:
            return

    def _write_failed(self, event: PendingEvent, error: ApiError) -> None:
        self._failed += 1
        self._aggregator.forget(event)
        if error.status == _FORBIDDEN:
            self._refused(event.regarding.event_namespace, error)
        elif not isinstance(error, ApiNotFound):  # 404: its namespace, or the event, is gone
            # An overloaded API server must not be called five times a second.
            self._failures += 1
            log.debug(Line("event not taken", reason=event.reason, error=error))
            self._stopping.wait(min(_MAX_PAUSE, 0.5 * 2 ** min(self._failures, 8)))

    def _refused(self, event_namespace: str, error: ApiError) -> None:
        now = self._clock()
        recent = {name: seen for name, seen in self._refusals.items() if now < seen[1] + _OFF}
        refused, _ = recent.get(event_namespace, (0, now))
        self._refusals = recent | {event_namespace: (refused + 1, now)}
        if refused + 1 == _REFUSALS and not self._off_logged:
            self._off_logged = True
            text = "events are off in a namespace, we may not create them"
            log.warning(Line(text, namespace=event_namespace, error=error))


def _note(event: PendingEvent) -> str:
    if event.details is None:
        return event.note
    try:
        return "; ".join(filter(None, (event.note, event.details())))
    except Exception:
        # It is never worth the event itself.
        log.exception(Line("details of an event failed", reason=event.reason))
        return event.note


def _check(answer: bytes) -> None:
    """Check that the API server shows the event as written. Raises ApiUnavailable if not."""
    try:
        check_kind(answer, "Event")
    except WireError as error:
        raise ApiUnavailable(str(error), 0) from error
