"""A running extender learns which pods come, while it answers."""

import random
import re

from gpushare.core.trial import CANDIDATES
from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.support.waiting import poll

LONG = 120.0
"""Seconds; the process that makes policies yields to everybody else on a busy machine."""


def test_policies_are_made_anew_from_the_pods_created(
    cluster: Cluster, start_extender: StartExtender
) -> None:
    node = cluster.node(devices=8, total=128)
    running = cluster.pod(4)
    extender = start_extender()
    extender.wait_ready()
    assert extender.bind(running, node) == ""
    poll(lambda: extender.figure("refits_total") == 1, "policies are made for no pods", LONG)
    pods = [cluster.pod(*([4] if index % 3 else [])) for index in range(100)]
    for pod in pods[:10]:
        cluster.annotate_pod(pod, {"changed": "often"})
    request = cluster.pod(8)

    def made() -> bool:
        assert extender.fit(request, [node]) == [node]
        assert extender.prioritize(request, [node]) == {node: 10}
        return (extender.figure("refits_total") or 0) >= 2

    poll(made, "policies are made anew for the pods that came", LONG)
    assert extender.figure("learned_pods_total") == 102
    assert extender.figure("refit_failures_total") == 0
    poll(lambda: extender.figure("trials_total") == 1, "policies are tried with these pods", LONG)
    assert extender.figure("trial_failures_total") == 0
    decode_result = extender.probe("/metrics").body.decode()
    for name in CANDIDATES:
        allocated = re.search(
            rf"^gpushare_trial_allocated_.*{name}.* (\S+)$", decode_result, re.MULTILINE
        )
        assert allocated is not None
        assert 50 < float(allocated[1]) <= 100
    ranks = re.findall(
        r'^gpushare_ranking_policy{policy="(\S+)",.*} 1\.0$', decode_result, re.MULTILINE
    )
    assert set(ranks) < set(CANDIDATES)
    assert len(ranks) == 1
    assert extender.fit(request, [node]) == [node]
    assert extender.bind(request, node) == ""
    extender.agrees(cluster)


def test_after_a_restart_pods_that_run_are_known_and_count_once(
    cluster: Cluster, start_extender: StartExtender
) -> None:
    node = cluster.node()
    first = start_extender()
    first.wait_ready()
    for _ in range(3):
        assert first.bind(cluster.pod(4), node) == ""
    waiting_pods = cluster.pod(9)
    poll(lambda: first.figure("learned_pods_total") == 4, "the first has learned all")
    first.kill()
    second = start_extender()
    second.wait_ready()
    assert second.fit(waiting_pods, [node]) == [node]
    assert second.figure("learned_pods_total") == 4


def test_a_small_cluster_that_fills_is_used_by_default_as_by_device_bestfit(
    cluster: Cluster, start_extender: StartExtender
) -> None:
    """4 nodes of 4 cards of 16, without any pod: 256 GiB."""
    extender = start_extender()
    extender.wait_ready()

    def placed(policy: str, seed: int) -> int:
        nodes = [cluster.node(devices=4, total=64) for _ in range(4)]
        for node in nodes:
            extender.knows(node)
        rng, total, request = random.Random(seed), 0, 0
        wished = {"gpushare.io/policy": policy} if policy else {}
        while request < 256:
            units = rng.choice([2, 4, 8, 16])
            request += units
            pod = cluster.pod(units, annotations=wished)
            if fit := extender.fit(pod, nodes):
                scores = extender.prioritize(pod, fit)
                assert extender.bind(pod, max(fit, key=scores.__getitem__)) == ""
                total += units
        return total

    by_default = [placed("", seed) for seed in range(3)]
    simple = [placed("device-bestfit", seed) for seed in range(3)]
    assert sum(by_default) >= sum(simple) - 16, (by_default, simple)
