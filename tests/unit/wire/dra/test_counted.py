"""What a ledger is told of cards and claims: nodes, and holders with their units."""

from gpushare.core.model import MAX_UNITS, PodRef
from gpushare.ledger import Ledger
from gpushare.wire.dra.counted import (
    DealsInUnits,
    cards_by_node,
    holders_of,
    node_of_cards,
    units_up,
)
from gpushare.wire.dra.slices import cards_of
from tests.unit.wire.dra.objects import GIB, device, slice_of

CLAIM = PodRef("team", "c", "uid-c")


def test_a_card_that_may_not_be_given_out_is_there_and_not_healthy() -> None:
    taint = {"taints": [{"key": "broken", "effect": "NoSchedule"}]}
    alone = device(3, allowMultipleAllocations=False)
    cards = cards_of([slice_of(device(1), device(2, 24, **taint), alone)])
    ((name, found),) = cards_by_node(cards).items()
    spec = node_of_cards(name, found, GIB)
    assert (spec.name, spec.capacity, spec.healthy) == ("n1", (80, 24, 80), (True, False, False))
    assert (spec.models[0], spec.uuids) == ("NVIDIA A100", ("GPU-101", "GPU-102", "GPU-103"))


def test_half_a_unit_is_taken_as_one_and_is_none_of_a_card() -> None:
    cards = cards_by_node(cards_of([slice_of(device(1, 80))]))
    assert node_of_cards("n1", cards["n1"], 3 * GIB).capacity == (26,)
    assert [units_up(memory, GIB) for memory in (0, 1, GIB, GIB + 1)] == [0, 1, 1, 2]


def test_what_a_card_deals_out_counts_in_whole_units() -> None:
    steps = {"validRange": {"min": "1536Mi", "step": "1536Mi"}}
    memory = {"memory": {"value": "8Gi", "requestPolicy": steps}}
    cards = cards_by_node(cards_of([slice_of(device(1, capacity=memory), device(2))]))
    (odd, fine) = node_of_cards("n1", cards["n1"], GIB).deals
    assert odd == DealsInUnits(cards["n1"][0].deals, GIB) != fine
    assert [odd.takes(asked) for asked in (1, 1536 * 2**20, 2 * GIB, 7 * GIB)] == [2, 2, 3, 8]
    assert odd.takes(8 * GIB) > MAX_UNITS
    assert [odd.most(units) for units in (1, 2, 3, 5, 8)] == [0, 1, 3, 4, 7]


def test_a_claim_holds_on_each_node_what_it_has_there_and_never_more_than_the_card() -> None:
    slices = [slice_of(device(1, 80), device(2, 24)), slice_of(device(7, 40), node="n2")]
    on_nodes = cards_by_node(cards_of(slices))
    taken = {("n1", "GPU-101"): 10, ("n1", "GPU-102"): 999, ("n2", "GPU-107"): 4}
    taken |= {("n1", "unknown"): 5, ("gone", "GPU-101"): 5}
    ledger = Ledger()
    for name, cards in on_nodes.items():
        ledger.node_changed(node_of_cards(name, cards, GIB))
    holders = [*holders_of(CLAIM, taken, on_nodes, GIB)]
    assert [(each.ref.uid, each.placement) for each in holders] == [
        ("uid-c/n1", ((0, 10), (1, 24))),
        ("uid-c/n2", ((0, 4),)),
    ]
    assert (holders[0].request.parts, holders[1].request.parts) == ((24, 10), (4,))
    for each in holders:
        ledger.pod_changed(each)
    snapshot = ledger.snapshot()
    assert snapshot.used[snapshot.row["n1"], :2].tolist() == [10, 24]
    assert snapshot.used[snapshot.row["n2"], 0] == 4
    ledger.check()
