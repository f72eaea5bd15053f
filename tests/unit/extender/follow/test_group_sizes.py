"""The sizes of groups by the objects that say them, as lists and watches bring those."""

import json
from typing import Any

import pytest

from gpushare.extender.follow import group_sizes
from gpushare.extender.follow.group_sizes import SIZE_SOURCES, GroupSizes
from gpushare.wire.groups import COSCHEDULING, JOB_SET, Group
from gpushare.wire.objects import POD_GROUPS

GANG = Group("coscheduling team/g", sized_by="coscheduling team/g")


def pod_group(name: str, size: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": name, "resourceVersion": "5"}
    return {"kind": "PodGroup", "metadata": metadata, "spec": {"minMember": size}}


def page(*items: dict[str, Any]) -> Any:
    metadata = {"resourceVersion": "7"}
    body = {"kind": "PodGroupList", "metadata": metadata, "items": items}
    return POD_GROUPS.decode_list(json.dumps(body).encode())


def event(kind: str, item: dict[str, Any]) -> Any:
    return POD_GROUPS.decode_event(json.dumps({"type": kind, "object": item}).encode())


def test_the_object_counts_before_what_a_pod_says() -> None:
    sizes = GroupSizes()
    group_object = Group(GANG.key, 2, sized_by=GANG.sized_by)
    assert [sizes.size_of(group) for group in (GANG, group_object, Group())] == [0, 2, 0]
    sizes.handler(COSCHEDULING).apply(event("ADDED", pod_group("g", 5)))
    assert [sizes.size_of(group) for group in (GANG, group_object)] == [5, 5]


def test_an_object_that_says_no_size_leaves_what_the_pods_say() -> None:
    sizes = GroupSizes()
    sizes.handler(COSCHEDULING).apply(event("ADDED", pod_group("g", 0)))
    assert sizes.size_of(Group(GANG.key, 2, sized_by=GANG.sized_by)) == 2


def test_sizes_follow_their_objects() -> None:
    sizes = GroupSizes()
    handler = sizes.handler(COSCHEDULING)
    handler.replace([handler.trim(page(pod_group("g", 3), pod_group("h", 4)))], 0.0)
    assert sizes.size_of(GANG) == 3
    handler.apply(event("MODIFIED", pod_group("g", 6)))
    assert sizes.size_of(GANG) == 6
    handler.apply(event("DELETED", pod_group("g", 6)))
    assert sizes.size_of(GANG) == 0
    handler.replace([handler.trim(page(pod_group("g", 2)))], 0.0)
    assert sizes.size_of(GANG) == 2
    assert sizes.size_of(Group("x", sized_by="coscheduling team/h")) == 0


def test_one_that_cannot_be_read_keeps_its_size_until_it_is_gone() -> None:
    sizes = GroupSizes()
    handler = sizes.handler(COSCHEDULING)
    handler.apply(event("ADDED", pod_group("g", 3)))
    handler.apply(event("MODIFIED", pod_group("g", "three")))
    handler.replace([handler.trim(page(pod_group("g", "three"), pod_group("h", 2)))], 0.0)
    assert sizes.size_of(GANG) == 3
    handler.apply(event("DELETED", pod_group("g", "three")))
    assert sizes.size_of(GANG) == 0


def test_a_list_of_one_kind_leaves_the_others() -> None:
    sizes = GroupSizes()
    sizes.handler(COSCHEDULING).apply(event("ADDED", pod_group("g", 3)))
    sizes.handler(JOB_SET).replace([], 0.0)
    assert sizes.size_of(GANG) == 3


def test_sizes_of_no_more_objects_are_kept_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_sizes, "MOST_OBJECTS", 1)
    sizes = GroupSizes()
    handler = sizes.handler(COSCHEDULING)
    handler.replace([handler.trim(page(pod_group("g", 3), pod_group("h", 4)))], 0.0)
    handler.apply(event("MODIFIED", pod_group("g", 5)))
    assert sizes.size_of(GANG) == 5
    assert sizes.size_of(Group("x", sized_by="coscheduling team/h")) == 0


def test_each_kind_is_read_once_under_a_name_of_its_own() -> None:
    for field in ("kind", "name", "path"):
        assert len({getattr(source, field) for source in SIZE_SOURCES}) == len(SIZE_SOURCES)
    assert all(source.path.rsplit("/", 1)[1] in source.name for source in SIZE_SOURCES)
