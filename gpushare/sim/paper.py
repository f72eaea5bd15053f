"""The published figures and ours, side by side.

Knows which traces and policies were published and where the published means are, but not how runs
are made. Published: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, whose repository holds
the expected results (see data/README.md).
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.sim.report import Record, aligned, allocated_at, statistic

FILES = (
    "default",
    "cpu050",
    "cpu250",
    "gpushare40",
    "gpushare100",
    "multigpu20",
    "multigpu50",
    "gpuspec10",
    "gpuspec33",
)
"""The lists of pods for which figures are shipped, in the order of the tables."""

LOADS = (95, 100, 130)
PUBLISHED = ("random", "dotproduct", "clustering", "packing", "bestfit", "fgd")
BEST, OURS = "fgd", "shadow-price"
"""The best of the published policies, and ours."""

_SOURCE = Path(__file__).parent / "data" / "published.csv"


@dataclass(frozen=True, slots=True)
class Cell:
    """Allocated GPU in percent of the cluster's: what was published and what we measured."""

    file: str
    policy: str
    load: int
    published: float | None
    ours: float
    seeds: int

    @property
    def difference(self) -> float | None:
        """Ours minus the published figure."""
        return None if self.published is None else self.ours - self.published


def published() -> dict[tuple[str, str, int], float]:
    """Return the published means by file, policy and load, in percent."""
    with _SOURCE.open(encoding="utf-8", newline="") as lines:
        return {
            (row["file"], row["policy"], int(row["load"])): float(row["mean"])
            for row in csv.DictReader(lines)
        }


def cells(records: Sequence[Record]) -> list[Cell]:
    """Return a cell for each file, policy and load of the records; each record names its `file`."""
    known = published()
    compared = []
    for file in _in_order(records, "file", FILES):
        of_file = [record for record in records if record["file"] == file]
        for policy in _in_order(of_file, "policy", PUBLISHED):
            for load in LOADS:
                ours = statistic(of_file, policy, policy, allocated_at(load))
                if ours is not None:
                    figure = known.get((file, policy, load))
                    compared.append(Cell(file, policy, load, figure, ours.mean, ours.seeds))
    return compared


def side_by_side(compared: Sequence[Cell]) -> list[list[str]]:
    """Return rows of text: by file and policy, published, ours and the difference at each load."""
    rows = [["FILE", "POLICY"]]
    rows[0] += [f"{word}@{load}" for load in LOADS for word in ("PUBLISHED", "OURS", "DIFF")]
    by_key = {(cell.file, cell.policy, cell.load): cell for cell in compared}
    for file, policy in dict.fromkeys((cell.file, cell.policy) for cell in compared):
        row = [file, policy]
        for load in LOADS:
            cell = by_key.get((file, policy, load))
            if cell is None:
                row += ["-", "-", "-"]
            elif cell.published is None or cell.difference is None:
                row += ["-", f"{cell.ours:.2f}", "-"]
            else:
                row += [f"{cell.published:.2f}", f"{cell.ours:.2f}", f"{cell.difference:+.2f}"]
        rows.append(row)
    return rows


def printed(records: Sequence[Record]) -> str:
    """Return the published figures and ours, and the largest difference."""
    compared = cells(records)
    far = worst(compared)
    table = aligned(side_by_side(compared))
    if far is None:
        return table
    where = f"{far.file}, {far.policy} at {far.load}"
    return f"{table}farthest from the published figures: {far.difference:+.2f} ({where})\n"


def worst(compared: Sequence[Cell]) -> Cell | None:
    """Return the cell with the largest difference from the published figure."""
    published_ones = [cell for cell in compared if cell.difference is not None]
    return max(published_ones, key=lambda cell: abs(cell.difference or 0), default=None)


def _in_order(records: Sequence[Record], key: str, order: Sequence[str]) -> list[str]:
    """Return the values of the records: those in `order` first, then others as they come."""
    values = dict.fromkeys(str(record[key]) for record in records)
    return [*(one for one in order if one in values), *(one for one in values if one not in order)]
