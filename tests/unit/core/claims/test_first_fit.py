"""First fit takes the devices that kube-scheduler would take.

The cases of `tests/data/first_fit.jsonl` have the answers of kube-scheduler's own allocator.
"""

from itertools import repeat

import pytest

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import (
    Attribute,
    Capacity,
    ClaimRequest,
    Constraint,
    CounterUse,
    Fit,
    NodeDevices,
    NoFit,
    PodClaims,
    PoolState,
    RequestPolicy,
    Use,
)
from gpushare.core.selectors import Taint, Toleration
from tests.unit.core.claims.values import (
    broken,
    choice,
    claims,
    counted,
    device,
    key,
    matcher,
    names,
    node,
    request,
    shared,
    valued,
    wish,
)

FEW = NoFit.TOO_FEW_DEVICES


def fit_of(devices: NodeDevices, pod_claims: PodClaims, use: Use | None = None) -> Fit:
    fit = first_fit(devices, pod_claims, use or Use(), matcher({}), Steps(1000))
    assert isinstance(fit, Fit)
    return fit


def held(**shares: int) -> Use:
    return Use(frozenset(), {key(name): {"memory": amount} for name, amount in shares.items()})


# -- which devices --------------------------------------------------------------------------------


def test_the_first_devices_that_are_free_are_taken() -> None:
    three = node(device("a"), device("b"), device("c"))
    assert names(three, claims(request())) == "a"
    assert names(three, claims(request(count=2)), Use({key("a")})) == "b c"
    assert names(three, claims(request(count=3)), Use({key("a")})) is FEW
    assert names(three, PodClaims(())) == ""


def test_a_device_has_to_match_the_selectors() -> None:
    verdicts = {"big": {"a": False, "b": True, "c": True}, "new": {"b": False, "c": True}}
    three = node(device("a"), device("b"), device("c"))
    assert names(three, claims(request(selectors=("big",))), verdicts=verdicts) == "b"
    assert names(three, claims(request(selectors=("big", "new"))), verdicts=verdicts) == "c"


def test_requests_and_claims_have_devices_of_their_own_in_their_order() -> None:
    three = node(device("a"), device("b"), device("c"))
    assert names(three, claims(request("r"), request("s"))) == "a b"
    two = PodClaims((ClaimRequest((request(),)), ClaimRequest((request(count=2),))))
    fit = fit_of(three, two)
    assert [(t.claim, t.request, t.device.key.device) for t in fit.taken] == [
        (0, "r", "a"),
        (1, "r", "b"),
        (1, "r", "c"),
    ]


def test_a_device_is_left_for_a_later_request_that_nothing_else_serves() -> None:
    verdicts = {"only a": {"a": True, "b": False}}
    two = node(device("a"), device("b"))
    assert names(
        two, claims(request("r"), request("s", selectors=("only a",))), verdicts=verdicts
    ) == ("b a")
    separate = PodClaims(
        (ClaimRequest((request(),)), ClaimRequest((request(selectors=("only a",)),)))
    )
    assert names(two, separate, verdicts=verdicts) == "b a"


def test_pools_are_tried_in_order_and_broken_ones_left_out() -> None:
    good = node(device("a")).pools
    assert names(NodeDevices((broken(PoolState.INCOMPLETE), *good)), claims(request())) == "a"
    assert names(NodeDevices((broken(PoolState.INVALID),)), claims(request())) is FEW


# -- amounts --------------------------------------------------------------------------------------


def test_a_shared_device_is_taken_while_each_capacity_has_room() -> None:
    two = node(shared("a", 80), shared("b", 40))
    assert names(two, claims(request(memory=30)), held(a=50)) == "a"
    assert names(two, claims(request(memory=30)), held(a=51)) == "b"
    assert names(two, claims(request(memory=30)), held(a=51, b=11)) is FEW
    assert fit_of(two, claims(request(memory=30))).taken[0].consumed == {"memory": 30}


def test_a_request_without_an_amount_takes_the_default_or_all() -> None:
    default = device(
        "b", is_shared=True, capacities={"memory": Capacity(80, RequestPolicy(default=10))}
    )
    two = node(shared("a"), default)
    assert names(two, claims(request()), held(a=1)) == "b"
    assert fit_of(two, claims(request()), held(a=1)).taken[0].consumed == {"memory": 10}
    assert fit_of(two, claims(request())).taken[0].consumed == {"memory": 80}


def test_amounts_of_one_pod_add_up() -> None:
    one = node(shared("a", 80))
    assert names(one, claims(request("r", memory=40), request("s", memory=40))) == "a a"
    assert names(one, claims(request("r", memory=40), request("s", memory=41))) is FEW
    assert names(one, claims(request("r", memory=40), request("s", memory=40)), held(a=1)) is FEW
    assert names(one, claims(request(count=2, memory=10))) is FEW


def test_a_share_that_is_given_back_leaves_the_other_shares() -> None:
    one = node(shared("a", 80))
    parts = [request(name, memory=40) for name in "rs"]
    expected = claims(*parts, choice("t", wish("t/a", amounts=(("memory", 1),))))
    assert names(one, expected) is FEW


def test_an_exclusive_device_has_to_have_the_amount() -> None:
    two = node(device("a", 40), device("b", 80))
    assert names(two, claims(request(memory=50))) == "b"
    assert fit_of(two, claims(request(memory=50))).taken[0].consumed is None
    assert names(two, claims(request(memory=90))) is FEW


def test_a_device_without_the_capacity_is_passed_over() -> None:
    assert names(node(device("a"), device("b", 80)), claims(request(memory=1))) == "b"


def test_a_device_that_was_shared_is_not_given_whole_while_shares_are_held() -> None:
    assert names(node(device("a", 80)), claims(request()), held(a=10)) is FEW


def test_a_shared_device_that_a_claim_holds_whole_is_in_use() -> None:
    assert names(node(shared("a")), claims(request(memory=1)), Use({key("a")})) is FEW


# -- all devices ----------------------------------------------------------------------------------


def test_a_request_for_all_takes_all_that_match() -> None:
    verdicts = {"big": {"a": True, "b": False, "c": True}}
    three = node(device("a"), device("b"), device("c"))
    all_items = claims(request(count=None, selectors=("big",)))
    assert names(three, all_items, verdicts=verdicts) == "a c"
    assert names(three, all_items, Use({key("c")}), verdicts) is FEW
    assert names(three, all_items, Use({key("b")}), verdicts) == "a c"


def test_a_request_for_all_needs_one_device_and_complete_pools() -> None:
    assert names(node(), claims(request(count=None))) is FEW
    good = node(device("a")).pools
    for state in (PoolState.INCOMPLETE, PoolState.INVALID):
        devices = NodeDevices((*good, broken(state)))
        assert names(devices, claims(request(count=None))) is NoFit.ERROR


def test_all_are_those_whose_capacity_is_enough_even_if_it_is_not_left() -> None:
    two = node(shared("a", 80), shared("b", 20))
    all_items = claims(request(count=None, memory=30))
    assert names(two, all_items) == "a"
    assert names(two, all_items, held(a=60)) is FEW


def test_all_devices_have_to_be_tolerated_and_free() -> None:
    tainted = device("a", taints=(Taint("k", "", "NoSchedule"),))
    assert names(node(tainted), claims(request(count=None))) is FEW
    assert names(node(device("a")), claims(request("r"), request("s", count=None))) is FEW


def test_a_later_request_that_does_not_fit_gives_all_devices_back() -> None:
    two = node(device("a"), device("b"))
    expected = claims(
        choice("r", wish("r/all", count=None), wish("r/one", count=1)), request("s", count=1)
    )
    assert names(two, expected) == "a b"
    assert [item.request for item in fit_of(two, expected).taken] == ["r/one", "s"]


# -- alternatives ---------------------------------------------------------------------------------


def test_the_first_alternative_that_works_is_taken() -> None:
    expected = claims(choice("r", wish("r/many", count=3), wish("r/few", count=2)))
    assert names(node(device("a"), device("b"), device("c")), expected) == "a b c"
    assert names(node(device("a"), device("b")), expected) == "a b"
    assert names(node(device("a")), expected) is FEW


def test_more_results_than_a_claim_can_have_are_an_error() -> None:
    forty = node(*(device(f"d{i:02}") for i in range(40)))
    assert names(forty, claims(request(count=33))) is NoFit.ERROR
    assert isinstance(names(forty, claims(request(count=32))), str)
    alternatives = (wish("r/a", count=33), wish("r/b", count=1))
    assert names(forty, claims(choice("r", *alternatives))) == "d00"
    # Whatever the first request takes, the second does not fit in what is left of the claim.
    late = claims(request("r", count=20), choice("s", wish("s/a", count=20), wish("s/b", count=12)))
    assert names(forty, late) == " ".join(f"d{i:02}" for i in range(32))
    never = claims(choice("r", wish("r/a", count=33), wish("r/b", count=34)))
    assert names(forty, never) is NoFit.ERROR


def test_no_other_devices_are_tried_for_a_request_that_leaves_too_few_results() -> None:
    forty = node(*(device(f"d{i:02}") for i in range(40)))
    expected = claims(
        choice("r", wish("r/a", count=20), wish("r/b", count=19)), request("s", count=13)
    )
    assert names(forty, expected, steps=20 + 19 + 19 + 13) == " ".join(
        f"d{i:02}" for i in range(32)
    )


# -- constraints ----------------------------------------------------------------------------------

SAME = Constraint("gpu/root")
OTHER = Constraint("gpu/root", is_distinct=True)


def test_devices_have_equal_or_distinct_attributes() -> None:
    four = node(device("x"), valued("a", root="1"), valued("b", root="2"), valued("c", root="2"))
    assert names(four, claims(request(count=2), constraints=(SAME,))) == "b c"
    assert names(four, claims(request(count=2), constraints=(OTHER,))) == "a b"
    assert names(four, claims(request(count=3), constraints=(OTHER,))) is FEW
    assert names(four, claims(request(count=2), constraints=(SAME, OTHER))) is FEW


def test_values_of_different_kinds_are_different() -> None:
    mixed = node(
        valued("a", "int", root=1), valued("b", "bool", root=True), valued("c", "int", root=1)
    )
    assert names(mixed, claims(request(count=2), constraints=(SAME,))) == "a c"
    assert names(mixed, claims(request(count=2), constraints=(OTHER,))) == "a b"


@pytest.mark.parametrize("constraint", [SAME, OTHER])
def test_a_value_of_an_unknown_kind_stands_alone(constraint: Constraint) -> None:
    odd = node(valued("a", "", root=""), valued("b", "", root=""))
    assert names(odd, claims(request(), constraints=(constraint,))) == "a"
    assert names(odd, claims(request(count=2), constraints=(constraint,))) is FEW


def test_a_constraint_can_be_for_some_requests_alone() -> None:
    three = node(valued("a", root="1"), valued("b", root="2"), valued("c", root="1"))
    some = Constraint("gpu/root", requests=frozenset({"r", "t/one"}))
    expected = claims(
        request("r"), request("s"), choice("t", wish("t/one"), wish("t/two")), constraints=(some,)
    )
    assert names(three, expected) == "a b c"
    constraint = Constraint("gpu/root", requests=frozenset({"t"}))
    assert names(
        three, claims(request("r"), choice("t", wish("t/one")), constraints=(constraint,))
    ) == ("a b")


def test_a_constraint_that_refuses_one_of_all_devices_is_an_error() -> None:
    two = node(valued("a", root="1"), valued("b", root="2"))
    expected = claims(choice("r", wish("r/all", count=None), wish("r/one")), constraints=(SAME,))
    assert names(two, expected) is NoFit.ERROR


def test_refused_devices_leave_no_value_behind() -> None:
    both = (SAME, Constraint("gpu/numa"))
    three = node(
        valued("a", root="1", numa="0"),
        valued("b", root="1", numa="1"),
        valued("c", root="1", numa="0"),
    )
    assert names(three, claims(request(count=2), constraints=both)) == "a c"


# -- taints ---------------------------------------------------------------------------------------


def test_a_taint_has_to_be_tolerated() -> None:
    taint = Taint("k", "v", "NoSchedule")
    two = node(device("a", taints=(taint,)), device("b"))
    assert names(two, claims(request())) == "b"
    tolerations = (Toleration("k", "Exists"),)
    assert names(two, claims(request(tolerations=tolerations))) == "a"
    mild = node(device("a", taints=(Taint("k", "v", "None"),)))
    assert names(mild, claims(request())) == "a"


# -- administrators -------------------------------------------------------------------------------


def test_admin_access_takes_devices_in_use_but_none_twice_in_a_claim() -> None:
    two = node(device("a"), device("b"))
    admin = request("r", has_admin_access=True)
    assert names(two, claims(admin), Use({key("a"), key("b")})) == "a"
    assert names(two, claims(admin, request("s", has_admin_access=True))) == "a b"
    all_items = claims(admin, request("s", count=None, has_admin_access=True))
    assert names(two, all_items) is FEW
    twice = PodClaims((ClaimRequest((admin,)), ClaimRequest((admin,))))
    assert names(two, twice) == "a a"
    assert fit_of(two, claims(admin)).taken[0].has_admin_access


def test_a_device_with_admin_access_is_not_given_to_the_same_pod_again() -> None:
    expected = claims(request("r", has_admin_access=True), request("s"))
    assert names(node(device("a"), device("b")), expected) == "a b"


# -- counters -------------------------------------------------------------------------------------


def test_devices_share_counters_with_those_in_use() -> None:
    parts = (counted("whole", 7), counted("half", 4), counted("small", 1))
    card = node(*parts, counters={"set": {"slices": 7}})
    assert names(card, claims(request())) == "whole"
    assert names(card, claims(request()), Use({key("small")})) == "half"
    assert names(card, claims(request()), Use({key("half"), key("small")})) is FEW
    assert names(card, claims(request(count=2))) == "half small"
    assert names(card, claims(request(count=3))) is FEW


def test_devices_of_other_nodes_consume_the_counters_of_their_pool() -> None:
    card = node(
        counted("a", 4),
        counters={"set": {"slices": 7}},
        devices_elsewhere=(counted("b", 4), counted("c", 3)),
    )
    assert names(card, claims(request())) == "a"
    assert names(card, claims(request()), Use({key("c")})) == "a"
    assert names(card, claims(request()), Use({key("b")})) is FEW


def test_nothing_counted_is_allocated_while_any_counter_is_below_zero() -> None:
    card = node(
        counted("a", 1),
        device("b"),
        counters={"set": {"slices": 7, "other": 1}},
        devices_elsewhere=(counted("c", 2, "other"),),
    )
    assert names(card, claims(request())) == "a"
    assert names(card, claims(request()), Use({key("c")})) == "b"


def test_a_further_share_of_a_device_takes_no_more_of_the_counters() -> None:
    counters = (CounterUse("set", "slices", 7),)
    card = node(shared("a", 80, counters=counters), counters={"set": {"slices": 7}})
    assert names(card, claims(request(memory=10)), held(a=10)) == "a"
    assert names(card, claims(request("r", memory=10), request("s", memory=10))) == "a a"


def test_counters_are_given_back_when_the_search_turns() -> None:
    verdicts = {"whole": {"half": False, "whole": True}}
    card = node(counted("half", 4), counted("whole", 7), counters={"set": {"slices": 7}})
    expected = claims(request("r"), request("s", selectors=("whole",)))
    assert names(card, expected, verdicts=verdicts) is FEW
    either = claims(choice("r", wish("r/two", count=2), wish("r/one", selectors=("whole",))))
    assert names(card, either, verdicts=verdicts) == "whole"


# -- bounds ---------------------------------------------------------------------------------------


def test_the_search_ends_after_the_steps_it_may_take() -> None:
    twenty = node(*(valued(f"d{i:02}", root=str(i % 3)) for i in range(20)))
    expected = claims(request(count=10), constraints=(SAME,))
    steps = Steps(500)
    assert first_fit(twenty, expected, Use(), matcher({}), steps) is NoFit.NOT_MODELLED
    assert steps.left < 0
    steps = Steps(500)
    first_fit(twenty, claims(request(count=3)), Use(), matcher({}), steps)
    assert steps.left == 497


def test_the_search_of_all_devices_counts_steps_too() -> None:
    ten = node(*(device(f"d{i}") for i in range(10)))
    assert names(ten, claims(request(count=None)), steps=5) is NoFit.NOT_MODELLED
    assert names(ten, claims(request(count=None)), steps=15) is NoFit.NOT_MODELLED


def test_a_pod_with_very_many_devices_is_not_modelled() -> None:
    many = node(*(device(f"d{i:03}") for i in range(640)))
    claim_request = ClaimRequest((request(count=32),))
    assert names(many, PodClaims(tuple(repeat(claim_request, 20)))) is NoFit.NOT_MODELLED
    assert isinstance(names(many, PodClaims(tuple(repeat(claim_request, 12)))), str)


# -- afterwards -----------------------------------------------------------------------------------


def test_the_use_after_a_fit_holds_its_devices() -> None:
    devices = node(
        device("a"), shared("b"), shared("c", 10, attributes={"gpu/x": Attribute("int", 1)})
    )
    expected = claims(request("r"), request("s", memory=30), request("t", memory=20))
    before = Use({key("z")}, {key("b"): {"memory": 10}})
    after = before.plus(fit_of(devices, expected, before).holdings())
    assert after.exclusive == {key("a"), key("z")}
    assert after.shares == {key("b"): {"memory": 60}}
    assert before == Use({key("z")}, {key("b"): {"memory": 10}})


def test_admin_access_holds_nothing_afterwards() -> None:
    expected = claims(request(has_admin_access=True))
    assert not [*fit_of(node(device("a")), expected).holdings()]
