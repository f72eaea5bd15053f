"""The meaning of a table of policies in sentences: its columns, and which differences are real.

Pure. A difference between two policies is significant if its 95 % interval, by Student's t over the
seeds of both, does not contain zero.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.core.trial_lead import lead_text
from gpushare.sim.report import Measure, Record, Statistic, allocated_at, policies_of, statistic

_T = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""The standard errors of a 95 % interval, by the number of pairs minus one."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What a cluster has: units of GPU, and devices."""

    units: int
    devices: int

    @property
    def point(self) -> str:
        """A text that says what one percent of it is."""
        return f"1 point is {self.units / 100:.5g} units, {self.devices / 100:.4g} devices"


def headline(measures: Sequence[Measure], load: float) -> Measure | None:
    """Return the measure by which policies are compared; None if there is none."""
    wanted = allocated_at(round(100 * load)) if measures and measures[0].at else None
    return next((one for one in measures if wanted in (None, one)), None)


def legend(measures: Sequence[Measure], scale: Scale) -> list[str]:
    """Return a line for each column of the table."""
    heads = [measure.head for measure in measures]
    width = max(map(len, heads), default=0)
    meanings = [_meaning(measure, scale) for measure in measures]
    return [f"{head.ljust(width)}  {text}" for head, text in zip(heads, meanings, strict=True)]


def _meaning(measure: Measure, scale: Scale) -> str:
    gpu = f"of {scale.units} units on {scale.devices} devices, the % in use"
    return {
        "allocated": f"{gpu} when pods have asked for {measure.at} % of them; {scale.point}",
        "failed": "pods that found no room by the end, when 130 % had been asked for",
        "alloc": f"{gpu}, in the mean of time; {scale.point}",
        "compute_stranded": "of all units, the % that nobody has on devices whose compute is given",
        "blocked_gpu": "of the GPU that pods asked for, the % that was turned away",
        "blocked_pods": "of the pods, the % that was turned away",
        "waiting": "pods that wait, in the mean of time",
        "gained": "ALLOC less that of the same run without moves",
        "moves": "pods moved for each 100 that came",
        "lost": "what moved pods had done and have to do again, in the unit of ALLOC",
        "wait_mean": f"how long pods of that size wait in the mean: {measure.at}",
    }[measure.key]


def verdicts(records: Sequence[Record], measure: Measure | None) -> Iterator[str]:
    """Yield a sentence for each policy except the first, which compares it with the first."""
    policies = policies_of(records)
    if measure is None or len(policies) < 2:
        return
    for policy in policies[1:]:
        stat = statistic(records, policy, policies[0], measure)
        if stat is not None and stat.difference is not None:
            yield f"{measure.head}: {_verdict(policy, policies[0], stat)}"


def choices_told(records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence on what `auto` was at the end of its runs, with the lead if all agree."""
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
    yield f"auto was {name}" + (_lead(first) if last.count(first) == len(last) else "")


def _lead(choice: Mapping[str, object]) -> str:
    second, lead, error = choice["second"], choice["lead"], choice["error"]
    if not second or not isinstance(lead, float) or not isinstance(error, float):
        return ""
    since = f" after {choice['since']} pods" * bool(choice["since"])
    return f"{since}: in its trial {lead_text(lead, error, str(second))}"


def _verdict(policy: str, first: str, stat: Statistic) -> str:
    both = f"{policy} and {first}"
    if stat.error is None or stat.difference is None:
        return f"one seed cannot tell whether {both} differ; give more, as --seeds 42-51"
    pairs = stat.seeds - 1
    errors = stat.error * (_T[pairs] if pairs < len(_T) else 1.96 + 2.5 / pairs)
    low, high = stat.difference - errors, stat.difference + errors
    if low > 0 or high < 0:
        least, most = sorted((abs(low), abs(high)))
        more = "more" if low > 0 else "less"
        return (
            f"{policy} allocates {least:.1f} to {most:.1f} points {more} than {first}: significant"
        )
    if errors == 0:
        return f"no difference between {both}: every seed ends alike"
    text = f"no difference between {both} can be told from chance: {low:+.1f} to {high:+.1f} points"
    if stat.error > abs(stat.difference):
        text += "; the error is larger than the difference, so give more seeds"
    return text
