"""The metrics of the shadow policy: where it differs, and what both books hold."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpushare.extender.shadow.shadow import Shadow


class ShadowCollector:
    """The collector of all that is told of the shadow. unit_bytes: bytes of a memory unit."""

    def __init__(self, shadow: Shadow, unit_bytes: int) -> None:
        self._shadow = shadow
        self._unit_bytes = unit_bytes

    def collect(self) -> Iterable[Metric]:
        """Yield one family after the other."""
        shadow, unit = self._shadow, self._unit_bytes
        counts = shadow.counts
        on = GaugeMetricFamily(
            "gpushare_shadow_on",
            "1 while the shadow policy follows; 0: it failed, the log says how",
            labels=("policy",),
        )
        on.add_metric((shadow.policy,), not shadow.off)
        yield on
        yield _counter(
            "gpushare_shadow_choices",
            "Pods that filter answered for, by whether the shadow policy, on the real books, would"
            " choose the same place or another node or device",
            "choice",
            {name: each.choices for name, each in counts.items()},
        )
        yield _counter(
            "gpushare_shadow_pods",
            "Pods by which books took them: both, the real ones alone, or the shadow's alone",
            "taken",
            {name: each.pods for name, each in counts.items()},
        )
        yield _counter(
            "gpushare_shadow_inexact",
            "Pods that the shadow's books could not follow exactly, by why",
            "why",
            {name: each.inexact for name, each in counts.items()},
        )
        rebases = CounterMetricFamily(
            "gpushare_shadow_rebases",
            "How often the shadow's books began anew with the real ones",
            labels=("resource",),
        )
        pods, allocated, stranded = (
            GaugeMetricFamily(name, f"{text} in the real books and in the shadow's", labels=_BOOKS)
            for name, text in (
                ("gpushare_shadow_running_pods", "Pods"),
                ("gpushare_shadow_allocated_bytes", "Memory given to pods"),
                ("gpushare_shadow_stranded_bytes", "Stranded memory"),
            )
        )
        for name, each in counts.items():
            rebases.add_metric((name,), each.rebases)
            for books, sums in (("real", each.real), ("shadow", each.shadow)):
                pods.add_metric((name, books), sums.pods)
                allocated.add_metric((name, books), sums.allocated * unit)
                stranded.add_metric((name, books), sums.stranded * unit)
        yield from (rebases, pods, allocated, stranded)
        dropped = CounterMetricFamily(
            "gpushare_shadow_dropped",
            "What the shadow had no time for: choices not compared; events, after which its books"
            " began anew",
            labels=("what",),
        )
        for what, number in shadow.dropped.items():
            dropped.add_metric((what,), number)
        yield dropped


_BOOKS = ("resource", "books")


def _counter(
    name: str, text: str, label: str, counts: Mapping[str, Mapping[str, int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=("resource", label))
    for resource, each in counts.items():
        for value, number in each.items():
            family.add_metric((resource, value), number)
    return family
