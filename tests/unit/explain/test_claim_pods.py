"""Pods with claims are placed as the allocator gives them cards: all claims on one node."""

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.dealing import Asked
from gpushare.core.explain import TOGETHER
from gpushare.core.model import Request
from gpushare.core.node_filters import NodeState, amounts_of
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.errors import MessageError
from gpushare.explain.claim_pods import (
    AskedClaim,
    ClaimsUser,
    DealsAsAny,
    asked_of,
    least_dealt,
    user_of,
    wanted_of,
)
from gpushare.explain.claims import explain_claims
from gpushare.explain.placer import Wanted
from gpushare.explain.whatif import CurrentPods, what_if
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.claims import ClaimRequest, Part, nodes_of
from gpushare.wire.dra.counted import DealsInUnits
from gpushare.wire.dra.objects import (
    CLAIMS_PODS,
    RESOURCE_CLAIMS,
    ClaimsPod,
    ResourceClaim,
)
from gpushare.wire.dra.slices import CardDeals, SliceCard, cards_of
from tests.unit.core.clusters import node
from tests.unit.explain.test_whatif import books
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.claims.test_allocator import Process
from tests.unit.wire.dra.objects import GIB, claim, device, exactly, slice_of

POLICY = DeviceBestFit()


def asks(gib: int, devices: int = 1, key: str = "") -> AskedClaim:
    return AskedClaim(Asked(Request(gib, devices), (gib * GIB,) * devices), key)


def user(name: str, *claims: AskedClaim, **more: Any) -> ClaimsUser:
    return ClaimsUser(name, Request(cpu=500), claims, **more)


def test_all_claims_of_a_pod_are_on_one_node_and_may_share_a_card() -> None:
    ledger = books(node("a", 16), node("b", 24))
    (both,) = wanted_of([user("p", asks(8), asks(12))])
    assert (both.request.units, [each.request.units for each in both.also]) == (12, [8])
    (placed,) = what_if(ledger, [both], POLICY).placed
    assert placed.on == {"b": 1}


def test_a_node_that_takes_one_claim_and_not_the_other_takes_neither() -> None:
    ledger = books(node("a", 16), node("b", 16))
    (both,) = wanted_of([user("p", asks(12), asks(8), count=3)])
    found = what_if(ledger, [both, Wanted("16", Request(16, 1), 2)], POLICY)
    assert (found.placed[0].fit, found.placed[0].reasons) == (0, {TOGETHER: 2})
    assert found.placed[1].fit == 2
    assert found.after.free == 0


def test_a_claim_of_several_devices_has_cards_apart_and_another_claim_may_be_beside() -> None:
    (pod,) = wanted_of([user("p", asks(10, devices=2), asks(6))])
    (placed,) = what_if(books(node("a", 16, 10)), [pod], POLICY).placed
    assert placed.fit == 1
    (placed,) = what_if(books(node("a", 32)), [pod], POLICY).placed
    assert placed.fit == 0


def test_pods_that_share_a_claim_are_one_and_it_is_counted_once() -> None:
    users = [
        user("a", asks(8, key="x"), asks(2)),
        user("alone", asks(3)),
        user("b", asks(8, key="x"), asks(4, key="y"), priority=7),
        user("c", asks(4, key="y"), count=2),
    ]
    one, alone = wanted_of(users)
    assert (one.name, one.count, one.priority) == ("a (4 pods that share a claim)", 1, 7)
    assert [each.request.units for each in (one.asked, *one.also)] == [8, 4, 2]
    assert amounts_of(one.request) == {"cpu": 2000, "memory": 0, "pods": 4}
    assert (alone.name, alone.request.units, alone.also) == ("alone", 3, ())


def test_who_joins_two_groups_makes_them_one() -> None:
    users = [user(name, asks(1, key=name)) for name in "ab"]
    (one,) = wanted_of([*users, user("c", asks(1, key="a"), asks(1, key="b"))])
    assert one.name == "a (3 pods that share a claim)"


def test_who_has_all_devices_already_wants_no_place() -> None:
    assert wanted_of([user("p")]) == []


class Source:
    """Claims by name, and templates."""

    unit = GIB

    def __init__(self, **claims: ResourceClaim) -> None:
        self.claims = claims
        self.cards: list[SliceCard] = []

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        assert namespace == "default"
        return self.claims.get(name)

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        return self.named(namespace, name) if name.startswith("t") else None

    def least_dealt(self, memory: int) -> int:
        return least_dealt(self.cards, memory)


def pod(*claims: Mapping[str, str], made: Mapping[str, str | None] | None = None) -> ClaimsPod:
    statuses = [{"name": k, "resourceClaimName": v} for k, v in (made or {}).items()]
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {
            "resourceClaims": [{"name": f"c{at}", **each} for at, each in enumerate(claims)],
            "containers": [{"resources": {"requests": {"cpu": "2"}}}],
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
        "status": {"resourceClaimStatuses": statuses},
    }
    return CLAIMS_PODS.decode(json.dumps(body).encode())


NAMED, TEMPLATE = "resourceClaimName", "resourceClaimTemplateName"


def given_on(node: str) -> dict[str, Any]:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {
        "allocation": {"devices": {"results": []}, "nodeSelector": {"nodeSelectorTerms": terms}}
    }


def test_what_a_pod_wants_by_its_claims() -> None:
    source = Source(mine=claim(exactly("10Gi")), t=claim(exactly("1500Mi", count=2)))
    wants = pod({NAMED: "mine"}, {TEMPLATE: "t"}, {TEMPLATE: "nothing"}, made={"c2": None})
    found = user_of(wants, ALIYUN, source, name="p", namespace="default")
    assert found is not None
    pair = AskedClaim(Asked(Request(2, 2), (1500 * 2**20,) * 2))
    assert found.claims == (asks(10, key="default/mine"), pair)
    assert found.request.cpu == 2000
    # What was made of a template is its own.
    made = user_of(
        pod({TEMPLATE: "t"}, made={"c0": "mine"}), ALIYUN, source, name="p", namespace="default"
    )
    assert made is not None
    assert made.claims == (asks(10),)


def test_what_is_allocated_pins_the_pod_and_of_a_node_that_goes_is_wanted_anew() -> None:
    has = claim(exactly("10Gi"), status=given_on("n2"))
    source = Source(has=has, more=claim(exactly("4Gi")))
    wants = pod({NAMED: "has"}, {NAMED: "more"})
    found = user_of(wants, ALIYUN, source, name="p", namespace="default")
    assert found is not None
    assert [each.key for each in found.claims] == ["default/more"]
    assert found.demands.selects("n2", {})
    assert not found.demands.selects("n1", {})
    assert found.demands.tolerations  # those of the pod
    anew = user_of(wants, ALIYUN, source, name="p", namespace="default", anew=True)
    assert anew is not None
    assert len(anew.claims) == 2
    assert anew.demands.selects("n1", {})


def test_a_pod_without_claims_of_our_class_is_none_of_ours() -> None:
    other = claim(exactly(deviceClassName="other"))
    assert (
        user_of(pod({NAMED: "x"}), ALIYUN, Source(x=other), name="p", namespace="default") is None
    )


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({NAMED: "gone"}, "there is no claim default/gone"),
        ({TEMPLATE: "gone"}, "there is no ResourceClaimTemplate default/gone"),
        ({NAMED: "odd"}, "its claim c0: request gpu of class gpushare.io may have no adminAccess"),
    ],
)
def test_what_cannot_be_counted_is_named(claims: Mapping[str, str], text: str) -> None:
    source = Source(odd=claim(exactly(adminAccess=True)))
    with pytest.raises(MessageError, match=text):
        user_of(pod(claims), ALIYUN, source, name="p", namespace="default")


def test_a_claim_takes_what_the_driver_deals_out() -> None:
    def cards(*policies: Any) -> Any:
        values = [{"value": "80Gi", "requestPolicy": policy} for policy in policies]
        made = [device(n, capacity={"memory": value}) for n, value in enumerate(values)]
        return cards_of([slice_of(*made)]).values()

    steps = {"validRange": {"min": "4Gi", "step": "4Gi"}}
    halves = {"validValues": ["40Gi", "80Gi"]}
    assert least_dealt(cards(steps), 5 * GIB) == 8 * GIB
    assert least_dealt(cards(steps, halves), 5 * GIB) == 8 * GIB
    assert least_dealt(cards(steps, None), 99 * GIB) == 99 * GIB  # no card is so large
    with pytest.raises(MessageError, match="deals out no such amount"):
        least_dealt(cards({"validValues": ["10Gi"]}), 11 * GIB)


def decoded(raw: Any) -> ResourceClaim:
    return RESOURCE_CLAIMS.decode(json.dumps(raw).encode())


HALF = GIB // 2
CARDS = st.lists(
    st.builds(
        lambda gib, policy: {"value": f"{gib}Gi"} | ({"requestPolicy": policy} if policy else {}),
        st.sampled_from((8, 24, 40)),
        st.none()
        | st.builds(
            lambda step, most: {"validRange": {"min": step, "step": step, "max": most}},
            st.integers(1, 24).map(lambda halves: halves * HALF),
            st.sampled_from((6 * GIB, 40 * GIB)),
        )
        | st.just({"validValues": ["1Gi", "10Gi", "20Gi"]}),
    ),
    min_size=1,
    max_size=2,
)
"""The cards of a node by their memory, each dealt out by a policy of its own."""


@settings(max_examples=60, deadline=None)
@given(
    st.lists(CARDS, min_size=1, max_size=3),
    st.lists(
        st.lists(st.tuples(st.integers(1, 60), st.integers(1, 2)), min_size=1, max_size=3),
        min_size=1,
        max_size=6,
    ),
)
def test_who_fits_is_who_the_allocator_gives_cards(
    nodes: list[list[Any]], pods: list[list[tuple[int, int]]]
) -> None:
    """One pod after the other, on a real allocator and its store; amounts in halves of a GiB."""
    slices = [
        slice_of(
            *(device(10 * at + n, capacity={"memory": each}) for n, each in enumerate(cards)),
            node=f"n{at}",
        )
        for at, cards in enumerate(nodes)
    ]
    store = ClaimStore()
    process = Process(store, *slices)
    for at in range(len(nodes)):
        process.resources.node_states.put(NodeState(f"n{at}"))
    source = Source()
    source.cards = [*cards_of(slices).values()]
    users, able = [], []
    for number, claims in enumerate(pods):
        wanted = [ClaimRequest((Part("gpu", halves * HALF),) * k) for halves, k in claims]
        try:
            asked = tuple(AskedClaim(asked_of(each, source)) for each in wanted)
        except MessageError:
            continue
        able.append(number)
        users.append(ClaimsUser(f"default/p{number}", Request(), asked))
    fresh = Process(ClaimStore(), *slices).books.ledger
    current = CurrentPods({}, wanted_of(users))
    found = what_if(fresh, [], POLICY, own=process.view.source.filters, current=current)
    told = dict(zip(able, found.waiting, strict=True))
    for number, claims in enumerate(pods):
        names = [f"{number}-{at}" for at in range(len(claims))]
        for name, (halves, devices) in zip(names, claims, strict=True):
            memory = {"requests": {"memory": f"{halves * 512}Mi"}}
            store.create(name, 1, count=devices, capacity=memory)
        waits = waiting_pod(f"p{number}", *names)
        process.show()
        said = explain_claims(waits, process.books, process.view.nodes, "GiB").explanation
        process.waits(waits)
        process.round()
        process.show()
        status = [decoded(store.claims[name]).status for name in names]
        given = [each.allocation for each in status if each and each.allocation]
        assert (len(given) == len(names)) == (number in told and told[number].fit == 1)
        assert said
        assert bool(given) == bool(said.fit)
        for each in given:
            assert nodes_of(each) <= {*said.fit}
        for name, count in told[number].on.items() if number in told else ():
            assert count == 1
            assert {name} == {*chain.from_iterable(nodes_of(each) for each in given)}
        process.waits()
    assert process.books.ledger.snapshot().used.sum() == found.before.free - found.after.free


def test_of_cards_of_which_nothing_is_known_a_claim_takes_the_most_of_any() -> None:
    steps = CardDeals(80 * GIB, None, 4 * GIB, 4 * GIB, 80 * GIB)
    halves = CardDeals(24 * GIB, (10 * GIB, 20 * GIB), 0, 1, 24 * GIB)
    deals = DealsAsAny(frozenset(DealsInUnits(each, GIB) for each in (steps, halves)), GIB)
    taken = {5: 10, 11: 20, 21: 24, 81: 81}
    assert {asked: deals.takes(asked * GIB) for asked in taken} == taken
    assert [deals.most(units) for units in (9, 12, 30, 100)] == [0, 10, 28, 100]
