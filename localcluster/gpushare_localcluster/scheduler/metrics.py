"""What the scheduler counts, under the names, labels and buckets of kube-scheduler 1.37.

Of its metrics (pkg/scheduler/metrics) the stable ones are here, and the time of the algorithm.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpushare_localcluster.scheduler.framework import Code, Status

Observe = Callable[[str, str, float], None]
"""Is told of an extension point that was run: its name, its status, and the seconds it took."""

_Run = TypeVar("_Run", bound=Callable[..., Any])

QUEUES = ("active", "backoff", "unschedulable", "gated")


class Metrics:
    """The registry of one scheduler."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"scheduler_{name}", text, labels, registry=registry)

        def histogram(
            name: str, text: str, buckets: tuple[float, int, int], *labels: str
        ) -> Histogram:
            first, factor, count = buckets
            bounds = tuple(first * factor**power for power in range(count))
            return Histogram(f"scheduler_{name}", text, labels, buckets=bounds, registry=registry)

        self._attempts = counter(
            "schedule_attempts_total",
            "Attempts to schedule pods by result: scheduled, unschedulable, or error",
            *("result", "profile"),
        )
        self._attempt_seconds = histogram(
            "scheduling_attempt_duration_seconds",
            "Time of an attempt, the scheduling cycle and the binding cycle",
            (0.001, 2, 15),
            *("result", "profile"),
        )
        self.algorithm_seconds = histogram(
            "scheduling_algorithm_duration_seconds", "Time to choose a node", (0.001, 2, 15)
        )
        self.pod_attempts = histogram(
            "pod_scheduling_attempts", "Attempts that a pod needed until it was bound", (1, 2, 5)
        )
        self._point_seconds = histogram(
            "framework_extension_point_duration_seconds",
            "Time to run all plug-ins of an extension point",
            (0.0001, 2, 12),
            *("extension_point", "status", "profile"),
        )
        self.preemption_attempts = counter(
            "preemption_attempts_total", "Attempts to make room for a pod that fits nowhere"
        )
        self.preemption_victims = histogram(
            "preemption_victims", "Pods that were evicted for one pod", (1, 2, 7)
        )

    def attempted(self, result: str, profile: str, seconds: float) -> None:
        """Count an attempt: scheduled, unschedulable or error."""
        self._attempts.labels(result, profile).inc()
        self._attempt_seconds.labels(result, profile).observe(seconds)

    def ran(self, profile: str, point: str, status: str, seconds: float) -> None:
        """Count a run of an extension point's plug-ins."""
        self._point_seconds.labels(point, status, profile).observe(seconds)

    def watch_queue(self, pending: Callable[[], Mapping[str, int]]) -> None:
        """Have each scrape ask how many pods wait in each queue."""
        self._registry.register(_PendingPods(pending))

    def serve(self) -> tuple[str, Callable[[], None]]:
        """Serve the metrics on a free port of this machine; return the URL, and what ends it."""
        server, thread = start_http_server(0, "127.0.0.1", self._registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return f"http://127.0.0.1:{server.server_port}/metrics", stop


class _PendingPods(Collector):
    """Counts once for all queues of a scrape, so that they are of one moment."""

    def __init__(self, pending: Callable[[], Mapping[str, int]]) -> None:
        self._pending = pending

    def collect(self) -> Iterable[Metric]:
        """Return the metric as it is now."""
        gauge = GaugeMetricFamily(
            "scheduler_pending_pods", "Pods that wait, by queue", labels=("queue",)
        )
        counts = self._pending()
        for queue in QUEUES:
            gauge.add_metric((queue,), counts.get(queue, 0))
        return (gauge,)


class _Observed(Protocol):
    observe: Observe


def timed(point: str) -> Callable[[_Run], _Run]:
    """Return a decorator of a method that runs an extension point: `self.observe` is told of it."""

    def decorate(run: _Run) -> _Run:
        @functools.wraps(run)
        def observed(self: _Observed, *args: object) -> object:
            begun, code = time.perf_counter(), Code.ERROR
            try:
                answer = run(self, *args)
                parts = answer if isinstance(answer, tuple) else (answer,)
                code = next((part.code for part in parts if isinstance(part, Status)), Code.SUCCESS)
                return answer
            finally:
                self.observe(point, code.value, time.perf_counter() - begun)

        return cast("_Run", observed)

    return decorate
