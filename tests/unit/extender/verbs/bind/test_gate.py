"""Each rule of the gate: who counts, when a group passes, and how a wait ends otherwise."""

import threading
from collections.abc import Callable

import pytest

from gpushare.core.model import PodRef, Request
from gpushare.extender.follow.group_members import MOST_KINDS, Member, Need
from gpushare.extender.verbs.bind.gate import (
    COMPETITION,
    DELETED,
    NOT_LEADING,
    STOP,
    TIMEOUT,
    Arrival,
    Gate,
    Verdict,
)
from gpushare.wire.groups import Group

WAIT = 5.0
ASKS = Request(10, 1)
MEM = "aliyun.com/gpu-mem"


def ref(name: str) -> PodRef:
    return PodRef("default", name, f"uid-{name}")


class World:
    """A gate and groups; a pod is named by its group and a number."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.gate = Gate(lambda group: self.sizes.get(group.key, 0), WAIT)
        self.gate.listed([])

    def group(self, name: str) -> Group:
        return Group(name, self.sizes.get(name, 0))

    def show(
        self, name: str, *, is_bound: bool = False, priority: int = 0, created: float = 1.0
    ) -> None:
        need = None if is_bound else Need(MEM, ASKS)
        member = Member(ref(name), is_bound, need, priority, created)
        self.gate.shown(name.partition("-")[0], member)

    def arrive(self, name: str, now: float = 0.0, *, is_shown: bool = True) -> tuple[str, ...]:
        """The pod comes to the gate; return the pods that pass."""
        if is_shown:
            self.show(name)
        arrival = Arrival(ref(name), f"stamp-{name}", "n", MEM, now + WAIT)
        self.gate.arrive(self.group(name.partition("-")[0]), arrival)
        return self.passed(now)

    def passed(self, now: float = 0.0) -> tuple[str, ...]:
        verdicts = self.gate.take(now)
        assert not any(verdict.refusal for verdict in verdicts)
        return tuple(name for verdict in verdicts for name in names(verdict))


def names(verdict: Verdict) -> tuple[str, ...]:
    return tuple(arrival.ref.name for arrival in verdict.arrivals)


def test_a_group_passes_when_as_many_wait_as_it_needs() -> None:
    world = World(a=3)
    assert world.arrive("a-0") == world.arrive("a-1") == ()
    assert world.arrive("a-2") == ("a-0", "a-1", "a-2")
    assert world.gate.state()["gate_pods"] == 0


def test_a_group_without_a_size_or_of_one_pod_has_no_gate() -> None:
    world = World(a=1)
    assert not world.gate.holds_back(world.group("a"))
    assert not world.gate.holds_back(world.group("unknown"))
    assert not world.gate.holds_back(Group())
    assert World(b=2).gate.holds_back(Group("b"))


def test_further_pods_of_a_whole_group_pass_by_themselves() -> None:
    world = World(a=2)
    world.arrive("a-0")
    world.arrive("a-1")
    assert world.arrive("a-2") == ("a-2",)
    world.show("a-0", is_bound=True)
    assert world.arrive("a-3") == ("a-3",)


def test_a_pod_that_comes_again_passes_when_the_rest_is_bound() -> None:
    world = World(a=3)
    world.show("a-0", is_bound=True)
    world.show("a-1", is_bound=True)
    assert world.arrive("a-2") == ("a-2",)
    world.gate.gone("uid-a-1", deleted=True)
    world.gate.gone("uid-a-2", deleted=True)
    assert world.arrive("a-1b") == ()
    assert world.arrive("a-2b") == ("a-1b", "a-2b")


def test_pods_of_a_deleted_group_of_the_same_name_do_not_count() -> None:
    world = World(a=2)
    world.arrive("a-0")
    world.arrive("a-1")
    for name in ("a-0", "a-1"):
        world.show(name, is_bound=True)
        world.gate.gone(f"uid-{name}", deleted=True)
    world.sizes["a"] = 4
    for number in range(2, 5):
        assert world.arrive(f"a-{number}") == ()
    assert len(world.arrive("a-5")) == 4


def test_pods_that_were_sent_and_deleted_before_they_were_shown_bound_do_not_count() -> None:
    world = World(a=2)
    world.arrive("a-0")
    world.arrive("a-1")
    world.gate.gone("uid-a-0", deleted=True)
    world.gate.gone("uid-a-1", deleted=True)
    assert world.arrive("a-2") == ()


def test_a_pod_counts_only_once_it_is_shown() -> None:
    world = World(a=2)
    assert world.arrive("a-0") == world.arrive("a-1", is_shown=False) == ()
    world.show("a-1")
    assert world.passed() == ("a-0", "a-1")


def test_a_whole_list_ends_the_count_of_pods_that_it_does_not_show() -> None:
    world = World(a=3)
    world.arrive("a-0")
    world.arrive("a-1")
    world.gate.listed(["uid-a-1"])
    assert world.arrive("a-2") == ()
    world.show("a-0")
    assert len(world.passed()) == 3


def test_when_the_time_of_the_first_is_over_all_turn_back() -> None:
    world = World(a=3)
    world.arrive("a-0", 10.0)
    world.arrive("a-1", 12.0)
    assert world.gate.take(14.9) == ()
    (verdict,) = world.gate.take(15.0)
    assert names(verdict) == ("a-0", "a-1")
    assert verdict.reason == TIMEOUT
    assert verdict.refusal == "its group is not whole: 2 of 3 have a place"
    assert world.gate.take(99.0) == ()
    assert world.arrive("a-2", 16.0) == ()


def test_a_deleted_pod_turns_back_at_once_and_counts_no_more() -> None:
    world = World(a=2)
    world.arrive("a-0")
    world.gate.gone("uid-a-0", deleted=True)
    (verdict,) = world.gate.take(0.1)
    assert (names(verdict), verdict.reason) == (("a-0",), DELETED)
    assert world.arrive("a-1", 0.2) == ()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda gate: gate.stop(), STOP),
        (lambda gate: gate.turn_all_back("it does not lead", NOT_LEADING), NOT_LEADING),
    ],
)
def test_all_turn_back_when_the_process_stops_or_leads_no_more(
    end: Callable[[Gate], None], reason: str
) -> None:
    world = World(a=2, b=2)
    world.arrive("a-0")
    world.arrive("b-0")
    end(world.gate)
    verdicts = world.gate.take(0.1)
    assert sorted(name for verdict in verdicts for name in names(verdict)) == ["a-0", "b-0"]
    assert {verdict.reason for verdict in verdicts} == {reason}


def test_a_process_that_stops_lets_nobody_wait() -> None:
    world = World(a=2)
    world.gate.stop()
    world.show("a-0")
    world.gate.arrive(world.group("a"), Arrival(ref("a-0"), "s", "n", MEM, 5.0))
    (verdict,) = world.gate.take(0.0)
    assert verdict.reason == STOP


def test_bindings_that_did_not_land_do_not_count_and_tear_a_group_that_has_others() -> None:
    world = World(a=3)
    for number in range(3):
        world.arrive(f"a-{number}")
    torn = world.gate.unbound("uid-a-1")
    assert torn is not None
    assert (torn.bound_count, torn.size) == (2, 3)
    assert ref("a-0") in torn.members
    assert world.gate.state()["gate_torn_total"] == 1
    assert world.gate.unbound("uid-a-1") is None
    assert world.arrive("a-1") == ("a-1",)


def test_a_group_of_which_no_binding_landed_is_not_torn() -> None:
    world = World(a=2)
    world.arrive("a-0")
    world.arrive("a-1")
    assert world.gate.unbound("uid-a-0") is not None
    assert world.gate.unbound("uid-a-1") is None
    assert world.arrive("a-0") == ()


def test_a_verdict_that_is_not_carried_out_leaves_the_group_unbound() -> None:
    world = World(a=2)
    for name in ("a-0", "a-1"):
        world.show(name)
        world.gate.arrive(world.group("a"), Arrival(ref(name), name, "n", MEM, 5.0))
    (verdict,) = world.gate.take(0.0)
    world.gate.take_back(verdict)
    assert world.arrive("a-0") == ()


def test_members_that_have_ended_keep_their_place_while_others_run() -> None:
    world = World(a=3)
    for number in range(3):
        world.show(f"a-{number}", is_bound=True)
    world.gate.gone("uid-a-0", deleted=False)
    world.gate.gone("uid-a-1", deleted=True)
    assert world.arrive("a-1b") == ("a-1b",)


def test_a_group_all_of_whose_members_have_ended_begins_anew() -> None:
    world = World(a=2)
    for name in ("a-0", "a-1"):
        world.show(name, is_bound=True)
        world.gate.gone(f"uid-{name}", deleted=False)
    assert world.arrive("a-2") == ()


def test_members_may_have_ended_before_the_first_list() -> None:
    world = World(a=3)
    world.gate = Gate(lambda group: world.sizes[group.key], WAIT)
    world.show("a-0", is_bound=True)
    world.gate.listed(["uid-a-0"])
    assert world.arrive("a-1") == ("a-1",)
    world.gate.gone("uid-a-0", deleted=True)
    world.gate.gone("uid-a-1", deleted=True)
    assert world.arrive("a-2") == ()


def test_of_competing_groups_the_worst_yields_first() -> None:
    world = World(old=3, young=3, urgent=3)
    for name, priority, created in (("old", 0, 1.0), ("young", 0, 2.0), ("urgent", 5, 3.0)):
        world.show(f"{name}-0", priority=priority, created=created)
        world.gate.arrive(world.group(name), Arrival(ref(f"{name}-0"), name, "n", MEM, 9.0))

    def rivals(name: str) -> list[str]:
        return [key for key, _ in world.gate.rivals(world.group(name), MEM)]

    assert rivals("urgent") == ["young", "old"]
    assert rivals("old") == ["young"]
    assert rivals("young") == []
    assert world.gate.rivals(world.group("urgent"), "other") == []
    world.gate.yield_to(world.group("old"), ["young"])
    (verdict,) = world.gate.take(0.0)
    assert (names(verdict), verdict.reason) == (("young-0",), COMPETITION)
    assert "1 of 3 have a place" in verdict.refusal


def test_a_group_lacks_the_places_of_members_that_have_none_and_of_better_groups() -> None:
    world = World(old=3, young=2)
    need = Need(MEM, ASKS)
    for number in range(3):
        world.show(f"old-{number}", created=1.0)
    world.show("young-0", created=2.0)

    def lacks(name: str, holders: tuple[str, ...] = ()) -> int:
        group = world.group(name.partition("-")[0])
        return world.gate.needs(f"uid-{name}", group, need, holders).total()

    assert lacks("old-0") == 3
    assert lacks("old-1", ("uid-old-0",)) == 2
    assert lacks("young-0") == 2
    world.gate.arrive(world.group("old"), Arrival(ref("old-0"), "s", "n", MEM, 9.0))
    assert lacks("old-1") == 2
    assert lacks("young-0") == 4
    assert lacks("alone-0") == 0
    world.show("old-1", is_bound=True, created=1.0)
    world.show("old-2", is_bound=True, created=1.0)
    assert lacks("old-3") == 0


def test_the_kinds_of_a_better_group_are_bounded_whatever_a_tenant_writes() -> None:
    world = World(old=500, young=2)
    for number in range(500):
        need = Need(MEM, Request(1 + number, 1))
        world.gate.shown("old", Member(ref(f"old-{number}"), False, need, 0, 1.0))
    world.show("young-0", created=2.0)
    world.gate.arrive(world.group("old"), Arrival(ref("old-0"), "s", "n", MEM, 9.0))
    needs = world.gate.needs("uid-young-0", world.group("young"), Need(MEM, ASKS), ())
    assert len(needs) == 2 * MOST_KINDS
    assert needs[ASKS] == 3


def test_the_state_of_a_group_says_how_far_it_has_come() -> None:
    world = World(a=4)
    world.show("a-0", is_bound=True)
    world.show("a-1")
    world.arrive("a-2", 3.0)
    state = world.gate.state_of(world.group("a"))
    assert tuple(state) == (4, 3, 1, 1, 3.0 + WAIT)
    assert tuple(world.gate.state_of(world.group("b"))) == (0, 0, 0, 0, None)


@pytest.mark.parametrize(("now", "comes"), [(0.0, "a-1"), (99.0, "")])
def test_a_thread_that_waits_is_woken_by_a_verdict_and_by_the_time(now: float, comes: str) -> None:
    world = World(a=2)
    world.arrive("a-0")
    world.show("a-1")
    waits = threading.Thread(target=world.gate.wait_for_verdict, args=(lambda: now, 60.0))
    waits.start()
    if comes:
        world.gate.arrive(world.group("a"), Arrival(ref(comes), "s", "n", MEM, 5.0))
    waits.join(30.0)
    assert not waits.is_alive()
