"""Metrics of the device plug-in, in Prometheus' text format.

Tested in `tests/integration/test_device_plugin.py`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpushare import __version__
from gpushare.device_plugin.cards import NodeCards
from gpushare.device_plugin.memory import ComputeUse, ContainerUse, UsageFigures

_CARD, _USE = ("device", "uuid"), ("namespace", "pod", "container", "uuid")
"""Labels of the gauges of cards, and of containers on cards."""
_PLUGIN = "gpushare_device_plugin_"
_ENFORCED = "gpushare_memory_limit_enforced"
_HELP = {
    f"{_PLUGIN}device_healthy": "1 where the card is well; 0: the events of the node and of its"
    " pods say why",
    f"{_PLUGIN}device_problem": "1 for each card that is not well, by what is wrong",
    f"{_PLUGIN}device_unwatched": "1 for each card whose errors the driver does not report to us;"
    " the log says why",
    f"{_PLUGIN}device_memory_bytes": "Memory given out in units",
    f"{_PLUGIN}device_memory_used_bytes": "Memory of the card in use, by whomever, as NVML tells",
    f"{_PLUGIN}uncounted_devices": "GPUs that were added and count after a restart of the device"
    " plug-in",
    f"{_PLUGIN}wrong_containers": "Containers that were told of other devices than their pods were"
    " bound to; delete the pods that have an event GPUShareWrongDevice",
    f"{_PLUGIN}compute_unenforced_containers": "Containers that ask for a part of a card's compute"
    " and were told no limit of it; their pods have an event GPUShareComputeNotLimited",
    f"{_PLUGIN}pods": "Pods of this node that ask for device memory, as far as they are known",
    f"{_PLUGIN}container_memory_used_bytes": "Memory that the container's processes use on the"
    " card, as NVML tells",
    f"{_PLUGIN}container_memory_given_bytes": "Memory that the container was given on the card",
    f"{_PLUGIN}container_sm_percent": "Percent of the card's SMs that the container's processes"
    " use, by NVML's last sample",
    _ENFORCED: "1 where NVML shows that the container's limit holds, 0 where it shows that it does"
    " not",
    "gpushare_build_info": "Version",
}
"""The help of the gauges."""
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0)


@dataclass(eq=False)
class PluginMetrics:
    """The registry of one process.

    wrong: the number of containers with other devices than the Binding's. pods: the number of known
    GPU pods. memory: the figures of use. unwatched: uuids of the cards without reports of errors.
    compute_unenforced: the number of containers with compute and without a limit of compute.
    """

    cards: Callable[[], NodeCards]
    wrong: Callable[[], int]
    pods: Callable[[], int]
    memory: Callable[[], UsageFigures] = UsageFigures
    unwatched: Callable[[], Collection[str]] = tuple
    _: KW_ONLY
    compute_unenforced: Callable[[], int] = int

    def __post_init__(self) -> None:
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
        """Yield the gauges; called by the registry."""
        cards, figures, unwatched = self.cards(), self.memory(), self.unwatched()
        place_of: dict[str, tuple[str, ...]]
        place_of = {card.uuid: (str(card.index), card.uuid) for card in cards.all}
        unit_bytes = cards.unit_mib * 2.0**20
        for name, by_uuid in (
            ("device_healthy", {card.uuid: card.healthy for card in cards.all}),
            ("device_unwatched", {uuid: 1 for uuid in unwatched if uuid in place_of}),
            (
                "device_memory_bytes",
                {card.uuid: card.unit_count * unit_bytes for card in cards.all},
            ),
            (
                "device_memory_used_bytes",
                {uuid: used for uuid, used in figures.cards.items() if uuid in place_of},
            ),
        ):
            of_cards = {place_of[uuid]: sample for uuid, sample in by_uuid.items()}
            yield _gauge(f"{_PLUGIN}{name}", of_cards, _CARD)
        problems = {(*place_of[c.uuid], str(c.problem.fault)): 1 for c in cards.all if c.problem}
        yield _gauge(f"{_PLUGIN}device_problem", problems, (*_CARD, "fault"))
        for name, number in (
            ("uncounted_devices", len(cards.uncounted)),
            ("wrong_containers", self.wrong()),
            ("compute_unenforced_containers", self.compute_unenforced()),
            ("pods", self.pods()),
        ):
            yield _gauge(f"{_PLUGIN}{name}", {(): number})
        yield _gauge("gpushare_build_info", {(__version__,): 1}, ("version",))
        # The node's GPU pods and cards bound the labels of these.
        uses, compute_uses = figures.uses, figures.compute_uses
        limited = {_labels(use): use.enforced for use in uses if use.enforced is not None}
        yield _gauge(_ENFORCED, limited, _USE)
        for name, of_containers in (
            ("container_memory_used_bytes", {_labels(use): use.used for use in uses}),
            ("container_memory_given_bytes", {_labels(use): use.granted for use in uses}),
            ("container_sm_percent", {_labels(use): use.percent for use in compute_uses}),
        ):
            yield _gauge(f"{_PLUGIN}{name}", of_containers, _USE)


def _gauge(
    name: str, samples: Mapping[tuple[str, ...], float], labels: tuple[str, ...] = ()
) -> Metric:
    """Return a gauge with a sample for each value of the labels."""
    gauge = GaugeMetricFamily(name, _HELP[name], labels=labels)
    for values, sample in samples.items():
        gauge.add_metric(values, float(sample))
    return gauge


def _labels(use: ContainerUse | ComputeUse) -> tuple[str, ...]:
    return use.pod.ref.namespace, use.pod.ref.name, use.container, use.uuid
