"""A pool of nodes that grows and shrinks."""

import pytest

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import ranking
from gpushare.core.policies.binpack import Binpack
from gpushare.errors import SettingsError
from gpushare.sim.engine import Cluster, NodePool
from gpushare.sim.experiments import churn
from gpushare.sim.main import main
from gpushare.sim.options import Parameters, read_options
from gpushare.trace.nodes_and_pods import TraceNode
from tests.bench.small_clusters import still


def test_a_node_joins_when_a_pod_fits_on_no_other_and_leaves_when_it_is_empty() -> None:
    nodes = [TraceNode(f"n-{row}", 1000, 64, 1, 8 * (row + 1), "card") for row in range(2)]
    cluster = Cluster(nodes, ranking(Binpack(), 2))
    pool = NodePool(cluster)
    small = pool.place(Request(6, 1))
    assert pool.present.tolist() == [True, False]
    large = pool.place(Request(6, 1))
    host_only = pool.place(Request(cpu=500))
    assert small is not None
    assert large is not None
    assert host_only is not None
    assert (small.row, large.row) == (0, 1)
    assert pool.present.all()
    assert pool.place(Request(12, 1)) is None
    for placement in (small, large, host_only):
        pool.shrink(placement.row)
        assert pool.present[placement.row]
        cluster.release(placement)
    for row in (0, 1):
        pool.shrink(row)
    assert not pool.present.any()


@pytest.mark.parametrize("policy", ["binpack", "auto"])
def test_a_run_has_the_mean_number_of_nodes(policy: str) -> None:
    nodes, pods = still("equal", 3)
    options = Parameters(load=0.4, life=3.0, warmup=1.0, pool=True)
    record = churn(nodes, pods, policy, 7, options)
    assert record["pool"] is True
    assert isinstance(record["nodes"], float)
    assert 0.4 * len(nodes) < record["nodes"] < len(nodes)


def test_the_table_says_how_many_nodes_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["churn", "--pool", "--policy", "binpack", "--seeds", "1", "--load", "0.01"]
    assert main([*arguments, "--life", "0.4", "--warmup", "0.1", "--jobs", "1"]) == 0
    assert "NODES" in capsys.readouterr().out


def test_a_pool_has_no_moves_and_no_reservations() -> None:
    for option in (["--reserve-after", "1"], ["--defrag", "k=1,every=1"]):
        with pytest.raises(SettingsError, match="--pool excludes"):
            read_options(["churn", "--wait", "--pool", *option])
