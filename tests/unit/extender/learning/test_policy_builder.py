"""Policies made in another process are those made here, and whatever goes wrong there is told."""

import sys
from pathlib import Path

import pytest

from gpushare.core.model import Request
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.trial import run_trial
from gpushare.core.workload import PodClass, workload_of
from gpushare.extender.learning.policy_builder import RefitFailed, make_policies, try_policies
from tests.integration.broken_policies import install
from tests.unit.core.clusters import Cluster
from tests.unit.core.clusters import node as make_node

WORKLOAD = workload_of(
    {
        PodClass(cpu=4000, units=4, devices=1, memory=2**33): 60,
        PodClass(cpu=8000, units=16, devices=1, memory=2**34): 25,
        PodClass(cpu=32000, units=16, devices=2, memory=2**36): 5,
        PodClass(cpu=2000, memory=2**31): 10,
    },
    (8, 16),
)


def test_every_installed_policy_comes_back_and_judges_as_one_made_here() -> None:
    policies = make_policies(policy_names(), WORKLOAD)
    assert sorted(policies) == list(policy_names())
    nodes = (make_node("a", 16, 16, cpu=64000, memory=2**38), make_node("b", 8, 8))
    snapshot = Cluster(nodes, {"a": (4, 0)}).snapshot()
    for name, policy in policies.items():
        assert isinstance(policy, Policy), policy
        ranking = Ranking(load_policy(name, WORKLOAD))
        for request in (Request(4, 1, 4000, 2**33), Request(8, 2, 2000, 2**31)):
            present = Ranking(policy).scores(snapshot, request).values
            assert (present == ranking.scores(snapshot, request).values).all(), name


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((sys.executable, "-c", "raise ValueError('odd workload')"), "ValueError: odd workload"),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), "status -9: no word"),
        ((sys.executable, "-c", ""), "cannot be read"),
        ((sys.executable, "-c", "print('no pickle')"), "cannot be read"),
        (("/nonexistent/python",), "No such file"),
    ],
)
def test_whatever_goes_wrong_there_is_one_error(command: tuple[str, ...], said: str) -> None:
    with pytest.raises(RefitFailed, match=said):
        make_policies(("binpack",), WORKLOAD, command)


def test_an_unknown_policy_is_told_by_its_name_and_the_others_are_made() -> None:
    policies = make_policies(("nosuch", "binpack"), WORKLOAD)
    assert "no policy is called 'nosuch'" in str(policies["nosuch"])
    assert isinstance(policies["binpack"], Policy)


NODES = tuple(make_node(f"n-{index}", 16, 16, cpu=64000, memory=2**38) for index in range(4))


def test_a_trial_in_a_process_measures_what_one_here_does() -> None:
    names, snapshot = ("binpack", "device-bestfit"), Cluster(NODES).snapshot()
    result = try_policies(names, WORKLOAD, snapshot, 7)
    assert result is not None
    assert result == run_trial(snapshot, WORKLOAD, names, 7)
    assert not result.failed
    few = try_policies(names, WORKLOAD, snapshot, 7, neighbours=1)
    assert few == run_trial(snapshot, WORKLOAD, names, 7, neighbours=1) != result


@pytest.mark.parametrize(
    ("broken", "limit", "said"),
    [
        ("x-score-hangs", 8, "no end after 8 s"),
        ("x-hangs", 8, "no end after 8 s"),
        ("x-score-ends", 60, "status 3"),
        ("x-score-raises", 60, "a bug in score"),
        ("x-learned", 60, "odd workload"),
        ("nosuch", 60, "no policy is called 'nosuch'"),
    ],
)
@pytest.mark.long
def test_a_candidate_that_breaks_a_trial_is_left_out_and_the_others_are_tried(
    broken: str, limit: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "x-hangs", "x-learned", "x-score-hangs", "x-score-ends", "x-score-raises")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    snapshot = Cluster(NODES).snapshot()
    result = try_policies(("binpack", broken, "device-bestfit"), WORKLOAD, snapshot, 7, limit)
    assert result is not None
    whole = run_trial(snapshot, WORKLOAD, ("binpack", "device-bestfit"), 7)
    assert whole is not None
    assert result.allocated == whole.allocated
    assert list(result.failed) == [broken]
    assert said in result.failed[broken]
    assert result.winner(broken) == whole.winner()


def test_where_every_candidate_breaks_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "x-score-ends", "x-score-raises")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ("x-score-ends", "x-score-raises")
    result = try_policies(names, WORKLOAD, Cluster(NODES).snapshot(), 7)
    assert result is not None
    assert not result.allocated
    assert set(result.failed) == {*names}
