"""The mixture of pod classes of one namespace, and the lifetimes of the pods.

The classes are learned from created pods. Pure values; times are arguments, in any one unit. A
mixture has *phases*: when the latest pods differ from earlier pods by more than chance, a new phase
begins, and the old phase fades. When the latest pods resemble those of an earlier phase, the
mixture alternates (day and night, a weekly run), and from then on all alternating phases count
together.

Tested in `tests/unit/core/test_mixture.py`.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from gpushare.core.workload import PodClass

RECENT = 64
"""Number of latest pods that are compared with the pods before."""
_TEST_EVERY = 16
"""Pods from one test to the next."""
_SURE = 4.5
"""Standard deviations beyond which the latest pods are a new phase: with a test every 16 pods
chance exceeds this once in some five million pods. A burst of equal pods exceeds this too, and
counts as an alternation from the second time on."""
_ALIKE = 3.0
"""Standard deviations up to which the latest pods count as an earlier phase."""
_YOUNG = 4 * RECENT
"""A phase with fewer pods may be only the passage between two phases, and is dropped."""
_MAX_PHASES = 4
_CARRIED = RECENT // 2
"""Weight of an ended phase, in pods, until the phase comes again."""
_MANY = 500.0
"""When a count of pods exceeds this number, the counts are halved."""
_MAX_LIVES = 64
"""Upper bound of the classes of one namespace with recorded lifetimes."""

_Kind = tuple[int, int, int]


def _kind(cls: PodClass) -> _Kind:
    """Return the key that distinguishes classes: devices, and units and percent rounded to half an
    octave.

    Counting in GiB or in MiB gives the same distinctions.
    """
    units, share = (
        round(2 * math.log2(amount)) if cls.devices and amount else 0
        for amount in (cls.units, cls.share)
    )
    return cls.devices, units, share


class _MixturePhase:
    """The last pods of one phase."""

    def __init__(self, pods: Iterable[PodClass] = ()) -> None:
        self.pods: deque[PodClass] = deque()
        self.kinds: Counter[_Kind] = Counter()
        self.alternates = False
        self.extend(pods, math.inf)

    def extend(self, pods: Iterable[PodClass], max_pods: float) -> None:
        for cls in pods:
            self.pods.append(cls)
            self.kinds[_kind(cls)] += 1
        while len(self.pods) > max_pods:
            self.kinds[_kind(self.pods.popleft())] -= 1

    def take_latest(self, number: int) -> list[PodClass]:
        """Remove and return the latest pods, oldest first."""
        latest = [self.pods.pop() for _ in range(min(number, len(self.pods)))]
        self.kinds.subtract(map(_kind, latest))
        return latest[::-1]


def difference(one: Counter[_Kind], two: Counter[_Kind]) -> float:
    """Return by how many standard deviations two samples differ, by a chi-squared test.

    Rare kinds are pooled. Wilson and Hilferty's approximation, 1931.
    """
    n, m = one.total(), two.total()
    if not n or not m:
        return 0.0
    pooled = one + two
    rare = {kind for kind, both in pooled.items() if both * min(n, m) < 3 * (n + m)}
    cells = [(one[kind], two[kind]) for kind in pooled if kind not in rare]
    if rare:
        cells.append((sum(one[kind] for kind in rare), sum(two[kind] for kind in rare)))
    free = len(cells) - 1
    if free < 1:
        return 0.0
    squared = sum((a / n - b / m) ** 2 * n * m / (a + b) for a, b in cells if a + b)
    spread = 2 / (9 * free)
    return (math.cbrt(squared / free) - (1 - spread)) / math.sqrt(spread)


class Mixture:
    """The pods of one namespace."""

    def __init__(self) -> None:
        self._phases = [_MixturePhase()]
        self._recent: deque[PodClass] = deque(maxlen=RECENT)
        self._untested = 0
        self.placed = 0.0
        self.left = 0.0
        """Pods that left nodes; `placed`: pods that came. Both are halved at _MANY."""
        self._lives: dict[PodClass, _Lives] = {}

    @property
    def pods(self) -> int:
        """Number of remembered pods of the phases that count in full."""
        return sum(len(phase.pods) for phase in self._counting())

    def observe(self, cls: PodClass, max_pods: int) -> bool:
        """Count a created pod; return whether a new phase begins.

        max_pods: upper bound of the remembered pods of each phase.
        """
        now = self._phases[-1]
        now.extend([cls], max_pods)
        self._recent.append(cls)
        self._untested += 1
        if self._untested < _TEST_EVERY or len(self._recent) < RECENT:
            return False
        self._untested = 0
        recent = Counter(map(_kind, self._recent))
        before = now.kinds - recent
        if before.total() < RECENT or difference(recent, before) < _SURE:
            return False
        self._begin_phase(recent, max_pods)
        return True

    def adopt(self, running: Sequence[tuple[PodClass, float]], max_pods: int) -> None:
        """Estimate the created pods from the running pods, as (class, age).

        Long-lived pods are overrepresented among running pods: the rate of a class is the number of
        running pods divided by their mean lifetime, which at a random moment equals their mean age.
        The fewer the pods of a class, the more their mean age is shrunk towards the mean of all.
        """
        if not running:
            return
        ages: dict[PodClass, list[float]] = {}
        for cls, age in running:
            ages.setdefault(cls, []).append(max(age, 0.0))
        all_ages = [age for some in ages.values() for age in some]
        mean = max(sum(all_ages) / len(all_ages), 1e-9)
        often = {
            cls: len(some) * (len(some) + 1) / (sum(some) + mean) for cls, some in ages.items()
        }
        number = min(len(all_ages), max_pods)
        scale = number / sum(often.values())
        # Evenly mixed, since the order of creation is unknown.
        order = sorted(
            ((place + 0.5) / count, cls)
            for cls, count in ((cls, max(round(scale * o), 1)) for cls, o in often.items())
            for place in range(count)
        )
        self._phases[-1].extend((cls for _, cls in order), max_pods)
        self.placed += len(all_ages)
        self.left += len(all_ages) * _turnover_of(all_ages)

    def came(self, cls: PodClass, now: float) -> None:
        """Count a pod that has come to a node."""
        self.placed += 1
        self.runs(cls, now)

    def runs(self, cls: PodClass, since: float) -> None:
        """Record a pod that has been on a node since `since`."""
        if cls not in self._lives and len(self._lives) >= _MAX_LIVES:
            del self._lives[min(self._lives, key=lambda pod_class: self._lives[pod_class].running)]
        self._lives.setdefault(cls, _Lives()).came(since)

    def went(self, cls: PodClass, since: float | None, now: float) -> None:
        """Count a pod that left a node; since: when the pod came there, None if unknown."""
        self.left += 1
        if self.placed > _MANY or self.left > _MANY:
            self.placed, self.left = self.placed / 2, self.left / 2
        lives = self._lives.get(cls)
        if lives is not None:
            lives.went(since, now)

    @property
    def turnover(self) -> float:
        """Pods that left per placed pod, at most 1.

        Pending pods do not count: otherwise many of them would hide that all other pods come and
        go.
        """
        return min(self.left / max(self.placed, 1.0), 1.0)

    def counts(self) -> dict[PodClass, float]:
        """Return how often each class counts."""
        full_phases = self._counting()
        counts: dict[PodClass, float] = {}
        for phase in full_phases:
            for cls in phase.pods:
                counts[cls] = counts.get(cls, 0) + 1
        faded = [phase for phase in self._phases if phase not in full_phases]
        if faded and faded[-1].pods:
            share = min(_CARRIED / len(faded[-1].pods), 1.0)
            for cls in faded[-1].pods:
                counts[cls] = counts.get(cls, 0) + share
        return counts

    def lives(self, now: float) -> dict[PodClass, tuple[float, float]]:
        """Return by class (total time that pods spent on nodes, number of pods that left)."""
        return {cls: lives.sums(now) for cls, lives in self._lives.items()}

    def _counting(self) -> list[_MixturePhase]:
        now = self._phases[-1]
        return [phase for phase in self._phases if phase.alternates] if now.alternates else [now]

    def _begin_phase(self, recent: Counter[_Kind], max_pods: int) -> None:
        """Move the latest pods to the most similar earlier phase, or to a new phase."""
        now = self._phases[-1]
        latest = now.take_latest(RECENT)
        if len(now.pods) < _YOUNG and not now.alternates and len(self._phases) > 1:
            self._phases.pop()
        apart = [difference(recent, phase.kinds) for phase in self._phases]
        alike = self._phases[apart.index(min(apart))]
        if min(apart) < _ALIKE:
            alike.alternates = True
            now.alternates = now.alternates or now in self._phases
            self._phases.remove(alike)
            self._phases.append(alike)
            alike.extend(latest, max_pods)
        else:
            self._phases = [*self._phases[1 - _MAX_PHASES :], _MixturePhase(latest)]


class _Lives:
    """Sums over the lifetimes of one class: pods that run now and pods that have left."""

    def __init__(self) -> None:
        self.running = 0
        self._since = 0.0
        self._ended = self._stayed = 0.0

    def came(self, since: float) -> None:
        self.running += 1
        self._since += since

    def went(self, since: float | None, now: float) -> None:
        if not self.running:
            return
        mean = self._since / self.running
        began = mean if since is None else since
        self.running -= 1
        self._since = self._since - began if self.running else 0.0
        self._ended += 1
        self._stayed += max(now - began, 0.0)
        if self._ended > _MANY:
            self._ended, self._stayed = self._ended / 2, self._stayed / 2

    def sums(self, now: float) -> tuple[float, float]:
        return self._stayed + max(self.running * now - self._since, 0.0), self._ended


def _turnover_of(ages: Sequence[float]) -> float:
    """Return the turnover that running pods with these ages suggest, 0 to 1.

    Pods that come at an even rate and stay have uniform ages: the standard deviation is 1/sqrt(3)
    of the mean. Pods that leave at random have exponential ages: the deviation equals the mean.
    """
    mean = sum(ages) / len(ages)
    if len(ages) < 2 or mean <= 0:
        return 0.0
    spread = math.sqrt(sum((age - mean) ** 2 for age in ages) / (len(ages) - 1)) / mean
    even = 1 / math.sqrt(3)
    return min(max((spread - even) / (1 - even), 0.0), 1.0)
