"""The order of nodes for pods with claims, and the effect of offers."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.claims.model import (
    THOUSANDTHS,
    Attribute,
    Capacity,
    ClassRecord,
    Device,
    DeviceKey,
    Fit,
    TaintRule,
    Taken,
    Use,
)
from gpushare.core.node_names import NodeNames
from gpushare.core.policy import load_policy
from gpushare.core.selectors import Taint
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.claims import ranker
from gpushare.extender.claims.ranker import OFFER_SECONDS, _NodeOffer, _NodeOffers
from tests.support.claim_values import (
    DRIVER,
    GIB,
    allocated,
    decoded,
    device,
    holding,
    open_claim,
    partition,
    partitioned_slices,
    pod_with,
    slice_of,
)
from tests.unit.extender.claims.ranking import RankingWorld


@pytest.fixture(name="world")
def _world() -> RankingWorld:
    return RankingWorld()


def test_the_node_whose_first_fit_leaves_least_is_best(world: RankingWorld) -> None:
    world.nodes(a=(40, 10), b=(12,), c=(80,))
    world.claims(open_claim(1, 10))
    # First fit takes the card of 40 GiB on a, though that of 10 would leave nothing.
    assert world.best(1) == "b"


def test_equal_nodes_rank_by_name(world: RankingWorld) -> None:
    world.nodes(b=(40,), a=(40,), c=(40,))
    world.claims(open_claim(1, 10))
    assert world.best(1, names="c b a") == "a"


def test_claims_that_are_allocated_count(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(40,))
    world.claims(allocated(9, holding("b", "gpu-0", 20)), open_claim(1, 10))
    assert world.best(1) == "b"
    world.claims(allocated(9, holding("b", "gpu-0", 35)))
    assert world.best(1) == "a"


def test_only_named_nodes_are_ranked_and_unknown_ones_rank_last(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(80,))
    world.claims(open_claim(1, 10))
    assert world.best(1, names="b unknown") == "b"
    assert world.rank(1, names="unknown other") is None


def test_an_offer_counts_until_the_claim_shows_its_allocation(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(40,))
    world.claims(*(open_claim(n, 30) for n in (1, 2, 3)))
    assert world.best(1) == "a"
    assert world.best(2) == "b"
    assert world.rank(3) is None
    assert world.ranker.offers() == 2
    world.show(1, holding("a", "gpu-0", 30))
    assert world.ranker.offers() == 1
    assert world.rank(3) is None
    assert world.ranker.predictions == {"right": 1, "other_device": 0, "other_node": 0}


def test_an_offer_ends_when_the_pod_is_gone_or_asked_about_again_or_late(
    world: RankingWorld,
) -> None:
    world.nodes(a=(40,))
    world.claims(open_claim(1, 30), open_claim(2, 30))
    assert world.best(1) == "a"
    assert world.best(1) == "a"
    world.ranker.pod_gone("pod-1")
    assert world.best(2) == "a"
    world.now = OFFER_SECONDS
    assert world.best(1) == "a"
    assert world.ranker.offers() == 1


def test_what_was_predicted_is_compared_with_the_allocation(world: RankingWorld) -> None:
    world.nodes(a=(40, 40), b=(80,))
    world.claims(open_claim(1, 10), open_claim(2, 10))
    assert (world.best(1), world.best(2)) == ("a", "a")
    world.show(1, holding("a", "gpu-1", 10))
    world.show(2, holding("b", "gpu-0", 10))
    assert world.ranker.predictions == {"right": 0, "other_device": 1, "other_node": 1}
    assert world.ranker.offers() == 0


def test_several_claims_of_a_pod_go_together_and_end_one_by_one(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(40, 40), c=(80, 80))
    world.claims(open_claim(1, 30), open_claim(2, 30), open_claim(3, 35))
    assert world.best(1, 2) == "b"
    world.show(1, holding("b", "gpu-0", 30))
    assert world.ranker.offers() == 1
    assert world.best(3, names="b") == ""
    world.show(2, holding("b", "gpu-1", 30))
    assert world.ranker.offers() == 0
    assert world.ranker.predictions["right"] == 2


def test_a_part_of_an_offer_ends_although_the_claim_went_elsewhere(world: RankingWorld) -> None:
    world.nodes(a=(40, 40), b=(40,))
    world.claims(open_claim(1, 30), open_claim(2, 30), open_claim(3, 35))
    assert world.best(1, 2, names="a") == "a"
    assert world.best(3, names="a") == ""
    world.show(1, holding("b", "gpu-0", 30))
    assert world.best(3, names="a") == "a"


def test_what_is_offered_is_taken_from_what_a_policy_sees(world: RankingWorld) -> None:
    world.nodes(a=(30,), b=(40,))
    world.claims(open_claim(1, 35), open_claim(2, 4))
    assert world.best(1) == "b"
    assert world.best(2) == "b"


def test_a_node_that_changed_while_others_were_named_is_judged_anew(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(20,))
    world.claims(*(open_claim(number, 10) for number in (1, 2, 3)))
    assert world.best(1, names="a b") == "b"
    world.nodes(b=(15, 12))
    assert world.best(2, names="a") == "a"
    assert world.best(3, names="a b") == "b"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=3)
        ),
        max_size=20,
    ),
    st.integers(0, 20),
)
def test_sums_of_offers_that_come_and_go_equal_sums_made_anew(
    steps: list[tuple[int, list[tuple[int, int]]]], new_devices_at: int
) -> None:
    books = ClaimBooks(DRIVER, GIB)
    cards = [device(f"gpu-{at}", 40, shared=at > 0) for at in range(3)]
    books.slice_changed(slice_of("n1", *cards))
    kept_sums, offers = _NodeOffers(books, "n1"), dict[str, _NodeOffer]()
    for number, (pod, devices) in enumerate(steps):
        if number == new_devices_at:
            books.slice_changed(slice_of("n1", *cards[:2]))
        uid = f"pod-{pod}"
        if offers.pop(uid, None) is not None:
            kept_sums.remove(uid)
            continue
        amounts = [
            (cards[card], {"memory": gib * GIB * THOUSANDTHS} if gib else {})
            for card, gib in devices
        ]
        fit = Fit(
            tuple(
                Taken(0, "cards", card, amount if card.is_shared else None, False)
                for card, amount in amounts
            )
        )
        offers[uid] = _NodeOffer("n1", fit, {}, 0.0)
        kept_sums.add(uid, replace(offers[uid]))
        _ = kept_sums.units() if number % 2 else {}
    fresh_sums = _NodeOffers(books, "n1")
    for uid, offer in offers.items():
        fresh_sums.add(uid, offer)
    assert len(kept_sums) == len(offers)
    kept_use, use = (Use().plus(sums.holdings()) for sums in (kept_sums, fresh_sums))
    assert kept_use.exclusive == use.exclusive
    assert kept_use.shares.keys() == use.shares.keys()
    # An amount of 0 is no amount.
    assert {key: +Counter(amounts) for key, amounts in kept_use.shares.items()} == {
        key: +Counter(amounts) for key, amounts in use.shares.items()
    }
    assert kept_sums.units() == fresh_sums.units()


def test_a_count_takes_as_many_cards(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(60, 60), c=(40, 40))
    world.claims(open_claim(1, 40, count=2))
    assert world.best(1) == "c"


def test_a_card_that_is_taken_whole_counts_with_what_is_asked(world: RankingWorld) -> None:
    for node, gib in (("a", 80), ("b", 40)):
        world.books.slice_changed(slice_of(node, device("gpu-0", gib, node=node, shared=False)))
    world.claims(open_claim(1, 30))
    assert world.best(1) == "b"
    world.show(1, holding("b", "gpu-0", None))
    world.claims(open_claim(2, 30))
    assert world.best(2) == "a"


def test_a_partition_goes_to_the_card_that_it_fills_most(world: RankingWorld) -> None:
    for node in "abc":
        devices = [partition(name, 20480, node=node) for name in ("mig-0", "mig-1", "mig-2")]
        whole = partition("whole", 81920, node=node)
        for item in partitioned_slices(*devices, whole, cards="0", node=node):
            world.books.slice_changed(item)
    world.claims(*(open_claim(number, 1) for number in (1, 2, 3, 4)))
    world.show(10, holding("b", "mig-0", None))
    assert world.best(1) == "b"
    assert world.best(2) == "b"
    assert world.best(3) == "a"
    world.show(11, holding("c", "whole", None))
    assert world.best(4) == "a"
    world.show(1, holding("b", "mig-1", None))
    assert world.ranker.predictions["right"] == 1


def test_selectors_and_taints_keep_devices_out_of_the_prediction(world: RankingWorld) -> None:
    world.nodes(a=(20,), b=(40,))
    world.books.class_changed(
        "gpu",
        ClassRecord(
            "gpu", (f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('30Gi'))",)
        ),
    )
    world.claims(open_claim(1, 10))
    assert world.best(1) == "b"
    world.books.rule_changed("r", TaintRule(Taint("k", "", "NoSchedule"), DRIVER, "b"))
    assert world.rank(1) is None


def test_claims_for_another_driver_alone_are_not_ranked(world: RankingWorld) -> None:
    nic = replace(device("nic-0", 1, node="a", driver="nic.example.com"), is_shared=False)
    world.books.slice_changed(slice_of("a", nic))
    world.books.class_changed("gpu", ClassRecord("gpu", ("device.driver == 'nic.example.com'",)))
    world.claims(open_claim(1, 1))
    assert world.rank(1, names="a") is None
    assert world.ranker.pods == {"ranked": 0, "not_ranked": 1}


def test_a_pod_whose_claims_are_allocated_or_not_known_is_not_ranked(world: RankingWorld) -> None:
    world.nodes(a=(40,))
    world.claims(allocated(1, holding("a", "gpu-0", 10)))
    assert world.rank(1) is None
    assert world.rank(2) is None


def test_nothing_is_ranked_without_a_node_of_the_driver(
    world: RankingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.claims(open_claim(1, 10))
    assert world.rank(1) is None
    world.nodes(a=(40,))
    assert world.best(1) == "a"
    assert not caplog.records


def test_nothing_is_ranked_before_the_books_are_filled(world: RankingWorld) -> None:
    world.nodes(a=(40,))
    world.claims(open_claim(1, 10))
    world.is_ready = False
    assert world.rank(1) is None


def test_a_failure_ranks_nothing_and_reaches_nobody() -> None:
    class Broken:
        def score(self, snapshot: Snapshot, rows: Rows, request: object) -> Floats:
            raise ValueError("broken")

    world = RankingWorld(Broken())
    world.nodes(a=(40,), b=(20,))
    world.claims(open_claim(1, 10))
    assert world.best(1) == "a"  # without a preference, by name
    world.books.ledger.snapshot = None  # type: ignore[assignment,method-assign]
    assert world.rank(1) is None


def test_a_failed_call_leaves_no_prediction_without_a_value(
    world: RankingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.nodes(a=(40,), b=(20,))
    world.claims(open_claim(1, 10))
    with monkeypatch.context() as patch:
        patch.setattr(ranker, "values_of", None)
        assert world.rank(1) is None
    assert world.best(1) == "b"


def test_an_extended_resource_of_a_class_is_ranked_and_its_claim_ends_the_offer(
    world: RankingWorld,
) -> None:
    for node in "ab":
        world.books.slice_changed(slice_of(node, device("gpu-0", 40, node=node, shared=False)))
    world.books.class_changed(
        "gpu",
        ClassRecord("gpu", (f"device.driver == '{DRIVER}'",), extended_resource="example.com/gpu"),
    )
    body = {
        "metadata": {"namespace": "default", "name": "pod", "uid": "pod-1"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"example.com/gpu": "1"}}}]},
    }
    pod = decoded(body)
    assert world.ranker.concerns(pod)
    ranked = world.ranker.rank(pod, NodeNames(("a", "b")))
    assert ranked is not None
    assert ranked.best == "a"
    assert world.ranker.offers() == 1
    world.show(7, holding("a", "gpu-0", None), user="pod-1")
    assert world.ranker.offers() == 0
    assert world.ranker.predictions["right"] == 1


def test_a_pod_without_claims_does_not_concern_the_ranker(world: RankingWorld) -> None:
    limits = {"nvidia.com/gpu": "1"}
    spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
    assert not world.ranker.concerns(decoded({"spec": spec}))
    assert not world.ranker.concerns(decoded({}))
    assert world.ranker.concerns(pod_with(1))


def test_scores_name_the_best_node_alone_with_ten(world: RankingWorld) -> None:
    world.nodes(a=(80,), b=(12,), c=(40,))
    world.claims(open_claim(1, 10))
    ranked = world.rank(1, names="a b c unknown")
    assert ranked is not None
    scores = ranked.scores()
    assert scores[10] == ["b"]
    assert [node for nodes in scores.values() for node in nodes] == ["b", "c"]


def test_a_policy_with_prices_of_the_cluster_is_asked_each_time() -> None:
    class Priced:
        """Likes the node least that has the most of the cluster."""

        def __init__(self) -> None:
            self.scored = 0

        def score(self, snapshot: Snapshot, rows: Rows, request: object) -> Floats:
            self.scored += len(rows)
            return -snapshot.free[rows].astype(float)

        def supply(self, snapshot: Snapshot, rows: Rows) -> Ints:
            return np.zeros((len(rows), 1), dtype=np.int64)

        def taken(self, snapshot: Snapshot, rows: Rows, request: object) -> object:
            return np.zeros((len(rows), 1), dtype=np.int8)

        def group_prices(self, snapshot: Snapshot, request: object, totals: Ints) -> Floats:
            return np.zeros(len(totals))

        def taken_prices(
            self, snapshot: Snapshot, request: object, taken: Ints, totals: Ints
        ) -> Floats:
            return np.zeros((1, len(taken)))

    policy = Priced()
    world = RankingWorld(policy)
    world.nodes(a=(40,), b=(20,), c=(80,))
    world.claims(open_claim(1, 10), open_claim(2, 10))
    assert world.best(1) == "b"
    before = policy.scored
    assert world.best(2) == "b"
    assert policy.scored - before == 3


def test_a_warm_call_scores_only_what_has_changed() -> None:
    count = 0
    policy = load_policy("device-bestfit")

    class Counting:
        def score(self, snapshot: Snapshot, rows: Rows, request: object) -> Floats:
            nonlocal count
            count += len(rows)
            return policy.score(snapshot, rows, request)  # type: ignore[arg-type]

    world = RankingWorld(Counting())
    names = [f"n{number}" for number in range(50)]
    world.nodes(**dict.fromkeys(names, (40, 40)))
    world.claims(*(open_claim(number, 10) for number in range(5)))
    together = " ".join(names)
    assert world.best(0, names=together) == "n0"
    assert count == 50
    assert world.best(1, names=together) == "n0"
    assert count == 51
    world.nodes(n7=(10, 40))
    assert world.best(2, names=together) == "n7"
    # A score may depend on the shapes of all nodes.
    assert count == 101


def test_a_hostile_node_or_claim_costs_others_nothing(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(20,))
    alike = tuple(
        Device(
            key=DeviceKey(DRIVER, "c", f"gpu-{at}"),
            capacities={"memory": Capacity(40 * GIB * THOUSANDTHS)},
            attributes={"x/y": Attribute("int", at)},
            is_shared=False,
        )
        for at in range(500)
    )
    world.books.slice_changed(slice_of("c", *alike))
    world.claims(open_claim(1, 10, count=30))
    world.rank(1, names="a b c")
    world.claims(open_claim(2, 10))
    assert world.best(2, names="a b c") == "b"


def test_a_claim_that_holds_more_than_the_card_ranks_as_full(world: RankingWorld) -> None:
    world.nodes(a=(40,), b=(40,))
    world.claims(allocated(9, holding("a", "gpu-0", 100)), open_claim(1, 10))
    assert world.best(1) == "b"
