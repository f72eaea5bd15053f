"""Nodes and pods out of a slice of a recorded trace (CSV), in this cluster's terms.

Knows the columns of Alibaba's openb trace. A device has 1000 milli in the trace, and a number of
memory units here; a share of a device becomes the same share of the units, rounded up.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from gpushare_localcluster.demo.placed import ScenarioError
from gpushare_localcluster.demo.plan import NodePlan, PodPlan

_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MOST_DEVICES = 64


class _Row:
    """One line of a CSV file, read by column."""

    def __init__(self, file: Path, line: int, values: dict[str, str | None]) -> None:
        self._where = f"{file}:{line}"
        self._values = values

    def text(self, column: str) -> str:
        """Return the column's text, which must not be empty."""
        value = self._values.get(column)
        if not value:
            raise ScenarioError(f"{self._where}: {column} is missing")
        return value

    def whole(self, column: str, maximum: int = 2**40) -> int:
        """Return the column's whole number, at least 0."""
        text = self.text(column)
        if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > maximum:
            raise ScenarioError(
                f"{self._where}: {column}: {text!r} is no number from 0 to {maximum}"
            )
        return int(text)


def trace_nodes(file: Path, units: int) -> tuple[NodePlan, ...]:
    """Return the nodes of a trace, each device with `units`. Raises ScenarioError."""
    return tuple(
        NodePlan(
            name=row.text("sn"),
            devices=(units,) * row.whole("gpu", _MOST_DEVICES),
            cpu=f"{row.whole('cpu_milli')}m",
            memory=f"{row.whole('memory_mib')}Mi",
            labels={"gpu-model": row.text("model")},
        )
        for row in _rows(file, _NODE_COLUMNS)
    )


def trace_pods(file: Path, units: int) -> tuple[PodPlan, ...]:
    """Return the pods of a trace, for devices of `units`. Raises ScenarioError."""
    return tuple(_pod(row, units) for row in _rows(file, _POD_COLUMNS))


def _pod(row: _Row, units: int) -> PodPlan:
    count, milli = row.whole("num_gpu", _MOST_DEVICES), row.whole("gpu_milli", 1000)
    share = -(-milli * units // 1000)
    return PodPlan(
        name=row.text("name"),
        containers=(count * share,),
        gpu_count=max(count, 1),
        cpu=f"{row.whole('cpu_milli')}m",
        memory=f"{row.whole('memory_mib')}Mi",
    )


def _rows(file: Path, columns: tuple[str, ...]) -> Iterator[_Row]:
    """Yield the rows of a file that has these columns; lines that begin with # are comments."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{file}: cannot be read: {error}") from error
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line and not line.startswith("#")]
    reader = csv.DictReader([line for _, line in numbered])
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise ScenarioError(f"{file}: columns are missing: {', '.join(missing)}")
    for (number, _), values in zip(numbered[1:], reader, strict=False):
        yield _Row(file, number, values)
