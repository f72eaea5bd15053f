"""What Prometheus is told. Gauges are computed when they are asked for, from one snapshot.

No pod stands in a label, so there are no more series than nodes and devices.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric

from gpushare import __version__
from gpushare.extender.books import Library

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ALARMS = ("placement_edited", "bound_by_another")


class Metrics:
    """The registry of one process.

    unit_bytes: bytes of a memory unit. state: further gauges by name (readiness, watches), read at
    each scrape.
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
            yield GaugeMetricFamily(f"gpushare_{name}", name.replace("_", " "), value=value)

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
        for books in self._library:
            for node in books.ledger.dump():
                for device, units in enumerate(node.spec.capacity):
                    of = (books.names.resource, node.spec.name, str(device))
                    capacity.add_metric(of, units * self._unit_bytes)
                    used.add_metric(of, node.used[device] * self._unit_bytes)
                    healthy.add_metric(of, node.spec.healthy[device] and not node.spec.closed)
        return iter((capacity, used, healthy))

    def _counts(self) -> Iterator[Metric]:
        pods = GaugeMetricFamily(
            "gpushare_pods", "Pods in the books, by state", labels=("resource", "state")
        )
        alarms = GaugeMetricFamily(
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
