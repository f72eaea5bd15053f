"""What the pods of one namespace ask for, learned from those that it creates, and how long they
stay.

Pure values; times are arguments, in any one unit. A mixture has *phases*: when the latest pods
differ from what was known by more than chance, another phase begins, and the old one fades; when
they are again as in an earlier phase, the mixture alternates (day and night, a weekly run), and
from then on its phases count together.

Tested in `tests/unit/core/test_mixture.py`.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from gpushare.core.workload import PodClass

RECENT = 64
"""The latest pods, which are held against those before them."""
_TEST_EVERY = 16
"""Pods from one test to the next."""
_SURE = 4.5
"""Standard deviations beyond which the latest pods are other ones: with a test every 16 pods chance
does that once in some five million pods. A burst of equal pods does it too, and is an alternation
from the second time on."""
_ALIKE = 3.0
"""Standard deviations up to which the latest pods may be those of an earlier phase."""
_YOUNG = 4 * RECENT
"""Pods of a phase that was perhaps only the passage from one to the next: it is not kept."""
_MOST_PHASES = 4
_CARRIED = RECENT // 2
"""Pods that a phase that has ended still counts as, until it comes again."""
_MANY = 500.0
"""Pods that came or left before older ones count half."""
_MOST_LIVES = 64
"""Classes of one namespace whose lives are known."""

_Kind = tuple[int, int]


def _kind(cls: PodClass) -> _Kind:
    """Return in what classes must differ to be told apart: devices, and size to half an octave,
    which is the same whether memory is counted in GiB or in MiB.
    """
    return cls.devices, round(2 * math.log2(cls.units)) if cls.devices else 0


class _Phase:
    """The last pods of one phase."""

    def __init__(self, pods: Iterable[PodClass] = ()) -> None:
        self.pods: deque[PodClass] = deque()
        self.kinds: Counter[_Kind] = Counter()
        self.alternates = False
        self.extend(pods, math.inf)

    def extend(self, pods: Iterable[PodClass], most: float) -> None:
        for cls in pods:
            self.pods.append(cls)
            self.kinds[_kind(cls)] += 1
        while len(self.pods) > most:
            self.kinds[_kind(self.pods.popleft())] -= 1

    def take_latest(self, number: int) -> list[PodClass]:
        """Remove the latest pods and return them, oldest first."""
        taken = [self.pods.pop() for _ in range(min(number, len(self.pods)))]
        self.kinds.subtract(map(_kind, taken))
        return taken[::-1]


def difference(one: Counter[_Kind], other: Counter[_Kind]) -> float:
    """Return by how many standard deviations two samples differ, by a chi-squared test.

    Kinds that are too rare to tell count as one. Wilson and Hilferty's approximation, 1931.
    """
    n, m = one.total(), other.total()
    if not n or not m:
        return 0.0
    pooled = one + other
    rare = {kind for kind, both in pooled.items() if both * min(n, m) < 3 * (n + m)}
    cells = [(one[kind], other[kind]) for kind in pooled if kind not in rare]
    if rare:
        cells.append((sum(one[kind] for kind in rare), sum(other[kind] for kind in rare)))
    free = len(cells) - 1
    if free < 1:
        return 0.0
    squared = sum((a / n - b / m) ** 2 * n * m / (a + b) for a, b in cells if a + b)
    spread = 2 / (9 * free)
    return (math.cbrt(squared / free) - (1 - spread)) / math.sqrt(spread)


class Mixture:
    """The pods of one namespace."""

    def __init__(self) -> None:
        self._phases = [_Phase()]
        self._recent: deque[PodClass] = deque(maxlen=RECENT)
        self._untested = 0
        self.placed = 0.0
        self.left = 0.0
        """Pods that came to nodes, and that left them; both are halved when they are many."""
        self._lives: dict[PodClass, _Lives] = {}

    @property
    def pods(self) -> int:
        """Pods that are remembered of the phases that count in full."""
        return sum(len(phase.pods) for phase in self._counting())

    def observe(self, cls: PodClass, most: int) -> bool:
        """Count a created pod; return whether another phase begins with it.

        most: how many pods of each phase are remembered.
        """
        now = self._phases[-1]
        now.extend([cls], most)
        self._recent.append(cls)
        self._untested += 1
        if self._untested < _TEST_EVERY or len(self._recent) < RECENT:
            return False
        self._untested = 0
        recent = Counter(map(_kind, self._recent))
        before = now.kinds - recent
        if before.total() < RECENT or difference(recent, before) < _SURE:
            return False
        self._begin_phase(recent, most)
        return True

    def adopt(self, running: Sequence[tuple[PodClass, float]], most: int) -> None:
        """Take pods that run already, as (class, age), for evidence of those that come.

        Of pods that stay long more are found running: a class comes as often as its pods that run,
        divided by their mean life, which for pods found at a random moment is their mean age. The
        fewer they are, the more their age is taken to be that of all.
        """
        if not running:
            return
        ages: dict[PodClass, list[float]] = {}
        for cls, age in running:
            ages.setdefault(cls, []).append(max(age, 0.0))
        every = [age for some in ages.values() for age in some]
        mean = max(sum(every) / len(every), 1e-9)
        often = {
            cls: len(some) * (len(some) + 1) / (sum(some) + mean) for cls, some in ages.items()
        }
        number = min(len(every), most)
        scale = number / sum(often.values())
        # Evenly mixed, as no order of theirs is known.
        order = sorted(
            ((place + 0.5) / count, cls)
            for cls, count in ((cls, max(round(scale * o), 1)) for cls, o in often.items())
            for place in range(count)
        )
        self._phases[-1].extend((cls for _, cls in order), most)
        self.placed += len(every)
        self.left += len(every) * _turnover_of(every)

    def came(self, cls: PodClass, now: float) -> None:
        """Count a pod that has come to a node."""
        self.placed += 1
        self.runs(cls, now)

    def runs(self, cls: PodClass, since: float) -> None:
        """Note a pod that is on a node since then."""
        if cls not in self._lives and len(self._lives) >= _MOST_LIVES:
            del self._lives[min(self._lives, key=lambda pod_class: self._lives[pod_class].running)]
        self._lives.setdefault(cls, _Lives()).came(since)

    def went(self, cls: PodClass, since: float | None, now: float) -> None:
        """Count a pod that has left its node; since: when it came to it, None if unknown."""
        self.left += 1
        if self.placed > _MANY or self.left > _MANY:
            self.placed, self.left = self.placed / 2, self.left / 2
        lives = self._lives.get(cls)
        if lives is not None:
            lives.went(since, now)

    @property
    def turnover(self) -> float:
        """Pods that left for each that was placed, at most 1.

        Pods that fit nowhere and wait do not count: they would hide that all others come and go.
        """
        return min(self.left / max(self.placed, 1.0), 1.0)

    def counts(self) -> dict[PodClass, float]:
        """Return how often each class counts."""
        counting = self._counting()
        counts: dict[PodClass, float] = {}
        for phase in counting:
            for cls in phase.pods:
                counts[cls] = counts.get(cls, 0) + 1
        faded = [phase for phase in self._phases if phase not in counting]
        if faded and faded[-1].pods:
            share = min(_CARRIED / len(faded[-1].pods), 1.0)
            for cls in faded[-1].pods:
                counts[cls] = counts.get(cls, 0) + share
        return counts

    def lives(self, now: float) -> dict[PodClass, tuple[float, float]]:
        """Return by class (the time that its pods have spent on nodes, how many have left)."""
        return {cls: lives.known(now) for cls, lives in self._lives.items()}

    def _counting(self) -> list[_Phase]:
        now = self._phases[-1]
        return [phase for phase in self._phases if phase.alternates] if now.alternates else [now]

    def _begin_phase(self, recent: Counter[_Kind], most: int) -> None:
        """Take the latest pods for those of an earlier phase if they are like them, or for new."""
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
            alike.extend(latest, most)
        else:
            self._phases = [*self._phases[1 - _MOST_PHASES :], _Phase(latest)]


class _Lives:
    """How long pods of one class stay: those that run now, and those that have left."""

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

    def known(self, now: float) -> tuple[float, float]:
        return self._stayed + max(self.running * now - self._since, 0.0), self._ended


def _turnover_of(ages: Sequence[float]) -> float:
    """Return the turnover of pods with these ages.

    Where all stay, pods that came at an even rate have even ages, whose standard deviation is
    1/sqrt(3) of their mean; where they leave at random, it is their mean.
    """
    mean = sum(ages) / len(ages)
    if len(ages) < 2 or mean <= 0:
        return 0.0
    spread = math.sqrt(sum((age - mean) ** 2 for age in ages) / (len(ages) - 1)) / mean
    even = 1 / math.sqrt(3)
    return min(max((spread - even) / (1 - even), 0.0), 1.0)
