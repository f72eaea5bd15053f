"""The thread around `ListWatch`: it sends the calls, and delivers objects to an event handler.

Knows sockets only as `gpushare.kube.api.Api`. The machine makes every decision; this module has the
clock, the jitter, the thread, and the log. Knows nothing of the meaning of objects.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from gpushare.errors import ApiError
from gpushare.kube.api import Api, Lines
from gpushare.kube.listwatch import (
    NEVER,
    EventT,
    List,
    ListWatch,
    PageT,
    Sleep,
    Watch,
)
from gpushare.logline import Line

log = logging.getLogger(__name__)

_PageT_contra = TypeVar("_PageT_contra", contravariant=True)
_EventT_contra = TypeVar("_EventT_contra", contravariant=True)
# How long a handler may take for one delivery before the loop counts as stuck.
_DELIVERY_SECONDS = 30.0
_AFTER_BUG_SECONDS = 1.0
_REFUSALS = (403, 404)
"""Statuses for a missing right to a collection, or a missing collection."""


class EventHandler(Protocol[_PageT_contra, _EventT_contra]):
    """Takes the objects of a collection.

    One thread calls the handler; after an exception the collection is listed again. A handler may
    have a method `trim(page)` that returns a smaller page to keep until the list is whole.
    """

    def replace(self, pages: Sequence[_PageT_contra], started: float) -> None:
        """Take over the whole collection, read at `started` (monotonic seconds) or later."""

    def apply(self, event: _EventT_contra) -> None:
        """Take over the next change; the same change may come again."""


class Reflector(Generic[PageT, EventT]):
    """Keeps an event handler up to date with one collection until it is stopped."""

    def __init__(
        self,
        api: Api,
        machine: ListWatch[PageT, EventT],
        handler: EventHandler[PageT, EventT],
        *,
        optional: bool = False,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        wake: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        """Make the reflector; `start` starts it.

        optional: many clusters lack this API or the right to list the collection, so the first
        refusal is logged, and no further one.
        """
        self._api = api
        self._optional = optional
        self._refusal_logged = False
        self._machine = machine
        self._handler = handler
        self._clock = clock
        self._jitter = jitter
        self._wake = wake()
        self._stopped = False
        self._relist = False
        self._lines: Lines | None = None
        self._due = NEVER
        self.last_resource_version = ""
        """The last delivered resourceVersion; "" if unknown."""
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> ListWatch[PageT, EventT]:
        """The machine, to be read only: synced, last_contact, listed_at and the counts."""
        return self._machine

    def start(self) -> None:
        """Start the thread."""
        # Made here and not in the constructor: a thread object made before a fork counts as ended
        # in the child.
        name = f"reflector {self._machine.path}"
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Follow the collection until `stop`."""
        while not self._stopped:
            if self._relist:
                self._relist = False
                self._machine.request_relist()
            try:
                match self._machine.next(self._clock(), self._jitter()):
                    case Sleep(seconds):
                        self._set_due(seconds)
                        self._wake.wait(seconds)
                        self._wake.clear()
                    case List() as action:
                        self._list(action)
                    case Watch() as action:
                        self._watch(action)
            except Exception:
                # A bug on the way must not end the thread silently: the ledger would go stale.
                log.exception(Line("reflector failed", resource=self._machine.path))
                self._machine.on_handler_error(self._clock())
                self._wake.wait(_AFTER_BUG_SECONDS)

    def request_relist(self) -> None:
        """Ask for a new list soon; `status.listed_at` shows the time of the last list."""
        self._relist = True
        self._interrupt()

    def stop(self, timeout: float = 1.0) -> bool:
        """Return whether the thread has ended within `timeout` seconds.

        A watch or a pause ends at once. A call under way may last longer; its answer is not
        delivered any more.
        """
        self._stopped = True
        self._interrupt()
        thread = self._thread
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()

    def alive(self, now: float) -> bool:
        """Return whether the thread runs and is not overdue."""
        return self._thread is not None and self._thread.is_alive() and now <= self._due

    def _interrupt(self) -> None:
        self._wake.set()
        lines = self._lines
        if lines is not None:
            lines.close()

    def _list(self, action: List) -> None:
        self._set_due(action.timeout)
        try:
            body = self._api.request(
                "GET", action.path, query=dict(action.query), timeout=action.timeout
            )
        except ApiError as error:
            self._failed("list", error)
            return
        # Each page is read and trimmed before the next one.
        trim = getattr(self._handler, "trim", None)
        whole = self._machine.on_page(body, self._clock(), trim)
        del body
        if whole is not None:
            if self._deliver(partial(self._handler.replace, whole.pages, whole.started)):
                self._machine.on_delivered(whole)
                self._refusal_logged = False
            self.last_resource_version = self._machine.version

    def _watch(self, action: Watch) -> None:
        self._set_due(2 * action.connect_timeout)
        try:
            with self._api.stream(
                action.path,
                dict(action.query),
                connect_timeout=action.connect_timeout,
                read_timeout=action.read_timeout,
            ) as lines:
                self._lines = lines
                self._machine.on_open(self._clock())
                self._read(lines, action.read_timeout)
        except ApiError as error:
            self._failed("watch", error)
        finally:
            self._lines = None

    def _read(self, lines: Lines, silence: float) -> None:
        self._set_due(silence)
        # Asked once before the first line too: who stops us looks for the stream after raising the
        # flag, we look at the flag after showing the stream.
        if not (self._stopped or self._relist):
            for line in lines:
                event = self._machine.on_line(line, self._clock())
                if event is not None:
                    self._deliver(partial(self._handler.apply, event))
                self.last_resource_version = self._machine.version
                if not self._machine.watching or self._stopped or self._relist:
                    break
                self._set_due(silence)
        if self._relist:
            self._relist = False
            self._machine.request_relist()
        if self._machine.watching:
            self._machine.on_end(self._clock())
        elif not self._stopped:
            restarts = dict(self._machine.restarts)
            log.warning(Line("watch broken off", resource=self._machine.path, so_far=restarts))

    def _deliver(self, delivery: Callable[[], None]) -> bool:
        """Return whether the handler succeeded."""
        if self._stopped:
            return False
        self._set_due(0.0)
        try:
            delivery()
        except Exception:
            log.exception(Line("delivery failed, listing anew", resource=self._machine.path))
            self._machine.on_handler_error(self._clock())
            return False
        return True

    def _failed(self, call: str, error: ApiError) -> None:
        if self._optional and error.status in _REFUSALS:
            if not self._refusal_logged:
                log.info(Line("not followed", resource=self._machine.path, error=error))
            self._refusal_logged = True
        else:
            log.warning(Line("call failed", call=call, resource=self._machine.path, error=error))
        self._machine.on_error(error, self._clock())

    def _set_due(self, seconds: float) -> None:
        """Set the time of the next sign of life of the loop."""
        self._due = self._clock() + seconds + _DELIVERY_SECONDS
