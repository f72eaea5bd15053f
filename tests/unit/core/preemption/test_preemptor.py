"""Preemption evicts the pods that make room on a device, no more, and no protected pod."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.model import Allocation, Apart, PodRef, Reason, Request
from gpushare.core.preemption.preemptor import Preemptor, Victims, trim_victims
from gpushare.core.preemption.selection import Budget
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.states.entry import MOST_GRACE, MOST_LATE, NodeBooks
from tests.unit.core.clusters import node
from tests.unit.core.preempting import NODE, PreemptionCase, books, cases, filled, pod

ONE_OF_14 = Preemptor(Request(14, 1), 5)


def enough() -> StepBudget:
    return StepBudget(100_000)


def answer(
    node_books: NodeBooks, preemptor: Preemptor, *uids: str, violations: int = 0, **more: object
) -> tuple[list[str], int] | None:
    budgets = more.get("budgets", ())
    assert isinstance(budgets, tuple)
    victims = trim_victims(node_books, preemptor, Victims(uids, violations), enough(), budgets)
    return None if victims is None else (list(victims.uids), victims.violations)


def test_victims_that_free_the_device_are_left_as_they_are() -> None:
    node_books = books([16, 16], pod("a", 10, 0), pod("b", 10, 1))
    assert answer(node_books, ONE_OF_14, "b", violations=1) == (["b"], 1)


def test_a_pod_of_the_same_workload_makes_room_only_by_its_end() -> None:
    web = Apart("web", required=True)
    preemptor = replace(ONE_OF_14, request=Request(4, 1, apart=web))
    fellow, low = pod("fellow", 4, 0, apart=web, priority=3), pod("low", 14, 1)
    assert answer(books([16, 16], fellow, low), preemptor) == (["low"], 0)
    high = pod("high", 14, 1, priority=9)
    assert answer(books([16, 16], fellow, high), preemptor) == (["fellow"], 0)
    assert answer(books([16], pod("fellow", 4, 0, apart=web, priority=9)), preemptor) is None
    prefers = replace(ONE_OF_14, request=Request(4, 1, apart=web._replace(required=False)))
    assert answer(books([16], fellow), prefers) == ([], 0)


def test_victims_on_the_wrong_device_take_the_node_out() -> None:
    node_books = books(
        [16, 16],
        pod("low", 4, 0),
        pod("high", 10, 0, priority=9),
        pod("higher", 10, 1, priority=9),
    )
    assert answer(node_books, ONE_OF_14, "low") is None


def test_an_empty_list_is_filled_with_the_least() -> None:
    node_books = books([16, 16], pod("a", 10, 0, priority=3), pod("b", 10, 1, priority=1))
    assert answer(node_books, replace(ONE_OF_14, request=Request(12, 1))) == (["b"], 0)


def test_an_empty_list_stays_empty_where_the_devices_have_room_already() -> None:
    assert answer(books([16], pod("a", 2, 0)), ONE_OF_14) == ([], 0)


def test_of_equals_the_one_started_last_goes() -> None:
    node_books = books(
        [16, 16, 16],
        pod("old", 10, 0, started=100.0),
        pod("new", 10, 1, started=200.0),
        pod("mid", 10, 2, started=150.0),
    )
    assert answer(node_books, ONE_OF_14) == (["new"], 0)


def test_one_that_has_not_started_counts_as_the_last() -> None:
    node_books = books([16, 16], pod("new", 10, 0, started=200.0), pod("not-yet", 10, 1))
    assert answer(node_books, ONE_OF_14) == (["not-yet"], 0)


def test_fewer_pods_go_rather_than_more_and_low_ones_rather_than_high() -> None:
    two = (pod("a1", 5, 0), pod("a2", 5, 0))
    assert answer(books([16, 16], *two, pod("b", 10, 1)), ONE_OF_14) == (["b"], 0)
    above = pod("b", 10, 1, priority=1)
    assert answer(books([16, 16], *two, above), ONE_OF_14) == (["a1", "a2"], 0)


def test_what_is_added_goes_beside_a_victim_the_scheduler_needs_for_itself() -> None:
    # The pod asks for no device memory: kube-scheduler wants it gone for CPU, ports or the like.
    node_books = books([16, 16], pod("a", 10, 0, priority=2), pod("b", 10, 1, priority=3))
    assert answer(node_books, ONE_OF_14, "plain") == (["plain", "a"], 0)


def test_the_most_important_victim_comes_first() -> None:
    node_books = books(
        [16, 16],
        pod("low", 4, 0, cpu=900),
        pod("mid", 8, 0, priority=3),
        pod("x", 16, 1, priority=9),
    )
    wants_cpu = Preemptor(Request(14, 1, cpu=950), 5)
    assert answer(node_books, wants_cpu, "low") == (["mid", "low"], 0)


def test_a_victim_chosen_for_the_sum_is_let_live_where_another_frees_a_device() -> None:
    # 20 of 32 are used, 14 asked: kube-scheduler takes `a`, which frees no device.
    node_books = books(
        [16, 16], pod("a", 3, 0), pod("keep", 7, 0, priority=9), pod("b", 10, 1, priority=3)
    )
    assert answer(node_books, ONE_OF_14, "a") == (["b"], 0)


@pytest.mark.parametrize(
    ("preemptor", "reason"),
    [
        (Preemptor(Request(14, 1, cpu=950), 5), "without it the CPU does not suffice"),
        (
            Preemptor(Request(14, 1), 5, counted_by_scheduler=False),
            "the scheduler does not count the resource",
        ),
    ],
)
def test_a_victim_that_may_be_there_for_other_reasons_stays(
    preemptor: Preemptor, reason: str
) -> None:
    node_books = books(
        [16, 16],
        pod("a", 3, 0, cpu=900),
        pod("keep", 7, 0, priority=9),
        pod("b", 10, 1, priority=3),
    )
    assert answer(node_books, preemptor, "a") == (["b", "a"], 0), reason


def test_a_victim_the_sum_does_not_explain_stays() -> None:
    # 12 of 32 free, 12 requested: the sum suffices, so `a` was proposed for another reason.
    node_books = books([16, 16], pod("a", 1, 0), pod("keep", 9, 0, priority=9), pod("b", 10, 1))
    larger = replace(ONE_OF_14, request=Request(12, 1))
    assert answer(node_books, larger, "a") == (["a", "b"], 0)


def test_cpu_that_is_not_known_is_not_enough() -> None:
    pods = (pod("a", 3, 0), pod("keep", 7, 0, priority=9), pod("b", 10, 1))
    node_books = filled(node(NODE, 16, 16), pods).dump(NODE)[0]
    assert answer(node_books, ONE_OF_14, "a") == (["a", "b"], 0)


def test_nobody_of_equal_priority_goes() -> None:
    assert answer(books([16], pod("equal", 10, 0, priority=5)), ONE_OF_14) is None


def test_a_named_victim_of_equal_priority_takes_the_node_out() -> None:
    node_books = books([16, 16], pod("equal", 10, 0, priority=5), pod("b", 10, 1))
    assert answer(node_books, ONE_OF_14, "equal", "b") is None


def test_where_ending_pods_free_enough_nobody_else_has_to_go() -> None:
    node_books = books([16, 16], pod("ends", 10, 0, terminating=True), pod("b", 10, 1))
    assert answer(node_books, ONE_OF_14) == ([], 0)
    assert answer(node_books, ONE_OF_14, "plain") == (["plain"], 0)


@pytest.mark.parametrize(
    ("ends_by", "answered"),
    [
        (MOST_GRACE, []),
        (MOST_GRACE + 1, ["b"]),
        (1e9, ["b"]),
        (-MOST_LATE, []),
        (-MOST_LATE - 1, ["b"]),
    ],
)
def test_an_ending_pod_frees_its_device_within_a_grace_that_one_can_wait_for(
    ends_by: float, answered: list[str]
) -> None:
    ends = pod("ends", 10, 0, terminating=True, ends_by=5000 + ends_by)
    node_books = books([16, 16], ends, pod("b", 10, 1))
    assert answer(node_books, replace(ONE_OF_14, now=5000.0)) == (answered, 0)


def test_a_victim_that_will_not_end_frees_nothing_and_stays_in_the_answer() -> None:
    """kube-scheduler ignores deletion times, and needs each proposed victim."""
    stuck = pod("stuck", 10, 0, terminating=True, ends_by=1e9)
    node_books = books([16, 16], stuck, pod("b", 10, 1))
    assert answer(node_books, ONE_OF_14, "stuck") == (["stuck", "b"], 0)
    assert answer(books([16], stuck), ONE_OF_14, "stuck") is None
    assert answer(books([16], stuck), ONE_OF_14) is None


def test_a_victim_made_needless_by_one_that_ends_anyway_takes_the_node_out() -> None:
    node_books = books(
        [16, 16],
        pod("ends", 10, 0, terminating=True),
        pod("a", 3, 1),
        pod("keep", 8, 1, priority=9),
    )
    assert answer(node_books, ONE_OF_14, "a") is None


def test_an_unplaced_pod_frees_every_device() -> None:
    node_books = books([16, 16], pod("unplaced", 4), pod("high", 6, 0, priority=9))
    assert answer(node_books, ONE_OF_14) == (["unplaced"], 0)


def test_several_devices_are_freed_at_once() -> None:
    pods = [pod(f"p{device}", 10, device, priority=device) for device in range(4)]
    two = Preemptor(Request(14, 2), 5)
    assert answer(books([16] * 4, *pods), two) == (["p1", "p0"], 0)
    wide = pod("wide", 10, 2, 3)
    assert answer(books([16] * 4, *pods[:2], wide), two) == (["wide"], 0)


def test_each_part_of_a_split_pod_is_made_room_for_on_a_device_of_its_size() -> None:
    thirty_ten = Preemptor(Request().of_parts((30, 10)), 5)
    small = books([40, 16], pod("a", 30, 0), pod("b", 6, 1))
    assert answer(small, thirty_ten) == (["a"], 0)
    both = books([40, 40], pod("a", 20, 0), pod("b", 20, 1, priority=1))
    assert answer(both, thirty_ten) == (["a"], 0)
    assert answer(both, thirty_ten, "b") == (["b"], 0)
    assert answer(books([16, 16], pod("a", 16, 0)), thirty_ten) is None


def test_of_many_ways_to_place_a_split_pod_the_cheapest_devices_are_taken() -> None:
    pods = [pod(f"p{device}", 16, device, priority=device) for device in range(8)]
    parts = Preemptor(Request().of_parts((16, 8, 4)), 9)
    assert answer(books([16] * 8, *pods), parts) == (["p2", "p1", "p0"], 0)


def test_what_is_freed_on_a_sick_or_small_device_does_not_count() -> None:
    pods = (pod("a", 10, 0), pod("b", 10, 1, priority=2))
    assert answer(books([16, 16], *pods, sick=[0]), ONE_OF_14) == (["b"], 0)
    assert answer(books([12, 16], *pods), ONE_OF_14) == (["b"], 0)
    assert answer(books([16], pod("a", 10, 0), sick=[0]), ONE_OF_14) is None


def test_a_closed_node_is_no_candidate() -> None:
    spec = node(NODE, 16, closed=Reason.OTHER_UNIT)
    assert answer(filled(spec, [pod("a", 10, 0)]).dump(NODE)[0], ONE_OF_14, "a") is None


def test_an_assumed_pod_is_never_added() -> None:
    ledger = filled(node(NODE, 16), ())
    ledger.assume(PodRef("ns", "a", "a"), Request(10, 1), Allocation(NODE, ((0, 10),)), 0.0)
    node_books = ledger.dump(NODE)[0]
    assert answer(node_books, ONE_OF_14) is None
    assert answer(node_books, ONE_OF_14, "a") == (["a"], 0), "kube-scheduler has it on the node"


def test_pods_under_a_budget_are_spared() -> None:
    node_books = books([16, 16], pod("a", 10, 0), pod("b", 10, 1, priority=4))
    shut = (Budget(0, frozenset("a")),)
    assert answer(node_books, ONE_OF_14, budgets=shut) == (["b"], 0)
    both = (Budget(0, frozenset("ab")),)
    assert answer(node_books, ONE_OF_14, budgets=both) == (["a"], 1)
    assert answer(node_books, ONE_OF_14, budgets=(Budget(1, frozenset("ab")),)) == (["a"], 0)


def test_which_of_two_alike_goes_may_matter_to_a_third_that_two_budgets_cover() -> None:
    # `z` would be missed less than `a`. But `a` counts before `both`, so that one pod goes against
    # the two budgets; `both` would use up the budget for `z`.
    node_books = books([16], pod("a", 4, 0, started=2.0), pod("both", 8, 0), pod("z", 4, 0))
    budgets = (Budget(1, frozenset({"a", "both", "z"})), Budget(0, frozenset({"both"})))
    assert answer(node_books, Preemptor(Request(12, 1), 5), budgets=budgets) == (["a", "both"], 1)


def test_violations_of_those_named_are_kept_and_of_those_added_counted() -> None:
    node_books = books([16, 16], pod("a", 10, 0), pod("b", 16, 1, priority=9))
    shut = (Budget(0, frozenset("a")),)
    assert answer(node_books, ONE_OF_14, "plain", violations=1, budgets=shut) == (["plain", "a"], 2)


def test_a_uid_named_twice_goes_once() -> None:
    assert answer(books([16], pod("a", 10, 0)), ONE_OF_14, "a", "a") == (["a"], 0)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_an_empty_list_is_filled_with_the_best_set_there_is(case: PreemptionCase) -> None:
    victims = trim_victims(case.books, case.preemptor, Victims(), enough(), case.budgets)
    if victims is None:
        assert case.least_loss() is None
        return
    chosen = [p for uid in victims.uids for p in case.pods if p.ref.uid == uid]
    assert case.fits_without({*victims.uids, *case.ending})
    if not victims.uids:
        assert victims.violations == 0
        return
    assert case.loss(chosen) == case.least_loss()
    assert victims.violations == case.violations(chosen)
    assert [p.priority for p in chosen] == sorted((p.priority for p in chosen), reverse=True)


@settings(max_examples=150, deadline=None)
@given(cases(), st.data())
def test_any_list_comes_back_freeing_enough_and_touching_nobody_it_may_not(
    case: PreemptionCase, data: st.DataObject
) -> None:
    killable = [p.ref.uid for p in case.pods if p.priority < case.preemptor.priority]
    proposed = data.draw(st.lists(st.sampled_from([*killable, "plain"]), unique=True))
    victims = trim_victims(
        case.books, case.preemptor, Victims(tuple(proposed)), enough(), case.budgets
    )
    if victims is None:
        everybody = {p.ref.uid for p in case.lower} | case.ending
        waits = case.fits_without(case.ending) and "plain" not in proposed
        assert waits or not case.fits_without(everybody | set(proposed))
        return
    assert set(proposed) & {"plain"} <= set(victims.uids)
    added = [uid for uid in victims.uids if uid not in proposed]
    assert set(added) <= {p.ref.uid for p in case.lower}
    assert len(set(victims.uids)) == len(victims.uids)
    assert bool(victims.uids) or not proposed
    assert case.fits_without({*victims.uids, *case.ending})
    if case.fits_without(proposed):
        assert list(victims.uids) == proposed
    for uid in added:
        assert not case.fits_without({*victims.uids, *case.ending} - {uid})


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([1, 8]), st.integers(0, 100))
def test_with_few_steps_or_many_pods_the_set_frees_enough_and_none_is_there_for_nothing(
    case: PreemptionCase, times: int, steps: int
) -> None:
    many = [
        p._replace(ref=PodRef("ns", f"{p.ref.uid}-{n}", f"{p.ref.uid}-{n}"))
        for n in range(times)
        for p in case.pods
    ]
    crowded = replace(case, pods=tuple(many), budgets=case.budgets if times == 1 else ())
    budget = StepBudget(steps)
    victims = trim_victims(crowded.books, crowded.preemptor, Victims(), budget, crowded.budgets)
    everybody = {p.ref.uid for p in crowded.lower} | crowded.ending
    assert (victims is None) == (not crowded.fits_without(everybody))
    assert budget.remaining >= -2 * len(many) * len(case.spec.capacity)
    for uid in victims.uids if victims else ():
        ending = {*victims.uids, *crowded.ending} if victims else set()
        assert crowded.fits_without(ending)
        assert not crowded.fits_without(ending - {uid})


def test_a_pod_on_two_devices_may_spare_another_that_was_to_free_one_of_them() -> None:
    # Devices 0 and 1 would take all three; 0 and 2 are free without `b`.
    pods = [pod("a", 6, 0, 2), pod("b", 4, 1), pod("c", 2, 0, 1)]
    victims = trim_victims(
        books([8] * 3, *pods), Preemptor(Request(8, 2), 5), Victims(), StepBudget(0)
    )
    assert victims == Victims(("a", "c"))


def test_of_many_sets_of_devices_the_cheapest_are_freed() -> None:
    pods = [
        pod(f"p{device}-{n}", 8, device, priority=device % 2) for device in range(8) for n in (0, 1)
    ]
    victims = answer(books([16] * 8, *pods), Preemptor(Request(8, 4), 5))
    assert victims is not None
    assert {uid.partition("-")[0] for uid in victims[0]} == {"p0", "p2", "p4", "p6"}
    assert len(victims[0]) == 4


def crowded_node(per_device: int, *sizes: int) -> NodeBooks:
    """Eight devices of 16, each full of pods of these sizes in turn."""
    pods = [
        pod(
            f"p{device}-{n}",
            sizes[n % len(sizes)],
            device,
            priority=(device + n) % 3,
            started=float(n),
        )
        for device in range(8)
        for n in range(per_device)
    ]
    return books([16] * 8, *pods)


@pytest.mark.parametrize(
    ("node_books", "new_request"),
    [
        (crowded_node(4, 4), Request(16, 2)),
        (crowded_node(4, 4), Request(8, 2)),
        (crowded_node(8, 2), Request(5, 1)),
        (crowded_node(6, 1, 2, 5), Request(10, 2)),
    ],
)
def test_devices_that_share_no_pod_are_freed_one_by_one(
    node_books: NodeBooks, new_request: Request
) -> None:
    # Together they would be tried in hundreds of sets of pods, for each of 28 pairs of devices.
    steps = StepBudget(1_000)
    assert trim_victims(node_books, Preemptor(new_request, 5), Victims(), steps) is not None
    assert steps.remaining > 900
