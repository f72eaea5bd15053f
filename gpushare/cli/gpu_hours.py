"""The queries of `gpushare report`: GPU-hours promised, idle and used, by a Prometheus.

Standard library only; knows no prices and no output. Tested in
`tests/unit/cli/test_cost_report.py` and `tests/e2e/test_report.py`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.cli.parsers import BY_NAMESPACE, BY_WORKLOAD
from gpushare.cli.prometheus import Prometheus
from gpushare.errors import MessageError, SettingsError

_HOUR = 3600.0
_COUNTERS = {
    BY_NAMESPACE: ("gpushare_namespace", "namespaces"),
    BY_WORKLOAD: ("gpushare_workload", "pods"),
}
"""By --by: the beginning of the counters, the least --metrics-detail."""
LABELS = {BY_NAMESPACE: ("namespace",), BY_WORKLOAD: ("namespace", "workload")}
"""By --by: the labels of a row."""
USED = "gpushare_device_plugin_container_memory_used_bytes"
HELD = "gpushare_pod_memory_allocated_bytes"
"""The extender's metric of the 500 pods that hold most, with their workloads."""
NAMELESS = "whose workloads the extender does not tell: it names the 500 pods that hold most"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}")
_VALUE = re.compile(r"[^\ud800-\udfff]{1,1024}")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Names = tuple[str, ...]


@dataclass(slots=True)
class HolderHours:
    """The GPU-hours of a namespace or a workload."""

    by_model: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Promised, by model."""
    compute: float = 0.0
    used: float | None = None
    """None if nothing measured it."""

    @property
    def promised(self) -> float:
        """The sum of all models."""
        return sum(self.by_model.values())


@dataclass(frozen=True, slots=True)
class CostReport:
    """The answers of Prometheus."""

    rows: Mapping[Names, HolderHours]
    idle: Mapping[str, float]
    """Idle GPU-hours by model."""


def check_namespace(name: str) -> None:
    """Raise SettingsError if the value of the flag --namespace is no name of a namespace."""
    if not _NAMESPACE.fullmatch(name):
        raise SettingsError(f"--namespace: {name[:80]!r} is no name of a namespace")


def matchers_of(words: Iterable[str]) -> dict[str, str]:
    """Return labels by name of words such as cluster=prod. Raises SettingsError."""
    matchers = {}
    for word in words:
        name, _, value = word.partition("=")
        if not _LABEL.fullmatch(name) or not _VALUE.fullmatch(value):
            raise SettingsError(f"--match: {word[:80]!r} is no LABEL=VALUE")
        if name == "namespace":
            raise SettingsError("--match: the flag for a namespace is -n")
        matchers[name] = value
    return matchers


@dataclass(frozen=True, slots=True)
class Window:
    """The series of one cluster in a Prometheus, over a time until now."""

    prometheus: Prometheus
    seconds: int
    matchers: Mapping[str, str] = field(default_factory=dict)
    """Labels that all series have."""

    def now(self, metric: str, **labels: str) -> str:
        """Return the selector of the metric; a label "" chooses nothing."""
        pairs = {**self.matchers, **labels}
        # PromQL escapes as JSON does, but refuses JSON's pairs of surrogates.
        chosen = (
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in pairs.items()
            if value
        )
        return f"{metric}{{{','.join(chosen)}}}"

    def over(self, metric: str, **labels: str) -> str:
        """Return the selector of the metric over all of the time."""
        return f"{self.now(metric, **labels)}[{self.seconds}s]"

    def lacks(self, metric: str, advice: str) -> MessageError:
        """Return the error about a metric that is not there."""
        return MessageError(f"{self.prometheus.url} has no {metric} in this time: {advice}")

    def namespaces(self, metric: str) -> set[str]:
        """Return the namespaces that the metric had."""
        expression = f"group by (namespace) (last_over_time({self.over(metric)}))"
        names = {labels.get("namespace", "") for labels, _ in self.prometheus.query(expression)}
        return {name for name in names if _NAMESPACE.fullmatch(name)}

    def workloads(self, namespace: str) -> dict[str, str]:
        """Return the workload of each pod of the namespace that held GPU memory, as far as the
        extender says.
        """
        metric = self.over(HELD, namespace=namespace)
        samples = self.prometheus.query(f"group by (pod, workload) (last_over_time({metric}))")
        return {
            labels.get("pod", ""): labels["workload"]
            for labels, _ in samples
            if labels.get("workload")
        }


def read_report(window: Window, by: str, namespace: str) -> CostReport:
    """Return the GPU-hours. Raises MessageError."""
    expression = f"sum by (model, state) (increase({window.over('gpushare_gpu_seconds_total')}))"
    samples = list(window.prometheus.query(expression))
    idle = {
        labels.get("model", ""): value / _HOUR
        for labels, value in samples
        if labels.get("state") == "idle"
    }
    if not samples:
        raise window.lacks(
            "gpushare_gpu_seconds_total",
            "have it scrape the port health of the extender (docs/alerts.md), of this release or a"
            " later one",
        )
    (beginning, detail), names = _COUNTERS[by], LABELS[by]
    grouped = ", ".join((*names, "model"))
    rows = defaultdict[Names, HolderHours](HolderHours)
    for kind in ("gpu_seconds", "gpu_compute_seconds"):
        counter = window.over(f"{beginning}_{kind}_total", namespace=namespace)
        for labels, value in window.prometheus.query(f"sum by ({grouped}) (increase({counter}))"):
            row = rows[tuple(labels.get(name, "") for name in names)]
            if kind == "gpu_seconds":
                row.by_model[labels.get("model", "")] += value / _HOUR
            else:
                row.compute += value / _HOUR
    if not rows and not namespace:
        raise window.lacks(
            f"{beginning}_gpu_seconds_total",
            f"no pod held a GPU, or the extender lacks --metrics-detail {detail}",
        )
    _add_used(window, rows, is_by_workload=by == BY_WORKLOAD)
    return CostReport(rows, idle)


def _add_used(window: Window, rows: dict[Names, HolderHours], *, is_by_workload: bool) -> None:
    """Add what containers used, one namespace after the other, so that no answer is too large."""
    step = 60 if window.seconds <= 86_400 else 300
    pods = ", pod" if is_by_workload else ""
    for namespace in sorted({names[0] for names in rows}):
        if not _NAMESPACE.fullmatch(namespace):  # the sum of the others
            continue
        shares = (
            "max by (namespace, pod, container, uuid)"
            f" ({window.now(USED, namespace=namespace)}) / on (uuid) group_left ()"
            f" max by (uuid) ({window.now('gpushare_device_plugin_device_memory_bytes')})"
        )
        expression = (
            f"sum by (namespace{pods})"
            f" (sum_over_time(({shares})[{window.seconds}s:{step}s])) * {step}"
        )
        workloads = window.workloads(namespace) if is_by_workload else {}
        nameless = list[float]()
        for labels, value in window.prometheus.query(expression):
            pod = labels.get("pod", "")
            names = (namespace, workloads.get(pod, f"Pod/{pod}")) if pods else (namespace,)
            if names in rows:
                rows[names].used = (rows[names].used or 0.0) + value / _HOUR
            elif pod not in workloads:
                nameless.append(value / _HOUR)
        if nameless:
            window.prometheus.warn(
                f"{namespace}: USED lacks {sum(nameless):.1f} GPU-hours of {len(nameless)} pods"
                f" {NAMELESS}"
            )
