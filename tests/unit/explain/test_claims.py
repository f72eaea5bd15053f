"""What is said of a pod that asks by claims: where they are allocated, or why they wait."""

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import pytest

from gpushare.core.node_filters import NodeState
from gpushare.errors import MessageError
from gpushare.explain.claims import explain_claims
from gpushare.explain.document import document
from gpushare.wire.dra.objects import CLAIMS_PODS, ClaimsPod
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.claims.test_allocator import Process
from tests.unit.wire.dra.objects import device, slice_of, stepped


def said(process: Process, pod: ClaimsPod) -> Mapping[str, Any]:
    process.show()
    uid = (pod.metadata and pod.metadata.uid) or ""
    why = process.view.why(uid)
    return document(
        explain_claims(pod, process.books, process.view.nodes, "GiB", waits=why, now=0.0)
    )


def pod_of(spec: object, **status: object) -> ClaimsPod:
    meta = {"name": "p", "namespace": "default", "uid": "u"}
    return CLAIMS_PODS.decode(
        json.dumps({"metadata": meta, "spec": spec, "status": status}).encode()
    )


def placed(process: Process, *pods: ClaimsPod) -> None:
    process.show()
    process.waits(*pods)
    process.round()
    process.show()


def test_a_claim_that_is_allocated_says_where_and_for_whom() -> None:
    store = ClaimStore()
    store.create("a", 10)
    process, pod = Process(store), waiting_pod("p", "a")
    placed(process, pod)
    assert pod.spec
    pod.spec.node_name = "n1"
    found = said(process, pod)
    assert (found["state"], found["node"], found["resource"]) == ("bound", "n1", "gpushare.io")
    (claim,) = found["claims"]
    assert claim["devices"] == [
        {
            "driver": "gpu.example.com",
            "pool": "n1",
            "device": "gpu-1",
            "uuid": "GPU-101",
            "allocated": 10,
        }
    ]
    assert (claim["state"], claim["node"], claim["pods"]) == ("allocated", "n1", ["p"])
    assert found["lines"] == [
        "Pod:        default/p is bound to n1, by claims of class gpushare.io",
        "Claim:      default/a is allocated on n1: 10 GiB of gpu-1 (GPU-101); reserved for p",
    ]


def test_a_claim_without_room_says_why_of_each_kind_of_node_and_what_would_help() -> None:
    store = ClaimStore()
    store.create("a", 70)
    store.create("b", 70)
    process, pod = Process(store), waiting_pod("pb", "b")
    placed(process, waiting_pod("pa", "a"), pod)
    assert said(process, pod)["lines"] == [
        "Pod:        default/pb is pending, and asks by claims of class gpushare.io",
        "Claim:      default/b waits and asks for 70 GiB on one device",
        "Waits:      no node has room for its claim default/b",
        "Free now:   at most 24 GiB on n1 device 1",
        "Nodes:      0 of 1 have room on their devices: 1 Insufficient GPU Memory in one device",
        "Would fit:  on n1 once claim default/a (70 GiB) is freed",
        "Scheduler:  it has said nothing yet",
    ]


def test_of_several_requests_each_one_is_told() -> None:
    store = ClaimStore()
    store.create("a", 20, 70)
    store.create("b", 20, 5)
    process, pod = Process(store), waiting_pod("pb", "b")
    placed(process, waiting_pod("pa", "a"), pod)
    assert said(process, pod)["lines"][1:-1] == [
        "Claim:      default/b waits and asks for 20 + 5 GiB, each on a device of its own",
        "Waits:      no node has room for its claim default/b",
        "Free now:   at most 10 GiB on n1 device 0, and 10 + 4 GiB on 2 devices of one node",
        "Nodes:      0 of 1 have room on their devices: 1 Insufficient GPU Memory in enough"
        " devices",
        "Would fit:  on n1 once claim default/a (90 GiB) is freed",
    ]
    assert said(process, waiting_pod("pa", "a"))["lines"][1] == (
        "Claim:      default/a is allocated on n1: 70 GiB of gpu-0 (GPU-100), 20 GiB of gpu-1"
        " (GPU-101); reserved for pa"
    )


COARSE = slice_of(stepped(0, 78, 10))
"""Cards of 78 that are dealt out by 10."""


def test_a_claim_that_would_fit_but_for_its_rounding_is_not_said_to_fit() -> None:
    store = ClaimStore()
    for name, gib in (("a", 65), ("b", 7)):
        store.create(name, gib)
    process, pod = Process(store, COARSE), waiting_pod("pb", "b")
    placed(process, waiting_pod("pa", "a"), pod)
    assert said(process, pod)["lines"][1:-1] == [
        "Claim:      default/b waits and asks for 7 GiB on one device",
        "Waits:      no node has room for its claim default/b",
        "Free now:   at most 8 GiB on n1 device 0; as the driver rounds amounts up, no claim fits"
        " now",
        "Nodes:      0 of 1 have room on their devices: 1 Insufficient GPU Memory in one device",
        "Would fit:  on n1 once claim default/a (70 GiB) is freed",
    ]


def test_of_several_devices_what_rounding_leaves_of_them_is_not_said_to_be_used() -> None:
    store = ClaimStore()
    for name, gib in (("a", 65), ("b", 7)):
        store.create(name, gib, count=2)
    process = Process(store, slice_of(stepped(0, 78, 10), stepped(1, 78, 10)))
    placed(process, waiting_pod("pa", "a"), pod := waiting_pod("pb", "b"))
    assert said(process, pod)["lines"][3] == (
        "Free now:   at most 8 GiB on n1 device 0; no claim for 2 devices fits now"
    )


def test_beside_coarse_steps_what_fine_ones_have_room_for_is_said_to_fit() -> None:
    store = ClaimStore()
    for name, gib in (("a", 65), ("b", 7)):
        store.create(name, gib)
    process = Process(store, COARSE, slice_of(stepped(1, 8, 1), node="n2"))
    process.resources.node_states.put(NodeState("n2"))
    placed(process, waiting_pod("pa", "a"))
    found = said(process, waiting_pod("pb", "b"))
    assert found["explanation"]["fit"] == ["n2"]
    store.create("c", 2)
    placed(process, waiting_pod("pb", "b"), pod := waiting_pod("pc", "c"))
    assert said(process, pod)["lines"][3] == (
        "Free now:   at most 8 GiB on n1 device 0; as the driver rounds amounts up, a claim for at"
        " most 1 GiB fits now"
    )


def test_the_most_that_a_claim_may_ask_for_is_told_as_it_is_dealt_out() -> None:
    store = ClaimStore()
    store.create("a", 75)
    process, pod = Process(store, COARSE), waiting_pod("p", "a")
    placed(process, pod)
    found = said(process, pod)
    assert found["waits"] == ("claim default/a: the driver deals out no such amount of memory")
    assert found["lines"][-2] == (
        "Never fits: even on an empty node it could only fit with at most 70 GiB on one device"
    )


def test_of_unlike_cards_each_request_is_judged_by_what_it_takes_there() -> None:
    """Of the coarse card 30 are left, and 10 of the fine one."""
    store = ClaimStore()
    process = Process(store, slice_of(stepped(0, 40, 10), stepped(1, 20, 1)))
    store.create("a", 10, 9)
    placed(process, waiting_pod("pa", "a"))
    for name, sizes, fit in (("b", (21, 10), ["n1"]), ("c", (12, 11), []), ("d", (31, 1), [])):
        store.create(name, *sizes)
        process.show()
        assert said(process, waiting_pod(name, name))["explanation"]["fit"] == fit
    placed(process, pod := waiting_pod("pd", "d"))
    assert said(process, pod)["lines"][-2] == (
        "Would fit:  on n1 once claim default/a (20 GiB) is freed"
    )


def test_a_claim_that_is_refused_says_what_to_do() -> None:
    store = ClaimStore()
    store.create("a", 10, adminAccess=True)
    process, pod = Process(store), waiting_pod("p", "a")
    placed(process, pod)
    found = said(process, pod)
    assert found["claims"][0]["state"] == "refused"
    assert found["explanation"] is None
    assert found["lines"][1] == (
        "Claim:      default/a can have no device: request gpu of class gpushare.io may have no"
        " adminAccess; what a claim asks for cannot be changed: correct it, or its template, and"
        " create it and the pod again"
    )


def test_an_allocation_without_an_answer_is_in_doubt() -> None:
    faults = ["lost"]
    store = ClaimStore(lambda path: faults.pop() if path.endswith("/status") and faults else "")
    store.create("a", 10)
    process, pod = Process(store), waiting_pod("p", "a")
    process.show()
    process.waits(pod)
    process.round()
    about = explain_claims(pod, process.books, process.view.nodes, "GiB")
    assert [claim.state for claim in about.claims] == ["in doubt"]


def test_what_is_not_there_is_said_to_be_missing() -> None:
    process = Process(ClaimStore())
    assert said(process, waiting_pod("p", "a"))["lines"][1] == "Claim:      default/a is not there"
    found = said(process, pod_of({"resourceClaims": [{"name": "a"}]}))
    assert found["waits"] == "its claims are still to be made of their templates"


def test_gates_and_ends_are_told() -> None:
    store = ClaimStore()
    store.create("a", 10)
    process = Process(store)
    has = [{"name": "a", "resourceClaimName": "a"}]
    gated = {"schedulingGates": [{"name": "g"}], "containers": [], "resourceClaims": has}
    lines = said(process, pod_of(gated))["lines"]
    assert "its claims get no devices until they are removed" in lines[-1]
    assert said(process, pod_of({}, phase="Succeeded"))["state"] == "ended"


def test_claims_of_other_classes_are_not_ours() -> None:
    store = ClaimStore()
    store.create("a", 10, deviceClassName="other")
    with pytest.raises(MessageError, match="none of the claims of pod default/p is of class"):
        said(Process(store), waiting_pod("p", "a"))


def test_a_pod_fits_only_where_all_its_claims_do() -> None:
    store = ClaimStore()
    for name, gib in (("full", 60), ("a", 20), ("b", 20), ("c", 20)):
        store.create(name, gib)
    process = Process(store)
    placed(process, waiting_pod("q", "full"))
    # 20 GiB are left of one card, and 24 of the other.
    assert said(process, waiting_pod("p", "a", "b"))["explanation"]["fit"] == ["n1"]
    found = said(process, waiting_pod("p", "a", "b", "c"))
    assert found["explanation"]["fit"] == []
    assert found["explanation"]["roomForLargestClaim"] == 1
    assert found["lines"][-3:-1] == [
        "Nodes:      0 of 1 have room on their devices; 1 with room for the pod's largest claim,"
        " not for all of them",
        "Would fit:  once one node has room for all its claims",
    ]


def test_devices_that_come_while_a_pod_is_explained_are_no_error() -> None:
    store = ClaimStore()
    for name, gib in (("a", 80), ("b", 80)):
        store.create(name, gib)
    process = Process(store, slice_of(device(0)))
    process.resources.node_states.put(NodeState("n2"))
    process.show()
    nodes, pod = process.view.nodes, waiting_pod("p", "a", "b")
    for slices, fit in (
        ([slice_of(device(0))], ()),
        ([slice_of(device(0)), slice_of(device(1), device(2), node="n2")], ("n2",)),
        ([slice_of(device(0), device(3))], ("n1",)),
    ):
        process.books.slices_changed(slices)
        explanation = explain_claims(pod, process.books, nodes, "GiB").explanation
        assert explanation
        assert explanation.fit == fit


def test_a_node_that_goes_while_a_pod_is_explained_does_not_count_as_one_for_its_largest_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nodes are looked at once: all that is said is of one moment."""
    store = ClaimStore()
    for name in ("a", "b"):
        store.create(name, 40)
    process = Process(store, slice_of(device(0)))
    process.show()
    seen = [process.books.ledger.snapshot()]
    process.books.ledger.node_gone("n1")
    seen.append(process.books.ledger.snapshot())
    monkeypatch.setattr(process.view.source, "ledger", Mock(wraps=process.books.ledger))
    monkeypatch.setattr(process.view.source.ledger, "snapshot", lambda: seen.pop(0))
    pod = waiting_pod("p", "a", "b")
    explanation = explain_claims(pod, process.books, process.view.nodes, "GiB").explanation
    assert explanation
    assert (explanation.fit, explanation.apart) == (("n1",), 0)


def test_each_claim_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a claim, and the nodes that it binds the pod to, are of one moment."""
    store = ClaimStore()
    store.create("a", 40)
    process = Process(store, slice_of(device(0)))
    process.show()
    named = Mock(wraps=process.books.named)
    monkeypatch.setattr(process.books, "named", named)
    explain_claims(waiting_pod("p", "a"), process.books, process.view.nodes, "GiB")
    named.assert_called_once_with("default", "a")


def test_a_claim_that_others_use_too_keeps_a_pod_on_its_node() -> None:
    """One that is reserved for the pod alone is given back if that makes room."""
    store = ClaimStore()
    for name, gib in (("shared", 60), ("a", 60)):
        store.create(name, gib)
    process = Process(store, slice_of(device(0)), slice_of(device(1), node="n2"))
    process.resources.node_states.put(NodeState("n2"))
    user, other = waiting_pod("q", "shared"), waiting_pod("p", "shared", "a")
    placed(process, user)
    (claim,) = said(process, user)["claims"]
    elsewhere = {"n1", "n2"} - {claim["node"]}
    assert said(process, waiting_pod("r", "a"))["explanation"]["fit"] == [*elsewhere]
    found = said(process, other)["explanation"]
    assert (found["fit"], found["nodes"]) == ([], 1)
    placed(process, user, other)
    assert said(process, other)["claims"][1]["state"] == "waiting"


def test_claims_that_others_use_on_different_nodes_are_why_a_pod_can_be_on_none() -> None:
    store = ClaimStore()
    for name, gib in (("a", 60), ("b", 60), ("c", 10)):
        store.create(name, gib)
    process = Process(store, slice_of(device(0)), slice_of(device(1), node="n2"))
    process.resources.node_states.put(NodeState("n2"))
    users = waiting_pod("q", "a"), waiting_pod("r", "b")
    placed(process, *users)
    found = said(process, waiting_pod("p", "a", "b", "c"))
    assert {claim["node"] for claim in found["claims"]} == {"n1", "n2", None}
    assert found["waits"].startswith("its claims have devices on different nodes")
    assert found["explanation"] is None
