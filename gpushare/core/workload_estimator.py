"""An estimate of the pods to come, and when policies are made again for it.

Pure values; it knows neither time nor threads. The extender and simulations use the same rule.
Every created pod counts once, whatever happens to it later. Policies are made first for no pods,
which is judging as `device-bestfit`, then after 50, 100 and 200 pods, then every 250 pods, and for
devices of a new size.

Until 50 pods have come nothing is expected. A public trace was expected once: it kept whole devices
free for pods that most clusters never see, and on eight small clusters of equal cards that fill it
allocated 2 to 16 points less than `device-bestfit` (docs/research/placement-rejected.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.core.workload import Arrivals, Workload, next_fit, workload_of

_FIRST = next_fit(0)


@dataclass(slots=True)
class WorkloadEstimator:
    """The estimate for one cluster.

    `arrivals`: the pods created. `devices`: how many there are now of each capacity. `made_for`:
    the capacities that policies were made for. `fit_at`: at how many pods policies are due next.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    devices: Mapping[int, int] = field(default_factory=dict)
    made_for: frozenset[int] = frozenset()
    fit_at: int = _FIRST

    @property
    def sizes(self) -> frozenset[int]:
        """The capacities that there are now."""
        return frozenset(self.devices)

    def is_due(self) -> bool:
        """Return whether policies are due to be made again."""
        return self.arrivals.seen >= self.fit_at or not self.sizes <= self.made_for

    def workload(self) -> Workload:
        """Return the expected pods: none until enough have come to tell."""
        if self.arrivals.seen < _FIRST:
            return workload_of({}, self.devices)
        return self.arrivals.workload(self.devices)

    def made(self, seen: int, sizes: frozenset[int]) -> None:
        """Record that policies were made for what was known when `seen` pods had been seen."""
        self.made_for = sizes
        self.fit_at = next_fit(seen)
