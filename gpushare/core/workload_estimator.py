"""What is learned of the pods that come, and when policies are made anew for it.

Pure values; it knows neither time nor threads. The extender and simulations learn by this rule.
Every pod created counts, once, whatever becomes of it. Policies are made first for the pods that
are to be expected anywhere (see prior.py), then when 50, 100 and 200 pods have been seen, then
every 250, and for devices of a size that there was not before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.core.prior import prior
from gpushare.core.workload import Arrivals, Workload, next_fit

_FIRST = next_fit(0)


@dataclass(slots=True)
class WorkloadEstimator:
    """What has been learned for one cluster.

    arrivals: the pods created. devices: how many there are now of each capacity. made_for: the
    capacities that policies were made for. fit_at: pods seen when the next making is due.
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
        """Return whether policies are to be made anew."""
        return self.arrivals.seen >= self.fit_at or not self.sizes <= self.made_for

    def workload(self) -> Workload:
        """Return the expected pods."""
        if self.arrivals.seen < _FIRST:
            return prior(self.devices)
        return self.arrivals.workload(self.devices)

    def made(self, seen: int, sizes: frozenset[int]) -> None:
        """Record that policies were made for what was known when `seen` pods had been seen."""
        self.made_for = sizes
        self.fit_at = next_fit(seen)
