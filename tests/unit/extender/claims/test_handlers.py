"""What the watches of claims tell, readable or not."""

import json

import pytest
from msgspec import structs

from gpushare.core.model import PodRef
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.claims.books import ClaimBooks
from gpushare.extender.claims.cases import kept_pod
from gpushare.extender.claims.handlers import (
    ClaimHandler,
    ClassHandler,
    SliceHandler,
    WaitingPods,
)
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import Decoded, UnreadableObject, WatchEvent
from gpushare.wire.dra.claims import claim_names, claim_request
from gpushare.wire.dra.objects import (
    CLAIMS_PODS,
    DEVICE_CLASSES,
    ClaimsPodSpec,
    ClaimsPodStatus,
    DeviceClass,
    PodClaim,
    PodClaimStatus,
)
from gpushare.wire.objects import PodCondition
from tests.unit.extender.claims.store import waiting_pod
from tests.unit.wire.dra.objects import CLASS, DRIVER, GIB, claim, device, slice_of

BAD = UnreadableObject(PodRef("default", "bad", "uid-bad"), "no number")


@pytest.fixture
def books() -> ClaimBooks:
    return ClaimBooks(DRIVER, GIB, Ranking(load_policy("device-bestfit")))


def gives(books: ClaimBooks) -> bool:
    """Whether something is given out to a claim."""
    books.claim_changed(each := claim())
    asked = claim_request(each, CLASS)
    assert asked
    given = bool(books.take(each, asked, lambda _: True))
    books.forget("uid-1")
    return given


def test_a_slice_counts_until_it_is_deleted_and_stays_where_it_cannot_be_read(
    books: ClaimBooks,
) -> None:
    told: list[int] = []
    handler = SliceHandler(books, lambda: told.append(1), lambda: 0.0)
    there = slice_of(device(0))
    handler.replace([Decoded([there], "")], 0.0)
    assert gives(books)
    bad = UnreadableObject(PodRef("", "n1", "uid-n1"), "no number")
    handler.apply(WatchEvent("MODIFIED", bad=bad))
    handler.replace([Decoded([], "", bad=(bad,))], 0.0)
    assert gives(books)
    handler.apply(WatchEvent("DELETED", there))
    assert not gives(books)
    handler.apply(WatchEvent("ADDED", there))
    assert gives(books)
    assert len(told) == 5


def class_named(name: str) -> DeviceClass:
    return DEVICE_CLASSES.decode(json.dumps({"metadata": {"name": name}}).encode())


def test_the_class_is_found_by_either_name_and_stays_where_it_cannot_be_read() -> None:
    handler = ClassHandler(lambda: None)
    proper, aside, other = map(class_named, (CLASS, "settings.gpushare.io", "another"))
    handler.replace([Decoded([other], "")], 0.0)
    assert handler.ours is None
    handler.apply(WatchEvent("ADDED", aside))
    assert handler.ours is aside
    # While it is renamed both are there, and kube-scheduler finds the one that claims name.
    handler.apply(WatchEvent("ADDED", proper))
    assert handler.ours is proper
    handler.apply(WatchEvent("DELETED", proper))
    assert handler.ours is aside
    bad = UnreadableObject(PodRef("", "settings.gpushare.io", "u"), "no object")
    handler.apply(WatchEvent("MODIFIED", bad=bad))
    handler.replace([Decoded([other], "", bad=(bad,))], 0.0)
    assert handler.ours is aside
    unread = UnreadableObject(PodRef("", "another", "u"), "no object")
    handler.replace([Decoded([proper], "", bad=(unread,))], 0.0)
    assert handler.ours is proper
    handler.replace([Decoded([], "")], 0.0)
    assert handler.ours is None


def test_slices_that_come_one_after_the_other_take_a_fifth_of_the_time(books: ClaimBooks) -> None:
    times = iter([0.0, 0.0, 0.0, 1.0, 4.9, 5.0, 6.0, 6.1])
    handler = SliceHandler(books, lambda: None, lambda: next(times))
    handler.replace([Decoded([], "")], 0.0)
    there = slice_of(device(0))
    handler.apply(WatchEvent("ADDED", there))  # from 0 to 1
    assert gives(books)
    handler.apply(WatchEvent("DELETED", there))  # at 4.9
    assert gives(books)
    handler.take_over()  # from 5 to 6
    assert not gives(books)


@pytest.mark.parametrize("unread", [BAD, None], ids=["not decoded", "without a version"])
def test_while_a_claim_cannot_be_read_nothing_is_given_out(
    books: ClaimBooks, unread: UnreadableObject | None
) -> None:
    handler = ClaimHandler(books, lambda: None)
    books.slices_changed([slice_of(device(0))])
    odd = None if unread else claim(meta={"uid": "uid-bad", "resourceVersion": "?", "name": "bad"})
    handler.apply(WatchEvent("ADDED", odd, bad=unread))
    assert not gives(books)
    items = [claim()] if odd is None else [claim(), odd]
    handler.replace([Decoded(items, "", bad=(unread,) if unread else ())], 0.0)
    assert not gives(books)
    handler.apply(WatchEvent("DELETED", odd, bad=unread))
    assert gives(books)


def test_pods_with_claims_wait_until_they_are_gone() -> None:
    told: list[int] = []
    pods = WaitingPods(lambda: told.append(1))
    pod, plain = waiting_pod("p", "a"), waiting_pod("plain")
    page = Decoded([pod, plain], "")
    kept = kept_pod(pod, ALIYUN)
    assert pods.trim(page).items == [kept]
    pods.replace([page], 0.0)
    assert pods.all() == {"uid-p": kept}
    assert (kept.ref, kept.claims, kept.gated) == (PodRef("default", "p", "uid-p"), ("a",), False)
    pods.apply(WatchEvent("DELETED", pod))
    pods.apply(WatchEvent("ADDED", plain))
    assert pods.all() == {}
    pods.apply(WatchEvent("ADDED", pod))
    pods.apply(WatchEvent("MODIFIED", bad=UnreadableObject(PodRef("", "p", "uid-p"), "?")))
    assert pods.all() == {}
    assert len(told) == 2


def test_only_what_may_get_a_pod_devices_is_told_of(books: ClaimBooks) -> None:
    told: list[str] = []
    pods = WaitingPods(lambda: told.append("pod"))
    has = [PodClaim(name="gpu", resource_claim_template_name="t")]
    pod = waiting_pod("p", "a")
    pod = structs.replace(pod, spec=ClaimsPodSpec(resource_claims=has))
    pods.apply(WatchEvent("ADDED", pod))
    status = ClaimsPodStatus(conditions=[PodCondition(type="PodScheduled", status="False")])
    pods.apply(WatchEvent("MODIFIED", structs.replace(pod, status=status)))
    assert told == ["pod"]
    made = [PodClaimStatus(name="gpu", resource_claim_name="a")]
    status = ClaimsPodStatus(resource_claim_statuses=made)
    pods.apply(WatchEvent("MODIFIED", structs.replace(pod, status=status)))
    assert told == ["pod"] * 2

    told.clear()
    claims = ClaimHandler(books, lambda: told.append("claim"))
    given: dict[str, object] = {"allocation": {"devices": {"results": []}}}
    for version, now in enumerate([{}, given, {}]):
        meta = {"resourceVersion": str(version + 10)}
        claims.apply(WatchEvent("MODIFIED", claim(meta=meta, status=now)))
    assert told == ["claim"] * 2


def test_slices_of_other_drivers_are_not_kept(books: ClaimBooks) -> None:
    told: list[str] = []
    handler = SliceHandler(books, lambda: told.append("slice"))
    ours, theirs = slice_of(device(0)), slice_of(device(1), node="n2")
    assert theirs.spec
    theirs.spec.driver = "nic.example.com"
    page = handler.trim(Decoded([ours, theirs], ""))
    assert [each.spec and each.spec.driver for each in page.items] == [DRIVER]
    handler.replace([page], 0.0)
    handler.apply(WatchEvent("MODIFIED", theirs))
    handler.apply(WatchEvent("DELETED", theirs))
    assert told == ["slice"]
    assert gives(books)


@pytest.mark.parametrize(
    ("made", "names"), [(None, None), ("p-gpu-x7", ("a", "p-gpu-x7")), ("", ("a",))]
)
def test_a_claim_of_a_template_has_the_name_that_the_status_says(
    made: str | None, names: tuple[str, ...] | None
) -> None:
    has = [
        {"name": "own", "resourceClaimName": "a"},
        {"name": "gpu", "resourceClaimTemplateName": "t"},
    ]
    entry = {"name": "gpu"} | ({"resourceClaimName": made} if made else {})
    statuses = [] if made is None else [entry]
    body = {"spec": {"resourceClaims": has}, "status": {"resourceClaimStatuses": statuses}}
    assert claim_names(CLAIMS_PODS.decode(json.dumps(body).encode())) == names
