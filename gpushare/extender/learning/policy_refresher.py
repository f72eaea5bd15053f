"""What pods come is learned from the pods created, and policies are made anew for it.

Knows the books and functions that make and try policies (see policy_builder.py), which take
seconds: they run in the one thread here, never for a request. A request finds the old ranking or
the new one, never half of one. A policy that cannot be made leaves the old one where it is, and the
others alone; it is tried again later and later, since one that never comes to an end has all of
them wait.

Every pod created counts, GPU or not, placed or turned away. Those that ran before we began to watch
do not, since the long-lived would count too much. For which pods policies are made, and at which of
them, says core/workload_estimator.py; after the early ones it is held here to once a minute.
"""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.core.model import Kind, Request
from gpushare.core.policy import Policy
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Ints
from gpushare.core.trial import AUTO
from gpushare.core.workload import Workload, class_of
from gpushare.core.workload_estimator import WorkloadEstimator
from gpushare.daemon.logs.formatters import Line
from gpushare.extender.learning.policy_trials import PolicyTrials, Try
from gpushare.extender.managed_resources import ManagedResource, ManagedResources

log = logging.getLogger("gpushare.learning")

Make = Callable[[Sequence[str], Workload], Mapping[str, Policy | Exception]]
"""Policies by name, made for a workload, or why one cannot be; raises where none can."""

SPACING = 60.0
"""Seconds from one making to the next, but for the early ones."""

_EARLY = 200
_LATEST = 64
"""How many times SPACING it takes at most until a policy that failed is tried again."""
_LOOK_EVERY = 1.0
_WARMED = 16
"""Kinds of request, those asked for last, that a new ranking knows before it is used."""
_BREATH = 0.01
"""Seconds between two steps of that: their arithmetic is in the way of requests."""


@dataclass(frozen=True, slots=True)
class _Broken:
    """A policy that could not be made: how often in a row, and when it is tried again."""

    times: int = 0
    again_at: float = float("-inf")

    def once_more(self, now: float) -> "_Broken":
        return _Broken(self.times + 1, now + SPACING * min(2**self.times, _LATEST))


@dataclass(slots=True)
class _Course:
    """What has been learned for one resource, and how making policies went.

    layout: the capacities of the devices as last looked at. failing: nothing could be made the last
    time. broken: by name, the policies that could not be made while others could.
    """

    books: ManagedResource
    trials: PolicyTrials
    learned: WorkloadEstimator = field(default_factory=WorkloadEstimator)
    layout: Ints | None = None
    made: int = 0
    failed: int = 0
    failing: bool = False
    broken: dict[str, "_Broken"] = field(default_factory=dict)
    tried: float = float("-inf")
    done: float = 0.0
    took: float = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether policies are to be made now."""
        learned = self.learned
        if now >= self.tried + SPACING:
            return learned.is_due()
        # The first pods tell most, and come fast where a cluster fills.
        return not self.failing and learned.fit_at <= min(learned.arrivals.seen, _EARLY)

    def names(self, now: float) -> tuple[str, ...]:
        """Return the policies that are to be made now."""
        none = _Broken()
        return tuple(
            name
            for name in self.books.rankings
            if name != AUTO and now >= self.broken.get(name, none).again_at
        )

    def made_without(self, failed: Iterable[str], now: float) -> None:
        """Note that these could not be made, while others could."""
        for name in failed:
            last = self.broken.get(name, _Broken())
            self.broken[name] = last.once_more(now)

    def look(self) -> None:
        """Take note of the devices that there are."""
        layout = self.books.ledger.snapshot().capacity
        if layout is not self.layout:  # snapshots share it until a node changes
            self.layout = layout
            self.learned.devices = Counter(layout[layout > 0].tolist())


class PolicyRefresher:
    """Learns for every resource of the library. `created` may be called from any thread."""

    def __init__(
        self,
        library: ManagedResources,
        make: Make,
        try_policies: Try,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._courses = {
            books.names.resource: _Course(books, PolicyTrials(books, try_policies, wall))
            for books in library
        }
        self._make = make
        self._clock = clock
        self._counting = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def created(self, books: ManagedResource, request: Request) -> None:
        """Count a pod that was created and asks for this resource; call it once for each pod."""
        with self._counting:
            self._courses[books.names.resource].learned.arrivals.observe(class_of(request))

    def moved(self, books: ManagedResource, by: int) -> None:
        """Count that a pod has been placed (by: 1), or that one that had been is gone (-1)."""
        with self._counting:
            self._courses[books.names.resource].learned.arrivals.moved(by)

    def start(self) -> None:
        """Begin to make policies, in a thread."""
        # Made here: one that was made before a fork counts as ended in the child.
        self._thread = threading.Thread(target=self._run, name="learning", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that waits for policies ends when they are there."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def tick(self) -> None:
        """Make and try the policies that are due; returns when they are in use."""
        for course in self._courses.values():
            course.look()
            if course.is_due(self._clock()):
                self._renew(course)
            if course.trials.is_due(course.learned.arrivals.seen, self._clock()):
                self._try(course)

    def state(self) -> dict[str, float]:
        """Return the figures for metrics, over all resources; the age is that of the oldest
        policies.
        """
        courses = self._courses.values()
        now = self._clock()
        return {
            "learned_pods_total": max(course.learned.arrivals.seen for course in courses),
            "refits_total": sum(course.made for course in courses),
            "refit_failures_total": sum(course.failed for course in courses),
            "refit_duration_seconds": max(course.took for course in courses),
            "refit_age_seconds": max(
                now - course.done if course.made else 0.0 for course in courses
            ),
            "trials_total": sum(course.trials.made for course in courses),
            "trial_failures_total": sum(course.trials.failed for course in courses),
        }

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY):
            try:
                self.tick()
            except Exception:
                # The thread must go on: the pods that come would change, and nobody learn it.
                log.exception("learning failed")

    def _renew(self, course: _Course) -> None:
        course.tried = start = self._clock()
        books, learned = course.books, course.learned
        sizes = learned.sizes
        with self._counting:
            seen, workload = learned.arrivals.seen, learned.workload()
        fresh, failed = self._fresh(course, workload)
        if failed:
            course.failed += 1
            self._tell_failed(course, failed, seen)
        course.failing = not fresh
        if not fresh:
            return
        books.rankings.update(fresh)
        course.trials.settle()
        for name in fresh:
            course.broken.pop(name, None)
        course.made_without(failed, self._clock())
        course.made += 1
        learned.made(seen, sizes)
        course.done = self._clock()
        course.took = course.done - start
        classes = len(workload.classes)
        line = {"pods": seen, "classes": classes, "turnover": round(workload.turnover, 2)}
        log.info(Line("policies made anew", **line, s=round(course.took, 2)))

    def _try(self, course: _Course) -> None:
        books = course.books
        with self._counting:
            workload = course.learned.workload()
        winner = course.trials.run(workload, self._clock())
        if winner != books.ranking_policy:
            self._warmed(books.rankings[winner], books.rankings[AUTO].recent_kinds, books)
        course.trials.settle()

    def _fresh(
        self, course: _Course, workload: Workload
    ) -> tuple[dict[str, Ranking], dict[str, BaseException]]:
        """Return the new rankings by name, and why there is none of the others."""
        books, names = course.books, course.names(course.tried)
        # One that nobody has asked yet shows by the last kind of pod whether it judges at all.
        last = books.rankings[books.default_policy].recent_kinds[-1:]
        fresh: dict[str, Ranking] = {}
        failed: dict[str, BaseException] = {}
        try:
            made = self._make(names, workload)
        except Exception as error:
            return fresh, dict.fromkeys(names, error)
        for name in names:
            policy = made[name]
            try:
                if isinstance(policy, Exception):
                    raise policy
                asked = books.rankings[name].recent_kinds or last
                fresh[name] = self._warmed(Ranking(policy), asked, books)
            except (Exception, SystemExit) as error:  # policies are anybody's code
                failed[name] = error
        return fresh, failed

    def _tell_failed(self, course: _Course, failed: Mapping[str, BaseException], seen: int) -> None:
        """Log one line for each error, of those policies that have not been logged as failing."""
        alike: dict[str, list[str]] = defaultdict(list)
        for name, error in failed.items():
            alike[f"{type(error).__name__}: {error}"].append(name)
        for text, names in alike.items():
            told = course.failing or all(name in course.broken for name in names)
            level = logging.DEBUG if told else logging.WARNING
            values = {"policies": ",".join(names), "error": text, "pods": seen}
            log.log(level, Line("policies stay as they are", **values))

    def _warmed(self, fresh: Ranking, asked: Sequence[Kind], books: ManagedResource) -> Ranking:
        """Return the ranking, prepared for the kinds that the one before it was asked for last."""
        for kind in asked[-_WARMED:]:
            request = _asked(kind)
            fresh.prepare(books.ledger.snapshot(), request, lambda: self._stopping.wait(_BREATH))
        return fresh


def _asked(kind: Kind) -> Request:
    units, devices, cpu, memory, models = kind
    return Request(units, devices, cpu, memory, models=models)
