"""How long pods wait that nobody asks us about."""

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.extender.books import Library
from gpushare.extender.unheard import pending_without_call
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import make_library

NOW = 10_000.0


def library(*waiting: tuple[str, int, float]) -> Library:
    made = make_library()
    ledger = made.shelves[0].ledger
    ledger.node_changed(make_node("a", 16))
    for name, units, created in waiting:
        request = Request(units, 1 if units else 0)
        ledger.pod_changed(ObservedPod(PodRef("team", name, name), request, created=created))
    return made


def test_the_oldest_pod_that_fits_and_was_never_asked_about_counts() -> None:
    books = library(("new", 4, 9_900.0), ("old", 4, 9_000.0), ("huge", 99, 100.0), ("cpu", 0, 1.0))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 1000
    assert pending_without_call(books, {"old"}.__contains__, 0.0, NOW) == 100
    assert pending_without_call(books, lambda _: True, 0.0, NOW) == 0


def test_time_before_we_listened_does_not_count() -> None:
    books = library(("old", 4, 9_000.0), ("undated", 4, 0.0))
    assert pending_without_call(books, lambda _: False, 9_990.0, NOW) == 10
    assert pending_without_call(books, lambda _: False, 10_001.0, NOW) == 0


def test_a_full_cluster_is_no_sign_of_wrong_wiring() -> None:
    books = library(("old", 4, 9_000.0))
    full = ObservedPod(PodRef("team", "x", "x"), Request(14, 1), "a", ((0, 14),))
    books.shelves[0].ledger.pod_changed(full)
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 0


def test_nobody_waits() -> None:
    assert pending_without_call(library(), lambda _: False, 0.0, NOW) == 0
