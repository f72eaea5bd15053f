"""Amounts that policies accept, nodes of slices, taint rules, and claims as keys."""

import pytest

from gpushare.core.claims.model import (
    Capacity,
    ClaimRequest,
    ClassRecord,
    DeviceKey,
    NodeChoice,
    PodClaims,
    RequestPolicy,
    TaintRule,
)
from gpushare.core.selectors import NodeSelectorTerm, Requirement, Taint
from tests.unit.core.claims.values import choice, claims, request, wish


@pytest.mark.parametrize(
    ("policy", "requested", "consumed"),
    [
        (None, None, 80),
        (None, 30, 30),
        (None, 81, None),
        (RequestPolicy(default=10), None, 10),
        (RequestPolicy(), None, 80),
        (RequestPolicy(), 7, 7),
        (RequestPolicy(default=8, values=(2, 8, 90)), None, 8),
        (RequestPolicy(default=8, values=(2, 8, 90)), 1, 2),
        (RequestPolicy(default=8, values=(2, 8, 90)), 3, 8),
        (RequestPolicy(default=8, values=(2, 8, 90)), 9, None),
        (RequestPolicy(default=8, values=(2, 8)), 9, None),
        (RequestPolicy(default=4, minimum=4, step=4), 1, 4),
        (RequestPolicy(default=9, minimum=9, step=4), 1, 9),
        (RequestPolicy(default=9, minimum=9), 1, 9),
        (RequestPolicy(default=4, minimum=4, step=4), 4, 4),
        (RequestPolicy(default=4, minimum=4, step=4), 5, 8),
        (RequestPolicy(default=4, minimum=4, step=4), 79, 80),
        (RequestPolicy(default=2, minimum=1, maximum=16, step=5), 12, 16),
        (RequestPolicy(default=2, minimum=1, maximum=16, step=5), 17, None),
        (RequestPolicy(default=2, minimum=1, maximum=16), 13, 13),
        (RequestPolicy(default=2, minimum=1), 13, 13),
        (RequestPolicy(minimum=3, step=4), None, None),
    ],
)
def test_a_request_consumes_the_next_amount_that_the_policy_accepts(
    policy: RequestPolicy | None, requested: int | None, consumed: int | None
) -> None:
    assert Capacity(80, policy).consumed(requested) == consumed


def test_a_slice_is_for_the_node_it_names_for_all_or_for_those_that_it_selects() -> None:
    term = NodeSelectorTerm((Requirement("zone", "In", ("a",)),))
    assert NodeChoice("n").matches("n", {})
    assert not NodeChoice("n", all_nodes=True).matches("m", {})
    assert NodeChoice(all_nodes=True).matches("m", {})
    assert NodeChoice(terms=(term,)).matches("m", {"zone": "a"})
    assert not NodeChoice(terms=(term,)).matches("m", {"zone": "b"})
    assert not NodeChoice().matches("m", {})


def test_a_taint_rule_applies_to_the_devices_that_match_all_it_names() -> None:
    taint = Taint("a", "", "NoSchedule")
    device_key = DeviceKey("gpu", "pool", "d")
    assert TaintRule(taint).applies_to(device_key)
    assert TaintRule(taint, "gpu", "pool", "d").applies_to(device_key)
    for rule in (
        TaintRule(taint, driver="nic"),
        TaintRule(taint, pool="other"),
        TaintRule(taint, device="e"),
    ):
        assert not rule.applies_to(device_key)


def test_the_selectors_of_the_class_come_before_those_of_the_request() -> None:
    one = request(device_class="c", selectors=("mine",))
    claim_request = ClaimRequest((one, choice("s", wish("s/a", device_class="d"))))
    known_items = {"c": ClassRecord("c", ("ours",)), "d": ClassRecord("d", ("theirs",))}
    whole = claim_request.with_classes(known_items)
    assert whole is not None
    assert [r.alternatives[0].selectors for r in whole.requests] == [("ours", "mine"), ("theirs",)]
    assert whole.requests[1].is_choice
    assert claim_request.with_classes({"c": known_items["c"]}) is None


def test_claims_that_ask_for_the_same_are_one_key() -> None:
    one, same = claims(request(count=2)), claims(request(count=2))
    assert one == same
    assert one == one  # noqa: PLR0124
    assert hash(one) == hash(same)
    assert one != claims(request(count=3))
    assert one != "claims"
    assert len({one, same, PodClaims(())}) == 2
