"""The missing places of a group, by the pods that the API server shows."""

from collections import Counter
from dataclasses import replace

import pytest

from gpushare.core.model import PodRef, Request
from gpushare.core.selectors import Demands
from gpushare.extender.follow.group_members import MOST_KINDS, GroupMembers, Member, Need, kind_of

WORKER, HEAD = Request(10, 1), Request(16, 2)
G = "podgroup team/g"
MEM = "aliyun.com/gpu-mem"
ASKS = Need(MEM, WORKER)


def member(name: str, request: Request | None = WORKER, *, bound_pod: bool = False) -> Member:
    need = None if request is None else Need(MEM, kind_of(request))
    return Member(PodRef("team", name, name), bound_pod, need)


def group(**pods: Request | None) -> GroupMembers:
    """Members by name and request; None: bound."""
    group_members = GroupMembers()
    for name, asks in pods.items():
        group_members.put(G, member(name, asks, bound_pod=asks is None))
    return group_members


@pytest.mark.parametrize(
    ("members", "size", "placed", "needs"),
    [
        # Nothing is known but the size: the others are like the pod itself.
        ({}, 3, set(), {WORKER: 3}),
        # A launcher has its place.
        ({"launcher": None}, 3, set(), {WORKER: 2}),
        ({"launcher": None, "w2": WORKER}, 3, set(), {WORKER: 2}),
        # Another kind of member counts with its own request.
        ({"head": HEAD, "w2": WORKER}, 3, set(), {WORKER: 2, HEAD: 1}),
        ({"head": HEAD, "w2": WORKER}, 3, {"head"}, {WORKER: 2}),
        # More exist than are needed: the smallest of them.
        ({"head": HEAD, "w2": WORKER, "w3": WORKER}, 3, set(), {WORKER: 3}),
        ({"w2": None, "w3": None, "w4": WORKER}, 3, set(), {WORKER: 1}),
    ],
)
def test_the_places_that_a_group_lacks_are_counted_from_its_pods(
    members: dict[str, Request | None], size: int, placed: set[str], needs: dict[Request, int]
) -> None:
    result = group(w1=WORKER, **members).needs("w1", ASKS, G, size, placed)
    assert result == Counter(needs)
    assert next(iter(result)) == WORKER


def test_members_with_other_nodes_or_volumes_are_not_counted() -> None:
    members = group(w1=WORKER, w2=WORKER)
    pinned = Demands(node_selector=(("zone", "b"),))
    for name, need in (
        ("w3", Need(MEM, WORKER, pinned)),
        ("w4", Need(MEM, WORKER, has_volumes=True)),
        ("w5", Need("other", WORKER)),
    ):
        members.put(G, Member(PodRef("team", name, name), need=need))
    assert members.needs("w1", ASKS, G, 5, set()) == Counter({WORKER: 2})
    assert members.needs("w3", Need(MEM, WORKER, pinned), G, 5, set()) == Counter({WORKER: 1})


def test_pods_that_are_alike_in_what_decides_about_devices_are_one_kind() -> None:
    second = replace(WORKER, cpu=1000, containers=((0, 10),), policy="spread")
    assert group(w2=second).needs("w1", ASKS, G, 2, set()) == Counter({WORKER: 2})
    model = replace(WORKER, models=("T4",))
    assert len(group(w2=model).needs("w1", ASKS, G, 2, set())) == 2


def test_the_kinds_that_are_looked_at_are_bounded_whatever_a_tenant_writes() -> None:
    many = group(**{f"p{units}": Request(units, 1) for units in range(1, 500)})
    assert len(many.needs("w1", ASKS, G, 500, set())) == MOST_KINDS


def test_members_that_go_or_change_their_group_are_forgotten() -> None:
    members = group(a=WORKER, b=WORKER)
    second = "podgroup team/other"
    members.put(second, member("a"))
    assert members.group_of("a") == second
    assert members.of(G).keys() == {"b"}
    members.keep({"a"})
    members.remove("nobody", deleted=True)
    assert "b" not in members
    members.remove("a", deleted=True)
    assert members.group_of("a") == ""
    assert not any(vars(members).values())


def test_bound_members_that_are_no_longer_shown_have_ended_unless_they_were_deleted() -> None:
    members = group(a=None, b=None, c=None, d=WORKER)
    members.remove("a", deleted=False)
    members.remove("b", deleted=True)
    members.remove("d", deleted=False)
    assert members.bound_count(G) == 2
    members.put(G, member("a", None, bound_pod=True))
    assert members.bound_count(G) == 2
    members.remove("a", deleted=True)
    members.remove("c", deleted=False)
    assert members.bound_count(G) == 0
    assert not any(vars(members).values())


def test_of_a_group_with_bound_members_some_may_have_ended_before_the_first_list() -> None:
    members = group(a=None)
    members.put("other", member("b"))
    members.note_first_list()
    assert members.may_have_ended(G)
    assert not members.may_have_ended("other")
    members.remove("a", deleted=False)
    assert not members.may_have_ended(G)
