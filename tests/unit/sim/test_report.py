"""The report: paired differences, errors, and the output formats."""

import math

import pytest

from gpushare.sim.report import Measure, Record, aligned, as_table, document, measures_of, statistic

ALLOCATED = Measure("allocated", "ALLOC")
FAILED = Measure("failed", "FAILED", digits=0)


def record(policy: str, seed: int, allocated: float | None, failed: int = 0) -> Record:
    return {
        "experiment": "inflation",
        "policy": policy,
        "seed": seed,
        "allocated": allocated,
        "failed": failed,
        "curve": {"0": 0.0, "1": 0.5},
    }


AT_1 = Measure("curve", "CURVE", "1")

RUNS = [
    record("fgd", 42, 95.0, 10),
    record("fgd", 43, 96.0, 12),
    record("ours", 42, 96.0, 9),
    record("ours", 43, 97.5, 13),
]


def test_policies_are_compared_by_pairs_of_equal_seeds() -> None:
    stat = statistic(RUNS, "ours", "fgd", ALLOCATED)
    assert stat is not None
    assert (stat.seeds, stat.mean, stat.difference) == (2, 96.75, 1.25)
    # The differences 1.0 and 1.5 deviate by 0.3536; over two pairs that errs by 0.25.
    assert stat.error == pytest.approx(0.25)
    assert stat.spread == pytest.approx(math.sqrt(1.125))


def test_only_seeds_that_both_have_make_pairs() -> None:
    stat = statistic([*RUNS, record("ours", 44, 50.0)], "ours", "fgd", ALLOCATED)
    assert stat is not None
    assert (stat.seeds, stat.difference) == (3, 1.25)


def test_one_seed_has_a_mean_and_no_spread() -> None:
    stat = statistic(RUNS[:1], "fgd", "fgd", ALLOCATED)
    assert stat is not None
    assert (stat.mean, stat.spread, stat.difference, stat.error) == (95.0, None, None, None)


def test_a_course_is_read_at_the_last_load_before_the_one_asked_for() -> None:
    course = {"allocated": {"9": 8.5, "98": 90.0, "103": 95.0}}
    for at, value in (("98", 90.0), ("100", 90.0), ("130", 95.0), ("8", None)):
        assert Measure("allocated", "", at).of(course) == value


def test_a_queue_is_told_by_size() -> None:
    waits = {"policy": "fgd", "seed": 1, "alloc": 90.0, "waiting": 0.5}
    records = [waits | {"wait_mean": {"share": 0.1, "8": 0.25}}, waits | {"wait_mean": {"1": 0.2}}]
    measures = measures_of(records)
    assert [measure.head for measure in measures] == [
        "ALLOC",
        "WAITING",
        "WAIT 1",
        "WAIT 8",
        "WAIT share",
    ]
    assert [measure.of(records[0]) for measure in measures] == [90.0, 0.5, None, 0.25, 0.1]


def test_a_size_of_which_no_pod_came_has_no_wait() -> None:
    assert Measure("wait_mean", "", "8").of({"wait_mean": {"1": 0.2, "4": 0.3}}) is None


def test_loss_is_told_where_nobody_waits() -> None:
    records = [{"policy": "fgd", "seed": 1, "alloc": 90.0, "blocked_gpu": 1.0}]
    assert [measure.name for measure in measures_of(records)] == [
        "alloc",
        "blocked_gpu",
        "blocked_pods",
    ]


def test_the_table_shows_means_then_differences() -> None:
    assert as_table(
        RUNS, [ALLOCATED, FAILED, Measure("absent", "ABSENT"), Measure("curve", "X", "-1")]
    ) == (
        "POLICY      SEEDS         ALLOC  FAILED\n"
        "fgd             2   95.50 ±0.71   11 ±1\n"
        "ours            2   96.75 ±1.06   11 ±3\n"
        "ours - fgd         +1.25 (0.25)  +0 (1)\n"
    )


def test_a_measure_that_a_run_could_not_take_is_a_dash() -> None:
    runs = [record("fgd", 42, 95.0), record("ours", 42, None)]
    assert as_table(runs, [ALLOCATED]) == (
        "POLICY      SEEDS  ALLOC\n"
        "fgd             1  95.00\n"
        "ours            0      -\n"
        "ours - fgd             -\n"
    )


def test_nothing_finished_is_an_empty_table() -> None:
    assert as_table([], [ALLOCATED]) == "POLICY  SEEDS\n"


def test_the_document_has_every_run_and_what_they_say_together() -> None:
    report = document(RUNS, [ALLOCATED, FAILED], {"experiment": "inflation"})
    assert report["kind"] == "SimulationReport"
    assert report["records"] == RUNS
    summary = report["summary"]
    assert isinstance(summary, list)
    assert summary[2] == {
        "experiment": "inflation",
        "policy": "ours",
        "measure": "allocated",
        "seeds": 2,
        "mean": 96.75,
        "deviation": pytest.approx(1.06066),
        "difference": 1.25,
        "error": pytest.approx(0.25),
    }


def test_runs_on_several_lists_of_pods_are_compared_within_each() -> None:
    second_runs = [{**run, "file": "other", "allocated": 50.0} for run in RUNS]
    report = document([{**run, "file": "one"} for run in RUNS] + second_runs, [ALLOCATED], {})
    summary = report["summary"]
    assert isinstance(summary, list)
    lines = [(line["file"], line["policy"], line["mean"], line["difference"]) for line in summary]
    assert lines == [
        ("one", "fgd", 95.5, None),
        ("one", "ours", 96.75, 1.25),
        ("other", "fgd", 50.0, None),
        ("other", "ours", 50.0, 0.0),
    ]


def test_columns_stand_below_each_other() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d\n"
