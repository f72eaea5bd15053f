"""A running extender tells the choices of another policy; its own answers do not change."""

import re

from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.integration.process import Extender
from tests.support.waiting import poll


def figures(extender: Extender) -> dict[str, float]:
    """The shadow's samples by name and the label that tells samples apart."""
    decode_result = extender.probe("/metrics").body.decode()
    lines = re.findall(r'^gpushare_shadow_(\w+){.*?(\w+)"} (\S+)$', decode_result, re.MULTILINE)
    return {f"{name} {label}": float(value) for name, label, value in lines}


def test_what_another_policy_would_have_done_is_told(
    cluster: Cluster, start_extender: StartExtender
) -> None:
    nodes = [cluster.node(devices=1, total=16) for _ in range(2)]
    extender = start_extender("--policy", "binpack", "--shadow", "spread")
    extender.wait_ready()
    for node in nodes:
        extender.knows(node)
    poll(lambda: figures(extender)["on spread"] == 1.0, "it has begun")
    placements = []
    for _ in range(3):
        pod = cluster.pod(4)
        fit = extender.fit(pod, nodes)
        assert sorted(fit) == sorted(nodes)
        best = max(extender.prioritize(pod, nodes).items(), key=lambda each: each[1])[0]
        assert extender.bind(pod, best) == ""
        placements.append(best)
    assert len(set(placements)) == 1, "the shadow has no part in it"
    poll(lambda: figures(extender)["pods_total both"] == 3.0, "its books follow")
    result = figures(extender)
    assert result["choices_total same"] + result["choices_total node"] == 3.0
    assert result["choices_total node"] >= 1.0
    whole = cluster.pod(16)
    (empty,) = {*nodes} - {*placements}
    assert extender.fit(whole, nodes) == [empty]
    assert extender.bind(whole, empty) == ""
    poll(lambda: figures(extender)["pods_total real"] == 1.0, "spread had no whole device left")
    poll(lambda: figures(extender)["allocated_bytes real"] == 28.0 * 2**30)
    poll(lambda: figures(extender)["allocated_bytes shadow"] == 12.0 * 2**30)
    extender.agrees(cluster)
