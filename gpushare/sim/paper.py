"""The published figures and ours, side by side.

Knows which traces and policies were published, where the published means lie, and the tables made
of both; not how runs are made. Published: Weng et al., "Beware of Fragmentation", USENIX ATC 2023,
whose repository holds the expected results (see data/README.md).
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.sim.report import Record, allocated_at, difference, statistic

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
        """How far ours is above the published figure."""
        return None if self.published is None else self.ours - self.published


def published() -> dict[tuple[str, str, int], float]:
    """Published means by file, policy and load, in percent."""
    with _SOURCE.open(encoding="utf-8", newline="") as lines:
        return {
            (row["file"], row["policy"], int(row["load"])): float(row["mean"])
            for row in csv.DictReader(lines)
        }


def cells(records: Sequence[Record]) -> list[Cell]:
    """A cell for each file, policy and load of the records; each record names its `file`."""
    known = published()
    found = []
    for file in _in_order(records, "file", FILES):
        of_file = [record for record in records if record["file"] == file]
        for policy in _in_order(of_file, "policy", PUBLISHED):
            for load in LOADS:
                ours = statistic(of_file, policy, policy, allocated_at(load))
                if ours is not None:
                    told = known.get((file, policy, load))
                    found.append(Cell(file, policy, load, told, ours.mean, ours.seeds))
    return found


def side_by_side(found: Sequence[Cell]) -> list[list[str]]:
    """Rows of text: for each file and policy, published, ours and the difference at each load."""
    rows = [["FILE", "POLICY"]]
    rows[0] += [f"{word}@{load}" for load in LOADS for word in ("PUBLISHED", "OURS", "DIFF")]
    for file, policy in dict.fromkeys((cell.file, cell.policy) for cell in found):
        row = [file, policy]
        for load in LOADS:
            row += _three(found, file, policy, load)
        rows.append(row)
    return rows


def worst(found: Sequence[Cell]) -> Cell | None:
    """The cell that is farthest from what was published."""
    compared = [cell for cell in found if cell.difference is not None]
    return max(compared, key=lambda cell: abs(cell.difference or 0), default=None)


def tables(records: Sequence[Record]) -> dict[str, str]:
    """The Markdown tables that documents hold, by the name in their marks."""
    found = cells(records)
    made = {f"inflation-{load}": _load_table(found, load) for load in LOADS}
    return {**made, "inflation-lead": _lead_table(records)}


def renew(document: str, made: Mapping[str, str]) -> str:
    """The document with these tables between its marks.

    Marks are `<!-- simulate:NAME -->` and `<!-- /simulate -->`. Raises SettingsError where the
    document has none for one of the tables.
    """
    for name, table in made.items():
        begin, end = f"<!-- simulate:{name} -->\n", "\n<!-- /simulate -->"
        before, mark, rest = document.partition(begin)
        _, last, after = rest.partition(end)
        if not (mark and last):
            raise SettingsError(f"the document has no marks for the table {name}")
        document = "".join([before, mark, table, last, after])
    return document


def _three(found: Sequence[Cell], file: str, policy: str, load: int) -> list[str]:
    key = (file, policy, load)
    cell = next((one for one in found if (one.file, one.policy, one.load) == key), None)
    if cell is None:
        return ["-", "-", "-"]
    if cell.published is None or cell.difference is None:
        return ["-", f"{cell.ours:.2f}", "-"]
    return [f"{cell.published:.2f}", f"{cell.ours:.2f}", f"{cell.difference:+.2f}"]


def _load_table(found: Sequence[Cell], load: int) -> str:
    """Ours, and in brackets how far it is above the published figure."""
    here = {(cell.file, cell.policy): cell for cell in found if cell.load == load}
    policies = list(dict.fromkeys(cell.policy for cell in found))
    rows = [["file", "seeds", *policies]]
    for file in dict.fromkeys(cell.file for cell in found):
        line = [here.get((file, policy)) for policy in policies]
        counts = sorted({cell.seeds for cell in line if cell is not None})
        seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        rows.append([file, seeds, *("" if cell is None else _short(cell) for cell in line)])
    return markdown(rows)


def _short(cell: Cell) -> str:
    if cell.difference is None:
        return f"**{cell.ours:.2f}**"
    return f"{cell.ours:.2f} ({cell.difference:+.2f})"


def _lead_table(records: Sequence[Record]) -> str:
    """What our policy has above the best published one, by pairs of seeds, with the error."""
    rows = [["file", "seeds", *(f"at {load}" for load in LOADS)]]
    for file in _in_order(records, "file", FILES):
        of_file = [record for record in records if record["file"] == file]
        leads = [statistic(of_file, OURS, BEST, allocated_at(load)) for load in LOADS]
        told = [lead for lead in leads if lead is not None]
        if told:
            rows.append([file, str(told[0].seeds), *(difference(lead, 2) for lead in told)])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The rows, the first one a heading, as a table of Markdown."""
    head, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, f"|{' --- |' * len(rows[0])}", *rest])


def _in_order(records: Sequence[Record], key: str, order: Sequence[str]) -> list[str]:
    """The values of the records: those of the order first, then others as they come."""
    there = dict.fromkeys(str(record[key]) for record in records)
    return [*(one for one in order if one in there), *(one for one in there if one not in order)]
