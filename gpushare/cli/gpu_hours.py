"""The queries of `gpushare report`: GPU-hours promised, idle and used, by a Prometheus.

Standard library only; knows no prices and no output. Tested in
`tests/unit/cli/test_cost_report.py` and `tests/e2e/test_report.py`.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.cli.parsers import BY_MODEL, BY_NAMESPACE, BY_WORKLOAD
from gpushare.cli.prometheus import Prometheus
from gpushare.errors import MessageError, SettingsError

_HOUR = 3600.0
_COUNTERS = {
    BY_NAMESPACE: ("gpushare_namespace", "namespaces"),
    BY_WORKLOAD: ("gpushare_workload", "pods"),
}
"""By --by: the beginning of the counters, the least --metrics-detail."""
LABELS = {
    BY_NAMESPACE: ("namespace",),
    BY_WORKLOAD: ("namespace", "workload"),
    BY_MODEL: ("model",),
}
"""By --by: the labels of a row."""
USED = "gpushare_device_plugin_container_memory_used_bytes"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Names = tuple[str, ...]


@dataclass(slots=True)
class HolderHours:
    """The GPU-hours of a namespace, a workload or a model."""

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


def in_namespace(name: str) -> str:
    """Return the part of a query that chooses this namespace; "" for all."""
    return f'{{namespace="{name}"}}' if name else ""


def namespaces_in(prometheus: Prometheus, metric: str, seconds: int) -> list[str]:
    """Return the namespaces that the metric had in this time, sorted."""
    samples = prometheus.query(f"group by (namespace) (last_over_time({metric}[{seconds}s]))")
    names = {labels.get("namespace", "") for labels, _ in samples}
    return sorted(name for name in names if _NAMESPACE.fullmatch(name))


def read_report(prometheus: Prometheus, by: str, seconds: int, namespace: str) -> CostReport:
    """Return the GPU-hours of this time until now. Raises MessageError."""
    idle, models = dict[str, float](), defaultdict[Names, HolderHours](HolderHours)
    expression = f"sum by (model, state) (increase(gpushare_gpu_seconds_total[{seconds}s]))"
    for labels, value in prometheus.query(expression):
        model, state = labels.get("model", ""), labels.get("state", "")
        if state == "idle":
            idle[model] = value / _HOUR
        elif state == "promised":
            models[(model,)].by_model[model] += value / _HOUR
    if not idle and not models:
        raise MessageError(
            f"{prometheus.url} has no gpushare_gpu_seconds_total in this time: have it scrape the"
            " port health of the extender (docs/alerts.md), of this release or a later one"
        )
    if by == BY_MODEL:
        return CostReport(models, idle)
    (beginning, detail), names = _COUNTERS[by], LABELS[by]
    chosen = in_namespace(namespace)
    grouped = ", ".join((*names, "model"))
    rows = defaultdict[Names, HolderHours](HolderHours)
    for kind in ("gpu_seconds", "gpu_compute_seconds"):
        counter = f"{beginning}_{kind}_total{chosen}"
        for labels, value in prometheus.query(
            f"sum by ({grouped}) (increase({counter}[{seconds}s]))"
        ):
            row = rows[tuple(labels.get(name, "") for name in names)]
            if kind == "gpu_seconds":
                row.by_model[labels.get("model", "")] += value / _HOUR
            else:
                row.compute += value / _HOUR
    if not rows and not namespace:
        raise MessageError(
            f"{prometheus.url} has no {beginning}_gpu_seconds_total in this time: no pod held a"
            f" GPU, or the extender lacks --metrics-detail {detail}"
        )
    _add_used(prometheus, rows, seconds, is_by_workload=by == BY_WORKLOAD)
    return CostReport(rows, idle)


def _add_used(
    prometheus: Prometheus, rows: dict[Names, HolderHours], seconds: int, *, is_by_workload: bool
) -> None:
    """Add what containers used, one namespace after the other, so that no answer is too large."""
    step = 60 if seconds <= 86_400 else 300
    pods = ", pod" if is_by_workload else ""
    for namespace in sorted({names[0] for names in rows}):
        if not _NAMESPACE.fullmatch(namespace):  # the sum of the others
            continue
        chosen = in_namespace(namespace)
        shares = (
            f"max by (namespace, pod, container, uuid) ({USED}{chosen}) / on (uuid) group_left ()"
            " max by (uuid) (gpushare_device_plugin_device_memory_bytes)"
        )
        expression = (
            f"sum by (namespace{pods}) (sum_over_time(({shares})[{seconds}s:{step}s])) * {step}"
        )
        workloads = workloads_of(prometheus, namespace, seconds) if is_by_workload else {}
        for labels, value in prometheus.query(expression):
            pod = labels.get("pod", "")
            names = (namespace, workloads.get(pod, f"Pod/{pod}")) if pods else (namespace,)
            if names in rows:
                rows[names].used = (rows[names].used or 0.0) + value / _HOUR


def workloads_of(prometheus: Prometheus, namespace: str, seconds: int) -> dict[str, str]:
    """Return the workload of each pod of the namespace that held GPU memory in this time, as far
    as the extender says.
    """
    metric = f'gpushare_pod_memory_allocated_bytes{{namespace="{namespace}",workload!=""}}'
    samples = prometheus.query(f"group by (pod, workload) (last_over_time({metric}[{seconds}s]))")
    return {labels.get("pod", ""): labels.get("workload", "") for labels, _ in samples}
