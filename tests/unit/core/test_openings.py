"""Which node opens first for a request, by the expected ends of running pods."""

from gpushare.core.defrag import Host
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import MutableCluster, ranking
from gpushare.core.openings import ExpectedEnd, expected_end, first_opening
from gpushare.core.policies.binpack import Binpack
from gpushare.sim.engine import empty
from gpushare.trace.nodes_and_pods import TraceNode

HALF, WHOLE = Request(8, 1), Request(16, 1)
BOTH = Request(16, 2)


def cluster(*cards: int) -> MutableCluster:
    nodes = [TraceNode(f"n{row}", 64000, 64000, count, 16, "") for row, count in enumerate(cards)]
    return MutableCluster(empty(nodes), ranking(Binpack(), len(nodes)))


def filled(*cards: int) -> tuple[MutableCluster, list[ExpectedEnd]]:
    """Nodes of so many cards, each with one pod; the pods end one second after the other."""
    full = cluster(*cards)
    ends = [
        ExpectedEnd(float(row * 10 + device), full.put(row, ((device, 16),), WHOLE))
        for row, count in enumerate(cards)
        for device in range(count)
    ]
    return full, ends


def by_row(ends: list[ExpectedEnd]) -> dict[int, list[ExpectedEnd]]:
    rows: dict[int, list[ExpectedEnd]] = {}
    for end in ends:
        rows.setdefault(end.placement.row, []).append(end)
    return rows


def test_the_row_whose_last_needed_pod_ends_first_opens_first() -> None:
    full, ends = filled(2, 3)
    ends[0] = ExpectedEnd(99.0, ends[0].placement)
    used = full.view.used.copy()
    opening = first_opening(full, by_row(ends), BOTH, [0, 1], Host(2))
    assert opening is not None
    assert (opening.at, opening.placement.row, opening.placement.devices) == (11.0, 1, (0, 1))
    assert (full.view.used == used).all(), "the search changes nothing"


def test_of_equal_rows_the_first_one_opens() -> None:
    full, ends = filled(1, 1)
    ends = [ExpectedEnd(5.0, end.placement) for end in ends]
    opening = first_opening(full, by_row(ends), WHOLE, [1, 0], Host(2))
    assert opening is not None
    assert opening.placement.row == 1


def test_no_row_opens_where_no_pod_is_expected_to_end() -> None:
    full, ends = filled(2)
    assert first_opening(full, {}, HALF, [0], Host(1)) is None
    assert first_opening(full, by_row(ends[:1]), BOTH, [0], Host(1)) is None
    assert first_opening(full, by_row(ends), BOTH, [], Host(1)) is None


class ShortOfCpu(Host):
    """A row that lacks CPU until two pods have left."""

    gone = 0

    def lacks(self, _row: int, _request: Request) -> dict[str, int]:
        return {} if self.gone >= 2 else {"cpu": 1}

    def take(self, row: int, request: Request, pods: int = 1) -> None:
        del row, request
        self.gone -= pods


def test_resources_of_the_host_have_to_be_free_too() -> None:
    full, ends = filled(2)
    host = ShortOfCpu(1)
    opening = first_opening(full, by_row(ends), WHOLE, [0], host)
    assert opening is not None
    assert (opening.at, host.gone) == (1.0, 0)


def test_a_pod_is_expected_to_run_as_long_again_and_no_longer_than_its_end() -> None:
    assert expected_end(10_000.0, 4_000.0) == 16_000.0
    assert expected_end(10_000.0, 9_990.0) == 10_600.0
    assert expected_end(10_000.0, 4_000.0, 11_000.0) == 11_000.0
    assert expected_end(10_000.0, 4_000.0, 9_000.0) == 10_000.0
