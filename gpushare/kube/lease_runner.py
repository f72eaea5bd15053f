"""The thread around `Elector` or `SchedulerLease`: it sends the calls of the step machine.

Knows paths of Leases and `gpushare.kube.api.Calls`. Every decision is the machine's; here are the
clocks, the jitter, the thread and the log.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from gpushare.errors import ApiError, ApiNotFound, WireError
from gpushare.kube import election
from gpushare.kube.api import Calls
from gpushare.kube.election import Elector, SchedulerLease
from gpushare.logline import Line

log = logging.getLogger(__name__)

_GROUP = "/apis/coordination.k8s.io/v1/namespaces"
_SLACK_SECONDS = 5.0
_AFTER_BUG_SECONDS = 1.0


class LeaseRunner:
    """The thread that runs a step machine of leadership until it is stopped."""

    def __init__(
        self,
        api: Calls,
        machine: Elector | SchedulerLease,
        *,
        namespace: str,
        name: str,
        call_timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        wake: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        self._api = api
        self._machine = machine
        self._collection = f"{_GROUP}/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._call_timeout = call_timeout
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self._wake = wake()
        self._ended = False
        self._halted = False
        self._stopping = False
        self._logged_leading = False
        self._due = election.NEVER
        self._name = f"lease {name}"
        self._thread: threading.Thread | None = None

    def leads_until(self, now: float) -> float:
        """Return the end of the time in which this process may bind, in monotonic seconds; `now` or
        earlier: no bind. A bind begins only if this is later than the longest end of the bind.
        """
        return election.NEVER if self._halted else self._machine.term.until(now)

    def fenced_until(self) -> float:
        """Return the time when all calls of earlier leaders have landed: only a later list shows
        these calls. NEVER (the far past) without an earlier leader.
        """
        return self._machine.term.begin

    def earlier_end(self) -> float:
        """Return when the term of the holder of our Lease before us ended, in monotonic seconds;
        NaN if there was none, inf if that is unknown: the Lease is kube-scheduler's.
        """
        machine = self._machine
        return machine.earlier_end if isinstance(machine, election.Elector) else math.inf

    def start(self) -> None:
        """Start the thread."""
        # Made here and not in the constructor: a thread object made before a fork counts as ended
        # in the child.
        self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Follow the machine until its end."""
        while not self._ended:
            if self._stopping:
                self._machine.release()
            try:
                self._do(self._machine.tick(self._clock(), self._wall(), self._jitter()))
            except Exception:
                # A bug must not end the thread silently; the term ends by itself.
                log.exception(Line("election failed", lease=self._path))
                self._wake.wait(_AFTER_BUG_SECONDS)

    def halt(self) -> None:
        """Stop leading: no bind begins from now on; the Lease is kept until `stop`."""
        self._halted = True

    def stop(self, timeout: float = 2.0, *, release: bool = True) -> bool:
        """Return whether the thread has ended within `timeout` seconds; we lead no more at once.

        `release` gives the Lease away, so that the next leader need not wait: only when every call
        of this process has been answered.
        """
        self._halted = True
        self._stopping = release
        self._ended = self._ended or not release
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        self._ended = True
        return self._thread is None or not self._thread.is_alive()

    def alive(self, now: float) -> bool:
        """Return whether the thread runs and is not overdue."""
        return self._thread is not None and self._thread.is_alive() and now <= self._due

    def _do(self, action: election.Action) -> None:
        self._due = self._clock() + self._call_timeout + _SLACK_SECONDS
        match action:
            case election.Wait(seconds):
                self._due += seconds
                self._wake.wait(seconds)
                self._wake.clear()
            case election.Done():
                self._ended = True
            case _:
                try:
                    match action:
                        case election.Create(body):
                            answer = self._request("POST", self._collection, body)
                            self._machine.on_written(answer, self._clock())
                        case election.Update(body):
                            answer = self._request("PUT", self._path, body)
                            self._machine.on_written(answer, self._clock())
                        case election.Read():
                            answer_body = None
                            with suppress(ApiNotFound):
                                answer_body = self._request("GET", self._path, None)
                            self._machine.on_lease(answer_body, self._clock())
                except (ApiError, WireError) as error:
                    log.warning(Line("lease call failed", lease=self._path, error=error))
                    self._machine.on_error(error, self._clock())
                leads = self.leads_until(self._clock()) > self._clock()
                # Compared with the last log line: a term may begin and end between two calls.
                if leads != self._logged_leading:
                    self._logged_leading = leads
                    log.info(Line("leadership changed", lease=self._path, leading=leads))

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        return self._api.request(method, path, body=body, timeout=self._call_timeout)
