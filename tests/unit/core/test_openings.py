"""Which node opens first for a request, by the pods that may end."""

from collections.abc import Sequence
from random import Random

import pytest

from gpushare.core.amounts import compute
from gpushare.core.defrag import Host
from gpushare.core.model import Apart, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, ranking
from gpushare.core.node_filters import CPU
from gpushare.core.openings import Opening, Outlook, ReservedPart, Resident
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
    kept: Placement | None = None,
) -> Opening | None:
    """The first opening at second 1000, with these pods and their known ends."""
    by_row: dict[int, list[Resident]] = {}
    for placement, ends_by in pods:
        by_row.setdefault(placement.row, []).append(Resident(placement, ends_by))
    used = nodes.view.used.copy()
    outlook = Outlook(nodes, host or Host(len(nodes.view.names)), by_row, 1000.0, REST)
    opening = outlook.first_opening(request, kept=kept)
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
    """A row that lacks CPU until two pods with one core have left."""

    gone = 0

    def lacks(self, _row: int, _request: Request) -> dict[str, int]:
        return {CPU: 2 - self.gone} if self.gone < 2 else {}

    def take(self, row: int, request: Request, pods: int = 1) -> None:
        del row
        self.gone -= pods * request.cpu


def test_resources_of_the_host_have_to_be_free_too() -> None:
    nodes, share = cluster(2), Request(16, 1, cpu=1)
    pods = [(nodes.put(0, ((device, 16),), share), None) for device in (0, 1)]
    host = ShortOfCpu(1)
    opening = first(nodes, pods, WHOLE, host)
    assert opening is not None
    assert opening.at == pytest.approx(1000.0 + 1.5 * REST)
    assert host.gone == 0
    assert first(nodes, pods[:1], WHOLE, host) is None


def test_a_row_that_opens_later_than_its_memory_yields_to_another() -> None:
    nodes, some_cpu = cluster(1, 1), Request(cpu=32000)
    first_row = [put(nodes, 0, 0), *(nodes.put(0, (), some_cpu) for _ in range(2))]
    second_row = [put(nodes, 1, 0, units=8) for _ in range(2)]
    pods = [(placement, None) for placement in (*first_row, *second_row)]
    opening = first(nodes, pods, Request(16, 1, cpu=64000))
    assert opening is not None
    assert opening.placement.row == 1
    assert opening.at == pytest.approx(1000.0 + 1.5 * REST)


def test_equal_pods_on_one_device_end_one_by_one() -> None:
    nodes = cluster(1)
    pods = [(put(nodes, 0, 0, units=8), None) for _ in range(2)]
    opening = first(nodes, pods, WHOLE)
    assert opening == Opening(1000.0 + 1.5 * REST, Placement(0, ((0, 16),), WHOLE))


APART = Apart("job", required=True)


@pytest.mark.parametrize(
    ("running", "request_"),
    [
        (Request(4, 1, percents=compute(50)), Request(10, 1, percents=compute(60))),
        (Request(4, 1, percents=with_share(0, 50)), Request(4, 1, percents=with_share(0, 60))),
        (Request(4, 1, apart=APART), Request(4, 1, apart=APART)),
        (Request(cpu=64000), Request(4, 1, cpu=1)),
    ],
)
def test_an_end_opens_a_row_that_lacks_something_else_than_memory(
    running: Request, request_: Request
) -> None:
    nodes = cluster(1)
    shares = ((0, running.units),) if running.devices else ()
    pods = [(nodes.put(0, shares, running), 1060.0)]
    opening = first(nodes, pods, request_)
    assert opening == Opening(1060.0, Placement(0, ((0, request_.units),), request_))


def test_a_device_with_the_most_sharers_opens_by_one_end() -> None:
    nodes = cluster(1)
    nodes.view.sharers[0] = 2
    pods = [(put(nodes, 0, 0, units=1), 1060.0), (put(nodes, 0, 0, units=1), None)]
    assert first(nodes, pods, HALF) == Opening(1060.0, Placement(0, ((0, 8),), HALF))


def test_a_kept_place_with_free_devices_stays_while_it_lacks_cpu() -> None:
    nodes, some_cpu = cluster(1, 1), Request(cpu=32000)
    pods: list[tuple[Placement, float | None]] = [(put(nodes, 0, 0), 1010.0)]
    pods += [(nodes.put(1, (), some_cpu), None) for _ in range(2)]
    whole = Request(16, 1, cpu=64000)
    places = [Placement(row, ((0, 16),), whole) for row in (0, 1)]
    full = Opening(1010.0, places[0])
    assert first(nodes, pods, whole) == full
    assert first(nodes, pods, whole, kept=places[0]) == full
    assert first(nodes, pods, whole, kept=places[1]) == Opening(1000 + 1.5 * REST, places[1])
    assert first(nodes, pods[:2], whole, kept=places[1]) == full, "no end opens the kept place"


def test_the_parts_of_an_uneven_split_open_on_devices_of_their_own() -> None:
    nodes = cluster(2)
    pods = [(put(nodes, 0, 0), 1010.0), (put(nodes, 0, 1, units=10), None)]
    split = Request(16, 2, split=(16, 6))
    assert first(nodes, pods, split) == Opening(1010.0, Placement(0, ((0, 16), (1, 6)), split))


def test_reservations_have_a_part_of_the_memory_by_what_pods_are_charged() -> None:
    nodes = cluster(2, 2)
    part, all_of_one = ReservedPart(nodes), Request(1, 1, percents=with_share(0, 100))
    place = Placement(0, ((0, 1),), all_of_one)
    assert part.allows(place), "one pod may have more"
    part.add(Placement(1, ((0, 4),), Request(4, 1)))
    assert not part.allows(place)
    assert part.allows(Placement(0, ((0, 8),), HALF))
    part.add(Placement(0, ((0, 8),), HALF))
    assert part.count == 2


def test_a_percentage_of_memory_opens_when_enough_units_are_free() -> None:
    nodes, share = cluster(1), Request(1, 1, percents=with_share(0, 60))
    placement = nodes.place(share)
    assert placement is not None
    opening = first(nodes, [(placement, 1060.0)], share)
    assert opening == Opening(1060.0, placement)


@pytest.mark.parametrize("seed", range(20))
def test_a_search_after_others_finds_what_a_first_search_would_find(seed: int) -> None:
    chance = Random(seed)
    nodes = cluster(*[chance.choice((2, 4, 8)) for _ in range(12)])
    by_row: dict[int, list[Resident]] = {}
    for row, count in enumerate((nodes.view.capacity > 0).sum(axis=1).tolist()):
        for device in range(count):
            for units in chance.choice(((), (8,), (16,), (8, 8))):
                ends_by = chance.choice((None, None, chance.uniform(1000.0, 1500.0)))
                resident = Resident(put(nodes, row, device, units=units), ends_by)
                by_row.setdefault(row, []).append(resident)

    def outlook() -> Outlook:
        return Outlook(nodes, Host(len(nodes.view.names)), by_row, 1000.0, REST)

    kept, found = outlook(), 0
    for _ in range(15):
        request = chance.choice((BOTH, HALF, WHOLE, Request(16, 4), Request(8, 8)))
        opening = kept.first_opening(request)
        assert opening == outlook().first_opening(request)
        if opening is not None:
            kept.take(opening.placement)
            found += 1
    assert found > 3
