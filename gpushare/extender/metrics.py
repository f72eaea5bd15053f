"""What Prometheus is told. Gauges are computed when they are asked for, from one snapshot.

No pod stands in a label, so there are no more series than nodes and devices.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpushare import __version__
from gpushare.core.model import NodeBooks
from gpushare.core.stranded import stranded_units, typical_units
from gpushare.extender.books import Books, Library

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ALARMS = ("placement_edited", "bound_by_another")


class Metrics:
    """The registry of one process.

    unit_bytes: bytes of a memory unit. state: further values by name (readiness, watches), read at
    each scrape; those whose name ends in _total are counters, the others gauges.
    """

    def __init__(
        self, library: Library, unit_bytes: int, state: Callable[[], Mapping[str, float]]
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library types most, not this
        self._registry = CollectorRegistry()
        self._registry.register(_Books(library, unit_bytes, state))
        self._requests = Counter(
            "gpushare_requests_total",
            "Calls answered, by verb and outcome",
            ("verb", "outcome"),
            registry=self._registry,
        )
        self._rejected = Counter(
            "gpushare_filter_rejected_nodes_total",
            "Nodes that filter did not let through, by reason",
            ("reason",),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpushare_request_duration_seconds",
            "Time to answer a call, by verb",
            ("verb",),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def observe(self, verb: str, outcome: str, seconds: float) -> None:
        """Count a call."""
        self._requests.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)

    def rejected(self, reasons: Mapping[str, int]) -> None:
        """Count nodes that filter did not let through."""
        for reason, nodes in reasons.items():
            self._rejected.labels(reason).inc(nodes)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Books:
    """The collector of everything that is a state rather than an event."""

    def __init__(
        self, library: Library, unit_bytes: int, state: Callable[[], Mapping[str, float]]
    ) -> None:
        self._library = library
        self._unit_bytes = unit_bytes
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """One family after the other."""
        yield from self._devices()
        yield from self._counts()
        build = GaugeMetricFamily("gpushare_build_info", "Version", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build
        for name, value in self._state().items():
            yield _single(f"gpushare_{name}", name.replace("_", " "), value)

    def _devices(self) -> Iterator[Metric]:
        labels = ("resource", "node", "device")
        capacity = GaugeMetricFamily(
            "gpushare_device_memory_bytes", "Memory of a device", labels=labels
        )
        used = GaugeMetricFamily(
            "gpushare_device_memory_allocated_bytes", "Memory given to pods", labels=labels
        )
        healthy = GaugeMetricFamily(
            "gpushare_device_healthy", "1 where pods may be placed", labels=labels
        )
        free = GaugeMetricFamily(
            "gpushare_device_memory_free_bytes", "Memory that can be given out", labels=labels
        )
        stranded = GaugeMetricFamily(
            "gpushare_device_memory_stranded_bytes",
            "Free memory of a device where the commonest request has no room",
            labels=labels,
        )
        typical = GaugeMetricFamily(
            "gpushare_typical_request_bytes",
            "What most pods, bound or waiting, ask for on each device; 0: there are none",
            labels=("resource",),
        )
        for books in self._library:
            nodes = books.ledger.dump()
            usual = _typical(books, nodes)
            typical.add_metric((books.names.resource,), usual * self._unit_bytes)
            for node in nodes:
                for device, units in enumerate(node.spec.capacity):
                    of = (books.names.resource, node.spec.name, str(device))
                    usable = node.spec.healthy[device] and not node.spec.closed
                    left = max(units - node.used[device], 0) if usable else 0
                    capacity.add_metric(of, units * self._unit_bytes)
                    used.add_metric(of, node.used[device] * self._unit_bytes)
                    free.add_metric(of, left * self._unit_bytes)
                    stranded.add_metric(of, stranded_units(left, usual) * self._unit_bytes)
                    healthy.add_metric(of, usable)
        return iter((capacity, used, free, stranded, healthy, typical))

    def _counts(self) -> Iterator[Metric]:
        pods = GaugeMetricFamily(
            "gpushare_pods", "Pods in the books, by state", labels=("resource", "state")
        )
        alarms = CounterMetricFamily(
            "gpushare_alarms",
            "Things that should not happen, seen so far",
            labels=("resource", "kind"),
        )
        for books in self._library:
            for name, count in books.ledger.counts().items():
                family = alarms if name in _ALARMS else pods
                if name != "nodes":
                    family.add_metric((books.names.resource, name), count)
        return iter((pods, alarms))


def _typical(books: Books, nodes: Sequence[NodeBooks]) -> int:
    """Units that most pods ask for on each device."""
    bound = (entry.request.units for node in nodes for entry in node.entries)
    return typical_units([*bound, *(pod.request.units for pod in books.ledger.waiting())])


def _single(name: str, text: str, value: float) -> Metric:
    """A family of one sample."""
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), text, value=value)
    return GaugeMetricFamily(name, text, value=value)
