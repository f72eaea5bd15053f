"""Which node opens first for a request, by the pods that may end."""

from collections.abc import Sequence

import pytest

from gpushare.core.defrag import Host
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, ranking
from gpushare.core.openings import Opening, Outlook, Resident
from gpushare.core.policies.binpack import Binpack
from gpushare.sim.engine import empty
from gpushare.trace.nodes_and_pods import TraceNode
from tests.unit.core.clusters import with_share

WHOLE, BOTH, HALF = Request(16, 1), Request(16, 2), Request(8, 1)
REST = 100.0


def cluster(*cards: int) -> MutableCluster:
    nodes = [TraceNode(f"n{row}", 64000, 64000, count, 16, "") for row, count in enumerate(cards)]
    return MutableCluster(empty(nodes), ranking(Binpack(), len(nodes)))


def first(
    nodes: MutableCluster,
    pods: Sequence[tuple[Placement, float | None]],
    request: Request,
    host: Host | None = None,
) -> Opening | None:
    """The first opening at second 1000, with these pods and their known ends."""
    by_row: dict[int, list[Resident]] = {}
    for placement, ends_by in pods:
        by_row.setdefault(placement.row, []).append(Resident(placement, ends_by))
    used = nodes.view.used.copy()
    outlook = Outlook(nodes, host or Host(len(nodes.view.names)), by_row, 1000.0, REST)
    opening = outlook.first_opening(request)
    assert (nodes.view.used == used).all(), "the search changes nothing"
    return opening


def put(nodes: MutableCluster, row: int, *devices: int, units: int = 16) -> Placement:
    request = Request(units, len(devices))
    return nodes.put(row, tuple((device, units) for device in devices), request)


def test_the_row_with_the_fewest_pods_opens_first() -> None:
    nodes = cluster(2, 2, 2)
    halves = [put(nodes, 0, device, units=8) for device in (0, 0, 1)]
    wide = put(nodes, 1, 0, 1)
    others = [put(nodes, 2, device) for device in (0, 1)]
    pods = [(placement, None) for placement in (*halves, wide, *others)]
    opening = first(nodes, pods, BOTH)
    assert opening == Opening(1000.0 + REST, Placement(1, ((0, 16), (1, 16)), BOTH))
    for one in (others[0], wide):
        nodes.release(one)
        pods.remove((one, None))
    put(nodes, 1, 0, 1)  # never ends
    opening = first(nodes, pods, BOTH)
    assert opening is not None
    assert (opening.at, opening.placement.row) == (1000.0 + REST, 2)


def test_only_the_pods_of_the_devices_that_open_first_have_to_end() -> None:
    nodes = cluster(3)
    crowded = [put(nodes, 0, 0, units=4) for _ in range(4)]
    others = [put(nodes, 0, device) for device in (1, 2)]
    opening = first(nodes, [(placement, None) for placement in (*crowded, *others)], BOTH)
    assert opening is not None
    assert opening.placement.devices == (1, 2)
    assert opening.at == pytest.approx(1000.0 + 1.5 * REST)


def test_known_ends_come_before_expected_ones() -> None:
    nodes = cluster(1, 1, 1)
    pods = [(put(nodes, row, 0), ends) for row, ends in enumerate((None, 1090.0, 1300.0))]
    opening = first(nodes, pods, WHOLE)
    assert opening is not None
    assert (opening.at, opening.placement.row) == (1090.0, 1)
    overdue = first(nodes, [(pods[2][0], 10.0)], WHOLE)
    assert overdue is not None
    assert overdue.at == 1000.0


def test_of_equal_rows_the_one_that_lacks_the_least_memory_opens() -> None:
    nodes = cluster(1, 1)
    pods = [(put(nodes, row, 0, units=units), None) for row, units in enumerate((16, 12))]
    opening = first(nodes, pods, WHOLE)
    assert opening is not None
    assert opening.placement.row == 1


def test_no_row_opens_where_too_few_pods_end() -> None:
    nodes = cluster(2)
    pods = [(put(nodes, 0, device), None) for device in (0, 1)]
    assert first(nodes, [], HALF) is None
    assert first(nodes, pods[:1], BOTH) is None
    assert first(cluster(2), [], HALF) is None, "it has room already"


class ShortOfCpu(Host):
    """A row that lacks CPU until all its pods have left."""

    gone = 0

    def lacks(self, _row: int, _request: Request) -> dict[str, int]:
        return {} if self.gone >= 2 else {"cpu": 1}

    def take(self, row: int, request: Request, pods: int = 1) -> None:
        del row, request
        self.gone -= pods


def test_resources_of_the_host_have_to_be_free_too() -> None:
    nodes = cluster(2)
    pods = [(put(nodes, 0, device), None) for device in (0, 1)]
    host = ShortOfCpu(1)
    opening = first(nodes, pods, WHOLE, host)
    assert opening is not None
    assert opening.at == pytest.approx(1000.0 + 1.5 * REST)
    assert host.gone == 0
    assert first(nodes, pods[:1], WHOLE, host) is None


def test_a_row_that_opens_later_than_its_memory_yields_to_another() -> None:
    nodes = cluster(1, 1)
    first_row = [put(nodes, 0, 0), nodes.put(0, (), Request(cpu=64000))]
    second_row = [put(nodes, 1, 0, units=8) for _ in range(2)]
    nodes.release(first_row[0])
    pods = [(placement, None) for placement in (put(nodes, 0, 0), first_row[1], *second_row)]
    needs_cpu = Request(16, 1, cpu=64000)
    opening = first(nodes, pods, needs_cpu)
    assert opening is not None
    assert opening.at == pytest.approx(1000.0 + 1.5 * REST)


def test_a_percentage_of_memory_opens_when_enough_units_are_free() -> None:
    nodes, share = cluster(1), Request(1, 1, percents=with_share(0, 60))
    placement = nodes.place(share)
    assert placement is not None
    opening = first(nodes, [(placement, 1060.0)], share)
    assert opening == Opening(1060.0, placement)
