"""Readiness: whether the ledger is filled and fresh, and this process leads.

Knows the reflectors and the leadership, nothing of the ledger itself.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from gpushare.daemon.part import Part
from gpushare.kube.lease_runner import LeaseRunner
from gpushare.kube.reflector import Reflector

STALE_AFTER = 150.0
"""Seconds without a message from the API server after which the ledger is out of date.

The API server sends a bookmark about once a minute on a watch without events.
"""

MAX_UNSYNCED_SECONDS = 600.0
"""Seconds of leading without a filled ledger after which only a restart helps."""

_MISSING = "http-404"
"""How a reflector counts that there is no such collection."""

_REFUSED = ("http-403", _MISSING)
"""How a reflector counts that we have no right to a collection, or that there is none."""


@dataclass(frozen=True, slots=True)
class Source:
    """A collection that fills the ledger; an optional one may be forbidden to us."""

    reflector: Reflector[Any, Any]
    optional: bool = False


@dataclass(eq=False)
class Readiness(Part):
    """The conditions under which this process answers; checked before each verb but rank, by any
    thread.

    `lease_runner` None: this process always leads. `sources` must have "pods": after a change of
    leadership the pods are listed again, when every write of the last leader has landed.
    `is_settled`: whether no bind is under way here; called when no further bind begins.
    """

    sources: Mapping[str, Source]
    lease_runner: LeaseRunner | None
    clock: Callable[[], float] = time.monotonic
    _: KW_ONLY
    is_settled: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._relisted_for = -math.inf
        self._unsynced_since = math.inf
        # How often each optional source had been refused when all others were first listed.
        self._refusals_at_sync: dict[str, int] = {}

    def start(self) -> None:
        """Begin to follow and to lead, in threads."""
        # gunicorn's master made this object, perhaps long before the fork.
        self._started = self.clock()
        for source in self.sources.values():
            source.reflector.start()
        if self.lease_runner is not None:
            self.lease_runner.start()

    def stop(self) -> None:
        """Stop the threads.

        The Lease is released only if no bind is under way: the next leader does not wait for
        Bindings that may land.
        """
        if self.lease_runner is not None:
            self.lease_runner.halt()
            self.lease_runner.stop(release=self.is_settled())
        for source in self.sources.values():
            source.reflector.stop()

    def earlier_end(self) -> float:
        """Return when the term of the leader before this process ended, in monotonic seconds; NaN
        if that is not known.
        """
        return math.nan if self.lease_runner is None else self.lease_runner.earlier_end()

    def not_ready(self) -> str:
        """Return why this process must not answer now, in a text that stays the same, or ""."""
        now = self.clock()
        for name, source, is_listed in self._unwell_sources(now):
            if problem := self._problem_of(name, source, is_listed):
                return problem
        return self._leadership_problem(now)

    def checks(self) -> dict[str, str]:
        """Return the problem of each part, "" if there is none; APIs that this cluster does not
        have are left out.
        """
        now = self.clock()
        checks = {name: "" for name, source in self.sources.items() if not _is_missing(source)}
        for name, source, is_listed in self._unwell_sources(now):
            checks[name] = self._problem_of(name, source, is_listed)
        return checks | {"leadership": self._leadership_problem(now)}

    def liveness(self) -> dict[str, str]:
        """Return the problems by part that only a restart solves: a stuck thread, or leading
        without a filled ledger for long.
        """
        now = self.clock()
        parts: dict[str, Reflector[Any, Any] | LeaseRunner] = {
            name: source.reflector for name, source in self.sources.items()
        }
        if self.lease_runner is not None:
            parts["leadership"] = self.lease_runner
        problems = {
            name: "" if part.alive(now) else "its thread is stuck" for name, part in parts.items()
        }
        if now > self._unsynced_since + MAX_UNSYNCED_SECONDS:
            problems["leadership"] = "it leads, and has had no books for long"
        return problems

    def leads_until(self) -> float:
        """Return until when (monotonic seconds) a bind may be under way here."""
        if self.lease_runner is None:
            return math.inf
        # In this order: if a term begins between the two reads, the fence of that term counts.
        until = self.lease_runner.leads_until(self.clock())
        return -math.inf if self._relist_wanted(self.clock()) else until

    def tick(self, _is_ready: bool = False, /) -> None:
        """Ask for the list that a new leadership needs."""
        if self.lease_runner is None:
            return
        now = self.clock()
        useless = self._leads(now) and any(
            self._problem_of(name, source, is_listed)
            for name, source, is_listed in self._unwell_sources(now)
            if not source.optional
        )
        self._unsynced_since = min(self._unsynced_since, now) if useless else math.inf
        fence = self.lease_runner.fenced_until()
        # Asked for once: a second request would begin again a list that is under way.
        if self._relist_wanted(self.clock()) and self._relisted_for != fence:
            self._relisted_for = fence
            self.sources["pods"].reflector.request_relist()

    def last_resource_version(self, name: str) -> str:
        """Return the last resourceVersion of the collection in the ledger; "" if unknown."""
        return self.sources[name].reflector.last_resource_version

    def state(self) -> dict[str, float]:
        """Return values for metrics."""
        now = self.clock()
        state: dict[str, float] = {"ready": not self.not_ready()}
        state["leader"] = not self._leadership_problem(now)
        for name, source in self.sources.items():
            status = source.reflector.status
            if _is_missing(source):
                continue
            state[f"{name}_synced"] = status.synced
            state[f"{name}_age_seconds"] = now - max(status.last_contact, self._started)
            state[f"{name}_relists_total"] = status.relists
            state[f"{name}_decode_errors_total"] = status.decode_errors
        return state

    def _unwell_sources(self, now: float) -> Iterator[tuple[str, Source, bool]]:
        """Yield (name, source, whether it is listed) of each source that is not, and of each
        required one without a word for long; of none that this cluster does not have.
        """
        silent_since = now - STALE_AFTER
        for name, source in self.sources.items():
            status = source.reflector.status
            is_listed = status.synced
            is_well = is_listed and (source.optional or status.last_contact >= silent_since)
            if not is_well and not _is_missing(source):
                yield name, source, is_listed

    def _problem_of(self, name: str, source: Source, is_listed: bool) -> str:
        """Return the problem of an unwell source; "" if there is none.

        An optional source has no problem if the API server does not have it, or refuses to list it
        since all required sources were listed. No answer is no refusal. A kube-apiserver that has
        just started refuses everything with 403 or 503; it answers 404 only when it knows all APIs.
        """
        if is_listed:
            return f"no word from the API server about {name}"
        required = (
            required_source
            for required_source in self.sources.values()
            if not required_source.optional
        )
        if source.optional and all(
            required_source.reflector.status.synced for required_source in required
        ):
            restarts = source.reflector.status.restarts
            refusals = sum(restarts[reason] for reason in _REFUSED)
            if refusals > self._refusals_at_sync.setdefault(name, refusals):
                return ""
        return f"{name} are not listed yet"

    def _leadership_problem(self, now: float) -> str:
        if self.lease_runner is None:
            return ""
        if not self._leads(now):
            return "another process leads, or nobody does yet"
        return (
            "pods are listed once more after a change of leader" if self._relist_wanted(now) else ""
        )

    def _leads(self, now: float) -> bool:
        return self.lease_runner is None or self.lease_runner.leads_until(now) > now

    def _relist_wanted(self, now: float) -> bool:
        """Return whether the last list of pods may miss a write of the previous leader."""
        if self.lease_runner is None or not self._leads(now):
            return False
        listed_at = self.sources["pods"].reflector.status.listed_at
        return listed_at < self.lease_runner.fenced_until()


def _is_missing(source: Source) -> bool:
    """Return whether this cluster does not have the API of an optional source."""
    status = source.reflector.status
    return source.optional and not status.synced and bool(status.restarts[_MISSING])
