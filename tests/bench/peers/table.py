"""One table of all that is measured: a row for each figure, a column for each contender, ratios.

Knows the columns; where a figure was measured several times, the median is shown.
"""

import sys
from statistics import median

from tests.bench.peers.contenders import ALL, ALONE, BEST, LEAST, LEAST_ALL, ORIGINAL

_COLUMNS = (ALONE, LEAST, BEST, LEAST_ALL, ALL, ORIGINAL)
_RATIOS = (
    ("all:original", ALL, ORIGINAL),
    ("all:alone", ALL, ALONE),
    ("best:alone", BEST, ALONE),
    ("first:alone", LEAST, ALONE),
    ("least all:alone", LEAST_ALL, ALONE),
)
_WIDTH, _CELL = 52, 17


class Table:
    """Figures by row and contender."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, list[float]]] = {}
        self._notes: list[str] = []

    def put(self, row: str, unit: str, title: str, value: float) -> None:
        """Add a figure, and show it; `/s` means that more is better, anything else that less is."""
        print(f"  {row}: {title} {_number(value)} {unit}", file=sys.stderr, flush=True)
        self._rows.setdefault((row, unit), {}).setdefault(title, []).append(value)

    def note(self, text: str) -> None:
        """Say something below the table."""
        self._notes.append(text)

    def text(self) -> str:
        """The table; a ratio says how many times better the first is."""
        heads = (*_COLUMNS, *(name for name, _, _ in _RATIOS))
        lines = [" " * _WIDTH + "".join(f"{head:>{_CELL}}" for head in heads)]
        for (row, unit), found in self._rows.items():
            values = {title: median(figures) for title, figures in found.items()}
            cells = [_number(values.get(title)) for title in _COLUMNS]
            cells += [_ratio(values, unit, first, second) for _, first, second in _RATIOS]
            name = f"{row}, {unit}" if unit != "/s" else f"{row}/s"
            lines.append(f"{name:<{_WIDTH}}" + "".join(f"{cell:>{_CELL}}" for cell in cells))
        return "\n".join((*lines, *self._notes))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(values: dict[str, float], unit: str, first: str, second: str) -> str:
    if first not in values or second not in values:
        return "-"
    better = values[first] / values[second]
    return f"{better if unit == '/s' else 1 / better:.2g}"
