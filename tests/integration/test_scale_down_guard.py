"""A real process keeps autoscalers from nodes; the next process without the guard frees them."""

from tests.integration.cluster import MARK, NODES, Cluster
from tests.integration.conftest import StartExtender
from tests.support.waiting import poll

CA = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KARPENTER = "karpenter.sh/do-not-disrupt"
OURS = "gpushare.io/scale-down-guard"


def told(cluster: Cluster, node: str) -> dict[str, str]:
    """The node's annotations about scale-down."""
    (result,) = (item for item in cluster.all(NODES) if item["metadata"]["name"] == node)
    notes = result["metadata"].get("annotations") or {}
    return {key: notes[key] for key in (CA, KARPENTER, OURS) if key in notes}


def test_nodes_are_kept_while_their_pods_have_no_device_elsewhere(
    cluster: Cluster, start_extender: StartExtender
) -> None:
    full, half, hers = (cluster.node() for _ in range(3))
    cluster.annotate_node(hers, CA, "false")
    for node, units, index in ((full, 10, 0), (full, 10, 1), (half, 8, 0)):
        cluster.pod(units, spec={"nodeName": node}, annotations={f"{MARK}IDX": str(index)})
    for place in ("0", "1"):
        cluster.pod(16, spec={"nodeName": hers}, annotations={f"{MARK}IDX": place})
    guarded = start_extender("--scale-down-guard")
    guarded.wait_ready()
    poll(lambda: OURS in told(cluster, hers), "all three are told")
    assert told(cluster, full)[CA] == told(cluster, half)[KARPENTER] == "true"
    assert "would have no device on another node" in told(cluster, full)[OURS]
    assert {**told(cluster, hers), OURS: ""} == {CA: "false", KARPENTER: "true", OURS: ""}
    guarded.stop()
    cluster.release_lease()
    start_extender().wait_ready()
    poll(lambda: all(OURS not in told(cluster, node) for node in (full, half, hers)), "let go")
    assert [told(cluster, node) for node in (full, half, hers)] == [{}, {}, {CA: "false"}]
