"""The tables of documents: the runs for each, and how they are written.

A table is data: lines, each an experiment on a shipped list of pods, the policies for all of them,
and the columns of its views. A view is the text between one pair of marks of a document. A column
has a heading, and a text computed from the records of one line: means of policies, and leads by
pairs of seeds. Knows records, but not how runs are made.

The first table has the published figures beside ours: Weng et al., "Beware of Fragmentation",
USENIX ATC 2023, whose repository holds the expected results (see data/README.md).

Tested in `tests/unit/sim/test_tables.py` and `tests/unit/sim/test_tables_published.py`.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.sim.experiments import Options
from gpushare.sim.lifetimes import TRACE
from gpushare.sim.report import (
    Measure,
    Record,
    aligned,
    allocated_at,
    difference,
    markdown,
    statistic,
)
from gpushare.sim.scorers import KNOWN, LEARNED

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

ALLOC = Measure("alloc", "ALLOC")
WAITING = Measure("waiting", "WAITING")
WAIT_OF_8 = Measure("wait_mean", "WAIT 8", "8", digits=3)
Rows = list[list[str]]
SEVERAL = ("device-bestfit", BEST, OURS)
"""The policies of the tables without published figures."""


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and a function from the records of a line to its text."""

    head: str
    text: Callable[[Sequence[Record]], str]


Columns = Callable[[Sequence[str]], list[Column]]
"""Returns the columns for these policies, in their order."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line: an experiment on a shipped list of pods."""

    file: str
    experiment: str = "churn"
    parameters: Options = field(default_factory=Options)
    units: int = 0
    """Of a device, where it is changed; 0: it is not."""

    @property
    def labels(self) -> Mapping[str, object]:
        """The keys and values by which the records of its runs are found."""
        load = self.parameters.load
        labels = {"file": self.file, "experiment": self.experiment, "load": load}
        return {**labels, "units": self.units}


@dataclass(frozen=True, slots=True)
class Table:
    """The runs of a table, and its views by the name in their marks."""

    name: str
    heads: tuple[str, ...]
    """The keys of a line that are its first cells."""
    lines: tuple[Line, ...]
    views: Mapping[str, Columns]
    policies: tuple[str, ...] = SEVERAL
    learners: tuple[str, ...] = ()
    """The policies that are run a second time, in which they learn the workload."""
    seeds: tuple[int, ...] = tuple(range(42, 47))

    @property
    def variants(self) -> tuple[tuple[str, str], ...]:
        """The policies, each with KNOWN or LEARNED."""
        known = [(policy, KNOWN) for policy in self.policies]
        return (*known, *((policy, LEARNED) for policy in self.learners))

    def rows(self, view: str, records: Sequence[Record]) -> Rows:
        """Return a heading, and a row for each line that has records."""
        columns = self.views[view](self.policies)
        rows = [[*self.heads, "seeds", *(column.head for column in columns)]]
        for line in self.lines:
            of_line = []
            for record in records:
                if all(record[key] == value for key, value in line.labels.items()):
                    policy = str(record["policy"])
                    learns = record["workload"] == LEARNED
                    of_line.append({**record, "policy": learning(policy) if learns else policy})
            if of_line:
                names = [str(line.labels[head]) for head in self.heads]
                runs: dict[object, set[object]] = {}
                for record in of_line:
                    runs.setdefault(record["policy"], set()).add(record["seed"])
                # "2 to 5" if the policies have different numbers of seeds.
                counts = sorted({len(seeds) for seeds in runs.values()})
                seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
                rows.append([*names, seeds, *(one.text(of_line) for one in columns)])
        return rows

    def markdown(self, records: Sequence[Record]) -> dict[str, str]:
        """Return the views, by the name in their marks; nothing if there are no records."""
        own = [record for record in records if record["table"] == self.name]
        return {view: markdown(self.rows(view, own)) for view in self.views} if own else {}


def learning(policy: str) -> str:
    """Return the name of the policy in records of runs in which it learns the workload."""
    return f"{policy}, learning"


def compared(policies: Sequence[str]) -> list[Column]:
    """Return the GPU allocated by each policy, and the lead of ours over each of the others."""
    others = [policy for policy in policies if policy != OURS]
    return [
        *(Column(policy, partial(_mean, policy, ALLOC)) for policy in policies),
        *(Column(f"above {policy}", partial(_lead, OURS, policy, ALLOC)) for policy in others),
    ]


def waits(policies: Sequence[str]) -> list[Column]:
    """Return the number of waiting pods, and how long pods of eight devices wait."""
    others = [policy for policy in policies if policy != OURS]
    return [
        *(Column(f"waiting: {policy}", partial(_mean, policy, WAITING)) for policy in policies),
        *(
            Column(f"{OURS} above {policy}", partial(_lead, OURS, policy, WAITING))
            for policy in others
        ),
        *(Column(f"wait of 8: {policy}", partial(_mean, policy, WAIT_OF_8)) for policy in policies),
    ]


def with_learning(policies: Sequence[str]) -> list[Column]:
    """Return what ours allocates when it learns the workload, and the share of its lead left."""
    learner = learning(OURS)
    return [
        *(Column(policy, partial(_mean, policy, ALLOC)) for policy in (*policies, learner)),
        Column("learning above knowing", partial(_lead, learner, OURS, ALLOC)),
        Column(f"share of the lead over {BEST}", _share_of_lead),
    ]


def beside_published(load: int, policies: Sequence[str]) -> list[Column]:
    """Return the GPU allocated at a load, with the difference from the published figure."""
    known = published()
    return [Column(policy, partial(_beside, known, policy, load)) for policy in policies]


def leads(_policies: Sequence[str]) -> list[Column]:
    """Return the lead of ours over the best published policy."""
    return [Column(f"at {load}", partial(_lead, OURS, BEST, allocated_at(load))) for load in LOADS]


def _mean(policy: str, measure: Measure, records: Sequence[Record]) -> str:
    """Return a mean; "" if the policy was not run, "-" if its runs lack the measure."""
    measured = statistic(records, policy, policy, measure)
    ran = any(record["policy"] == policy for record in records)
    return f"{measured.mean:.{measure.digits}f}" if measured else "-" * ran


def _lead(policy: str, other: str, measure: Measure, records: Sequence[Record]) -> str:
    """Return the lead of a policy over another, by pairs of seeds, with the error."""
    return difference(statistic(records, policy, other, measure), measure.digits)


def _share_of_lead(records: Sequence[Record]) -> str:
    """Return the share of the lead of ours that is left when it learns the workload."""
    known = statistic(records, OURS, BEST, ALLOC)
    learned = statistic(records, learning(OURS), BEST, ALLOC)
    if known is None or learned is None or not known.difference or learned.difference is None:
        return "-"
    return f"{learned.difference / known.difference:.2f}"


def _beside(
    known: Mapping[tuple[str, str, int], float], policy: str, load: int, records: Sequence[Record]
) -> str:
    """Return a mean and its difference from the published one; bold where none was published."""
    measured = statistic(records, policy, policy, allocated_at(load))
    if measured is None:
        return ""
    figure = known.get((str(records[0]["file"]), policy, load))
    if figure is None:
        return f"**{measured.mean:.2f}**"
    return f"{measured.mean:.2f} ({measured.mean - figure:+.2f})"


def _waiting(file: str, load: float) -> Line:
    return Line(file, parameters=Options(load=load, life=14.0, warmup=4.0, wait=True))


_FOUR = ("default", "multigpu50", "cpu250", "gpuspec33")

TABLES = (
    Table(
        "inflation",
        ("file",),
        tuple(Line(file, "inflation") for file in FILES),
        {
            **{f"inflation-{load}": partial(beside_published, load) for load in LOADS},
            "inflation-lead": leads,
        },
        policies=(*PUBLISHED, OURS),
        seeds=tuple(range(42, 52)),
    ),
    Table(
        "churn",
        ("file", "load"),
        tuple(
            Line(file, parameters=Options(load=load)) for file in FILES for load in (1.0, 1.1, 1.3)
        ),
        {"churn": compared},
    ),
    Table(
        "waiting",
        ("file", "load"),
        (
            *(_waiting(file, load) for file in ("default", "multigpu50") for load in (0.9, 0.95)),
            _waiting("cpu250", 0.85),
            _waiting("cpu250", 0.9),
            _waiting("gpushare100", 0.87),
            _waiting("gpuspec33", 0.7),
        ),
        {"waiting": waits},
    ),
    Table(
        "lifetimes",
        ("file",),
        tuple(Line(file, parameters=Options(lifetimes=TRACE)) for file in FILES),
        {"lifetimes": compared},
    ),
    Table(
        "units",
        ("file", "experiment"),
        tuple(
            Line(file, experiment, units=16)
            for file in FILES
            for experiment in ("inflation", "churn")
        ),
        {"units": compared},
    ),
    Table(
        "learned",
        ("file", "experiment"),
        tuple(Line(file, experiment) for file in _FOUR for experiment in ("inflation", "churn")),
        {"learned": with_learning},
        policies=(BEST, OURS),
        learners=(OURS,),
    ),
)
"""All tables; the first one is the default."""


def chosen(
    names: Sequence[str], files: Sequence[str], policies: Sequence[str], seeds: Sequence[int]
) -> tuple[Table, ...]:
    """Return the tables of these names, with these lists of pods, policies and seeds instead of
    their own.

    What is empty leaves the table's own. Raises SettingsError for a name of nothing.
    """
    known = {table.name: table for table in TABLES}
    for name in names:
        if name not in known:
            raise SettingsError(f"no table is called {name[:40]!r}; there are: {', '.join(known)}")
    for file in files:
        if file not in FILES:
            shipped = ", ".join(sorted(FILES))
            raise SettingsError(f"no shipped trace is called {file[:40]!r}: {shipped}")
    tables = []
    for table in (known[name] for name in names):
        lines = tuple(line for line in table.lines if not files or line.file in files)
        if not lines:
            raise SettingsError(f"the table {table.name} has no line for {', '.join(files)}")
        some = replace(table, lines=lines, policies=tuple(policies) or table.policies)
        tables.append(replace(some, seeds=tuple(seeds) or table.seeds))
    return tuple(tables)


def renew(document: str, texts: Mapping[str, str]) -> str:
    """Return the document with these tables between its marks.

    Marks are `<!-- simulate:NAME -->` and `<!-- /simulate -->`. Raises SettingsError if the
    document has none for one of the tables.
    """
    for name, table in texts.items():
        begin, end = f"<!-- simulate:{name} -->\n", "\n<!-- /simulate -->"
        before, mark, rest = document.partition(begin)
        _, last, after = rest.partition(end)
        if not (mark and last):
            raise SettingsError(f"the document has no marks for the table {name}")
        document = "".join([before, mark, table, last, after])
    return document
