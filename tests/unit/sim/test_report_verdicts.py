"""The sentences below a table: significance of differences, and the meaning of columns."""

import pytest

from gpushare.sim.report import (
    Measure,
    Record,
    allocated_at,
    choice_sentences,
    headline,
    legend,
    measures_of,
    verdicts,
)

ALLOC = Measure("alloc", "ALLOC")


def records(*differences: float) -> list[Record]:
    """Runs of a and b, a seed each; b allocates so many points more."""
    return [
        {"policy": policy, "seed": seed, "alloc": 80.0 + more * (policy == "b")}
        for seed, more in enumerate(differences)
        for policy in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("differences", "says"),
    [
        ((4.0, 5.0, 6.0), "b allocates 2.5 to 7.5 points more than a: significant"),
        ((-4.0, -5.0, -6.0), "b allocates 2.5 to 7.5 points less than a: significant"),
        (
            (-1.0, 5.0),
            "no difference between b and a can be told from chance: -36.1 to +40.1 points;"
            " the error is larger than the difference, so give more seeds",
        ),
        (
            (1.0, 5.0),
            "no difference between b and a can be told from chance: -22.4 to +28.4 points",
        ),
        ((0.0, 0.0, 0.0), "no difference between b and a: every seed ends alike"),
        ((3.0,), "one seed cannot tell whether b and a differ; give more, as --seeds 42-51"),
        ((1.0,) * 10 + (1.5,) * 10, "b allocates 1.1 to 1.4 points more than a: significant"),
    ],
)
def test_a_difference_counts_where_its_interval_leaves_out_zero(
    differences: tuple[float, ...], says: str
) -> None:
    assert list(verdicts(records(*differences), ALLOC)) == [f"ALLOC: {says}"]


def test_one_policy_alone_has_no_verdict() -> None:
    some = [record for record in records(1.0, 2.0) if record["policy"] == "a"]
    assert list(verdicts(some, ALLOC)) == []
    assert list(verdicts(records(1.0), None)) == []


def test_a_cluster_that_fills_is_judged_at_the_load_that_is_asked_for() -> None:
    filled = {"policy": "a", "seed": 1, "allocated": {"100": 90.0}, "failed": 3}
    measures = measures_of([filled], 1.1)
    assert headline(measures, 1.1) == allocated_at(110)
    assert headline(measures_of([{"policy": "a", "alloc": 1.0, "blocked_gpu": 0}]), 1.0) == ALLOC
    assert headline([], 1.0) is None


def test_each_column_has_a_line_in_units_and_in_devices() -> None:
    waits = {"policy": "a", "seed": 1, "alloc": 90.0, "waiting": 0.5, "wait_mean": {"8": 0.2}}
    lines = legend(measures_of([waits]), 4224, 64)
    assert [line.split("  ")[0] for line in lines] == ["ALLOC", "WAITING", "WAIT 8"]
    assert lines[0].endswith(
        "of 4224 units on 64 devices, the % in use, in the mean of time;"
        " 1 point is 42.24 units, 0.64 devices"
    )
    some = {"policy": "a", "seed": 1, "alloc": 1.0, "blocked_gpu": 1.0, "blocked_pods": 1.0}
    assert len(legend(measures_of([some]), 1, 1)) == 3


def _chose(policy: str, lead: float = 1.5, since: int = 0, second: str = "b") -> Record:
    choice = {"policy": policy, "since": since, "second": second, "lead": lead, "error": 0.5}
    return {"policy": "auto", "choices": [{**choice, "policy": "first"}, choice]}


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ([], []),
        (
            [_chose("a"), _chose("a")],
            ["auto was a: in its trial it allocated 1.5 points (error 0.5) more than b"],
        ),
        (
            [_chose("a", -0.25, 400)],
            [
                "auto was a after 400 pods: in its trial it allocated 0.2 points (error 0.5) less"
                " than b"
            ],
        ),
        ([_chose("a", 0.0)], ["auto was a: in its trial there was no difference from b"]),
        ([_chose("a"), _chose("a", 2.0)], ["auto was a"]),
        ([_chose("a", second="")], ["auto was a"]),
        (
            [_chose("b"), _chose("a"), _chose("a")],
            ["auto was in the end a in 2 of 3 runs, b in 1 of 3 runs"],
        ),
    ],
)
def test_what_auto_was_in_the_end_is_one_sentence(chosen: list[Record], says: list[str]) -> None:
    assert list(choice_sentences([*records(1.0, 2.0), *chosen])) == says
