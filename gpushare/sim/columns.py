"""The columns of the tables in documents: means of policies, and leads by pairs of seeds.

Pure. A column has a heading, and a text computed from the records of one line. The lines, and the
runs for them, are in tables.py.

Tested in `tests/unit/sim/test_main.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpushare.sim.paper import BEST, LOADS, OURS, published
from gpushare.sim.report import Measure, Record, allocated_at, difference, statistic

ALLOC = Measure("alloc", "ALLOC")
WAITING = Measure("waiting", "WAITING")
WAIT_OF_8 = Measure("wait_mean", "WAIT 8", "8", digits=3)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and a function from the records of a line to its text."""

    head: str
    text: Callable[[Sequence[Record]], str]


Columns = Callable[[Sequence[str]], list[Column]]
"""Returns the columns for these policies, in their order."""


def learning(policy: str) -> str:
    """Return the name of the policy in records of runs in which it learns the workload."""
    return f"{policy}, learning"


def _mean(policy: str, measure: Measure, head: str = "") -> Column:
    """Return a column of means; "" if the policy was not run, "-" if its runs lack the measure."""

    def text(records: Sequence[Record]) -> str:
        found = statistic(records, policy, policy, measure)
        ran = any(record["policy"] == policy for record in records)
        return f"{found.mean:.{measure.digits}f}" if found else "-" * ran

    return Column(head or policy, text)


def _above(policy: str, other: str, measure: Measure, head: str) -> Column:
    """Return a column of leads of a policy over another, by pairs of seeds, with the error."""

    def text(records: Sequence[Record]) -> str:
        return difference(statistic(records, policy, other, measure), measure.digits)

    return Column(head, text)


def compared(policies: Sequence[str]) -> list[Column]:
    """Return the GPU allocated by each policy, and the lead of ours over each of the others."""
    others = [policy for policy in policies if policy != OURS]
    return [
        *(_mean(policy, ALLOC) for policy in policies),
        *(_above(OURS, policy, ALLOC, f"above {policy}") for policy in others),
    ]


def waits(policies: Sequence[str]) -> list[Column]:
    """Return the number of waiting pods, and how long pods of eight devices wait."""
    others = [policy for policy in policies if policy != OURS]
    return [
        *(_mean(policy, WAITING, f"waiting: {policy}") for policy in policies),
        *(_above(OURS, policy, WAITING, f"{OURS} above {policy}") for policy in others),
        *(_mean(policy, WAIT_OF_8, f"wait of 8: {policy}") for policy in policies),
    ]


def kept(policies: Sequence[str]) -> list[Column]:
    """Return what ours allocates when it learns the workload, and the share of its lead left."""
    learner = learning(OURS)

    def share(records: Sequence[Record]) -> str:
        known = statistic(records, OURS, BEST, ALLOC)
        learned = statistic(records, learner, BEST, ALLOC)
        if known is None or learned is None or not known.difference or learned.difference is None:
            return "-"
        return f"{learned.difference / known.difference:.2f}"

    return [
        *(_mean(policy, ALLOC) for policy in (*policies, learner)),
        _above(learner, OURS, ALLOC, "learning above knowing"),
        Column(f"share of the lead over {BEST}", share),
    ]


def beside_published(load: int) -> Columns:
    """Return the GPU allocated at a load, with the difference from the published figure."""

    def columns(policies: Sequence[str]) -> list[Column]:
        told = published()

        def column(policy: str) -> Column:
            def text(records: Sequence[Record]) -> str:
                found = statistic(records, policy, policy, allocated_at(load))
                known = told.get((str(records[0]["file"]), policy, load))
                if found is None:
                    return ""
                if known is None:
                    return f"**{found.mean:.2f}**"
                return f"{found.mean:.2f} ({found.mean - known:+.2f})"

            return Column(policy, text)

        return [column(policy) for policy in policies]

    return columns


def leads(_policies: Sequence[str]) -> list[Column]:
    """Return the lead of ours over the best published policy."""
    return [_above(OURS, BEST, allocated_at(load), f"at {load}") for load in LOADS]
