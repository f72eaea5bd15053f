"""What may be told of claims: who uses them, why nothing is given out, and what keeps nodes out."""

import json

from gpushare.core.dealing import Asked
from gpushare.core.model import Request
from gpushare.core.node_filters import NodeState
from gpushare.wire.inspect import encode_inspect
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.claims.test_allocator import Process
from tests.unit.wire.dra.objects import DRIVER, GIB, claim, exactly

ONE = Request(units=10, devices=1)


def test_claims_that_have_devices_say_who_uses_them() -> None:
    store = ClaimStore()
    store.create("a", 10)
    store.create("b", 200)
    process = Process(store)
    process.waits(waiting_pod("pa", "a"), waiting_pod("pb", "b"))
    process.round()
    process.show()
    uid = store.claims["a"]["metadata"]["uid"]
    assert process.view.users() == {uid: ("pa",)}
    (shown,) = json.loads(encode_inspect(process.books.ledger.dump(), process.view.users()))[
        "nodes"
    ]
    assert [device["pods"] for device in shown["devs"]] == [
        [],
        [{"name": "a", "namespace": "default", "usedGPU": 10, "users": ["pa"]}],
    ]
    assert process.view.why("uid-pa") == ""
    assert process.view.why("uid-pb") == "no node has room for its claim default/b"


def test_what_holds_all_back_is_said_before_what_lacks_room() -> None:
    store = ClaimStore()
    store.create("a", 200)
    store.create("b", 10, adminAccess=True)
    process = Process(store)
    process.waits(waiting_pod("pa", "a"), waiting_pod("pb", "b"))
    process.round()
    process.books.claim_unread("uid-x")
    assert process.view.problems()["unread"]
    assert "cannot be read" in process.view.why("uid-pa")
    assert "adminAccess" in process.view.why("uid-pb")
    process.books.claim_gone("uid-x")
    assert process.view.problems() == {"unread": ""}
    assert process.view.why("uid-pa") == "no node has room for its claim default/a"


def test_a_node_that_only_slices_name_takes_nothing() -> None:
    process = Process(ClaimStore())
    filters = process.view.source.filters
    assert filters.obstacles("n1", ONE) == ()
    (unknown,) = filters.obstacles("n2", ONE)
    assert unknown.text == "known by slices alone"


def test_the_cpu_that_a_node_lacks_does_not_come_back_with_the_end_of_a_claim() -> None:
    process = Process(ClaimStore())
    allocatable = {"cpu": 1000, "memory": 1 << 40, "pods": 10}
    process.resources.node_states.put(NodeState("n1", allocatable=allocatable))
    filters = process.view.source.filters
    (short,) = filters.shortages("n1", Request(10, 1, cpu=2000), less=[Request(10, 1, cpu=2000)])
    assert short.text == "too little cpu even if empty"


def test_what_claims_with_devices_ask_for_is_told_of_those_that_can_be_read() -> None:
    process = Process(ClaimStore())
    result = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    for name, request in (
        ("ours", exactly("1536Mi", count=2)),
        ("other", exactly(deviceClassName="other")),
        ("odd", exactly(adminAccess=True)),
    ):
        process.books.claim_changed(
            claim(request, status=status, meta={"name": name, "uid": f"uid-{name}"})
        )
    assert len(process.books.allocated()) == 3
    assert process.view.asked() == {"uid-ours": Asked(Request(2, 2), (3 * GIB // 2,) * 2)}
