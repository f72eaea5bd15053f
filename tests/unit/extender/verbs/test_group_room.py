"""Groups at the gate yield their places to a better group, as few of them as possible."""

from unittest.mock import Mock

import numpy as np
import pytest

from gpushare.core.decide import room_for
from gpushare.core.model import Allocation, PodRef, Request
from gpushare.core.selectors import NO_DEMANDS
from gpushare.extender.follow.group_members import Member, Need
from gpushare.extender.verbs import group_room
from gpushare.extender.verbs.bind.gate import Arrival, Gate
from gpushare.extender.verbs.group_room import GroupRoom
from gpushare.wire.groups import Group
from gpushare.wire.pods import Claimant
from tests.unit.core.clusters import node
from tests.unit.extender.kit import managed_resources

REQUEST = Request(16, 1)


@pytest.mark.parametrize(
    ("size", "yields"),
    [(2, ["young-4", "young-5"]), (5, [f"young-{number}" for number in range(1, 6)]), (7, [])],
)
def test_as_many_of_the_youngest_groups_yield_as_a_better_group_needs(
    size: int, yields: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (managed,) = managed_resources()
    managed.ledger.node_changed(node("n", *[16] * 6))
    sizes, resource = {"old": size}, managed.names.resource
    gate = Gate(lambda group: sizes[group.key], 5.0)
    gate.listed([])
    for number in range(6):
        key, sizes[f"young-{number}"] = f"young-{number}", 2
        ref = PodRef("team", key, key)
        gate.shown(key, Member(ref, False, Need(resource, REQUEST), 0, 2.0 + number))
        place = Allocation("n", ((number, 16),))
        managed.ledger.assume(ref, REQUEST, place, 0.0, stamp=key, at_gate=True)
        gate.arrive(Group(key, 2), Arrival(ref, key, "n", resource, 5.0))
    pod = Claimant(PodRef("team", "old", "old"), REQUEST, 0, Group("old", size), created=1.0)
    gate.shown("old", Member(pod.ref, False, Need(resource, REQUEST), 0, 1.0))
    looks = Mock(wraps=room_for)
    monkeypatch.setattr(group_room, "room_for", looks)
    room = GroupRoom(managed, gate, lambda: None)
    snapshot = managed.ledger.snapshot()
    assert room.make_room(pod, lambda: NO_DEMANDS, snapshot, np.arange(1)) is bool(yields)
    verdicts = gate.take(0.0)
    assert sorted(verdict.group_key for verdict in verdicts) == yields
    assert looks.call_count <= (4 if yields else 1)
