"""An estimate of the pods to come, and the rule when policies are remade and tried for it.

Pure values without clocks and threads. The extender and simulations use the same rules.

Every created pod counts once: running pods would overstate the long-lived ones, and placed pods
would omit the pods that found no room, which need room most. But a tenant can create any number of
pods. So the pods of a namespace determine only proportions; the weight of a namespace is the units
that its pods *hold*, plus one mean pod. Quota and scheduler limit the held units, so creating and
deleting pods does not raise the weight. Pods without GPU count at most as often as the namespace's
pods with GPU.

Policies are made first for no pods, which scores like `device-bestfit`, then after 50, 100 and 200
pods, then every 250 pods, for devices of a new size, and when a namespace begins a new phase. Until
50 pods have come, no pods are expected. A public trace in their place would keep whole devices
free for pods that most clusters never get.

Tested in `tests/unit/core/test_workload_estimator.py`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.core.card_sizes import typical_size
from gpushare.core.mixture import RECENT, Mixture
from gpushare.core.workload import PodClass, Workload, on_card, workload_of

WINDOW = 4000
"""Remembered pods of each phase of a single namespace: with fewer, rare large classes come and go
by chance."""
_MIN_WINDOW = 200
"""Remembered pods of each phase of a namespace with many namespaces."""
MAX_NAMESPACES = 128
"""Upper bound of the namespaces counted separately: beyond that, namespaces that hold nothing are
forgotten, and the rest count as one."""
FEWEST_SEEN = 50
"""Pods that must have been created before any pods are expected, and before a trial."""
_OTHERS = ""
"""The name under which all namespaces beyond MAX_NAMESPACES count."""
_FIT_EVERY = 250
_TRIAL_SHARE, _TRIAL_EVERY = 0.5, 1000
_RESOLUTION = 20_000
"""Total count of a workload of several namespaces, so that shares become whole numbers."""
_MAX_LIFE = 4.0
"""Upper bound of a class's mean lifetime as a multiple of the mean; the inverse is the lower."""
_FEW_ENDED = 5.0
"""Weight of the overall mean lifetime in the estimate of a class, in ended pods."""


@dataclass(slots=True)
class WorkloadEstimator:
    """The estimate for one cluster."""

    devices: Mapping[int, int] = field(default_factory=dict)
    """The current number of devices of each capacity."""

    pod_count: int = 0
    """Number of pods counted so far."""

    fit_at: int = FEWEST_SEEN
    """The next `pod_count` when policies are due."""

    trial_at: int = FEWEST_SEEN
    """The next `pod_count` when a trial of the candidates is due."""

    held_units: Mapping[str, int] = field(default_factory=dict)
    """Charged units of each namespace; to be set before each call of `workload`."""

    _made_for: frozenset[int] = frozenset()
    _tried_on: Mapping[int, int] = field(default_factory=dict)
    _namespaces: dict[str, Mixture] = field(default_factory=dict)

    @property
    def sizes(self) -> frozenset[int]:
        """The current capacities."""
        return frozenset(self.devices)

    @property
    def remembered(self) -> int:
        """Number of pods behind the estimate, over all namespaces."""
        return sum(mixture.pods for mixture in self._namespaces.values())

    def created(self, namespace: str, cls: PodClass) -> None:
        """Count a created pod."""
        self.pod_count += 1
        if self._of(namespace).observe(cls, self._window()):
            # A new phase: policies were made and chosen for the old one.
            self.fit_at = min(self.fit_at, self.pod_count)
            self.trial_at = min(self.trial_at, self.pod_count + RECENT)

    def adopt(self, pods: Iterable[tuple[str, PodClass, float]], now: float) -> None:
        """Learn from the pods that run at the start, as (namespace, class, start time).

        So a restart forgets little, and an old cluster is known at once.
        """
        running: dict[int, tuple[Mixture, list[tuple[PodClass, float]]]] = {}
        for namespace, cls, since in pods:
            mixture = self._of(namespace)
            mixture.runs(cls, since)
            running.setdefault(id(mixture), (mixture, []))[1].append((cls, now - since))
        for mixture, some in running.values():
            mixture.adopt(some, self._window())
            self.pod_count += len(some)

    def came(self, namespace: str, cls: PodClass, now: float) -> None:
        """Count a pod that has come to a node."""
        self._of(namespace).came(cls, now)

    def went(self, namespace: str, cls: PodClass, since: float | None, now: float) -> None:
        """Count a pod that left a node; since: when the pod came there, None if unknown."""
        mixture = self._namespaces.get(namespace) or self._namespaces.get(_OTHERS)
        if mixture is not None:
            mixture.went(cls, since, now)

    def is_due(self) -> bool:
        """Return whether policies are due to be remade."""
        return self.pod_count >= self.fit_at or not self.sizes <= self._made_for

    def record_policies(self, pod_count: int, sizes: frozenset[int]) -> None:
        """Record that policies were made from the first `pod_count` pods, for these capacities."""
        self._made_for = sizes
        first = next((first for first in (50, 100, 200) if first > pod_count), 0)
        self.fit_at = first or pod_count + _FIT_EVERY

    def is_trial_due(self, *, first: bool = False) -> bool:
        """Return whether a trial is due: enough new pods, or a fifth of the devices have other
        sizes than before. More or fewer devices of the same sizes make only a first trial due.

        first: no trial has had a result yet.
        """
        before, devices = sum(self._tried_on.values()), sum(self.devices.values())
        if first or not before:
            is_changed = abs(devices - before) * 5 > before
        else:
            sizes = self._tried_on.keys() | self.devices.keys()
            is_changed = (
                5
                * sum(
                    max(
                        self.devices.get(size, 0) * before - self._tried_on.get(size, 0) * devices,
                        0,
                    )
                    for size in sizes
                )
                > before * devices
            )
        return self.pod_count >= (FEWEST_SEEN if is_changed else self.trial_at)

    def record_trial(self) -> None:
        """Record that a trial used the current estimate."""
        self._tried_on = self.devices
        self.trial_at = self.pod_count + int(
            min(max(self.pod_count * _TRIAL_SHARE, FEWEST_SEEN), _TRIAL_EVERY)
        )

    def workload(self, now: float = 0.0) -> Workload:
        """Return the expected pods; none until FEWEST_SEEN pods have come."""
        weighted = self._weighted() if self.pod_count >= FEWEST_SEEN else []
        if not weighted:
            return workload_of({}, self.devices)
        total = sum(weight for weight, _, _ in weighted)
        counts: dict[PodClass, float] = {}
        turnover = spread = 0.0
        for weight, mixture, class_counts in weighted:
            share, pods = weight / total, sum(class_counts.values())
            turnover += share * mixture.turnover
            spread += share**2 / pods
            for cls, count in class_counts.items():
                counts[cls] = counts.get(cls, 0.0) + share * count / pods
        # The size of one sample with as much evidence as the samples of all namespaces together.
        evidence = max(round(1 / spread), 1)
        scale = evidence if len(weighted) == 1 else _RESOLUTION
        whole = {cls: round(scale * count) for cls, count in counts.items()}
        lives = self._lives([mixture for _, mixture, _ in weighted], whole, now)
        return workload_of(whole, self.devices, turnover, evidence, lives)

    def _weighted(self) -> list[tuple[float, Mixture, dict[PodClass, float]]]:
        """Return (weight in pods, mixture, weighted classes) by namespace with requests for GPU."""
        weighted, card = [], typical_size(self.devices)
        units_of_others = sum(self.held_units.values()) - sum(
            self.held_units.get(name, 0) for name in self._namespaces
        )
        for name, mixture in self._namespaces.items():
            units_held = units_of_others if name == _OTHERS else self.held_units.get(name, 0)
            counts: dict[PodClass, float] = {}
            for remembered, count in mixture.counts().items():
                cls = on_card(remembered, card)
                counts[cls] = counts.get(cls, 0.0) + count
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
            pods = (units_held + mean) / mean
            weighted.append((pods * sum(counts.values()) / gpu, mixture, counts))
        return weighted

    def _lives(
        self, mixtures: Iterable[Mixture], counts: Mapping[PodClass, int], now: float
    ) -> dict[PodClass, float]:
        """Return the mean lifetime of each class, in multiples of the mean over all units.

        Empty while no pod has left.
        """
        stayed, ended = defaultdict[PodClass, float](float), defaultdict[PodClass, float](float)
        card = typical_size(self.devices)
        for mixture in mixtures:
            for cls, (time, ends) in mixture.lives(now).items():
                stayed[on_card(cls, card)] += time
                ended[on_card(cls, card)] += ends
        ends, time = sum(ended.values()), sum(stayed.values())
        if not ends or not time:
            return {}
        mean = time / ends
        lives = {
            cls: (stayed[cls] + _FEW_ENDED * mean) / (ended[cls] + _FEW_ENDED) / mean
            for cls in counts
        }
        units = sum(count * cls.total for cls, count in counts.items())
        scaled_units = sum(count * cls.total * lives[cls] for cls, count in counts.items())
        if not scaled_units:
            return {}
        return {
            cls: min(max(life * units / scaled_units, 1 / _MAX_LIFE), _MAX_LIFE)
            for cls, life in lives.items()
        }

    def _window(self) -> int:
        return max(WINDOW // max(len(self._namespaces), 1), _MIN_WINDOW)

    def _of(self, namespace: str) -> Mixture:
        mixture = self._namespaces.get(namespace)
        if mixture is None:
            if len(self._namespaces) >= MAX_NAMESPACES:
                idle = (name for name in self._namespaces if name and not self.held_units.get(name))
                forgotten = next(idle, None)
                if forgotten is None:
                    return self._namespaces.setdefault(_OTHERS, Mixture())
                del self._namespaces[forgotten]
            mixture = self._namespaces[namespace] = Mixture()
        return mixture
