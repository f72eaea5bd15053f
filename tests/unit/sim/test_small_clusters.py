"""The small clusters of the bench match the description, and the measures are right."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpushare.core.model import Request
from gpushare.sim.experiments import inflation
from gpushare.trace.nodes_and_pods import TraceNode
from tests.bench import placement_small
from tests.bench.placement_small import POLICIES, SIMPLE, SmallJob, SmallOutcome, coming
from tests.bench.small_clusters import (
    CHANGING,
    END,
    FAMILIES,
    STILL,
    ClusterEvents,
    Comes,
    Ends,
    Event,
    NodeIs,
    SmallRun,
    changing,
    still,
)

ONE, HALF = Request(10, 1), Request(5, 1)
NODES = [TraceNode("a", 1000, 2**20, 2, 10, "card"), TraceNode("b", 1000, 2**20, 2, 10, "card")]


def allocated(
    *events: tuple[float, Event], node_present: tuple[bool, bool] = (True, True)
) -> float:
    """The GPU allocated between times 1 and 3, on two nodes of two devices of ten units."""
    world = ClusterEvents(NODES, [*events], 1.0, 3.0, [*node_present])
    return SmallRun(world, "device-bestfit", 42).allocated()


@pytest.mark.parametrize("family", STILL)
def test_a_small_cluster_has_three_to_ten_nodes_and_pods_that_fit_one(family: str) -> None:
    for seed in range(6):
        nodes, pods = still(family, seed)
        assert (nodes, pods) == still(family, seed) != still(family, seed + 1)
        assert 3 <= len(nodes) <= 10
        assert len(pods) == 400
        assert all(any(node.can_run(pod) for node in nodes) for pod in pods)
        sizes = {node.capacity for node in nodes}
        assert (max(sizes) > 1000) or "MiB" not in family
        assert len(sizes) == 2 or "unequal" not in family
        if family == "odd":
            assert all(nodes[0].capacity % pod.units for pod in pods)


@pytest.mark.parametrize("fills", [True, False])
@pytest.mark.parametrize("family", CHANGING)
def test_what_will_happen_is_drawn_before_and_measured_within_what_there_is(
    family: str, fills: bool
) -> None:
    world = changing(family, 5, 42, fills)
    assert world == changing(family, 5, 42, fills) != changing(family, 5, 43, fills)
    times = [time for time, _ in world.events]
    assert times == sorted(times)
    assert times[-1] > world.start
    lives = {event.life for _, event in world.events if isinstance(event, Comes)}
    assert (lives == {np.inf}) == fills
    for policy in ("device-bestfit", "spread"):
        assert 20 < SmallRun(world, policy, 42).allocated() <= 100


def test_what_is_allocated_is_the_mean_of_time() -> None:
    assert allocated() == 0
    assert allocated((0.0, Comes(ONE, 9.0))) == 25
    assert allocated((0.0, Comes(ONE, 2.0))) == 12.5
    assert allocated((2.5, Comes(ONE, 9.0)), (2.5, Comes(HALF, 9.0))) == 37.5 / 4
    assert allocated((5.0, Comes(ONE, 9.0))) == 0
    assert allocated(*[(0.0, Comes(ONE, 9.0))] * 7) == 100


def test_pods_of_a_revision_that_is_replaced_go() -> None:
    old = [(0.0, Comes(ONE, np.inf, (0, 0)))] * 2
    assert allocated(*old, (2.0, Ends((0, 0), 1))) == 37.5
    assert allocated(*old, (2.0, Ends((0, 0), 1)), (2.0, Ends((0, 0), 1))) == 25
    assert allocated(*old, (2.0, Ends((0, 0), 5))) == 25
    assert allocated(*old, (2.0, Ends((0, 1), 5))) == 50


def test_a_node_that_is_drained_loses_its_pods_and_comes_back_empty() -> None:
    full: list[tuple[float, Event]] = [(0.0, Comes(ONE, 9.0))] * 4
    # Half of what there is from 2 on is in use, and then nothing is of what has come back.
    assert allocated(*full, (2.0, NodeIs(0, False))) == 100
    assert allocated(*full, (1.0, NodeIs(0, False)), (1.0, NodeIs(0, True))) == 50
    assert allocated(*full, (1.0, NodeIs(0, False)), (1.0, Comes(ONE, 9.0))) == 100
    late = (1.0, NodeIs(1, True)), (1.0, Comes(ONE, 9.0))
    assert allocated(*full, *late, node_present=(True, False)) == 75


def test_a_pod_that_went_with_its_node_is_not_freed_again_at_its_end() -> None:
    events = (0.0, Comes(ONE, 1.5)), (0.5, NodeIs(0, False)), (0.5, NodeIs(1, False))
    back = (0.5, NodeIs(0, True)), (0.5, NodeIs(1, True)), (0.6, Comes(ONE, 9.0))
    assert allocated(*events, *back) == 25


def test_a_policy_that_learns_is_told_of_nodes_and_of_time() -> None:
    world = changing("nodes", 5, 42, fills=True)
    run = SmallRun(world, "shadow-price", 42)
    learner = run._learner  # noqa: SLF001 -- what it knows
    few = sum(learner._learned.devices.values())  # noqa: SLF001
    run.allocated()
    assert 0 < few < sum(learner._learned.devices.values())  # noqa: SLF001
    assert sum(learner._learned.devices.values()) == sum(node.devices for node in world.nodes)  # noqa: SLF001
    assert learner.now == world.end


def test_longer_runs_are_left_out_by_the_pods_that_come() -> None:
    nodes, pods = still("whole", 2)
    job = SmallJob("inflation", "whole", 2, 1)
    filled = float(str(inflation(nodes, pods, "random", 42)["pods"]))
    assert coming(job) == pytest.approx(filled, rel=0.1)
    assert coming(replace(job, experiment="churn")) == pytest.approx(END / 1.3 * coming(job))
    world = changing("shift", 2, 42, fills=False)
    assert coming(SmallJob("churn", "shift", 2, 1)) == len(world.events)


def test_the_table_names_the_worst_cluster_and_goes_on_where_its_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[SmallJob] = []

    def noted(job: SmallJob) -> SmallOutcome:
        measured.append(job)
        auto = 80.0 - (job.cluster == 4)
        values = [auto, auto + 1], [80.0, 81.0], [81.0, 82.0]
        return SmallOutcome(job, dict(zip(POLICIES, values, strict=True)))

    monkeypatch.setattr(placement_small, "measured", noted)
    words = ["--jobs", "1", "--seeds", "2", "--json", str(tmp_path / "found.jsonl"), "--each"]
    for clusters, new in (("3-4", 2 * 2 * len(FAMILIES[:2])), ("3-5", 4), ("3-5", 0)):
        measured.clear()
        arguments = ["--clusters", clusters, *words, "--families", ",".join(FAMILIES[:2])]
        monkeypatch.setattr("sys.argv", ["placement_small", *arguments])
        placement_small.main()
        assert len(measured) == new
    text = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    lines = [" ".join(line.split()) for line in text]
    assert len(lines) == 1 + 2 * 2 * 3
    assert lines[1] == "inflation equal device-bestfit -0.33 +0.33 -1.00 +0.00 4"
    assert lines[2] == "inflation equal the best -1.33 +0.33 -2.00 +0.00 4"


def test_the_best_elsewhere_is_chosen_by_the_seeds_that_it_is_not_compared_on() -> None:
    """`binpack` is the best by chance on the first half alone, where its lead does not count."""
    values = [80.0] * 4, [80.0] * 4, [90.0, 75.0, 90.0, 75.0]
    outcome = SmallOutcome(
        SmallJob("churn", "equal", 3, 4), dict(zip(POLICIES, values, strict=True))
    )
    assert outcome.above(SIMPLE)[0] == -2.5
    mean, error = outcome.above_elsewhere(SIMPLE)
    # On the second half it is binpack, by 90 of the first; on the first device-bestfit.
    assert mean == (0 + 0 + 5 + 5) / 4
    assert error == pytest.approx(math.sqrt(25 / 3 / 4))


def test_chance_alone_favours_the_best_but_not_the_best_elsewhere() -> None:
    rng = np.random.default_rng(1)
    outcomes = [
        SmallOutcome(
            SmallJob("churn", "equal", at, 4),
            {name: rng.normal(80, 3, 4).tolist() for name in POLICIES},
        )
        for at in range(1000)
    ]
    by_chance = np.mean([one.above(SIMPLE)[0] for one in outcomes])
    fairly = np.mean([one.above_elsewhere(SIMPLE)[0] for one in outcomes])
    assert by_chance < -0.6
    assert abs(fairly) < 0.2
