"""`gpushare report`: the GPU-hours of namespaces or workloads, by a Prometheus.

The root of the command: command line to queries, rows and prices to a table or a document. The
queries are in prometheus.py, those of --rightsize in rightsize.py. Standard library only, but for
files of prices and tokens.

Tested in `tests/unit/cli/test_cost_report.py` and `tests/e2e/test_report.py`.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gpushare.cli.documents import API_VERSION, dumped
from gpushare.cli.exit_codes import ended_as_kubectl
from gpushare.cli.parsers import BY_NAMESPACE, report_parser
from gpushare.cli.prometheus import (
    LABELS,
    CostReport,
    HolderHours,
    Names,
    Prometheus,
    Window,
    check_namespace,
    matchers_of,
    read_report,
    seconds_of,
)
from gpushare.cli.rightsize import margin_of, read_sizes, sizes_document, sizes_table
from gpushare.cli.tables import align
from gpushare.errors import SettingsError
from gpushare.wire.inventory import check_unit, mib_of
from gpushare.wire.printable import printable

KIND = "GPUShareCostReport"
_LONGEST_TOKEN = 65_536


def main(argv: Sequence[str] | None = None, prog: str = "gpushare report") -> int:
    """Return the exit code: 0, 1 if Prometheus does not tell, 2 for a wrong command line."""
    words = sys.argv[1:] if argv is None else argv
    return ended_as_kubectl(lambda: _run(report_parser(prog).parse_args(words)))


def _run(options: argparse.Namespace) -> None:
    seconds = seconds_of(options.since, "--since")
    if options.namespace:
        check_namespace(options.namespace)
    if options.rightsize and (options.by != BY_NAMESPACE or options.prices):
        raise SettingsError("--rightsize goes without --by and --prices")
    check_unit(options.unit)
    margin_of(options.margin)
    prices = prices_of(options.prices)
    matchers = matchers_of(options.match)
    prometheus = Prometheus(options.prometheus, _token(options.token_file))
    window = Window(prometheus, seconds, matchers)
    text = _rightsized(window, options) if options.rightsize else _report(window, options, prices)
    for warning in prometheus.warnings:
        print(f"warning: {printable(warning[:300])}", file=sys.stderr)
    print(text, end="")


def _report(window: Window, options: argparse.Namespace, prices: Mapping[str, float]) -> str:
    report = read_report(window, options.by, options.namespace)
    if options.namespace and not report.rows:
        window.prometheus.warn(f"no pod of the namespace {options.namespace} is known")
    warnings = window.prometheus.warnings
    models = {*report.idle, *(model for row in report.rows.values() for model in row.by_model)}
    unpriced = sorted(model for model in models if prices and price_of(model, prices) is None)
    warnings.extend(f"model {model} has no price" for model in unpriced)
    if options.output:
        document = document_of(report, options, window.seconds, prices)
        return dumped(document | {"warnings": warnings}, options.output)
    return table_of(report, options.by, prices)


def _rightsized(window: Window, options: argparse.Namespace) -> str:
    margin, unit = margin_of(options.margin), mib_of(options.unit)
    sizes = read_sizes(window, options.namespace, margin, unit)
    if not sizes:
        window.prometheus.warn(f"no pod of the namespace {options.namespace} is known")
    if options.output:
        document = sizes_document(sizes, options.margin, window.seconds)
        return dumped(document | {"warnings": window.prometheus.warnings}, options.output)
    return sizes_table(sizes)


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


# -- output -----------------------------------------------------------------------------------


def _sorted(report: CostReport) -> list[tuple[Names, HolderHours]]:
    return sorted(report.rows.items(), key=lambda item: (-item[1].promised, item[0]))


def table_of(report: CostReport, by: str, prices: Mapping[str, float]) -> str:
    """Return the table: the largest first, then what was idle of each model, then the sum."""
    names = LABELS[by]
    any_compute = any(row.compute for row in report.rows.values())
    head = [*(name.upper() for name in names), "GPU-HOURS"]
    head += [*(["COMPUTE"] if any_compute else []), "USED", "USE", *(["COST"] if prices else [])]

    def cells(
        titles: Sequence[str], hours: Mapping[str, float], compute: str, used: float | None
    ) -> list[str]:
        promised = sum(hours.values())
        line = [*map(printable, titles), f"{promised:.1f}"]
        line += [compute] if any_compute else []
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
    names = LABELS[options.by]
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
