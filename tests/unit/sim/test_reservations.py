"""Reservations for waiting pods in a small cluster where pods come and go."""

from collections.abc import Mapping

import pytest

from gpushare.core.model import Kind, Request
from gpushare.core.mutable_cluster import Placement, ranking
from gpushare.core.policies.binpack import Binpack
from gpushare.errors import SettingsError
from gpushare.sim.engine import Cluster
from gpushare.sim.experiments import churn
from gpushare.sim.options import Parameters, read_options
from gpushare.sim.reservations import Reservations
from gpushare.trace.nodes_and_pods import TraceNode
from tests.bench.small_clusters import still

BOTH, ONE = Request(8, 2), Request(8, 1)


def filled(rows: int) -> tuple[Cluster, list[tuple[Placement, float]]]:
    """Nodes of two full devices, and the pods there with their starts."""
    nodes = [TraceNode(f"n-{row}", 16_000, 2**16, 2, 8, "card") for row in range(rows)]
    cluster = Cluster(nodes, ranking(Binpack(), rows))
    pods = [
        (cluster.put(row, ((device, 8),), ONE), 0.0) for row in range(rows) for device in (0, 1)
    ]
    return cluster, pods


def late(*requests: Request) -> Mapping[Kind, Request]:
    return {request.kind: request for request in requests}


def test_what_opens_of_the_place_is_held_and_counts_as_nobodys() -> None:
    cluster, pods = filled(2)
    reservations = Reservations(cluster, 1.0)
    reservations.renew(late(BOTH), pods, 5.0)
    assert reservations.on(0) == [BOTH.kind]
    cluster.release(pods[0][0])
    reservations.lift(BOTH.kind)
    assert cluster.place_on(0, BOTH) is None
    reservations.hold(BOTH.kind)
    assert cluster.place_on(0, ONE) is None
    assert cluster.allocated == 24
    cluster.release(pods[1][0])
    reservations.end(BOTH.kind)
    assert cluster.place_on(0, BOTH) is not None
    assert reservations.on(0) == []


def test_a_reservation_ends_when_no_pod_is_late_and_moves_to_a_node_that_opens_earlier() -> None:
    cluster, pods = filled(2)
    reservations = Reservations(cluster, 1.0)
    for _ in range(2):
        reservations.renew(late(BOTH), pods, 5.0)
        assert reservations.on(0) == [BOTH.kind]
    cluster.release(pods.pop()[0])
    reservations.renew(late(BOTH), pods, 6.0)
    assert reservations.on(1) == [BOTH.kind]
    assert cluster.view.used.sum() == 32
    reservations.renew({}, pods, 7.0)
    assert reservations.on(1) == []
    assert cluster.view.used.sum() == 24


def test_the_reserved_part_is_bounded_but_one_pod_has_a_reservation() -> None:
    less = Request(7, 2)
    for rows, count in ((2, 1), (9, 1), (10, 2)):
        cluster, pods = filled(rows)
        reservations = Reservations(cluster, 1.0)
        for _ in range(2):
            reservations.renew(late(BOTH, less), pods, 5.0)
        assert sum(len(reservations.on(row)) for row in range(rows)) == count


def test_nothing_is_reserved_where_the_pod_fits_on_no_empty_node() -> None:
    cluster, pods = filled(1)
    reservations = Reservations(cluster, 1.0)
    reservations.renew(late(Request(8, 3), BOTH), pods, 5.0)
    assert reservations.on(0) == [BOTH.kind], "and it takes no room from the next"


@pytest.mark.parametrize("policy", ["binpack", "auto"])
def test_reservations_change_the_waits_of_a_run(policy: str) -> None:
    nodes, pods = still("whole", 3)
    without = Parameters(load=0.9, life=8.0, warmup=1.0, wait=True)
    reserving = Parameters(load=0.9, life=8.0, warmup=1.0, wait=True, reserve_after=0.1)
    records = [churn(nodes, pods, policy, 7, options) for options in (without, reserving)]
    assert records[1]["reserve_after"] == 0.1
    assert records[0]["wait_max"] != records[1]["wait_max"]


def test_reservations_are_for_pods_that_wait_and_not_beside_moves() -> None:
    with pytest.raises(SettingsError, match="add --wait"):
        read_options(["churn", "--reserve-after", "0.1"])
    with pytest.raises(SettingsError, match="exclude each other"):
        read_options(["churn", "--wait", "--reserve-after", "0.1", "--defrag", "k=3,every=5"])
    options = read_options(["replay", "--wait", "--reserve-after", "1800"])
    assert options.parameters.reserve_after == 1800.0
