"""Metrics of the device plug-in, in Prometheus' text format.

Tested in `tests/integration/test_device_plugin.py`.
"""

from collections.abc import Callable, Collection, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpushare import __version__
from gpushare.device_plugin.cards import NodeCards
from gpushare.device_plugin.memory import UsageFigures

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0)


class PluginMetrics:
    """The registry of one process.

    wrong: the number of containers with other devices than the Binding's. pods: the number of known
    GPU pods. memory: the figures of use. unwatched: uuids of the cards without reports of errors.
    compute_unenforced: the number of containers with compute and without a limit of compute.
    """

    def __init__(
        self,
        cards: Callable[[], NodeCards],
        wrong: Callable[[], int],
        pods: Callable[[], int],
        memory: Callable[[], UsageFigures] = UsageFigures,
        unwatched: Callable[[], Collection[str]] = tuple,
        *,
        compute_unenforced: Callable[[], int] = int,
    ) -> None:
        self._cards = cards
        self._wrong = wrong
        self._pods = pods
        self._memory = memory
        self._unwatched = unwatched
        self._compute_unenforced = compute_unenforced
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._calls = Counter(
            "gpushare_device_plugin_calls_total",
            "Calls of the kubelet, by method and outcome; the log says why one was refused",
            ("method", "outcome"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpushare_device_plugin_call_duration_seconds",
            "Time to answer the kubelet, by method",
            ("method",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.other_card_ids = Counter(
            "gpushare_device_plugin_other_ids_total",
            "Containers whose ids are of other cards than their own; their devices are right",
            registry=self._registry,
        )

    def observe(self, method: str, outcome: str, seconds: float) -> None:
        """Count a call."""
        self._calls.labels(method, outcome).inc()
        self._seconds.labels(method).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Return the gauges; called by the registry."""
        cards = self._cards()
        labels = ("device", "uuid")
        healthy = GaugeMetricFamily(
            "gpushare_device_plugin_device_healthy",
            "1 where the card is well; 0: the events of the node and of its pods say why",
            labels=labels,
        )
        problem = GaugeMetricFamily(
            "gpushare_device_plugin_device_problem",
            "1 for each card that is not well, by what is wrong",
            labels=(*labels, "fault"),
        )
        unseen = GaugeMetricFamily(
            "gpushare_device_plugin_device_unwatched",
            "1 for each card whose errors the driver does not report to us; the log says why",
            labels=labels,
        )
        uncounted = GaugeMetricFamily(
            "gpushare_device_plugin_uncounted_devices",
            "GPUs that were added and count after a restart of the device plug-in",
            value=len(cards.uncounted),
        )
        unwatched = self._unwatched()
        memory = GaugeMetricFamily(
            "gpushare_device_plugin_device_memory_bytes", "Memory given out in units", labels=labels
        )
        for card in cards.all:
            place = (str(card.index), card.uuid)
            healthy.add_metric(place, float(card.healthy))
            if card.problem:
                problem.add_metric((*place, card.problem.fault), 1.0)
            if card.uuid in unwatched:
                unseen.add_metric(place, 1.0)
            memory.add_metric(place, card.unit_count * cards.unit_mib * 2.0**20)
        build = GaugeMetricFamily("gpushare_build_info", "Version", labels=("version",))
        build.add_metric((__version__,), 1)
        wrong = GaugeMetricFamily(
            "gpushare_device_plugin_wrong_containers",
            "Containers that were told of other devices than their pods were bound to; delete the"
            " pods that have an event GPUShareWrongDevice",
            value=self._wrong(),
        )
        compute = GaugeMetricFamily(
            "gpushare_device_plugin_compute_unenforced_containers",
            "Containers that ask for a part of a card's compute and were told no limit of it; their"
            " pods have an event GPUShareComputeNotLimited",
            value=self._compute_unenforced(),
        )
        pods = GaugeMetricFamily(
            "gpushare_device_plugin_pods",
            "Pods of this node that ask for device memory, as far as they are known",
            value=self._pods(),
        )
        return (
            healthy,
            problem,
            unseen,
            uncounted,
            memory,
            wrong,
            compute,
            pods,
            build,
            *_memory(self._memory(), cards),
        )


def _memory(figures: UsageFigures, cards: NodeCards) -> Iterable[Metric]:
    """Return the gauges of use; the node's GPU pods and cards bound the labels."""
    by_card = GaugeMetricFamily(
        "gpushare_device_plugin_device_memory_used_bytes",
        "Memory of the card in use, by whomever, as NVML tells",
        labels=("device", "uuid"),
    )
    for card in cards.all:
        if card.uuid in figures.cards:
            by_card.add_metric((str(card.index), card.uuid), figures.cards[card.uuid])
    labels = ("namespace", "pod", "container", "uuid")
    used = GaugeMetricFamily(
        "gpushare_device_plugin_container_memory_used_bytes",
        "Memory that the container's processes use on the card, as NVML tells",
        labels=labels,
    )
    granted = GaugeMetricFamily(
        "gpushare_device_plugin_container_memory_given_bytes",
        "Memory that the container was given on the card",
        labels=labels,
    )
    enforced = GaugeMetricFamily(
        "gpushare_memory_limit_enforced",
        "1 where NVML shows that the container's limit holds, 0 where it shows that it does not",
        labels=labels,
    )
    for use in figures.uses:
        values = (use.pod.ref.namespace, use.pod.ref.name, use.container, use.uuid)
        used.add_metric(values, use.used)
        granted.add_metric(values, use.granted)
        if use.enforced is not None:
            enforced.add_metric(values, float(use.enforced))
    compute = GaugeMetricFamily(
        "gpushare_device_plugin_container_sm_percent",
        "Percent of the card's SMs that the container's processes use, by NVML's last sample",
        labels=labels,
    )
    for compute_use in figures.compute_uses:
        ref = compute_use.pod.ref
        values = (ref.namespace, ref.name, compute_use.container, compute_use.uuid)
        compute.add_metric(values, compute_use.percent)
    return (by_card, used, granted, enforced, compute)
