"""A group of pods has placeholders for all that need one, or none, whoever refuses one of them."""

from typing import Any

import pytest

from gpushare.extender.follow.placeholders import AFTER_JOIN, MOST
from tests.unit.extender.follow.placeholders_world import CUT, World, why_not
from tests.unit.extender.kit import refusal

FULL = refusal('pods "for-uid-gang-2" is forbidden: exceeded quota: gpus, requested: ...')


def gang(world: World, members: int = 3) -> list[str]:
    for number in range(members):
        world.waits(f"gang-{number}", 8, group="g")
    return [f"uid-gang-{number}" for number in range(members)]


class Quota:
    """Takes so many placeholders at once, and notes where a part of a group was asked for."""

    def __init__(self, world: World, room: int) -> None:
        self.world, self.room = world, room
        self.parts: list[list[str]] = []
        self._answered, world.request = world.request, self.request  # type: ignore[method-assign]

    def request(self, method: str, *args: Any, **more: Any) -> bytes:
        if method == "POST" and len(self.world.asking) >= self.room:
            raise FULL
        answer = self._answered(method, *args, **more)
        caller = self.world.asking
        if len(caller) < 3 and not all("untold" in uid for uid in caller):
            self.parts.append(caller)
        return answer


@pytest.mark.parametrize("members", [4, 5])
def test_a_group_has_all_or_none(members: int) -> None:
    world = World()
    for number in range(6):
        world.waits(f"alone-{number}", 8)
    world.later()
    assert len(world.asking) == 6
    for number in range(members):
        world.waits(f"gang-{number}", 8, group="g")
    world.later()
    gang = [uid for uid in world.asking if "gang" in uid]
    assert len(gang) == (members if members <= MOST - 6 else 0)
    assert len(world.asking) == 6 + len(gang)


def test_a_group_of_which_one_was_not_tried_has_none() -> None:
    world = World()
    world.waits("gang-0", 8, group="g")
    world.waits("gang-1", 8, group="g", conditions=[])
    world.later()
    assert world.asking == []


def test_a_quota_that_refuses_one_of_a_group_leaves_none_of_it() -> None:
    world = World()
    members = gang(world)
    quota = Quota(world, room=2)
    assert not world.later()
    assert world.asking == []
    for number in range(3):
        assert "exceeded quota" in why_not(world, f"gang-{number}")
    # That of the refused one alone is an event; nobody was told of a node that was asked for.
    assert [(name, ask.asked_at) for name, ask in world.told] == [("gang-2", None)]
    world.calls.clear()
    assert world.later(9.0)
    assert {method for method, _ in world.calls} == {"GET"}
    assert not world.later(1.0)
    assert world.asking == []
    assert quota.parts == []
    quota.room = 3
    assert world.later(20.0)
    assert world.asking == members


def test_a_part_of_a_group_that_could_not_be_taken_back_is_never_told() -> None:
    world = World()
    gang(world)
    quota = Quota(world, room=2)
    world.faults = [("DELETE", False, CUT)]
    assert not world.later()
    assert world.asking == ["uid-gang-0 untold"]
    world.start("asks")  # who does not know that one was refused, nor since when nodes are there
    assert world.later(0.0)
    assert world.asking == []
    world.later(AFTER_JOIN)
    assert world.asking == []
    assert quota.parts == []


def test_what_was_told_of_a_group_goes_when_another_one_of_it_is_refused() -> None:
    world = World()
    gang(world, 2)
    assert world.later()
    assert world.asking == ["uid-gang-0", "uid-gang-1"]
    Quota(world, room=2)
    world.waits("alone", 8)
    gang(world, 3)
    world.later()
    assert world.asking == []
    # Its place in the quota is another's now, unless that one was refused too.
    world.later(10.0)
    assert world.asking == ["uid-alone"]


def test_a_member_that_comes_later_takes_nothing_from_the_others() -> None:
    world = World()
    members = gang(world, 2)
    world.later()
    gang(world, 3)
    world.pods["team/gang-2"]["metadata"]["creationTimestamp"] = "2027-01-15T10:49:50Z"
    world.shown()
    world.later(0.0)
    assert world.asking == members
    assert "less than 30 s" in why_not(world, "gang-2")
    world.later()
    assert world.asking == [*members, "uid-gang-2"]


def test_one_of_a_group_that_gets_no_answer_is_made_before_any_is_told() -> None:
    world = World()
    members = gang(world)
    quota = Quota(world, room=9)
    for landed in (False, True):
        world.faults = [("POST", landed, CUT)]
        assert not world.later()
        assert quota.parts == []
    world.later()
    assert world.asking == members
    assert quota.parts == []


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("crash", range(1, 6))
def test_wherever_its_process_dies_no_part_of_a_group_is_told(crash: int, landed: bool) -> None:
    """The process dies at its write of this number; the quota has room for two of three."""
    world = World()
    quota, members = Quota(world, room=2), gang(world)
    answered, writes = world.request, 0

    class Dies(BaseException):
        pass

    def dying(method: str, *args: Any, **more: Any) -> bytes:
        nonlocal writes
        writes += method != "GET"
        dies = method != "GET" and writes == crash
        answer = b"" if dies and not landed else answered(method, *args, **more)
        if dies:
            raise Dies
        return answer

    world.request = dying  # type: ignore[method-assign]
    for _ in range(4):
        try:
            world.later(AFTER_JOIN)
        except Dies:
            world.start("asks")
    assert writes >= crash
    assert world.asking == []
    quota.room = 3
    world.later(600.0)
    assert world.asking == members
    assert quota.parts == []
