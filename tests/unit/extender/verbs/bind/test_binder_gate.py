"""Binds that wait at the gate: their charges, Bindings and answers."""

from dataclasses import dataclass, field

import pytest

from gpushare.core.model import PodRef, Request
from gpushare.core.states.entry import Phase
from gpushare.errors import ApiError, ApiUnavailable
from gpushare.extender.follow.group_members import Member, Need
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.gate import NOT_LEADING, REPLACED, TIMEOUT, Torn
from gpushare.extender.verbs.bind.transaction import BUDGET, BindResult, wait_within
from gpushare.wire.groups import Group
from tests.support.scripted_api import BOUND, ScriptedApi
from tests.unit.core.clusters import node
from tests.unit.extender.kit import managed_resources

ASKS = Request(10, 1)


@dataclass
class World:
    """A binder over one node of four devices, and a group of some pods."""

    size: int = 2
    leads: float = float("inf")
    api: ScriptedApi = field(default_factory=ScriptedApi)
    answers: dict[str, BindResult] = field(default_factory=dict)
    room: list[str] = field(default_factory=list)
    torn: list[tuple[Torn, PodRef, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.resources: ManagedResources = managed_resources()
        (self.managed,) = self.resources
        self.ledger = self.managed.ledger
        self.ledger.node_changed(node("n", 16, 16, 16, 16))
        self.group = Group("podgroup team/g", self.size)
        self.binder = Binder(
            self.api,
            self.resources,
            lambda: self.leads,
            self.api.clock,
            room_on=self.room.append,
            torn=lambda *told: self.torn.append(told),
        )

    def bind(self, name: str, *, device: bool = True) -> BindResult | None:
        ref = PodRef("team", name, f"uid-{name}")
        need = Need(self.managed.names.resource, ASKS) if device else None
        self.resources.gate.shown(self.group.key, Member(ref, need=need))
        request = (self.managed, ASKS) if device else None
        return self.binder.bind(
            ref, "n", True, request, self.group, later=lambda result: self.put(name, result)
        )

    def put(self, name: str, result: BindResult) -> None:
        assert name not in self.answers
        self.answers[name] = result

    def phase(self, name: str) -> Phase | None:
        entry = self.ledger.entry(f"uid-{name}")
        return None if entry is None else entry.phase

    def written(self) -> int:
        return sum(call.path.endswith("/binding") for call in self.api.calls)


@pytest.fixture
def world() -> World:
    return World()


def test_a_member_is_charged_and_nothing_is_sent_before_its_group_is_whole(world: World) -> None:
    assert world.bind("a") is None
    assert world.phase("a") is Phase.AT_GATE
    assert world.written() == 0
    assert world.bind("b") is None
    assert world.written() == 2
    assert {name: result.reason for name, result in world.answers.items()} == {
        "a": "bound",
        "b": "bound",
    }
    assert world.phase("a") is world.phase("b") is Phase.LANDED
    assert world.binder.settled()


def test_a_member_without_a_device_waits_and_counts(world: World) -> None:
    assert world.bind("launcher", device=False) is None
    assert world.written() == 0
    world.bind("a")
    assert world.written() == 2
    assert not any(result.error for result in world.answers.values())


def test_a_group_that_is_not_whole_in_time_gives_its_places_back(world: World) -> None:
    world.bind("a")
    world.api.now += world.resources.gate.wait
    world.binder.guard_gate(0.0)
    assert world.answers["a"].reason == TIMEOUT
    assert "its group is not whole: 1 of 2 have a place" in world.answers["a"].error
    assert world.phase("a") is None
    assert world.room == ["n"]
    assert world.written() == 0
    assert world.binder.settled()


def test_a_process_that_leads_no_more_gives_the_places_back_and_sends_nothing(
    world: World,
) -> None:
    world.bind("a")
    world.leads = world.api.now - 1.0
    world.binder.guard_gate(0.0)
    assert world.answers["a"].reason == NOT_LEADING
    assert world.phase("a") is None


def test_a_group_that_becomes_whole_when_the_lead_is_about_to_end_is_not_sent() -> None:
    world = World(leads=1000.0 + BUDGET)
    world.bind("a")
    world.api.now += 0.5
    world.leads = world.api.now + BUDGET
    world.resources.gate.shown(world.group.key, Member(PodRef("team", "b", "uid-b"), True))
    world.leads -= 0.1
    world.binder.open_gate()
    assert world.written() == 0
    assert world.answers["a"].reason == NOT_LEADING
    assert world.resources.gate.state()["gate_torn_total"] == 0
    assert world.resources.gate.state_of(world.group).bound == 1


@pytest.mark.parametrize("change", ["node", "device"])
def test_a_group_whose_place_is_gone_meanwhile_is_not_sent(world: World, change: str) -> None:
    world.bind("a")
    if change == "node":
        world.ledger.node_gone("n")
        world.ledger.node_changed(node("other", 16))
    else:
        world.ledger.set_unhealthy("n", frozenset(range(4)))
    world.resources.gate.shown(world.group.key, Member(PodRef("team", "b", "uid-b"), True))
    world.binder.open_gate()
    assert world.written() == 0
    assert world.answers["a"].reason == "changed"
    assert world.phase("a") is None


def test_a_pod_that_is_deleted_while_it_waits_is_answered_at_once(world: World) -> None:
    world.bind("a")
    world.resources.gate.gone("uid-a", deleted=True)
    world.ledger.pod_gone("uid-a")
    world.binder.open_gate()
    assert world.answers["a"].reason == "gone"
    assert world.phase("a") is None


def test_one_refused_binding_leaves_the_others_bound_and_is_told() -> None:
    world = World(size=3)
    world.api.answers = [BOUND, ApiError("a webhook says no", 403), BOUND]
    for name in "abc":
        world.bind(name)
    assert [world.answers[name].reason for name in "abc"] == ["bound", "refused", "bound"]
    ((torn, ref, error),) = world.torn
    assert (torn.bound_count, torn.size, ref.name) == (2, 3, "b")
    assert "a webhook says no" in error
    assert world.phase("b") is None
    # The member arrives again, and the other members are there.
    world.answers.clear()
    world.bind("b")
    assert world.answers["b"].reason == "bound"


def test_a_binding_in_doubt_counts_until_it_is_known_not_to_have_landed(world: World) -> None:
    world.bind("a")
    world.api.answers = [ApiUnavailable("no answer", 0), ApiUnavailable("nor here", 0), BOUND]
    world.bind("b")
    reasons = {result.reason for result in world.answers.values()}
    assert reasons == {"in_doubt", "bound"}
    assert world.torn == []


def test_an_answer_that_fails_leaves_the_others_theirs(world: World) -> None:
    ref = PodRef("team", "a", "uid-a")
    world.resources.gate.shown(world.group.key, Member(ref))

    def fails(result: BindResult) -> None:
        raise ValueError(result)

    request = (world.managed, ASKS)
    world.binder.bind(ref, "n", True, request, world.group, later=fails)
    world.bind("b")
    assert world.answers["b"].reason == "bound"
    assert world.phase("a") is Phase.LANDED


def test_an_error_of_ours_behind_the_gate_is_an_answer_and_keeps_the_charge_in_doubt(
    world: World,
) -> None:
    world.api.answers = [RuntimeError("ours"), BOUND]
    world.bind("a")
    world.bind("b")
    failed = [name for name, result in world.answers.items() if result.reason == "failed"]
    assert len(failed) == 1
    assert world.phase(failed[0]) is Phase.IN_DOUBT
    assert not world.binder.settled()


def test_a_second_bind_of_a_pod_at_the_gate_takes_the_place_of_the_first(world: World) -> None:
    """A restarted kube-scheduler does not know the bind that the previous process sent."""
    world.bind("a")
    assert world.bind("a") is None
    assert world.answers.pop("a").reason == REPLACED
    assert world.phase("a") is Phase.AT_GATE
    assert world.resources.gate.state()["gate_pods"] == 1
    world.bind("b")
    assert world.answers["a"].reason == "bound"


def test_a_caller_that_cannot_wait_is_refused_and_keeps_nothing(world: World) -> None:
    ref = PodRef("team", "a", "uid-a")
    result = world.binder.bind(ref, "n", True, (world.managed, ASKS), world.group)
    assert result is not None
    assert result.error
    assert world.phase("a") is None


def test_the_wait_is_the_rest_of_kube_schedulers_time() -> None:
    assert wait_within(30.0) == 25.0
    assert wait_within(5.0) == 0.5
