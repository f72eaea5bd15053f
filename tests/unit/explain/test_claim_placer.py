"""Pods with claims are placed by the policy's choice of the node and by first fit on it."""

from typing import Any

import pytest

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import (
    THOUSANDTHS,
    ClassRecord,
    Device,
    DeviceKey,
    Fit,
    PodClaims,
    Use,
)
from gpushare.core.model import Request
from gpushare.core.node_filters import NodeState, NodeStates, OwnFilters
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policy import Policy, load_policy
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_placer import ClaimPlacer
from gpushare.explain.claim_records import ClaimRecord, memory_units
from gpushare.explain.claim_score import parts_of
from gpushare.explain.claims import REASONS
from gpushare.explain.placer import HostFilters, PodBatch
from tests.support.claim_values import (
    DRIVER,
    GIB,
    allocated,
    device,
    holding,
    open_claim,
    partition,
    partitioned_slices,
    pod_with,
    slice_of,
)

POLICY = DeviceBestFit()
TOO_FEW = next(iter(REASONS.values()))


def always(_selectors: tuple[str, ...], _device: Device) -> bool:
    return True


def books_of(*claims: ClaimRecord, shared: bool = True, **cards: tuple[int, ...]) -> ClaimBooks:
    books = ClaimBooks(DRIVER, GIB)
    books.replace_classes([ClassRecord("gpu", ())])
    books.replace_slices(
        [
            slice_of(
                node,
                *(
                    device(f"gpu-{at}", gib, node=node, shared=shared)
                    for at, gib in enumerate(sizes)
                ),
            )
            for node, sizes in cards.items()
        ]
    )
    books.replace_claims(claims)
    return books


def placer(
    books: ClaimBooks, own_filters: OwnFilters | None = None, policy: Policy = POLICY, **like: str
) -> ClaimPlacer:
    for name, expected in like.items():
        spec = books.ledger.entries_and_specs()[1][expected]
        books.ledger.node_changed(type(spec)(name, spec.capacity, spec.healthy))
    snapshot = books.ledger.snapshot()
    filters = HostFilters(own_filters or OwnFilters(), snapshot.names)
    return ClaimPlacer(snapshot, filters, policy, books=books, matches=always, like=like)


def wants(books: ClaimBooks, *sizes: int, count: int | None = 1, **more: Any) -> PodBatch:
    """Pods with a claim for each of these sizes."""
    for number, gib in enumerate(sizes, 90):
        books.claim_changed(open_claim(number, gib))
    claims = books.requests(pod_with(*range(90, 90 + len(sizes)))).claims
    return PodBatch("p", Request(cpu=1, **more), count, claims=claims)


def test_the_policy_chooses_the_node_and_first_fit_the_device() -> None:
    """The tightest node is b, and on it the first device with room, which is not the tightest."""
    books = books_of(a=(80,), b=(40, 24), c=(48,))
    placing = placer(books)
    assert placing.placed(wants(books, 20)).on == {"b": 1}
    row = placing.view.row["b"]
    assert placing.view.used[row].tolist()[:2] == [20, 0]


def test_pods_are_placed_until_no_node_has_devices() -> None:
    books = books_of(allocated(1, holding("a", "gpu-0", 50)), a=(80,), b=(24,))
    placing = placer(books)
    answer = placing.placed(wants(books, 12, count=None))
    assert (answer.fit, answer.on) == (4, {"b": 2, "a": 2})
    assert answer.reasons == {TOO_FEW: 2}


def test_all_claims_of_a_pod_are_on_one_node_and_may_share_a_device() -> None:
    books = books_of(a=(16,), b=(24,))
    assert placer(books).placed(wants(books, 12, 12)).on == {"b": 1}
    books = books_of(a=(16,), c=(16, 16))
    answer = placer(books).placed(wants(books, 12, 12, count=2))
    assert (answer.on, answer.all_fit) == ({"c": 1}, False)


def test_a_device_that_is_not_shared_is_taken_whole() -> None:
    books = books_of(a=(80,), b=(24,), shared=False)
    answer = placer(books).placed(wants(books, 20, count=3))
    assert (answer.fit, dict(answer.on)) == (2, {"b": 1, "a": 1})


def test_a_group_is_placed_whole_or_not_at_all() -> None:
    books = books_of(a=(24,))
    placing = placer(books)
    first = placing.placed(wants(books, 4))
    gang = placing.placed_at_once([wants(books, 9, count=3)])
    assert (first.fit, gang.fits, gang.results[0].fit) == (1, False, 2)
    assert placing.view.used[placing.view.row["a"]].tolist()[:1] == [4]
    # Only the devices of pods that were taken back are free again.
    assert placing.placed(wants(books, 10, count=None)).fit == 2


def test_a_node_that_comes_has_the_devices_of_the_node_that_it_is_like() -> None:
    books = books_of(allocated(1, holding("a", "gpu-0", 24)), a=(24,))
    placing = placer(books, new="a")
    assert placing.placed(wants(books, 8, count=None)).on == {"new": 3}


def test_a_pod_without_claims_takes_cpu_alone() -> None:
    books = books_of(a=(24,), b=(24,))
    states = NodeStates(NodeState(name, allocatable={"cpu": 2, "pods": 9}) for name in "ab")
    placing = placer(books, OwnFilters(states))
    plain = PodBatch("plain", Request(cpu=2))
    assert placing.placed(plain).fit == 1
    assert placing.placed(wants(books, 8, count=None)).on == {"b": 2}


def test_what_keeps_a_node_from_pods_is_told_before_its_devices() -> None:
    books = books_of(a=(24,), b=(24,))
    states = NodeStates([NodeState("a", cordoned=True), NodeState("b")])
    answer = placer(books, OwnFilters(states)).placed(wants(books, 20, count=3))
    assert answer.reasons == {"cordoned": 1, TOO_FEW: 1}
    config_map = OwnFilters(NodeStates(NodeState(name, cordoned=True) for name in "ab"))
    assert placer(books, config_map).placed(PodBatch("plain", Request(cpu=1))).reasons == {
        "cordoned": 2
    }


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_node_without_modelled_devices_takes_nothing(*, is_gone: bool) -> None:
    books = books_of(a=(24,))
    batches = wants(books, 1)
    snapshot = books.ledger.snapshot()
    if is_gone:
        books.replace_slices([])
    filters = HostFilters(OwnFilters(), snapshot.names)
    placing = ClaimPlacer(snapshot, filters, POLICY, books=books, matches=always, like={})
    assert placing.placed(batches).fit == (not is_gone)


def test_devices_of_other_drivers_count_for_first_fit_and_not_in_units() -> None:
    books = books_of(a=(24,))
    nic = slice_of("a", device("nic-0", 1, node="a", driver="net", shared=False), name="nics")
    books.slice_changed(nic)
    nics = ClaimRecord(
        ref=open_claim(50, 1).ref, is_allocated=False, request=open_claim(1, 1).request
    )
    books.claim_changed(nics)
    placing = placer(books)
    batches = wants(books, 20)
    assert batches.claims is not None
    assert placing.placed(batches).on == {"a": 1}
    # The next one takes the network card: it is all that is left.
    assert placing.placed(
        PodBatch("n", Request(), 2, claims=books.requests(pod_with(50)).claims)
    ).fit
    assert isinstance(batches.claims, PodClaims)
    assert placing.view.used[placing.view.row["a"]].max() <= 24


def test_a_device_that_is_taken_whole_is_scored_by_the_amount_that_is_requested() -> None:
    books = books_of(a=(80,), shared=False)
    claims, devices = wants(books, 20).claims, books.devices("a")
    assert claims is not None
    assert devices is not None
    fit = first_fit(devices, claims, Use(), always, Steps(100))
    assert isinstance(fit, Fit)
    assert [*parts_of(books, "a", fit)] == [(0, 80)]
    assert [*parts_of(books, "a", fit, claims)] == [(0, 20)]


def test_memory_counts_by_its_name_with_a_domain_too() -> None:
    assert memory_units({"memory": 5 * GIB * THOUSANDTHS + 1}, GIB) == 6
    assert memory_units({"shares": 9, f"{DRIVER}/memory": GIB * THOUSANDTHS}, GIB) == 1
    assert memory_units({"shares": 9}, GIB) is None


def test_a_partition_is_scored_by_the_part_of_its_card_that_it_takes() -> None:
    books = ClaimBooks(DRIVER, GIB)
    whole, small = partition("whole", 81920), partition("small", 9728)
    books.replace_slices(partitioned_slices(whole, small, partition("other", 9728, "1")))
    request = open_claim(1, 4).request
    devices = books.devices("n1")
    assert request is not None
    assert devices is not None
    claims = PodClaims((request,))
    for holds, parts in ((frozenset[DeviceKey](), [(0, 80)]), ({whole.key}, [(1, 9)])):
        fit = first_fit(devices, claims, Use(holds), always, Steps(100))
        assert isinstance(fit, Fit)
        assert [*parts_of(books, "n1", fit, claims)] == parts


@pytest.mark.parametrize("name", ["binpack", "spread", "fgd", "shadow-price"])
def test_every_policy_fills_what_first_fit_lets_it(name: str) -> None:
    """Three pods of 8 on each card of 24, whatever the policy says of them."""
    books = books_of(a=(24, 24), b=(24,), c=(24, 24))
    placing = placer(books, policy=load_policy(name))
    answer = placing.placed(wants(books, 8, count=None))
    assert (answer.fit, answer.on) == (15, {"a": 6, "b": 3, "c": 6})
