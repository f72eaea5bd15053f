"""The summary of runs: means, spreads and paired differences, as a table and a document; with
sentences that explain the columns and the significance of differences.

Pure. A record has the measures of one run by name; see experiments.py for the names. Policies are
compared in pairs of the same seed: both had the same pods in the same order, so most of the spread
between seeds drops out of the difference. A difference is significant if the 95 % interval, by
Student's t over the common seeds, does not contain zero.

Tested in `tests/unit/sim/test_report.py` and `tests/unit/sim/test_report_verdicts.py`.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.core.trial_lead import lead_text

Record = Mapping[str, object]

API_VERSION = "gpushare.io/v1"
KIND = "SimulationReport"

_CASE = ("table", "file", "experiment", "load", "units", "workload")
"""The keys of a record that name the run, besides policy and seed."""

_T = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""The standard errors of a 95 % interval, by the number of pairs minus one."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure in the table, and the heading of the column."""

    key: str
    """The key in the record."""
    head: str
    at: str = ""
    """The size or load, if the record has a value for each of these."""
    digits: int = 2
    """Number of decimals."""

    @property
    def name(self) -> str:
        """The name of the measure in the document."""
        return f"{self.key}_{self.at}" if self.at else self.key

    def of(self, record: Record) -> float | None:
        """Return the value in the record; None if missing."""
        value = record.get(self.key)
        if self.at and isinstance(value, Mapping):
            last = self.at
            if self.key in {"allocated", "compute_stranded"}:
                # In a small cluster one pod may raise the load by more than a percent.
                loads = [int(load) for load in value if int(load) <= int(self.at)]
                last = str(max(loads, default=self.at))
            value = value.get(last)
        return value if isinstance(value, int | float) else None


def allocated_at(load: int) -> Measure:
    """Return the measure of GPU allocated when pods have requested `load` % of the GPU."""
    return Measure("allocated", f"ALLOC@{load}", str(load))


def measures_of(records: Sequence[Record], load: float = 1.0) -> Sequence[Measure]:
    """Return the measures for a table of these records, in % except for counts and times."""
    keys = {key for record in records for key in record}
    measures: list[Measure] = []
    if "allocated" in keys:
        loads = sorted({95, 100, 130, round(100 * load)})
        measures += [*map(allocated_at, loads), Measure("failed", "FAILED", digits=0)]
    if keys & {"blocked_gpu", "waiting"}:
        measures.append(Measure("alloc", "ALLOC"))
    if "nodes" in keys:
        measures.append(Measure("nodes", "NODES"))
    if "compute_stranded" in keys:
        at = str(round(100 * load)) if "allocated" in keys else ""
        measures.append(Measure("compute_stranded", "STRANDED", at))
    if "blocked_gpu" in keys:
        measures += [Measure("blocked_gpu", "BLOCKED GPU"), Measure("blocked_pods", "BLOCKED PODS")]
    if "slowdown" in keys:
        measures.append(Measure("slowdown", "SLOWDOWN"))
        sizes = _sizes(records, "completion")
        measures += [Measure("completion", f"DONE {size}", size, 3) for size in sizes]
    if "waiting" in keys:
        measures.append(Measure("waiting", "WAITING"))
        sizes = _sizes(records, "wait_mean")
        measures += [Measure("wait_mean", f"WAIT {size}", size, 4) for size in sizes]
    if "gained" in keys:
        measures.append(Measure("gained", "GAINED"))
        measures += [Measure("moves", "MOVES"), Measure("lost", "LOST", digits=3)]
    return measures


def _sizes(records: Iterable[Record], key: str) -> list[str]:
    by_sizes = [record.get(key) for record in records]
    return sorted({size for values in by_sizes if isinstance(values, Mapping) for size in values})


@dataclass(frozen=True, slots=True)
class Statistic:
    """A measure over seeds."""

    seeds: int
    mean: float
    spread: float | None
    """The standard deviation, None for one seed."""
    difference: float | None
    """The mean difference from the first policy with the same seed; None for the first policy."""
    error: float | None
    """The standard error of the difference; None for fewer than two pairs."""


def statistic(records: Sequence[Record], policy: str, first: str, of: Measure) -> Statistic | None:
    """Return the measure of a policy, compared with `first`; None if no run has the measure."""
    mine, base = _by_seed(records, policy, of), _by_seed(records, first, of)
    if not mine:
        return None
    values = list(mine.values())
    pairs = [mine[seed] - base[seed] for seed in mine if seed in base] if policy != first else []
    return Statistic(
        len(values),
        statistics.fmean(values),
        statistics.stdev(values) if len(values) > 1 else None,
        statistics.fmean(pairs) if pairs else None,
        statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None,
    )


def policies_of(records: Iterable[Record]) -> list[str]:
    """Return the policies in the order of the records, each once."""
    return list(dict.fromkeys(str(record["policy"]) for record in records))


def as_table(records: Sequence[Record], measures: Sequence[Measure]) -> str:
    """Return a line for each policy with mean and spread, then the leads over the first policy."""
    policies = policies_of(records)
    measures = [m for m in measures if _by_seed(records, policies[0], m)] if policies else []
    rows = [["POLICY", "SEEDS", *(measure.head for measure in measures)]]
    differences: list[list[str]] = []
    for policy in policies:
        stats = [statistic(records, policy, policies[0], measure) for measure in measures]
        seeds = max((one.seeds for one in stats if one), default=0)
        pairs = list(zip(measures, stats, strict=True))
        cells = []
        for measure, one in pairs:
            spread = f" ±{one.spread:.{measure.digits}f}" if one and one.spread is not None else ""
            cells.append(f"{one.mean:.{measure.digits}f}{spread}" if one else "-")
        rows.append([policy, str(seeds), *cells])
        if policy != policies[0]:
            cells = [difference(one, m.digits) for m, one in pairs]
            differences.append([f"{policy} - {policies[0]}", "", *cells])
    return aligned([*rows, *differences])


def document(
    records: Sequence[Record], measures: Sequence[Measure], about: Mapping[str, object]
) -> dict[str, object]:
    """Return the runs and a summary, for programs; keys may be added, but never change."""
    cases: dict[tuple[tuple[str, object], ...], list[Record]] = {}
    for record in records:
        case = tuple((key, record[key]) for key in _CASE if key in record)
        cases.setdefault(case, []).append(record)
    summary = [
        {
            **dict(case),
            "policy": policy,
            "measure": measure.name,
            "seeds": stat.seeds,
            "mean": stat.mean,
            "deviation": stat.spread,
            "difference": stat.difference,
            "error": stat.error,
        }
        for case, some in cases.items()
        for policy in policies_of(some)
        for measure in measures
        if (stat := statistic(some, policy, policies_of(some)[0], measure)) is not None
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        **about,
        "summary": summary,
        "records": [dict(record) for record in records],
    }


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return the lines with aligned columns, the first to the left, the rest to the right.

    All rows have the same number of cells.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells_of_row in rows:
        cells = [cell.rjust(width) for cell, width in zip(cells_of_row, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join([*lines, ""])


def _by_seed(records: Iterable[Record], policy: str, measure: Measure) -> dict[object, float]:
    return {
        record["seed"]: value
        for record in records
        if record["policy"] == policy and (value := measure.of(record)) is not None
    }


def difference(stat: Statistic | None, digits: int) -> str:
    """Return the lead over the first policy, with the error in brackets; "-" if unknown."""
    if stat is None or stat.difference is None:
        return "-"
    error = "" if stat.error is None else f" ({stat.error:.{digits}f})"
    return f"{stat.difference:+.{digits}f}{error}"


def headline(measures: Sequence[Measure], load: float) -> Measure | None:
    """Return the measure that decides between policies; None without measures."""
    at_load = allocated_at(round(100 * load)) if measures and measures[0].at else None
    return next((one for one in measures if at_load in (None, one)), None)


def legend(measures: Sequence[Measure], units: int, devices: int) -> list[str]:
    """Return a line for each column of the table. units, devices: of the cluster."""
    width = max((len(measure.head) for measure in measures), default=0)
    gpu = f"of {units} units on {devices} devices, the % in use"
    point = f"1 point is {units / 100:.5g} units, {devices / 100:.4g} devices"
    lines = []
    for measure in measures:
        meaning = {
            "allocated": f"{gpu} when pods have asked for {measure.at} % of them; {point}",
            "failed": "pods that found no room by the end, when 130 % had been asked for",
            "alloc": f"{gpu}, in the mean of time; {point}",
            "nodes": "nodes of the pool in the mean of time; times the hours: node-hours",
            "compute_stranded": "of all units, the % that nobody has on devices whose compute is"
            " given",
            "blocked_gpu": "of the GPU that pods asked for, the % that was turned away",
            "blocked_pods": "of the pods, the % that was turned away",
            "slowdown": "how many times as long as alone pods with a share of a device take",
            "completion": f"time from arrival to end in the mean of pods of that size:"
            f" {measure.at}",
            "waiting": "pods that wait, in the mean of time",
            "gained": "ALLOC less that of the same run without moves",
            "moves": "pods moved for each 100 that came",
            "lost": "what moved pods had done and have to do again, in the unit of ALLOC",
            "wait_mean": f"how long pods of that size wait in the mean: {measure.at}",
        }[measure.key]
        lines.append(f"{measure.head.ljust(width)}  {meaning}")
    return lines


def verdicts(records: Sequence[Record], measure: Measure | None) -> Iterator[str]:
    """Yield a sentence for each policy but the first that compares the policy with the first."""
    policies = policies_of(records)
    if measure is None or len(policies) < 2:
        return
    for policy in policies[1:]:
        stat = statistic(records, policy, policies[0], measure)
        if stat is not None and stat.difference is not None:
            yield f"{measure.head}: {_verdict(policy, policies[0], stat)}"


def choice_sentences(records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence on the choices of `auto` at the end of the runs, with the lead if equal."""
    choices = [record.get("choices") for record in records]
    last = [chosen[-1] for chosen in choices if isinstance(chosen, list) and chosen]
    if not last:
        return
    counts = Counter(str(choice["policy"]) for choice in last)
    if len(counts) > 1:
        parts = [f"{name} in {count} of {len(last)} runs" for name, count in counts.most_common()]
        yield f"auto was in the end {', '.join(parts)}"
        return
    (name,), first = counts, last[0]
    text = f"auto was {name}"
    if last.count(first) == len(last):
        second, lead, error = first["second"], first["lead"], first["error"]
        if second and isinstance(lead, float) and isinstance(error, float):
            since = f" after {first['since']} pods" * bool(first["since"])
            text += f"{since}: in its trial {lead_text(lead, error, str(second))}"
    yield text


def _verdict(policy: str, first: str, stat: Statistic) -> str:
    both = f"{policy} and {first}"
    if stat.error is None or stat.difference is None:
        return f"one seed cannot tell whether {both} differ; give more, as --seeds 42-51"
    pairs = stat.seeds - 1
    errors = stat.error * (_T[pairs] if pairs < len(_T) else 1.96 + 2.5 / pairs)
    low, high = stat.difference - errors, stat.difference + errors
    if low > 0 or high < 0:
        smallest, largest = sorted((abs(low), abs(high)))
        more = "more" if low > 0 else "less"
        points = f"{smallest:.1f} to {largest:.1f} points"
        return f"{policy} allocates {points} {more} than {first}: significant"
    if errors == 0:
        return f"no difference between {both}: every seed ends alike"
    text = f"no difference between {both} can be told from chance: {low:+.1f} to {high:+.1f} points"
    if stat.error > abs(stat.difference):
        text += "; the error is larger than the difference, so give more seeds"
    return text
