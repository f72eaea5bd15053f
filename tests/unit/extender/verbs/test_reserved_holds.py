"""The holds of a plan of moves: for the pending pod, and for the heir of a moved pod."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpushare.core.model import PodRef, Reason, Request
from gpushare.extender.verbs.holds import Holds
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import SPLIT
from gpushare.wire.objects import PODS
from gpushare.wire.pods import Claimant, claimant, request_of
from tests.unit.extender.follow.test_watch_handlers import event
from tests.unit.extender.kit import pod_json, read_pod
from tests.unit.extender.verbs.test_offers import FilterWorld, pod

LATE = Claimant(PodRef("team", "late", "uid-late"), Request(12, 1))
OLD = Claimant(PodRef("team", "old", "uid-old"), Request(6, 1), owner="replicas")
NEW = replace(OLD, ref=PodRef("team", "new", "uid-new"))
OTHER = Claimant(PodRef("team", "other", "uid-other"), Request(2, 1))


def test_a_place_ends_by_time_by_bind_and_with_its_pod() -> None:
    ends: list[Callable[[Holds], object]] = [
        lambda holds: holds.expire(160.0),
        lambda holds: holds.end_after_bind("uid-late"),
        lambda holds: holds.gone("uid-late"),
        lambda holds: holds.release(),
    ]
    for end in ends:
        holds = Holds()
        holds.reserve(LATE, "a", ((0, 12),), until=160.0, now=100.0)
        holds.expire(159.0)
        assert [hold.node for hold in holds.live()] == ["a"]
        end(holds)
        assert holds.live() == ()


def test_a_refusal_and_a_whole_list_leave_it_but_a_refused_bind_does_too() -> None:
    holds = Holds()
    holds.reserve(LATE, "a", ((0, 12),), until=160.0, now=100.0)
    holds.refused(LATE)
    holds.keep(())
    holds.end_after_bind("uid-late", is_refused=True)
    assert len(holds.by_key) == 1
    assert not holds.any_against(LATE)
    assert holds.any_against(OTHER)


def test_an_heir_is_known_by_controller_request_and_namespace() -> None:
    holds = Holds()
    holds.reserve(OLD, "b", ((1, 6),), until=160.0, now=100.0, heir=True)
    assert holds.reserved_for(NEW) == "b"
    for stranger in (
        replace(NEW, owner="others"),
        replace(NEW, owner=""),
        replace(NEW, request=Request(7, 1)),
        replace(NEW, ref=PodRef("elsewhere", "new", "uid-new")),
    ):
        assert holds.reserved_for(stranger) == ""
        assert holds.any_against(stranger)


def test_an_heir_that_was_offered_its_node_has_one_hold_that_its_bind_ends() -> None:
    holds = Holds()
    holds.reserve(OLD, "b", ((1, 6),), until=160.0, now=100.0, heir=True)
    holds.offered(NEW, "b", 101.0)
    holds.shown(NEW, "b", 101.5)
    assert [hold.pod.ref for hold in holds.live()] == [NEW.ref]
    second = replace(NEW, ref=PodRef("team", "third", "uid-third"))
    assert not holds.any_against(second)
    holds.end_after_bind("uid-new")
    assert holds.live() == ()


def test_an_heir_offered_another_node_holds_that_one_too() -> None:
    holds = Holds()
    holds.reserve(OLD, "b", ((1, 6),), until=160.0, now=100.0, heir=True)
    holds.offered(NEW, "c", 101.0)
    assert sorted(hold.node for hold in holds.live()) == ["b", "c"]


def shown(world: FilterWorld, name: str, units: int, node: str, device: int) -> dict[str, Any]:
    """A running pod of the watch."""
    notes = {ALIYUN.idx: str(device), ALIYUN.pod: str(units)}
    document = pod_json(name, units, node=node, annotations=notes, phase="Running")
    world.watch.apply(event(PODS, "MODIFIED", document))
    return document


def test_filter_keeps_what_opens_bit_by_bit_from_all_but_the_pod() -> None:
    world = FilterWorld("a", cards=1, best=False)
    first, second = (shown(world, name, units, "a", 0) for name, units in (("f", 10), ("s", 6)))
    late = pod("late", 12)
    request = request_of(read_pod(late), ALIYUN)
    world.holds.reserve(
        claimant(read_pod(late), request), "a", ((0, 12),), world.now + 60, world.now
    )
    world.watch.apply(event(PODS, "DELETED", second))
    # Six units are free, too few for the pod; yet no other pod is offered them.
    assert world.filter(pod("little", 4)) == ([], {"a": Reason.PROMISED.value})
    assert world.filter(late)[0] == []
    world.watch.apply(event(PODS, "DELETED", first))
    assert world.filter(pod("little", 4)) == (["a"], {})
    assert world.filter(pod("larger", 6))[0] == []
    assert world.filter(late) == (["a"], {})


def test_filter_keeps_for_a_split_pod_what_each_of_its_parts_needs() -> None:
    world = FilterWorld("a", best=False)
    shown(world, "f", 10, "a", 0)
    late = pod_json("late", 16, annotations={SPLIT: "12+4"})
    request = request_of(read_pod(late), ALIYUN)
    holder = claimant(read_pod(late), request)
    world.holds.reserve(holder, "a", ((0, 12), (1, 4)), world.now + 60, world.now)
    assert world.filter(pod("fits", 12)) == (["a"], {})
    assert world.filter(pod("larger", 13)) == ([], {"a": Reason.PROMISED.value})


def test_filter_answers_an_heir_with_its_node_alone() -> None:
    world = FilterWorld("a", "b", best=False)
    old = pod("old", 6)
    old["metadata"]["ownerReferences"] = [{"uid": "replicas", "controller": True}]
    old_pod = claimant(read_pod(old), request_of(read_pod(old), ALIYUN))
    world.holds.reserve(old_pod, "b", ((0, 6),), world.now + 60, world.now, heir=True)
    heir = pod("heir", 6)
    assert world.filter(heir)[0] == ["a", "b"]
    heir["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
    assert world.filter(heir) == (["b"], {})
    assert [hold.pod.ref.name for hold in world.holds.live()] == ["heir"]
