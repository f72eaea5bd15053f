"""What a group still needs, by the pods that the API server shows of it."""

from collections import Counter
from dataclasses import replace

import pytest

from gpushare.core.model import Request
from gpushare.extender.follow.group_members import MOST_KINDS, GroupMembers

WORKER, HEAD = Request(10, 1), Request(16, 2)
G = "podgroup team/g"


def group(**pods: Request | None) -> GroupMembers:
    made = GroupMembers()
    for name, asks in pods.items():
        made.put(name, G, asks)
    return made


@pytest.mark.parametrize(
    ("members", "size", "placed", "needs"),
    [
        # Nothing is known but the size: the others are like the pod itself.
        ({}, 3, set(), {WORKER: 3}),
        # A launcher needs no device, or has its place.
        ({"launcher": None}, 3, set(), {WORKER: 2}),
        ({"launcher": None, "w2": WORKER}, 3, set(), {WORKER: 2}),
        # What another kind of member asks for counts as that.
        ({"head": HEAD, "w2": WORKER}, 3, set(), {WORKER: 2, HEAD: 1}),
        ({"head": HEAD, "w2": WORKER}, 3, {"head"}, {WORKER: 2}),
        # More are there than are needed: the smallest of them.
        ({"head": HEAD, "w2": WORKER, "w3": WORKER}, 3, set(), {WORKER: 3}),
        ({"w2": None, "w3": None, "w4": WORKER}, 3, set(), {WORKER: 1}),
        # No size: those that wait.
        ({"w2": WORKER, "head": HEAD, "launcher": None}, 0, set(), {WORKER: 2, HEAD: 1}),
        ({}, 0, set(), {WORKER: 1}),
    ],
)
def test_what_a_group_needs_is_counted_from_its_pods(
    members: dict[str, Request | None], size: int, placed: set[str], needs: dict[Request, int]
) -> None:
    found = group(w1=WORKER, **members).needs("w1", WORKER, G, size, placed)
    assert found == Counter(needs)
    assert next(iter(found)) == WORKER


def test_pods_that_are_alike_in_what_decides_about_devices_are_one_kind() -> None:
    other = replace(WORKER, cpu=1000, containers=((0, 10),), policy="spread")
    assert group(w2=other).needs("w1", WORKER, G, 0, set()) == Counter({WORKER: 2})
    model = replace(WORKER, models=("T4",))
    assert len(group(w2=model).needs("w1", WORKER, G, 0, set())) == 2


def test_what_is_looked_at_is_bounded_whatever_a_tenant_writes() -> None:
    many = group(**{f"p{units}": Request(units, 1) for units in range(1, 500)})
    assert len(many.needs("w1", WORKER, G, 0, set())) == MOST_KINDS


def test_members_that_go_or_change_their_group_are_forgotten() -> None:
    members = group(a=WORKER, b=WORKER)
    members.put("a", "podgroup team/other", WORKER)
    assert members.needs("w1", WORKER, G, 0, set()) == Counter({WORKER: 2})
    members.keep({"a"})
    members.remove("nobody")
    assert "b" not in members
    members.remove("a")
    assert members.needs("w1", WORKER, "podgroup team/other", 0, set()) == Counter({WORKER: 1})
    assert vars(members) == {"_groups": {}, "_group_of": {}, "_by_claim": set()}
