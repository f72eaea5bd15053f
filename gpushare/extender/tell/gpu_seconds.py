"""The GPU-seconds of namespaces, workloads and models: the integral of the books over time.

A device that a pod has a quarter of counts a quarter of a GPU-second each second. Of several
processes the one that answers calls counts, so the counters of all processes add up. Nothing is
stored: a counter begins at 0 with its process, as Prometheus' `increase` expects.

Names of tenants and the number of series are limited as in `written_metrics.py`: at each step the
largest holders count for themselves and the others together. So a counter never falls.

Tested in `tests/unit/extender/tell/test_gpu_seconds.py` and
`tests/integration/test_gpu_seconds.py`.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from gpushare.core.amounts import COMPUTE, PERCENT_AMOUNTS
from gpushare.core.states.entry import Entry, NodeBooks
from gpushare.core.workload_names import workload_name
from gpushare.daemon.part import Part
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.tell.written_metrics import OTHERS, Labels, family_text

MOST_SERIES = 500
"""Upper bound of the series of a family that count at a time, besides those of the others."""
_KEPT = 2 * MOST_SERIES
"""Upper bound of the series of a family; those go first that have not counted for longest."""
MOST_GAP = 3600.0
"""Upper bound of the seconds without a leader that the next leader counts."""
_DIGITS = 9
_ZERO = 10**-_DIGITS
"""A share below this is the rounding error of a sum."""
_COMPUTE = PERCENT_AMOUNTS.index(COMPUTE)

_MODELS = "gpushare_gpu_seconds_total"
_NAMESPACES = "gpushare_namespace_gpu_seconds_total"
_WORKLOADS = "gpushare_workload_gpu_seconds_total"
_NAMESPACES_COMPUTE = "gpushare_namespace_gpu_compute_seconds_total"
_WORKLOADS_COMPUTE = "gpushare_workload_gpu_compute_seconds_total"
_MEMORY_SHARE = "Share of the memory of GPUs promised to the pods of a {} x seconds, by GPU model"
_COMPUTE_SHARE = "Share of the compute of GPUs promised to pods of a {} that ask for it x seconds"
_HELP = {
    _MODELS: "Seconds x GPUs by model: promised to pods by share of memory, or idle",
    _NAMESPACES: _MEMORY_SHARE.format("namespace"),
    _NAMESPACES_COMPUTE: _COMPUTE_SHARE.format("namespace"),
    _WORKLOADS: _MEMORY_SHARE.format("workload"),
    _WORKLOADS_COMPUTE: _COMPUTE_SHARE.format("workload"),
}
_TENANTS = ("namespace", "workload")

Series = tuple[str, Labels]
"""The name of a family, and the labels of a series."""


class GpuSeconds(Part):
    """The counters of one process. The thread that calls `tick` counts; any thread may read.

    detail: as of `Metrics`. earlier_end: as of `Readiness`. claims: a resource with claims
    instead of pods, which are of no workload.
    """

    def __init__(
        self,
        resources: Iterable[ManagedResource],
        detail: str,
        earlier_end: Callable[[], float] = lambda: math.nan,
        clock: Callable[[], float] = time.monotonic,
        *,
        claims: ManagedResource | None = None,
    ) -> None:
        of_claims = "namespaces" if detail == "pods" else detail
        self._counters = [_ResourceCounters(resource, detail) for resource in resources]
        self._counters += [_ResourceCounters(claims, of_claims)] if claims is not None else []
        self._earlier_end = earlier_end
        self._clock = clock
        self._was_ready = False
        self._counted_until: float | None = None
        self._last_end = math.nan
        """The end of the term before, when this process last began to count."""

    def tick(self, is_ready: bool, /) -> None:
        """Count the time since the last tick, if this process answered calls then.

        When the process begins to answer calls, the time without a leader before counts too: nobody
        could bind a pod meanwhile.
        """
        now, elapsed, gap = self._clock(), 0.0, 0.0
        if self._was_ready and self._counted_until is not None:
            elapsed = now - self._counted_until
        elif is_ready:
            gap = min(max(0.0, self._gap(now)), MOST_GAP)
        if is_ready or self._was_ready:
            self._counted_until = now
        self._was_ready = is_ready
        for counters in self._counters:
            counters.count(elapsed)
            # Prometheus sees no increase in the first sample of a series: it begins at 0.
            if counters.update_shares() or gap:
                counters.count(gap)

    def _gap(self, now: float) -> float:
        """Return the seconds since the last count of any process, 0 if unknown."""
        end, last = self._earlier_end(), self._last_end
        self._last_end = end
        if math.isinf(end):
            return 0.0
        if not math.isnan(end) and end != last:
            return now - end
        return now - self._counted_until if self._counted_until is not None else 0.0

    def text(self) -> bytes:
        """Return the counters in Prometheus' text format."""
        samples: dict[str, dict[Labels, float]] = {family: {} for family in _HELP}
        for counters in self._counters:
            for family, of_family in counters.seconds.items():
                samples[family] |= of_family
        texts = (family_text(family, _HELP[family], of) for family, of in samples.items() if of)
        return "".join(texts).encode()


class _ResourceCounters:
    """The counters of one resource; only nodes that have changed are read again."""

    def __init__(self, resource: ManagedResource, detail: str) -> None:
        self._resource = resource
        self._detail = detail
        self._version: tuple[int, int] | None = None
        self._by_node: dict[str, tuple[int, Mapping[Series, float]]] = {}
        self._shares: dict[str, dict[Labels, float]] = {family: {} for family in _HELP}
        """The GPUs that each series has now, by family: the sum of all nodes."""
        self._counted: dict[str, Sequence[tuple[Labels, float]]] = {}
        """The same in a limited number of series."""
        self.seconds: dict[str, dict[Labels, float]] = {family: {} for family in _HELP}
        """By family, in the order of the last count."""

    def count(self, elapsed: float) -> None:
        """Add so many seconds of the shares."""
        for family, shares in self._counted.items():
            # Another thread may read the last dict, which stays as it is.
            of_family = self.seconds[family].copy()
            for labels, share in shares:
                of_family[labels] = of_family.pop(labels, 0.0) + share * elapsed
            for labels in [*of_family][: max(0, len(of_family) - _KEPT)]:
                del of_family[labels]
            self.seconds[family] = of_family

    def update_shares(self) -> bool:
        """Read the nodes that have changed since the last call; return whether one has."""
        ledger = self._resource.ledger
        version = ledger.version()
        if version == self._version:
            return False
        self._version = version
        versions = ledger.node_versions()
        for name in self._by_node.keys() - versions.keys():
            self._replace(name, 0, {})
            del self._by_node[name]
        for name, node_version in versions.items():
            if name in self._by_node and self._by_node[name][0] == node_version:
                continue
            # The books may be newer than the version: then the next call reads them again.
            books = ledger.node_books(name)
            if books is not None:
                # Labels are known of pods that the watch has shown on a node.
                is_final = all(entry.assumption is None for entry in books.entries)
                self._replace(name, node_version if is_final else -1, self._shares_on(books))
        self._counted = {family: _limited(shares) for family, shares in self._shares.items()}
        return True

    def _replace(self, name: str, version: int, shares: Mapping[Series, float]) -> None:
        _, before = self._by_node.get(name, (0, dict[Series, float]()))
        self._by_node[name] = version, shares
        for series in before.keys() | shares.keys():
            family, labels = series
            change = shares.get(series, 0.0) - before.get(series, 0.0)
            share = self._shares[family].pop(labels, 0.0) + change
            if share >= _ZERO:
                self._shares[family][labels] = share

    def _shares_on(self, books: NodeBooks) -> Mapping[Series, float]:
        """Return the share of each series in the node's devices."""
        spec, resource = books.spec, self._resource.names.resource
        if not books.entries:
            return _shares_of_models(spec.models, (0.0,) * len(spec.capacity), resource)
        shares = defaultdict[Series, float](float)
        promised = [0.0] * len(spec.capacity)
        for entry in books.entries:
            namespace = ("namespace", entry.ref.namespace)
            workload = ("workload", workload_name(entry.ref.name, dict(entry.labels)))
            for device, memory, compute in _devices(entry, spec.capacity):
                promised[device] += memory
                model = _model_labels(spec.models, device, resource)
                if self._detail != "devices":
                    shares[_NAMESPACES, (namespace, *model)] += memory
                    shares[_NAMESPACES_COMPUTE, (namespace, *model)] += compute
                if self._detail == "pods" and entry.assumption is None:
                    shares[_WORKLOADS, (namespace, workload, *model)] += memory
                    shares[_WORKLOADS_COMPUTE, (namespace, workload, *model)] += compute
        return shares | _shares_of_models(spec.models, tuple(promised), resource)


@lru_cache(maxsize=256)
def _model_labels(models: tuple[str, ...], device: int, resource: str) -> Labels:
    """Return the labels of a device; cached, since thousands of nodes have the same ones."""
    model = models[device] if models else ""
    return ("model", model or "unknown"), ("resource", resource)


@lru_cache(maxsize=256)
def _shares_of_models(
    models: tuple[str, ...], promised: tuple[float, ...], resource: str
) -> dict[Series, float]:
    """Return the promised and the idle share of each model. promised: the share of each device.

    Cached for the nodes without pods: when counting begins, there are many.
    """
    shares = defaultdict[Series, float](float)
    for device, share in enumerate(promised):
        model = _model_labels(models, device, resource)
        shares[_MODELS, (*model, ("state", "promised"))] += share
        shares[_MODELS, (*model, ("state", "idle"))] += max(0.0, 1.0 - share)
    return dict(shares)  # a look at a missing series must not add it for all nodes


def _limited(shares: Mapping[Labels, float]) -> Sequence[tuple[Labels, float]]:
    """Return the largest shares of a family, among equals always the same, and the sums of the
    other shares, by model.
    """
    if len(shares) <= MOST_SERIES:
        return [*shares.items()]
    ordered = sorted(shares.items(), key=lambda item: (-round(item[1], _DIGITS), item[0]))
    others = defaultdict[Labels, float](float)
    for labels, share in ordered[MOST_SERIES:]:
        names = tuple((key, OTHERS if key in _TENANTS else value) for key, value in labels)
        others[names] += share
    return [*ordered[:MOST_SERIES], *others.items()]


def _devices(entry: Entry, capacity: tuple[int, ...]) -> Iterator[tuple[int, float, float]]:
    """Yield (device, share of its memory, share of its compute) of a pod; of an unplaced pod as if
    each of its parts were spread evenly over all devices.
    """
    if entry.placement is not None:
        placements = [entry.placement]
    else:
        present = [device for device, units in enumerate(capacity) if units]
        placements = [tuple((device, units) for units in entry.request.parts) for device in present]
    for shares in placements:
        charges = entry.request.charges_on(shares, capacity)
        all_percents = entry.request.percents_on(shares)
        for (device, charged), percents in zip(charges, all_percents, strict=True):
            # A closed node may have fewer devices than its pods were given.
            if device < len(capacity) and capacity[device]:
                compute = percents[_COMPUTE] / COMPUTE.whole if percents else 0.0
                memory = charged / capacity[device]
                yield device, memory / len(placements), compute / len(placements)
