"""`gpushare report`: the GPU-hours of namespaces, workloads or models, by a Prometheus.

The root of the command: command line to queries, samples to rows, rows to a table or a document.
Standard library only, but for files of prices and tokens.

Tested in `tests/unit/cli/test_cost_report.py` and `tests/e2e/test_report.py`.
"""

import argparse
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gpushare.cli.documents import API_VERSION, dumped
from gpushare.cli.exit_codes import ended_as_kubectl
from gpushare.cli.parsers import BY_MODEL, BY_NAMESPACE, BY_WORKLOAD, report_parser
from gpushare.cli.prometheus import Prometheus, seconds_of
from gpushare.cli.tables import align
from gpushare.errors import MessageError, SettingsError
from gpushare.wire.printable import printable

KIND = "GPUShareCostReport"
_HOUR = 3600.0
_METRICS = {
    BY_NAMESPACE: ("gpushare_namespace", ("namespace",), "namespaces"),
    BY_WORKLOAD: ("gpushare_workload", ("namespace", "workload"), "pods"),
}
"""By --by: the beginning of the counters, the labels of a row, the least --metrics-detail."""
USED = "gpushare_device_plugin_container_memory_used_bytes"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST_TOKEN = 65_536

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
    """What Prometheus answered."""

    rows: Mapping[Names, HolderHours]
    idle: Mapping[str, float]
    """Idle GPU-hours by model."""


def main(argv: Sequence[str] | None = None, prog: str = "gpushare report") -> int:
    """Return the exit code: 0, 1 if Prometheus does not tell, 2 for a wrong command line."""
    words = sys.argv[1:] if argv is None else argv
    return ended_as_kubectl(lambda: _run(report_parser(prog).parse_args(words)))


def _run(options: argparse.Namespace) -> None:
    seconds = seconds_of(options.since, "--since")
    if options.namespace and not _NAMESPACE.fullmatch(options.namespace):
        raise SettingsError(f"--namespace: {options.namespace[:80]!r} is no name of a namespace")
    if options.namespace and options.by == BY_MODEL:
        raise SettingsError("--namespace goes with --by namespace or workload")
    prices = prices_of(options.prices)
    prometheus = Prometheus(options.prometheus, _token(options.token_file))
    report = read_report(prometheus, options.by, seconds, options.namespace)
    models = {*report.idle, *(model for row in report.rows.values() for model in row.by_model)}
    unpriced = sorted(model for model in models if prices and price_of(model, prices) is None)
    prometheus.warnings.extend(f"model {model} has no price" for model in unpriced)
    if options.output:
        document = document_of(report, options, seconds, prices)
        text = dumped(document | {"warnings": prometheus.warnings}, options.output)
    else:
        text = table_of(report, options.by, prices)
    for warning in prometheus.warnings:
        print(f"warning: {printable(warning[:300])}", file=sys.stderr)
    print(text, end="")


def _token(path: str) -> str:
    if not path:
        return ""
    from gpushare.yamlfile import read_text

    token = read_text(path, _LONGEST_TOKEN).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(f"--token-file: {path}: is no token")
    return token


# -- prices -----------------------------------------------------------------------------------


def prices_of(words: Iterable[str]) -> dict[str, float]:
    """Return prices of a GPU-hour by pattern of the model; a word is MODEL=PRICE or a file.

    Raises SettingsError.
    """
    prices: dict[str, float] = {}
    for word in words:
        model, equals, price = word.rpartition("=")
        if equals:
            prices[model] = _price(model, price)
            continue
        from gpushare.yamlfile import read_yaml

        document = read_yaml(word)
        if not isinstance(document, dict) or not document:
            raise SettingsError(f"--prices: {word}: is no mapping of models to prices")
        prices.update({str(key): _price(str(key), value) for key, value in document.items()})
    return prices


def _price(model: str, value: object) -> float:
    try:
        price = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        price = math.nan
    if not model or isinstance(value, bool) or not 0 <= price < math.inf:
        raise SettingsError(f"--prices: {model[:80]}={str(value)[:40]}: is no MODEL=PRICE")
    return price


def price_of(model: str, prices: Mapping[str, float]) -> float | None:
    """Return the price of a GPU-hour of the model, or of the first pattern that matches."""
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)


def _cost(hours: Mapping[str, float], prices: Mapping[str, float]) -> float:
    return sum(amount * (price_of(model, prices) or 0.0) for model, amount in hours.items())


# -- Prometheus -------------------------------------------------------------------------------


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
    beginning, names, detail = _METRICS[by]
    chosen = f'{{namespace="{namespace}"}}' if namespace else ""
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
        chosen = f'{{namespace="{namespace}"}}'
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
    """Return the workload of each pod of the namespace that held GPU memory in this time."""
    metric = f'gpushare_pod_memory_allocated_bytes{{namespace="{namespace}",workload!=""}}'
    samples = prometheus.query(f"group by (pod, workload) (last_over_time({metric}[{seconds}s]))")
    return {labels.get("pod", ""): labels.get("workload", "") for labels, _ in samples}


# -- output -----------------------------------------------------------------------------------


def _sorted(report: CostReport) -> list[tuple[Names, HolderHours]]:
    return sorted(report.rows.items(), key=lambda item: (-item[1].promised, item[0]))


def table_of(report: CostReport, by: str, prices: Mapping[str, float]) -> str:
    """Return the table: the largest first, then what was idle of each model, then the sum."""
    names = (BY_MODEL,) if by == BY_MODEL else _METRICS[by][1]
    any_compute = any(row.compute for row in report.rows.values())
    head = [*(name.upper() for name in names), "GPU-HOURS"]
    head += ["COMPUTE"] if any_compute else []
    head += [] if by == BY_MODEL else ["USED", "USE"]
    head += ["COST"] if prices else []

    def cells(
        titles: Sequence[str], hours: Mapping[str, float], compute: str, used: float | None
    ) -> list[str]:
        promised = sum(hours.values())
        line = [*map(printable, titles), f"{promised:.1f}"]
        line += [compute] if any_compute else []
        if by != BY_MODEL:
            part = f"{used / promised:.0%}" if used is not None and promised else "-"
            line += ["-" if used is None else f"{used:.1f}", part]
        return [*line, *([f"{_cost(hours, prices):.2f}"] if prices else [])]

    lines = [
        cells(titles, row.by_model, f"{row.compute:.1f}", row.used)
        for titles, row in _sorted(report)
    ]
    blanks = [""] * (len(names) - 1)
    lines += [
        cells([f"idle {model}", *blanks], {model: hours}, "-", None)
        for model, hours in sorted(report.idle.items())
    ]
    return align([head, *lines])


def document_of(
    report: CostReport, options: argparse.Namespace, seconds: int, prices: Mapping[str, float]
) -> dict[str, Any]:
    """Return the report as a document; costs are null without prices."""
    names = (BY_MODEL,) if options.by == BY_MODEL else _METRICS[options.by][1]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "seconds": seconds,
        "by": options.by,
        "rows": [
            {
                **dict(zip(names, titles, strict=True)),
                "promisedGPUHours": row.promised,
                "promisedGPUHoursByModel": dict(row.by_model),
                "computeGPUHours": row.compute,
                "usedGPUHours": row.used,
                "cost": _cost(row.by_model, prices) if prices else None,
            }
            for titles, row in _sorted(report)
        ],
        "idle": [
            {
                "model": model,
                "idleGPUHours": hours,
                "cost": _cost({model: hours}, prices) if prices else None,
            }
            for model, hours in sorted(report.idle.items())
        ],
    }
