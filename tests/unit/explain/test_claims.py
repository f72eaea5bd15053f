"""Explanations of pods with claims: the states of claims, and the claims that have to end."""

import time
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import (
    ClaimRequest,
    ClassRecord,
    Device,
    DeviceKey,
    DeviceRequest,
    Fit,
    Holding,
    NamedRequest,
    Use,
)
from gpushare.core.model import PodRef
from gpushare.core.node_filters import NodeState, NodeStates, OwnFilters
from gpushare.core.selectors import Taint
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_records import ClaimRecord
from gpushare.explain.claims import (
    NOT_SHOWN,
    REASONS,
    TOO_LARGE,
    by_claims,
    explain_claims,
    request_texts,
)
from gpushare.explain.document import document as document_of
from gpushare.explain.pod import PodExplanation
from tests.support.claim_values import (
    DRIVER,
    GIB,
    allocated,
    decoded,
    device,
    holding,
    open_claim,
    pod_with,
    slice_of,
)
from tests.support.documents import check

CLASS = ClassRecord("gpu", ())
TAINTED = (Taint("broken", "", "NoSchedule"),)


def document(pod: PodExplanation) -> dict[str, Any]:
    """The document, which its schema describes."""
    answer = document_of(pod)
    check(answer)
    return answer


def use_of(claims: Iterable[ClaimRecord], keys: Collection[DeviceKey]) -> Use:
    holdings = chain.from_iterable(claim.holdings for claim in claims)
    return Use().plus(holding for holding in holdings if holding.key in keys)


def always(_selectors: tuple[str, ...], _device: Device) -> bool:
    return True


def own(*names: str, **changes: Any) -> OwnFilters:
    """Filters over these nodes, which keep nobody out but for the changes."""
    return OwnFilters(NodeStates(NodeState(name, **changes) for name in names))


def books_of(*claims: ClaimRecord, **cards: tuple[int, ...]) -> ClaimBooks:
    """Books of nodes with shared cards of so many GiB, and of these claims."""
    books = ClaimBooks(DRIVER, GIB)
    books.replace_classes([CLASS])
    books.replace_slices(
        [
            slice_of(node, *(device(f"gpu-{at}", gib, node=node) for at, gib in enumerate(sizes)))
            for node, sizes in cards.items()
        ]
    )
    books.replace_claims(claims)
    return books


def said(books: ClaimBooks, *numbers: int, filters: OwnFilters | None = None) -> Mapping[str, Any]:
    """The document about a pod with these claims."""
    filters = filters or own(*books.nodes())
    return document(explain_claims(pod_with(*numbers), books, filters, always, "GiB"))


def lines(books: ClaimBooks, *numbers: int, filters: OwnFilters | None = None) -> list[str]:
    answer: list[str] = said(books, *numbers, filters=filters)["lines"]
    return answer


def test_a_pod_that_waits_is_told_which_claims_hold_the_devices() -> None:
    books = books_of(
        allocated(1, holding("a", "gpu-0", 10), users=(("web", "u1"),)),
        allocated(2, holding("a", "gpu-0", 60), users=(("train", "u2"),)),
        open_claim(3, 30),
        a=(80,),
    )
    assert lines(books, 3) == [
        "Pod:        default/pod is pending, and asks by claims",
        "Claim:      default/claim-3 has no devices and asks for 1 x gpu with memory 30Gi",
        "Devices:    0 of 1 nodes have devices for its claims",
        "Would fit:  on a once claim default/claim-2 (of train) ends",
        "Scheduler:  default-scheduler has said nothing yet",
    ]
    reading = said(books, 3)["claimDevices"]
    assert (reading["nodes"], reading["fit"], reading["never"]) == (1, [], False)
    assert reading["remedy"] == {
        "node": "a",
        "ends": [
            {"namespace": "default", "name": "claim-2", "uid": "claim-uid-2", "pods": ["train"]}
        ],
    }


def test_the_node_with_the_fewest_claims_that_have_to_end_is_named() -> None:
    small = [allocated(number, holding("a", "gpu-0", 20)) for number in range(1, 5)]
    books = books_of(
        *small, allocated(5, holding("b", "gpu-0", 50)), open_claim(9, 70), a=(80,), b=(80,)
    )
    reading = said(books, 9)["claimDevices"]
    assert reading["remedy"]["node"] == "b"
    assert [end["name"] for end in reading["remedy"]["ends"]] == ["claim-5"]


def test_a_pod_that_fits_is_told_where() -> None:
    books = books_of(open_claim(1, 30), a=(80,), b=(24,), c=(40,))
    assert "Devices:    2 of 3 nodes have devices for its claims" in lines(books, 1)
    assert "Fits now:   on a and c" in lines(books, 1)
    gated = pod_with(1)
    assert gated.spec is not None
    gated.spec.scheduling_gates = [Raw(b'{"name":"example.com/queue"}')]
    text = document(explain_claims(gated, books, own("a", "b", "c"), always, "GiB"))["lines"]
    assert "Would fit:  on a and c once its scheduling gates are removed" in text


def test_what_can_never_fit_is_said_so() -> None:
    books = books_of(open_claim(1, 90), allocated(2, holding("a", "gpu-0", 1)), a=(80,))
    text = "no node has devices for its claims, even if all other claims end"
    assert f"Never fits: {text}" in lines(books, 1)
    assert said(books, 1)["claimDevices"]["never"] is True


def test_nodes_that_kube_scheduler_leaves_out_count_apart() -> None:
    books = books_of(open_claim(1, 10), a=(80,), b=(80,), c=(80,))
    states = NodeStates([NodeState("a", cordoned=True), NodeState("b")])
    reading = said(books, 1, filters=OwnFilters(states))["claimDevices"]
    assert (reading["nodes"], reading["fit"]) == (1, ["b"])
    assert reading["keptOut"] == [
        {"reason": "cordoned", "nodes": 1},
        {"reason": NOT_SHOWN, "nodes": 1},
    ]
    text = "1 of 1 nodes have devices for its claims; kube-scheduler itself leaves out 2 more"
    assert text in " ".join(lines(books, 1, filters=OwnFilters(states)))


def test_a_node_that_the_model_does_not_understand_is_counted_and_not_judged() -> None:
    books = books_of(open_claim(1, 90), a=(80,))
    many = (device(f"gpu-{at}", 1, node="big") for at in range(9_000))
    books.slice_changed(slice_of("big", *many))
    reading = said(books, 1)["claimDevices"]
    assert reading["notJudged"] == [{"reason": TOO_LARGE, "nodes": 1}]
    assert (reading["never"], reading["remedy"]) == (False, None)
    assert f"; 1 more not judged: {TOO_LARGE}" in " ".join(lines(books, 1))


def test_an_attempt_that_ends_with_an_error_is_not_judged() -> None:
    books = books_of(a=(80,))
    everything = DeviceRequest(name="all", device_class="gpu", count=33)
    request = ClaimRequest((NamedRequest("all", (everything,)),))
    ref = PodRef("default", "claim-1", "u")
    books.claim_changed(ClaimRecord(ref=ref, is_allocated=False, request=request))
    (answer,) = said(books, 1)["claimDevices"]["notJudged"]
    assert answer["reason"] in REASONS.values()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (None, "there is no claim claim-1 yet"),
        (
            ClaimRecord(ref=PodRef("default", "claim-1", "u"), is_allocated=False, mistake="odd"),
            "odd",
        ),
    ],
)
def test_claims_that_cannot_be_judged_say_why(claim: ClaimRecord | None, text: str) -> None:
    books = books_of(*([claim] if claim else []), a=(80,))
    assert f"Devices:    not judged: {text}; kube-scheduler judges them" in lines(books, 1)
    assert said(books, 1)["claimDevices"]["detail"] == text


def test_a_missing_claim_and_a_missing_class_are_told() -> None:
    books = books_of(open_claim(1, 10), a=(80,))
    books.replace_classes([])
    text = lines(books, 1, 7)
    assert "Claim:      default/claim-7 is not there" in text
    assert "not judged: a DeviceClass" in " ".join(lines(books, 1))


def test_an_amount_of_the_pod_that_cannot_be_read_is_told() -> None:
    books = books_of(open_claim(1, 10), a=(80,))
    pod = decoded(
        {
            "metadata": {"namespace": "default", "name": "pod", "uid": "u"},
            "spec": {
                "resourceClaims": [{"name": "c", "resourceClaimName": "claim-1"}],
                "containers": [{"resources": {"requests": {"cpu": "1x"}}}],
            },
        }
    )
    answer = document(explain_claims(pod, books, own("a"), always, "GiB"))
    assert "1x" in answer["claimDevices"]["detail"]


def test_a_claim_that_others_use_keeps_the_pod_on_its_nodes() -> None:
    books = books_of(
        allocated(1, holding("b", "gpu-0", 5), users=(("other", "u9"),)),
        open_claim(2, 10),
        a=(80,),
        b=(80,),
    )
    reading = said(books, 1, 2)["claimDevices"]
    assert (reading["nodes"], reading["fit"]) == (1, ["b"])
    alone = allocated(1, holding("b", "gpu-0", 5), users=(("pod", "pod-uid"),))
    books.claim_changed(alone)
    assert said(books, 1, 2)["claimDevices"]["fit"] == ["a", "b"]


def test_a_claim_whose_slice_is_gone_keeps_the_pod_nowhere() -> None:
    is_gone = allocated(1, holding("gone", "gpu-0", 5), users=(("other", "u9"),))
    books = books_of(is_gone, open_claim(2, 10), a=(80,))
    assert said(books, 1, 2)["claimDevices"]["fit"] == ["a"]


def test_a_pod_whose_claims_all_have_devices_needs_no_reading() -> None:
    books = books_of(
        allocated(1, holding("a", "gpu-0", 10), holding("a", "gpu-1", None)),
        allocated(2, holding("a", "nic-0", None, driver="net"), users=(("pod", "u"),)),
        a=(80, 24),
    )
    answer = said(books, 1, 2)
    assert answer["claimDevices"] is None
    assert answer["lines"][1:3] == [
        "Claim:      default/claim-1 is allocated on a: 10 GiB of gpu-0 (GPU-a-gpu-0), all of gpu-1"
        " (GPU-a-gpu-1)",
        "Claim:      default/claim-2 is allocated: all of nic-0; reserved for pod",
    ]
    assert answer["claims"][0]["devices"][0] == {
        "driver": DRIVER,
        "pool": "a",
        "device": "gpu-0",
        "uuid": "GPU-a-gpu-0",
        "allocated": 10,
    }


def test_a_pod_that_is_bound_or_has_ended_is_not_judged() -> None:
    books = books_of(open_claim(1, 10), a=(80,))
    pod = pod_with(1)
    assert pod.spec is not None
    pod.spec.node_name = "a"
    answer = document(explain_claims(pod, books, own("a"), always, "GiB"))
    assert (answer["state"], answer["node"], answer["claimDevices"]) == ("bound", "a", None)
    assert answer["lines"][0] == "Pod:        default/pod is bound to a, and asks by claims"
    ended = decoded(
        {
            "metadata": {"namespace": "default", "name": "pod", "uid": "u"},
            "status": {"phase": "Succeeded"},
        }
    )
    answer = document(explain_claims(ended, books, own("a"), always, "GiB"))
    assert (answer["state"], answer["claims"]) == ("ended", None)


def test_a_device_with_a_taint_is_no_device_for_the_pod() -> None:
    books = books_of(open_claim(1, 10))
    books.replace_slices([slice_of("a", device("gpu-0", 80, node="a", taints=TAINTED))])
    assert said(books, 1)["claimDevices"]["never"] is True


def test_an_extended_resource_of_a_class_is_a_claim_that_kube_scheduler_makes() -> None:
    resource = "nvidia.com/gpu"
    books = books_of(a=(80,), b=(80,))
    books.replace_classes([ClassRecord("gpu", (), extended_resource=resource)])
    books.claim_changed(allocated(1, holding("a", "gpu-0", None)))
    pod = decoded(
        {
            "metadata": {"namespace": "default", "name": "pod", "uid": "u"},
            "spec": {"containers": [{"resources": {"limits": {resource: "1"}}}]},
        }
    )
    assert by_claims(pod, ["aliyun.com/gpu-mem"], books.resources)
    assert not by_claims(pod, ["aliyun.com/gpu-mem"])
    states = NodeStates(NodeState(name, allocatable={"pods": 9}) for name in "ab")
    answer = document(explain_claims(pod, books, OwnFilters(states), always, "GiB"))
    assert answer["lines"][0] == "Pod:        default/pod is pending, and asks by claims"
    assert (answer["claims"], answer["claimDevices"]["fit"]) == (None, ["b"])


def test_by_claims_is_a_pod_without_a_managed_resource() -> None:
    resource = "aliyun.com/gpu-mem"
    assert by_claims(pod_with(1), [resource])
    assert not by_claims(pod_with(), [resource])
    both = decoded(
        {
            "metadata": {"namespace": "default", "name": "pod", "uid": "u"},
            "spec": {
                "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
                "containers": [{"resources": {"limits": {resource: "4"}}}],
            },
        }
    )
    assert not by_claims(both, [resource])


def test_requests_are_told_in_words() -> None:
    choice = NamedRequest(
        "g",
        (
            DeviceRequest(name="g/a", device_class="big", selectors=("x",)),
            DeviceRequest(
                name="g/b",
                device_class="small",
                count=None,
                amounts=(("memory", 1536 * 2**20 * 1000), ("cores", 50_000), ("odd", 1)),
            ),
        ),
        is_choice=True,
    )
    assert request_texts(ClaimRequest((choice,))) == (
        "1 x big, by CEL selectors or all x small with memory 1536Mi, cores 50, odd 1m",
    )


@given(
    st.lists(st.lists(st.integers(1, 24), max_size=5), min_size=1, max_size=3), st.integers(1, 26)
)
def test_the_claims_that_are_named_are_enough_and_none_is_needless(
    holds: list[list[int]], units: int
) -> None:
    """Each node has two cards of 24; claims are where first fit had put them."""
    names = "abc"[: len(holds)]
    books = books_of(open_claim(99, units), **dict.fromkeys(names, (24, 24)))
    number = 0
    for node, sizes in zip(names, holds, strict=True):
        for gib in sizes:
            number += 1
            books.claim_changed(open_claim(number, gib))
            claims = books.requests(pod_with(number)).claims
            devices = books.devices(node)
            assert devices is not None
            fit = first_fit(devices, claims, books.use(node), always, Steps(1000))
            held_now = [
                Holding(amounts.device.key, amounts.consumed)
                for amounts in (fit.taken if isinstance(fit, Fit) else ())
            ]
            if held_now:
                books.claim_changed(allocated(number, *held_now))
            else:
                books.claim_gone(f"claim-uid-{number}")
    reading = explain_claims(pod_with(99), books, own(*names), always, "GiB").reading
    assert reading is not None
    claims = books.requests(pod_with(99)).claims

    def fits(node: str, without: set[str]) -> bool:
        devices = books.devices(node)
        assert devices is not None
        keys = [item.key for item in devices.devices]
        stay = [item for uid, item in books.allocated().items() if uid not in without]
        return isinstance(first_fit(devices, claims, use_of(stay, keys), always, Steps(1000)), Fit)

    assert reading.fit == tuple(node for node in names if fits(node, set()))
    assert reading.never == (units > 24)
    if reading.fit or reading.never:
        assert reading.remedy is None
        return
    assert reading.remedy is not None
    ends = {claim.ref.uid for claim in reading.remedy.ends}
    assert fits(reading.remedy.node, ends)
    assert all(not fits(reading.remedy.node, ends - {uid}) for uid in ends)


def test_the_use_of_claims_counts_amounts_and_whole_devices() -> None:
    keys = [holding("a", name, 0).key for name in ("gpu-0", "gpu-1")]
    assert use_of(
        [
            allocated(1, holding("a", "gpu-0", 10), holding("a", "gpu-1", None)),
            allocated(2, holding("a", "gpu-0", 5), holding("b", "gpu-0", 5)),
        ],
        keys,
    ) == Use({keys[1]}, {keys[0]: {"memory": 15 * GIB * 1000}})


def test_very_many_claims_of_a_node_are_not_searched_for_ever() -> None:
    """400 devices with a claim each: the search ends early, and names none that need not end."""
    devices = (device(f"gpu-{at}", 1, node="a") for at in range(400))
    claims = [allocated(at, holding("a", f"gpu-{at}", 1)) for at in range(400)]
    books = books_of(*claims)
    books.replace_slices([slice_of("a", *devices)])
    wide = DeviceRequest(name="g", device_class="gpu", count=32)
    ref = PodRef("default", "claim-999", "u")
    request = ClaimRequest((NamedRequest("g", (wide,)),))
    books.claim_changed(ClaimRecord(ref=ref, is_allocated=False, request=request))
    began = time.thread_time()
    reading = said(books, 999)["claimDevices"]
    assert time.thread_time() - began < 5
    assert (reading["remedy"], reading["never"], reading["fit"]) == (None, False, [])
