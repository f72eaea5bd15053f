"""The rules of holds: when a hold begins, against which pods it counts, when it ends."""

import pytest

from gpushare.core.model import PodRef, Request
from gpushare.extender.verbs.holds import Hold, Holds, counts_against
from gpushare.wire.groups import NO_GROUP, Group
from gpushare.wire.pods import Claimant

GANG = Group("podgroup default/train")


def claimant(
    name: str, *, group: Group = NO_GROUP, priority: int = 0, waits: bool = False
) -> Claimant:
    ref = PodRef("default", name, f"uid-{name}")
    return Claimant(ref, Request(10, 1), priority, group, waits)


A, B, C = (claimant(name) for name in "abc")
M1, M2 = (claimant(f"m{n}", group=GANG) for n in (1, 2))


def offer(holds: Holds, pod: Claimant, now: float = 0.0, node: str = "n") -> None:
    """Filter is called for the pod, and answers this node."""
    holds.asked(pod)
    holds.offered(pod, node, now)


def against(holds: Holds, pod: Claimant, now: float, node: str = "n") -> list[str]:
    """The pods with a hold on the node that counts against this pod."""
    holds.expire(now)
    return [hold.pod.ref.name for hold in holds.on(node) if counts_against(hold, pod)]


@pytest.fixture(params=[False, True], ids=["1.34", "1.35"])
def holds(request: pytest.FixtureRequest) -> Holds:
    return Holds(nominates=request.param)


def test_what_filter_offers_is_held_from_others_and_never_from_the_pod_itself(holds: Holds) -> None:
    offer(holds, A)
    assert against(holds, B, 0.1) == ["a"]
    assert against(holds, A, 0.1) == []


@pytest.mark.parametrize(
    ("nominates", "pod", "seconds"),
    [
        (False, A, 5.0),
        (True, A, 2.0),
        (False, claimant("v", waits=True), 60.0),
        (True, claimant("v", waits=True), 2.0),
        (False, M1, 5.0),
        (True, M1, 2.0),
    ],
)
def test_a_hold_lapses_in_its_time(nominates: bool, pod: Claimant, seconds: float) -> None:
    holds = Holds(nominates=nominates)
    offer(holds, pod, 100.0)
    assert against(holds, B, 100.0 + seconds - 0.01) == [pod.ref.name]
    assert against(holds, B, 100.0 + seconds) == []
    assert holds.lapsed_total == 1


def test_a_bind_ends_the_hold_whatever_it_answers(holds: Holds) -> None:
    offer(holds, A)
    holds.end_after_bind(A.ref.uid)
    assert against(holds, B, 0.1) == []
    holds.end_after_bind(A.ref.uid, is_refused=True)
    assert against(holds, B, 0.1) == []


def test_a_late_event_makes_no_hold_of_a_pod_that_is_being_bound(holds: Holds) -> None:
    offer(holds, A)
    holds.end_after_bind(A.ref.uid)
    holds.shown(A, "n", 0.1)
    assert len(holds.by_key) == 0
    holds.end_after_bind(A.ref.uid, is_refused=True)
    holds.shown(A, "n", 0.2)
    assert against(holds, B, 0.3) == ["a"]


def outwaited(holds: Holds, pod: Claimant, now: float) -> list[str]:
    return [hold.pod.ref.name for hold in holds.outwaited(pod, now)]


def test_who_is_kept_out_as_long_as_a_hold_lasts_is_kept_out_by_younger_ones_no_more() -> None:
    holds = Holds(nominates=True)
    offer(holds, A, 0.0)
    holds.refused(B, 0.5)
    offer(holds, A, 1.9)
    assert outwaited(holds, B, 2.4) == []
    holds.refused(B, 2.4)
    assert outwaited(holds, B, 2.5) == ["a"]
    assert outwaited(holds, C, 2.5) == []


@pytest.mark.parametrize("end", ["refused", "offered", "bind", "gone", "keep"])
def test_how_long_a_pod_is_kept_out_counts_from_the_last_time_that_it_was_not(end: str) -> None:
    holds = Holds(nominates=True)
    holds.refused(B, 0.0)
    offer(holds, A, 3.0)
    assert outwaited(holds, B, 3.0) == ["a"]
    if end == "refused":
        holds.refused(B)
    elif end == "offered":
        holds.offered(B, "n", 3.0)
    elif end == "bind":
        holds.end_after_bind(B.ref.uid)
    elif end == "gone":
        holds.gone(B.ref.uid)
    else:
        holds.keep([A.ref.uid])
    assert outwaited(holds, B, 3.0) == []


def test_of_some_pods_it_is_known_since_when_holds_keep_them_out() -> None:
    holds = Holds(nominates=True)
    many = [claimant(f"p{number}") for number in range(10_001)]
    for uid in many:
        holds.refused(uid, 0.0)
    offer(holds, A, 3.0)
    assert outwaited(holds, many[0], 3.0) == []
    assert outwaited(holds, many[-1], 3.0) == ["a"]


def test_nominations_keep_a_pod_out_however_long() -> None:
    holds = Holds(nominates=True)
    holds.refused(C, 0.0)
    holds.shown(A, "n", 100.0)
    offer(holds, B, 100.0)
    assert outwaited(holds, C, 100.1) == ["b"]


def test_a_refusal_ends_the_hold_of_that_pod_alone(holds: Holds) -> None:
    offer(holds, M1)
    offer(holds, M2, 0.1)
    holds.refused(M2)
    assert against(holds, B, 0.3) == ["m1"]


def test_a_pod_at_the_gate_holds_nothing_and_is_still_being_bound(holds: Holds) -> None:
    offer(holds, M1)
    assert M1.ref.uid in holds
    holds.charged(M1.ref.uid)
    assert M1.ref.uid not in holds
    assert against(holds, B, 0.1) == []


def test_a_young_hold_or_one_about_to_end_is_worth_a_moment() -> None:
    holds = Holds(nominates=True)
    offer(holds, claimant("low", priority=-1), 10.0)
    assert not holds.any_against(B)
    assert not holds.any_soon(B, 10.1)
    offer(holds, A, 10.0)
    assert holds.any_against(B)
    assert [holds.any_soon(B, now) for now in (10.1, 11.0, 11.8)] == [True, False, True]
    holds.shown(A, "n", 10.2)
    assert not holds.any_soon(B, 10.25)
    assert not holds.any_against(A)


def test_of_many_holds_the_young_ones_and_those_about_to_end_are_found() -> None:
    holds = Holds(nominates=False)
    for number in range(50):
        offer(holds, claimant(f"v{number}", waits=True), 0.1 * number)
    assert not holds.any_soon(B, 30.0)
    assert holds.any_soon(B, 60.0 - 0.2)
    offer(holds, A, 30.0)
    holds.shown(claimant("v3", waits=True), "n", 30.1)
    assert holds.any_soon(B, 30.2)
    assert not holds.any_soon(A, 30.2)


def test_another_filter_call_replaces_the_hold(holds: Holds) -> None:
    offer(holds, A, 0.0, "n")
    offer(holds, A, 1.0, "other")
    assert against(holds, B, 1.1, "n") == []
    assert against(holds, B, 1.1, "other") == ["a"]


def test_a_refusal_leaves_what_kube_scheduler_nominates(holds: Holds) -> None:
    offer(holds, M1)
    holds.shown(M1, "n", 0.1)
    holds.refused(M2)
    assert against(holds, B, 0.3) == ["m1"]


def test_a_nomination_begins_a_hold_that_stands_until_it_goes(holds: Holds) -> None:
    holds.shown(A, "n", 0.0)
    assert against(holds, B, 10_000.0) == ["a"]
    assert holds.until(holds.live()[0]) is None
    holds.shown(A, "", 10_001.0)
    assert against(holds, B, 10_001.0) == []


def test_a_nomination_moves_the_hold_to_its_node(holds: Holds) -> None:
    offer(holds, A, 0.0, "n")
    holds.shown(A, "other", 0.1)
    assert against(holds, B, 0.2, "n") == []
    assert against(holds, B, 9.0, "other") == ["a"]


def test_an_event_without_a_nomination_leaves_what_filter_has_just_offered(holds: Holds) -> None:
    offer(holds, A)
    holds.shown(A, "", 0.1)
    assert against(holds, B, 0.2) == ["a"]


def test_a_pod_that_is_gone_holds_nothing(holds: Holds) -> None:
    holds.shown(A, "n", 0.0)
    holds.gone(A.ref.uid)
    assert against(holds, B, 0.1) == []


def test_a_whole_list_ends_the_holds_of_pods_that_are_not_in_it(holds: Holds) -> None:
    holds.shown(A, "n", 0.0)
    holds.shown(C, "n", 0.0)
    holds.keep([C.ref.uid])
    assert against(holds, B, 0.1) == ["c"]


def test_a_pod_of_higher_priority_is_not_held_back_by_one_of_a_lower(holds: Holds) -> None:
    low, high = claimant("low", priority=1), claimant("high", priority=9)
    offer(holds, low)
    assert against(holds, high, 0.1) == []
    offer(holds, high, 0.1)
    assert against(holds, low, 0.2) == ["high"]
    assert against(holds, claimant("equal", priority=9), 0.2) == ["high"]


def test_readers_are_told_which_nodes_have_changed(holds: Holds) -> None:
    offer(holds, A, 0.0, "n")
    version, nodes = holds.changed_since(-1)
    assert nodes == ["n"]
    offer(holds, B, 0.0, "other")
    holds.end_after_bind(A.ref.uid)
    assert sorted(holds.changed_since(version)[1] or ()) == ["n", "other"]
    assert holds.changed_since(holds.version)[1] == []


def test_of_nodes_that_come_and_go_for_years_only_the_latest_are_known(
    holds: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.extender.verbs.holds._MAX_CHANGED", 3)
    offer(holds, A, 0.0, "first")
    before = holds.version
    for number in range(10):
        offer(holds, A, 0.0, f"n{number}")
    assert holds.changed_since(before)[1] is None
    assert holds.changed_since(holds.version - 2)[1] == ["n9", "n8"]


def test_time_that_has_passed_ends_everything_that_is_not_nominated(holds: Holds) -> None:
    for pod in (A, B, M1, M2):
        offer(holds, pod)
    holds.shown(C, "n", 0.0)
    holds.expire(600.0)
    assert [hold.pod for hold in holds.live()] == [C]
    assert isinstance(holds.live()[0], Hold)


def test_a_pod_that_was_turned_away_is_forgotten_when_it_is_gone_or_bound(holds: Holds) -> None:
    offer(holds, C)
    for pod in (A, B, M1):
        holds.turned_away(pod, holds.version)
    holds.gone(A.ref.uid)
    holds.gone(M1.ref.uid)
    holds.gone(C.ref.uid)
    assert holds.take_ended() == ({B.ref.uid: B}, {"n": {""}})
    holds.keep([])
    offer(holds, C, 1.0, "m")
    assert holds.take_ended().pods == {}
