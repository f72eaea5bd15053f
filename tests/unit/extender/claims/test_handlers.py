"""What the watches of claims tell, readable or not."""

import json

import pytest

from gpushare.core.model import PodRef
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.claims.books import ClaimBooks
from gpushare.extender.claims.handlers import ClaimHandler, SliceHandler, WaitingPods
from gpushare.wire.codec import Decoded, UnreadableObject, WatchEvent
from gpushare.wire.dra.claims import claim_names, claim_request
from gpushare.wire.dra.objects import CLAIMS_PODS
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
    handler = SliceHandler(books, lambda: told.append(1))
    there = slice_of(device(0))
    handler.replace([Decoded([there], "")], 0.0)
    assert gives(books)
    bad = UnreadableObject(PodRef("", "s", "u"), "no number")
    handler.apply(WatchEvent("MODIFIED", bad=bad))
    handler.replace([Decoded([], "", bad=(bad,))], 0.0)
    assert gives(books)
    handler.apply(WatchEvent("DELETED", there))
    assert not gives(books)
    handler.apply(WatchEvent("ADDED", there))
    assert gives(books)
    assert len(told) == 5


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
    assert pods.kept(page).items == [pod]
    pods.replace([page], 0.0)
    assert pods.all() == {"uid-p": pod}
    pods.apply(WatchEvent("DELETED", pod))
    pods.apply(WatchEvent("ADDED", plain))
    assert pods.all() == {}
    pods.apply(WatchEvent("ADDED", pod))
    pods.apply(WatchEvent("MODIFIED", bad=UnreadableObject(PodRef("", "p", "uid-p"), "?")))
    assert pods.all() == {}
    assert len(told) == 5


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
