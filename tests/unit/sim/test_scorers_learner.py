"""A learning policy of a simulation learns from past pods, and is remade by the extender's rule."""

from collections.abc import Sequence
from statistics import fmean

import pytest

from gpushare.core.mutable_cluster import Placement, fits
from gpushare.core.policies.binpack import Binpack
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.shadow_price.policy import MORE_BLOCKS, ShadowPrice
from gpushare.core.policy import Policy, load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial import Trial
from gpushare.core.workload import Workload, class_of
from gpushare.core.workload_estimator import WorkloadEstimator
from gpushare.sim import scorers
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.sim.experiments import churn, inflation
from gpushare.sim.options import KNOWN, LEARNED, Parameters
from gpushare.sim.scorers import LearningScorer, learns
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, request_of
from tests.unit.sim.test_engine import NODES, PODS

SIZES = {node.capacity for node in NODES}
COMING = [request_of(pod) for pod in PODS] * 20


def _placed_one_by_one(policy: str) -> list[Placement | None]:
    """Each pod is placed by a policy made of the pods before it; no pod leaves."""
    learned = WorkloadEstimator(dict.fromkeys(SIZES, 1))
    cluster = Cluster(NODES, Ranking(load_policy(policy, learned.workload()), 99, fits))
    learned.record_policies(0, learned.sizes)
    placements = []
    for request in COMING:
        placements.append(cluster.place(request))
        learned.created("", class_of(request))
        if learned.is_due():
            cluster.scorer = Ranking(load_policy(policy, learned.workload()), 99, fits)
            learned.record_policies(learned.pod_count, learned.sizes)
    return placements


def policy_of(learner: LearningScorer) -> Policy:
    return learner.ranking.policy


@pytest.mark.parametrize("policy", ["fgd", "shadow-price"])
def test_each_pod_is_placed_by_what_came_before_it(policy: str) -> None:
    cluster = Cluster(NODES, LearningScorer(policy, SIZES, len(NODES)))
    placements = [cluster.place(request) for request in COMING]
    assert placements == _placed_one_by_one(policy)
    assert placements.count(None) > 50


def test_blocks_are_dearer_once_pods_are_seen_to_leave() -> None:
    learner = LearningScorer("shadow-price", SIZES, len(NODES))
    cluster = Cluster(NODES, learner, learner.moved)
    for request in COMING:
        placement = cluster.place(request)
        if placement is not None:
            cluster.release(placement)
    policy = policy_of(learner)
    assert isinstance(policy, ShadowPrice)
    assert policy.guard == 1 + MORE_BLOCKS


def test_an_experiment_says_whether_the_policy_learned() -> None:
    learned = Parameters(workload=LEARNED)
    for experiment in (inflation, churn):
        record = experiment(NODES, PODS, "shadow-price", 42, learned)
        assert record == experiment(NODES, PODS, "shadow-price", 42, learned)
        assert record["workload"] == "learned"
        assert float(str(record["alloc"])) > 50


def test_auto_that_learns_tries_its_candidates_when_the_extender_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = []

    def binpack_wins(
        snapshot: Snapshot, workload: Workload, names: Sequence[str], *_: object, **__: object
    ) -> Trial:
        trials.append((snapshot.names, workload.pods))
        return Trial({name: [80.0 + (name == "binpack")] * 2 for name in names}, {})

    monkeypatch.setattr(scorers, "run_trial", binpack_wins)
    learner = LearningScorer("auto", SIZES, len(NODES))
    assert isinstance(policy_of(learner), DeviceBestFit)
    cluster = Cluster(NODES, learner)
    for request in COMING * 3:
        cluster.place(request)
    assert isinstance(policy_of(learner), Binpack)
    assert [pods for _, pods in trials][:4] == [50, 100, 150, 225]
    assert all(names == cluster.view.names for names, _ in trials)


def test_on_a_small_cluster_of_unknown_pods_auto_fills_as_device_bestfit_does() -> None:
    """Sixteen cards of 16 GiB; pods of 2 to 16: a mixture that expects others wastes 20 points."""
    nodes = [TraceNode(f"n-{at}", 64_000, 2**20, 4, 16, "T4") for at in range(4)]
    sizes = [2, 4, 8, 16] * 30
    pods = [
        TracePod(f"p-{at}", 1000, 2048, 1, units, (), None, None, None)
        for at, units in enumerate(sizes)
    ]
    means = {
        policy: fmean(
            float(str(inflation(nodes, pods, policy, seed, Parameters(workload=LEARNED))["alloc"]))
            for seed in range(42, 46)
        )
        for policy in ("auto", "device-bestfit")
    }
    assert means["auto"] > means["device-bestfit"] - 1


SIMPLE = ["device-bestfit", "binpack", "spread"]


@pytest.mark.parametrize("policy", ["random", *SIMPLE])
def test_a_policy_that_keeps_nothing_of_the_pods_is_made_once_and_learns_nothing(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    informed = inflation(NODES, PODS, policy, 42, Parameters(workload=KNOWN))
    monkeypatch.setattr(LearningScorer, "__init__", None)
    assert inflation(NODES, PODS, policy, 42) == {**informed, "workload": "learned"}


@pytest.mark.parametrize("policy", ["fgd", "shadow-price", "auto"])
def test_a_policy_that_expects_pods_learns_which_come(policy: str) -> None:
    assert learns(policy, workload_of_trace(NODES, PODS))


def test_a_policy_that_cannot_be_sent_is_made_again_for_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Binpack()
    policy.kept = lambda: 0  # type: ignore[attr-defined]
    monkeypatch.setattr(scorers, "load_policy", lambda *_: policy)
    assert learns("of another package", Workload())
