"""The figures of the shadow: different choices, and pods that would have had room."""

from gpushare.core.model import PodRef, Request
from gpushare.core.shadow_books import Sums
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.shadow.traffic import Traffic


def _two() -> Traffic:
    return Traffic([make_node("a", 8, 8), make_node("b", 8, 8)], "binpack", "spread")


def test_binpack_and_spread_differ_by_node_and_by_device() -> None:
    traffic = _two()
    assert traffic.come("first", Request(2, 1))
    assert traffic.counts.choices == {"same": 1, "node": 0, "device": 0}  # nothing runs yet
    assert traffic.come("second", Request(2, 1))
    assert traffic.counts.choices == {"same": 1, "node": 1, "device": 0}
    assert traffic.come("third", Request(2, 1), ["a"])
    assert traffic.counts.choices == {"same": 1, "node": 1, "device": 1}
    assert traffic.come("whole", Request(8, 2), ["b"])
    assert traffic.counts.choices == {"same": 2, "node": 1, "device": 1}


def test_it_goes_by_the_real_books_though_its_own_have_gone_elsewhere() -> None:
    traffic = _two()
    for number in range(4):
        traffic.come(f"p{number}", Request(2, 1))
    assert traffic.really_used() == {"a": [8, 0], "b": [0, 0]}
    assert traffic.used() == {"a": [2, 2], "b": [2, 2]}
    traffic.counts.choices.clear()
    traffic.come(
        "next", Request(8, 1), ["b"]
    )  # the same by the real books, nowhere by the shadow's
    assert traffic.counts.choices == {"same": 1}
    assert traffic.counts.pods == {"both": 4, "real": 1, "shadow": 0}


def test_a_pod_that_its_own_books_refuse_is_counted_and_holds_nothing_there() -> None:
    traffic = _two()
    for number in range(4):
        traffic.come(f"p{number}", Request(2, 1))
    assert traffic.come("whole", Request(8, 1))
    assert traffic.counts.pods == {"both": 4, "real": 1, "shadow": 0}
    before = traffic.used()
    traffic.go("whole")
    traffic.shadow.work()
    assert traffic.used() == before
    traffic.go("p0")
    traffic.shadow.work()
    assert traffic.come("later", Request(8, 1))
    assert traffic.counts.pods == {"both": 5, "real": 1, "shadow": 0}


def test_a_pod_that_really_was_refused_and_has_room_in_its_books_counts_once() -> None:
    traffic = Traffic([make_node("a", 8), make_node("b", 8)], "spread", "binpack")
    traffic.come("one", Request(2, 1))
    traffic.come("two", Request(2, 1))
    for _ in range(3):
        assert traffic.come("large", Request(8, 1)) is None
        assert traffic.come("larger", Request(9, 1)) is None  # no room in either
    assert traffic.counts.pods == {"both": 2, "real": 0, "shadow": 1}
    traffic.go("one")
    traffic.shadow.work()
    assert traffic.come("large", Request(8, 1))
    assert traffic.counts.pods == {"both": 3, "real": 0, "shadow": 1}


def test_only_nodes_that_kube_scheduler_asked_about_are_taken() -> None:
    traffic = _two()
    for number in range(3):
        traffic.come(f"p{number}", Request(2, 1), ["b"])
    assert traffic.used() == {"a": [0, 0], "b": [4, 2]}


def test_a_pod_that_names_a_policy_is_ranked_by_it_in_both_books() -> None:
    traffic = _two()
    for number in range(3):
        traffic.come(f"p{number}", Request(2, 1, policy="binpack"))
    assert traffic.used() == traffic.really_used() == {"a": [6, 0], "b": [0, 0]}
    assert traffic.counts.choices == {"same": 3, "node": 0, "device": 0}


def test_what_both_books_hold_stands_side_by_side() -> None:
    traffic = Traffic([make_node("a", 8), make_node("b", 8)], "spread", "binpack")
    for uid, units in (("one", 4), ("two", 4), ("small", 1)):
        traffic.come(uid, Request(units, 1))
    traffic.now += 10.0
    traffic.shadow.work()
    assert traffic.counts.real == Sums(pods=3, allocated=9, stranded=3)
    assert traffic.counts.shadow == Sums(pods=3, allocated=9, stranded=0)
    traffic.go("two")
    traffic.now += 1.0
    traffic.shadow.work()
    assert traffic.counts.real.pods == 3, "not counted again so soon"
    traffic.now += 5.0
    traffic.shadow.work()
    assert traffic.counts.real.pods == traffic.counts.shadow.pods == 2


def test_after_a_list_it_begins_anew_with_the_real_books() -> None:
    traffic = _two()
    for number in range(3):
        traffic.come(f"p{number}", Request(2, 1))
    assert traffic.used() != traffic.really_used()
    traffic.relist()
    traffic.shadow.work()
    assert traffic.used() == traffic.really_used()
    assert traffic.counts.rebases == 1
    for number in range(3):
        traffic.go(f"p{number}")
    traffic.shadow.work()
    assert traffic.used() == traffic.really_used() == {"a": [0, 0], "b": [0, 0]}


def test_what_runs_at_the_start_is_where_it_really_is() -> None:
    traffic = _two()
    for number in range(3):
        allocation = traffic.ask(f"p{number}", Request(2, 1))
        assert allocation is not None
        traffic.bind(f"p{number}", Request(2, 1), allocation)
    traffic.relist()
    traffic.shadow.work()
    assert traffic.used() == {"a": [6, 0], "b": [0, 0]}


def test_a_charge_that_is_not_bound_yet_is_no_pod_of_its_books() -> None:
    traffic = _two()
    request = Request(2, 1)
    traffic.come("runs", request)
    allocation = traffic.ask("late", request)
    assert allocation is not None
    traffic.shadow.work()
    traffic.ledger.assume(PodRef("team", "late", "late"), request, allocation, 0.0, stamp="1")
    traffic.now += 61.0
    traffic.shadow.work()
    assert traffic.really_used() == {"a": [4, 0], "b": [0, 0]}
    assert traffic.used() == {"a": [2, 0], "b": [0, 0]}
    traffic.bind("late", request, allocation)
    traffic.shadow.work()
    assert sum(map(sum, traffic.used().values())) == 4
