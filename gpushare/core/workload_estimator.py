"""An estimate of the pods to come, and when policies are made and tried again for it.

Pure values; it knows neither clocks nor threads. The extender and simulations use the same rule.

Every created pod counts once, whatever becomes of it: pods that run would overstate those that stay
long, and pods that were placed would leave out those that found no room, which are the ones to make
room for. But anybody who may create pods can create any number of them. So a namespace's pods say
in which proportions it asks; how much it counts is what it *holds*, and one pod more. What a
namespace holds is what its quota and the scheduler gave it, which nobody can buy by creating and
deleting. Pods without GPU count at most as often as the namespace's pods with GPU.

Policies are made first for no pods, which is judging as `device-bestfit`, then after 50, 100 and
200 pods, then every 250 pods, for devices of a new size, and when a namespace begins to ask for
other pods. Until 50 pods have come nothing is expected. A public trace was expected once: it kept
whole devices free for pods that most clusters never see (docs/research/placement-policies.md).

Tested in `tests/unit/core/test_workload_estimator.py`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.core.mixture import RECENT, Mixture
from gpushare.core.workload import PodClass, Workload, workload_of

WINDOW = 4000
"""Pods that are remembered of each phase of a namespace, if it is the only one: with fewer, rare
large classes come and go by chance."""
_FEWEST_REMEMBERED = 200
"""Pods that are remembered of each phase of a namespace however many namespaces there are."""
MOST_NAMESPACES = 128
"""Namespaces that are told apart: beyond that, those that hold nothing are forgotten, and others
count as one."""
FEWEST_SEEN = 50
"""Pods that must have been seen before any are expected, and before a trial."""
_OTHERS = ""
"""The name under which namespaces count that are too many."""
_FIT_EVERY = 250
_TRIAL_SHARE, _TRIAL_EVERY = 0.5, 1000
_RESOLUTION = 20_000
"""Pods that a workload of several namespaces is written as, to have whole numbers."""
_LONGEST = 4.0
"""How many times as long, or as short, as the mean a class is taken to stay."""
_FEW_ENDED = 5.0
"""Pods whose life is taken to be the mean of all, for each class, until more have ended."""


@dataclass(slots=True)
class WorkloadEstimator:
    """The estimate for one cluster."""

    devices: Mapping[int, int] = field(default_factory=dict)
    """How many devices there are now of each capacity."""

    seen: int = 0
    """Pods that were counted so far."""

    fit_at: int = FEWEST_SEEN
    """At how many pods policies are due next."""

    trial_at: int = FEWEST_SEEN
    """At how many pods the candidates are due to be tried next."""

    held: Mapping[str, int] = field(default_factory=dict)
    """Units that pods of each namespace hold, by the books; set before a workload is asked for."""

    _made_for: frozenset[int] = frozenset()
    _tried_on: int = 0
    _namespaces: dict[str, Mixture] = field(default_factory=dict)

    @property
    def sizes(self) -> frozenset[int]:
        """The capacities that there are now."""
        return frozenset(self.devices)

    @property
    def remembered(self) -> int:
        """How many pods the estimate rests on, over all namespaces."""
        return sum(mixture.pods for mixture in self._namespaces.values())

    def created(self, namespace: str, cls: PodClass) -> None:
        """Count a created pod."""
        self.seen += 1
        if self._of(namespace).observe(cls, self._most()):
            # Other pods come: what was made and chosen was so for those that came before.
            self.fit_at = min(self.fit_at, self.seen)
            self.trial_at = min(self.trial_at, self.seen + RECENT)

    def adopt(self, pods: Iterable[tuple[str, PodClass, float]], now: float) -> None:
        """Take the pods that ran when we began to look, as (namespace, class, since when), for
        evidence of those that come: so a restart forgets little, and an old cluster is known at
        once.
        """
        running: dict[int, tuple[Mixture, list[tuple[PodClass, float]]]] = {}
        for namespace, cls, since in pods:
            mixture = self._of(namespace)
            mixture.runs(cls, since)
            running.setdefault(id(mixture), (mixture, []))[1].append((cls, now - since))
        for mixture, some in running.values():
            mixture.adopt(some, self._most())
            self.seen += len(some)

    def came(self, namespace: str, cls: PodClass, now: float) -> None:
        """Count a pod that has come to a node."""
        self._of(namespace).came(cls, now)

    def went(self, namespace: str, cls: PodClass, since: float | None, now: float) -> None:
        """Count a pod that has left its node; since: when it came to it, None if unknown."""
        known = self._namespaces.get(namespace) or self._namespaces.get(_OTHERS)
        if known is not None:
            known.went(cls, since, now)

    def is_due(self) -> bool:
        """Return whether policies are due to be made again."""
        return self.seen >= self.fit_at or not self.sizes <= self._made_for

    def policies_made(self, seen: int, sizes: frozenset[int]) -> None:
        """Record that policies were made for what was known when `seen` pods had been seen."""
        self._made_for = sizes
        first = next((first for first in (50, 100, 200) if first > seen), 0)
        self.fit_at = first or seen + _FIT_EVERY

    def is_trial_due(self) -> bool:
        """Return whether the candidates are due to be tried: enough has come since the last time
        to tell more, or a fifth of the devices is new or gone.
        """
        devices = sum(self.devices.values())
        others = abs(devices - self._tried_on) * 5 > self._tried_on
        return self.seen >= (FEWEST_SEEN if others else self.trial_at)

    def tried(self) -> None:
        """Record that the candidates were tried for what is known now."""
        self._tried_on = sum(self.devices.values())
        self.trial_at = self.seen + int(
            min(max(self.seen * _TRIAL_SHARE, FEWEST_SEEN), _TRIAL_EVERY)
        )

    def workload(self, now: float = 0.0) -> Workload:
        """Return the expected pods: none until enough have come to tell."""
        weighted = self._weighted() if self.seen >= FEWEST_SEEN else []
        if not weighted:
            return workload_of({}, self.devices)
        total = sum(weight for weight, _, _ in weighted)
        counts: dict[PodClass, float] = {}
        turnover = spread = 0.0
        for weight, mixture, own in weighted:
            share, pods = weight / total, sum(own.values())
            turnover += share * mixture.turnover
            spread += share**2 / pods
            for cls, count in own.items():
                counts[cls] = counts.get(cls, 0.0) + share * count / pods
        # The size of one sample that would tell as much as these of several namespaces together.
        evidence = max(round(1 / spread), 1)
        scale = evidence if len(weighted) == 1 else _RESOLUTION
        whole = {cls: round(scale * count) for cls, count in counts.items()}
        lives = self._lives([mixture for _, mixture, _ in weighted], whole, now)
        return workload_of(whole, self.devices, turnover, evidence, lives)

    def _weighted(self) -> list[tuple[float, Mixture, dict[PodClass, float]]]:
        """Return of each namespace that asks for GPU (its weight in pods, what is known of it, how
        often its classes count).
        """
        weighted = []
        others = sum(self.held.values()) - sum(self.held.get(name, 0) for name in self._namespaces)
        for name, mixture in self._namespaces.items():
            held = others if name == _OTHERS else self.held.get(name, 0)
            counts = mixture.counts()
            gpu = sum(count for cls, count in counts.items() if cls.devices)
            units = sum(count * cls.total for cls, count in counts.items())
            if not units:
                continue
            plain = sum(counts.values()) - gpu
            if plain > gpu:
                counts = {
                    cls: count if cls.devices else count * gpu / plain
                    for cls, count in counts.items()
                }
            mean = units / gpu
            pods = (held + mean) / mean
            weighted.append((pods * sum(counts.values()) / gpu, mixture, counts))
        return weighted

    def _lives(
        self, mixtures: Iterable[Mixture], counts: Mapping[PodClass, int], now: float
    ) -> dict[PodClass, float]:
        """Return how long the pods of each class stay, the mean of all units being 1; none if
        nothing has left yet.
        """
        stayed, ended = defaultdict[PodClass, float](float), defaultdict[PodClass, float](float)
        for mixture in mixtures:
            for cls, (time, ends) in mixture.lives(now).items():
                stayed[cls] += time
                ended[cls] += ends
        ends, time = sum(ended.values()), sum(stayed.values())
        if not ends or not time:
            return {}
        mean = time / ends
        lives = {
            cls: (stayed[cls] + _FEW_ENDED * mean) / (ended[cls] + _FEW_ENDED) / mean
            for cls in counts
        }
        units = sum(count * cls.total for cls, count in counts.items())
        all_ = sum(count * cls.total * lives[cls] for cls, count in counts.items())
        if not all_:
            return {}
        return {
            cls: min(max(life * units / all_, 1 / _LONGEST), _LONGEST)
            for cls, life in lives.items()
        }

    def _most(self) -> int:
        return max(WINDOW // max(len(self._namespaces), 1), _FEWEST_REMEMBERED)

    def _of(self, namespace: str) -> Mixture:
        known = self._namespaces.get(namespace)
        if known is None:
            if len(self._namespaces) >= MOST_NAMESPACES:
                idle = (name for name in self._namespaces if name and not self.held.get(name))
                forgotten = next(idle, None)
                if forgotten is None:
                    return self._namespaces.setdefault(_OTHERS, Mixture())
                del self._namespaces[forgotten]
            known = self._namespaces[namespace] = Mixture()
        return known
