"""The books of claims: charges by node, and incremental states that equal rebuilt ones."""

import random
import threading
from dataclasses import replace

import pytest

from gpushare.core.claims.model import (
    THOUSANDTHS,
    Attribute,
    ClassRecord,
    Device,
    DeviceKey,
    Holding,
    NodeChoice,
    Slice,
    TaintRule,
)
from gpushare.core.model import PodRef
from gpushare.core.selectors import NodeSelectorTerm, Requirement, Taint
from gpushare.explain.claim_books import MAX_NODE_WEIGHT, ClaimBooks
from gpushare.explain.claim_records import ClaimRecord, claim_names, claim_record
from gpushare.wire.dra.objects import RESOURCE_CLAIMS, ResourceClaim
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


@pytest.fixture(name="books")
def _books() -> ClaimBooks:
    books = ClaimBooks(DRIVER, GIB)
    books.replace_classes([ClassRecord("gpu", ("device.driver == 'gpu.example.com'",))])
    return books


def used(books: ClaimBooks, node: str) -> list[int]:
    snapshot = books.ledger.snapshot()
    units: list[int] = snapshot.used[snapshot.row[node]].tolist()
    return units


def free(books: ClaimBooks, node: str) -> list[int]:
    snapshot = books.ledger.snapshot()
    units: list[int] = snapshot.free[snapshot.row[node]].tolist()
    return units


def test_a_claim_counts_on_its_cards_from_the_first_sight_of_either(books: ClaimBooks) -> None:
    books.claim_changed(allocated(1, holding("n1", "gpu-0", 10), holding("n1", "gpu-1", None)))
    books.slice_changed(slice_of("n1", device("gpu-0", 40), device("gpu-1", 80)))
    assert used(books, "n1") == [10, 80]
    books.claim_changed(allocated(2, holding("n1", "gpu-0", 5)))
    assert used(books, "n1") == [15, 80]
    assert {c.ref.name for c in books.holders(DeviceKey(DRIVER, "n1", "gpu-0"))} == {
        "claim-1",
        "claim-2",
    }
    books.claim_gone("claim-uid-1")
    assert used(books, "n1") == [5, 0]


def test_part_of_a_unit_counts_as_a_unit_and_no_claim_has_more_than_the_card(
    books: ClaimBooks,
) -> None:
    books.slice_changed(slice_of("n1", device("gpu-0", 40)))
    part = Holding(DeviceKey(DRIVER, "n1", "gpu-0"), {"memory": GIB * THOUSANDTHS + 1})
    books.claim_changed(allocated(1, part))
    assert used(books, "n1") == [2]
    books.claim_changed(allocated(1, holding("n1", "gpu-0", 999)))
    assert used(books, "n1") == [40]


def test_other_drivers_count_for_first_fit_and_not_in_the_ledger(books: ClaimBooks) -> None:
    nic = device("nic-0", 1, driver="nic.example.com", shared=False)
    books.slice_changed(slice_of("n1", device("gpu-0", 40)))
    books.slice_changed(slice_of("n1", nic))
    before = books.versions["n1"]
    books.claim_changed(allocated(1, Holding(nic.key, None)))
    assert books.versions["n1"] != before
    assert books.use("n1").exclusive == {nic.key}
    assert used(books, "n1") == [0]
    assert books.allocated() == {}


def test_a_tainted_card_is_closed_in_the_ledger(books: ClaimBooks) -> None:
    books.slice_changed(slice_of("n1", device("gpu-0", 40), device("gpu-1", 40)))
    rule = TaintRule(Taint("bad", "", "NoExecute"), DRIVER, "n1", "gpu-1")
    books.rule_changed("rule", rule)
    assert free(books, "n1") == [40, 0]
    books.rule_changed("rule", replace(rule, taint=Taint("bad", "", "None")))
    assert free(books, "n1") == [40, 40]
    books.rule_changed("rule", rule)
    books.rule_changed("rule", None)
    assert free(books, "n1") == [40, 40]


def test_partitions_of_a_card_count_as_parts_of_it(books: ClaimBooks) -> None:
    names = {"gpu-0": 81920, "gpu-0-mig-1": 9728, "gpu-0-mig-3": 40192}
    devices = [partition(name, mebibytes) for name, mebibytes in names.items()]
    second_one = partition("gpu-1-mig-1", 9728, "1")
    for item in partitioned_slices(*devices, second_one):
        books.slice_changed(item)
    snapshot = books.ledger.snapshot()
    assert snapshot.capacity[snapshot.row["n1"]].tolist() == [80, 80]
    books.claim_changed(allocated(1, holding("n1", "gpu-0-mig-1", None)))
    books.claim_changed(allocated(2, holding("n1", "gpu-0-mig-3", None)))
    assert used(books, "n1") == [9 + 39, 0]
    first, second = books.card(devices[2].key), books.card(second_one.key)
    assert first is not None
    assert second is not None
    assert (first.key, first.uuid, first.is_shared) == (devices[0].key, "GPU-0", True)
    assert (second.key, second.index, second.is_shared) == (second_one.key, 1, False)
    books.claim_gone("claim-uid-1")
    books.claim_changed(allocated(2, holding("n1", "gpu-0", None)))
    assert used(books, "n1") == [80, 0]
    books.slice_gone("devices-n1")
    assert books.card(devices[2].key) is None


def test_a_card_is_closed_once_all_its_partitions_are_tainted(books: ClaimBooks) -> None:
    taints = (Taint("bad", "", "NoSchedule"),)
    for item in partitioned_slices(
        partition("a", 9728, taints=taints),
        partition("b", 9728),
        partition("c", 9728, "1", taints=taints),
    ):
        books.slice_changed(item)
    assert free(books, "n1") == [80, 0]


def test_a_node_without_slices_is_gone_and_its_claims_count_again_when_it_is_back(
    books: ClaimBooks,
) -> None:
    item = slice_of("n1", device("gpu-0", 40))
    books.slice_changed(item)
    books.claim_changed(allocated(1, holding("n1", "gpu-0", 10)))
    first = books.versions["n1"]
    books.slice_gone(item.name)
    assert books.nodes() == ()
    assert "n1" not in books.versions
    assert not books.ledger.has_node("n1")
    books.slice_changed(item)
    assert used(books, "n1") == [10]
    assert books.versions["n1"] != first


def test_the_nodes_that_changed_since_a_version_are_told(books: ClaimBooks) -> None:
    for node in ("n1", "n2", "n3"):
        books.slice_changed(slice_of(node, device("gpu-0", 40, node=node)))
    version, changed_nodes = books.changed_since(-1)
    assert sorted(changed_nodes) == ["n1", "n2", "n3"]
    assert books.changed_since(version) == (version, [])
    books.claim_changed(allocated(1, holding("n2", "gpu-0", 10)))
    books.touch("n1")
    books.touch("unknown")
    later_version, changed_nodes = books.changed_since(version)
    assert sorted(changed_nodes) == ["n1", "n2"]
    books.slice_gone(f"slice-{DRIVER}-n1")
    books.slice_changed(slice_of("n3", device("gpu-0", 80, node="n3")))
    assert books.changed_since(later_version)[1] == ["n3"]


def test_requests_are_those_of_claims_without_an_allocation(books: ClaimBooks) -> None:
    books.claim_changed(open_claim(1, 10))
    books.claim_changed(allocated(2))
    requests = books.requests(pod_with(1, 2))
    assert requests.uids == ("claim-uid-1",)
    (claim,) = requests.claims.claims
    assert claim.requests[0].alternatives[0].selectors == ("device.driver == 'gpu.example.com'",)
    assert books.requests(pod_with(1)).claims == requests.claims
    assert hash(books.requests(pod_with(1)).claims) == hash(requests.claims)


def test_a_claim_that_is_not_shown_is_missing_until_it_is(books: ClaimBooks) -> None:
    assert books.requests(pod_with(1)).missing == ("claim-1",)
    books.await_claims("default", ("claim-1",), 0.0)
    books.claim_changed(open_claim(1, 10))
    books.await_claims("default", ("claim-1",), 60.0)
    assert books.requests(pod_with(1)).missing == ()


def test_who_waits_for_a_claim_goes_on_when_it_is_shown(books: ClaimBooks) -> None:
    waiter = threading.Thread(
        target=books.await_claims, args=("default", ("claim-1", "claim-2"), 60.0), daemon=True
    )
    waiter.start()
    books.claim_changed(open_claim(1, 10))
    waiter.join(0.05)
    assert waiter.is_alive()
    books.claim_changed(open_claim(2, 10))
    waiter.join(30.0)
    assert not waiter.is_alive()


def test_a_claim_of_the_same_name_is_another_one(books: ClaimBooks) -> None:
    books.claim_changed(open_claim(1, 10))
    again = replace(open_claim(1, 20), ref=PodRef("default", "claim-1", "another"))
    books.claim_changed(again)
    books.claim_gone("claim-uid-1")
    assert books.named("default", "claim-1") == again
    books.claim_gone("another")
    assert books.named("default", "claim-1") is None


def test_a_claim_without_its_class_is_not_modelled(books: ClaimBooks) -> None:
    books.claim_changed(open_claim(1, 10))
    books.class_changed("gpu", None)
    requests = books.requests(pod_with(1))
    assert not requests.claims.claims
    assert "DeviceClass" in requests.mistake


def test_names_of_claims_come_from_the_status_for_templates() -> None:
    body = {
        "metadata": {"namespace": "default", "name": "pod", "uid": "u"},
        "spec": {
            "resourceClaims": [
                {"name": "a", "resourceClaimName": "direct"},
                {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"},
            ]
        },
    }
    assert claim_names(decoded(body)) is None
    statuses = [{"name": "b", "resourceClaimName": "made"}, {"name": "c"}]
    body |= {"status": {"resourceClaimStatuses": statuses}}
    assert claim_names(decoded(body)) == ("direct", "made")


def test_a_node_with_too_much_is_not_modelled_and_costs_others_nothing(books: ClaimBooks) -> None:
    books.slice_changed(slice_of("n2", device("gpu-0", 40, node="n2")))
    fat = Device(
        key=DeviceKey(DRIVER, "n1", "fat"),
        attributes={f"a/{i}": Attribute("int", i) for i in range(MAX_NODE_WEIGHT)},
    )
    books.slice_changed(slice_of("n1", device("gpu-0", 40)))
    books.slice_changed(slice_of("n1", fat, name="fat"))
    assert books.nodes() == ("n2",)
    assert books.unmodelled_nodes() == ("n1",)
    books.slice_gone("fat")
    assert set(books.nodes()) == {"n1", "n2"}
    assert books.unmodelled_nodes() == ()


def test_a_slice_completes_its_pool_on_other_nodes(books: ClaimBooks) -> None:
    first, second = (
        replace(slice_of(node, device(f"gpu-{node}", 40, node="rack")), pool="rack", slice_count=2)
        for node in ("n1", "n2")
    )
    books.slice_changed(first)
    assert not books.ledger.has_node("n1")
    books.slice_changed(second)
    assert used(books, "n1") == [0]
    books.slice_gone(second.name)
    assert not books.ledger.has_node("n1")


def test_random_changes_leave_what_a_rebuilt_state_has() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        books = ClaimBooks(DRIVER, GIB)
        slices: dict[str, Slice] = {}
        claims: dict[str, ClaimRecord] = {}
        rules: dict[str, TaintRule] = {}
        for _ in range(60):
            node = f"n{chance.randrange(4)}"
            match chance.randrange(7):
                case 0 | 1:
                    item = _random_slice(chance, node)
                    slices[item.name] = item
                    books.slice_changed(item)
                case 2 if slices:
                    name = chance.choice(sorted(slices))
                    del slices[name]
                    books.slice_gone(name)
                case 3 | 4:
                    claim = _random_claim(chance)
                    claims[claim.ref.uid] = claim
                    books.claim_changed(claim)
                case 5 if claims:
                    uid = chance.choice(sorted(claims))
                    del claims[uid]
                    books.claim_gone(uid)
                case 6:
                    name = f"rule-{chance.randrange(2)}"
                    rule = TaintRule(Taint("t", "", "NoSchedule"), pool=node)
                    rules[name] = rule
                    if chance.random() < 0.5:
                        del rules[name]
                    books.rule_changed(name, rules.get(name))
                case _:
                    continue
        again = ClaimBooks(DRIVER, GIB)
        again.replace_rules(rules)
        again.replace_claims(claims.values())
        again.replace_slices(slices.values())
        assert _state(books) == _state(again), f"seed {seed}"
        books.ledger.check()
        books.replace_slices([])
        books.replace_claims([])
        assert _state(books) == _state(ClaimBooks(DRIVER, GIB))


def _random_slice(chance: random.Random, node: str) -> Slice:
    driver = chance.choice((DRIVER, DRIVER, "nic.example.com"))
    devices = [
        device(f"gpu-{i}", chance.choice((40, 80)), node=node, driver=driver)
        for i in range(chance.randrange(4))
    ]
    second = NodeChoice(f"n{chance.randrange(4)}")
    choice = chance.choice((NodeChoice(node), NodeChoice(node), second, NodeChoice(all_nodes=True)))
    number = chance.randrange(2)
    return Slice(
        name=f"{driver}-{node}-{number}",
        driver=driver,
        pool=node,
        generation=chance.randrange(1, 3),
        slice_count=chance.choice((1, 1, 2)),
        nodes=choice,
        devices=tuple(devices),
    )


def _random_claim(chance: random.Random) -> ClaimRecord:
    number = chance.randrange(8)
    if chance.random() < 0.2:
        return open_claim(number, 10)
    driver = chance.choice((DRIVER, DRIVER, "nic.example.com"))
    holdings = tuple(
        holding(
            f"n{chance.randrange(4)}",
            f"gpu-{chance.randrange(3)}",
            chance.choice((None, 5, 10)),
            driver,
        )
        for _ in range(chance.randrange(1, 4))
    )
    return allocated(number, *holdings)


def _state(books: ClaimBooks) -> object:
    """Return all values of the books, without times."""
    view = books.ledger.view()
    nodes = {}
    for node in books.nodes():
        devices = books.devices(node)
        assert devices is not None
        pools = [
            (p.driver, p.name, p.state, [(d.key, sorted(map(str, d.taints))) for d in p.devices])
            for p in devices.pools
        ]
        use = books.use(node)
        cards = [books.card(d.key) for d in devices.devices]
        nodes[node] = (pools, use, cards)
    snapshot = view.snapshot
    ledger = {
        name: (
            snapshot.capacity[row].tolist()[: len(view.nodes[name].capacity)],
            snapshot.used[row].tolist()[: len(view.nodes[name].capacity)],
            snapshot.healthy[row].tolist()[: len(view.nodes[name].capacity)],
        )
        for name, row in snapshot.row.items()
        if name in view.nodes
    }
    entries = {uid: (entry.node, entry.placement) for uid, entry in view.entries.items()}
    return nodes, ledger, entries, sorted(books.allocated())


def test_what_is_kept_of_a_claim() -> None:
    body = b"""{"metadata": {"namespace": "d", "name": "c", "uid": "u"},
      "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1}}]}},
      "status": {"allocation": {"devices": {"results": [
        {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0",
         "shareID": "s", "consumedCapacity": {"memory": "10Gi"}}]}},
       "reservedFor": [{"resource": "pods", "name": "p", "uid": "pu"}]}}"""
    claim = RESOURCE_CLAIMS.decode(body)
    record = claim_record(claim)
    assert record.is_allocated
    assert record.holdings == (holding("n1", "gpu-0", 10),)
    assert record.users == (("p", "pu"),)
    open_one = claim_record(ResourceClaim(claim.metadata, claim.spec))
    assert open_one.request is not None
    assert open_one.request.requests[0].alternatives[0].device_class == "gpu"


def test_nodes_of_which_the_driver_publishes_cards_are_told_once() -> None:
    text: list[str] = []
    books = ClaimBooks(DRIVER, GIB, published=text.append)
    books.slice_changed(slice_of("n1", device("nic-0", 1, driver="nic.example.com")))
    assert text == []
    books.slice_changed(slice_of("n1", device("gpu-0", 40)))
    books.slice_changed(slice_of("n1", device("gpu-0", 80)))
    assert text == ["n1"]


def test_a_slice_that_selects_nodes_by_labels_counts_on_nodes_with_slices_of_their_own() -> None:
    labels = {"n1": {"rack": "a"}, "n2": {"rack": "b"}}
    books = ClaimBooks(DRIVER, GIB, labels=labels.__getitem__)
    for node in labels:
        books.slice_changed(slice_of(node, device("gpu-0", 40, node=node)))
    term = NodeSelectorTerm((Requirement("rack", "In", ("a",)),))
    attached = Slice(
        name="attached",
        driver=DRIVER,
        pool="rack-a",
        generation=1,
        slice_count=1,
        nodes=NodeChoice(terms=(term,)),
        devices=(device("gpu-9", 20, node="rack-a"),),
    )
    books.slice_changed(attached)
    key = DeviceKey(DRIVER, "rack-a", "gpu-9")
    assert books.nodes_of(key) == ("n1",)
    books.claim_changed(allocated(1, holding("rack-a", "gpu-9", 5)))
    assert used(books, "n1") == [0, 5]
    books.slice_gone("attached")
    assert books.nodes_of(key) == ()
