"""Placement of pods without GPU, and policies without a workload."""

from dataclasses import replace

import numpy as np
import pytest

from gpushare.core.amounts import compute
from gpushare.core.model import Request
from gpushare.core.policy import ClusterPricing, load_policy, policy_names
from gpushare.core.ranking import Ranking
from tests.unit.core.clusters import POLICIES, Cluster, node

CLUSTER = Cluster(
    (
        node("a", 8, 8, cpu=8000, memory=2**34),
        node("b", 8, 8, 8, cpu=16000, memory=2**35),
        node("c", 8, 8, 8, cpu=9000, memory=2**34),
    ),
    {"a": (6, 0), "b": (0, 0, 0), "c": (0, 8, 0)},
)
BY_DEVICE = {"auto", "binpack", "device-bestfit", "spread"}
"""Policies that look at devices whoever asks; in a cluster they are never asked about such pods."""
PLAIN = Request(0, 0, 2000, 2**30)


@pytest.mark.parametrize("name", sorted({*policy_names()} - BY_DEVICE))
def test_a_pod_without_gpu_is_worth_the_same_whichever_device_it_leaves_alone(name: str) -> None:
    view = CLUSTER.snapshot()
    values = Ranking(POLICIES[name]).score_devices(view, np.arange(3), PLAIN)
    assert values.shape == view.free.shape
    assert np.isfinite(values).all()
    assert (values == values[:, :1]).all()


def test_a_pod_without_gpu_pays_for_the_blocks_whose_cpu_it_takes() -> None:
    view, rows = CLUSTER.snapshot(), np.arange(3)
    policy = POLICIES["shadow-price"]
    assert isinstance(policy, ClusterPricing)
    assert policy.taken(view, rows, Request(0, 0, 8000)).any()
    assert not policy.taken(view, rows, Request(0, 0, 1)).any()


@pytest.mark.parametrize("name", ["fgd", "shadow-price"])
def test_who_expects_no_pods_judges_as_device_bestfit(name: str) -> None:
    view = CLUSTER.snapshot()
    for request in (Request(4, 1, 500), Request(8, 2, 500)):
        values = Ranking(load_policy(name)).scores(view, request).values
        assert (
            values.tolist()
            == Ranking(POLICIES["device-bestfit"]).scores(view, request).values.tolist()
        )


@pytest.mark.parametrize("name", ["device-bestfit", "binpack"])
def test_of_devices_with_equal_memory_a_pod_with_cores_takes_the_fewest_left(name: str) -> None:
    cores_used = np.array([[0, 0, 0], [20, 60, 40], [0, 0, 0]], dtype=np.int32)
    snapshot = CLUSTER.snapshot()
    view = replace(snapshot, percents_used=(cores_used, *snapshot.percents_used[1:]))
    ranking, row = Ranking(POLICIES[name]), np.array([1])
    assert ranking.score_devices(view, row, Request(4, 1, 500, percents=compute(30))).argmax() == 1
    assert ranking.scores(view, Request(4, 1, 500, percents=compute(50))).devices[0, 1] == 2
    # Cores do not matter to a request without cores.
    assert len({*ranking.score_devices(view, row, Request(4, 1, 500))[0]}) == 1
