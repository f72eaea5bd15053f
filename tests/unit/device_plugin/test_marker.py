"""Pods that were served are marked once, and containers with wrong devices are told of once."""

import pytest

from gpushare.device_plugin.allocator import Allocator
from gpushare.device_plugin.cards import device_id
from gpushare.device_plugin.identity import CheckpointEntry
from gpushare.device_plugin.marker import Marker
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.start_check import StartCheck, WrongDevices
from gpushare.errors import ApiError, ApiUnavailable, ApiUnreachable
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import Pod
from tests.support.scripted_api import ScriptedApi
from tests.unit.device_plugin.pods import Json, cards, decoded, pod_json, told

NODE = cards(16, 16)


def patches(api: ScriptedApi) -> list[tuple[str, Json]]:
    """Path and body of each call, all of which have to be patches."""
    kinds = {(call.method, call.content_type) for call in api.calls}
    assert kinds <= {("PATCH", "application/merge-patch+json")}
    return [(call.path, call.document) for call in api.calls]


class World:
    """A marker without its thread."""

    def __init__(self) -> None:
        self.api = ScriptedApi(forever=b"{}")
        self.record: list[CheckpointEntry] = []
        self.told: list[WrongDevices] = []
        self.pods = Pods(self.api, ALIYUN, "node")
        self.pods.replace((), 0.0)
        self.allocator = Allocator(self.pods, dict, lambda: NODE)
        check = StartCheck(self.pods, lambda: self.record, dict, lambda: NODE)
        self.now = 1000.0
        self.marker = Marker(
            *(self.api, self.pods, self.allocator, check),
            tell=self.told.append,
            clock=lambda: self.now,
        )

    def serve(self, body: Json, devices: str) -> None:
        """Have the pod's one container on record."""
        event: WatchEvent[Pod] = WatchEvent("ADDED", decoded(body))
        self.pods.apply(event)
        answer = told(devices)
        ids = frozenset([device_id("GPU-0", len(self.record))])
        self.record.append(CheckpointEntry(body["metadata"]["uid"], "c0", ids, answer))
        self.marker.look()


@pytest.fixture
def world() -> World:
    return World()


def test_a_pod_is_marked_once_by_its_uid_and_nothing_else_is_written(world: World) -> None:
    body = pod_json(1)
    world.serve(body, "GPU-0")
    assert not world.marker.mark_all()
    assert not world.marker.mark_all()
    meta = body["metadata"]
    change = {"metadata": {"uid": meta["uid"], "annotations": {ALIYUN.assigned: "true"}}}
    assert patches(world.api) == [(f"/api/v1/namespaces/default/pods/{meta['name']}", change)]


def test_a_pod_whose_answer_was_not_certain_is_marked_by_the_kubelets_record(world: World) -> None:
    bodies = [pod_json(1), pod_json(1)]
    for body in bodies:
        event: WatchEvent[Pod] = WatchEvent("ADDED", decoded(body))
        world.pods.apply(event)
    world.allocator.allocate([device_id("GPU-0", 7)])
    assert not world.marker.mark_all()
    assert patches(world.api) == []
    uid = bodies[1]["metadata"]["uid"]
    ids = frozenset([device_id("GPU-0", 7)])
    world.record.append(CheckpointEntry(uid, "c0", ids, told("GPU-0")))
    world.marker.look()
    world.marker.mark_all()
    assert [change["metadata"]["uid"] for _, change in patches(world.api)] == [uid]


def test_a_pod_that_is_not_served_yet_is_not_marked(world: World) -> None:
    world.serve(pod_json(1, 2), "GPU-0")
    assert not world.marker.mark_all()
    assert patches(world.api) == []


@pytest.mark.parametrize("status", [503, 404])
def test_a_mark_that_does_not_land_is_tried_again(world: World, status: int) -> None:
    world.serve(pod_json(1), "GPU-0")
    world.api.forever = ApiUnavailable("away, or a proxy without a Status", status)
    assert world.marker.mark_all()
    world.api.forever = b"{}"
    assert not world.marker.mark_all()
    assert len(patches(world.api)) == 2


@pytest.mark.parametrize(("error", "attempts"), [(ApiUnreachable, 1), (ApiUnavailable, 3)])
def test_while_the_api_server_is_away_the_pauses_grow_whatever_is_served(
    world: World, error: type[ApiError], attempts: int
) -> None:
    for _ in range(3):
        world.serve(pod_json(1), "GPU-0")
    world.api.forever = error("away", 0)
    world.marker.step()
    assert len(patches(world.api)) == attempts
    for pause in (2.0, 4.0, 8.0, 16.0):
        world.api.calls.clear()
        world.now += pause - 0.5
        assert world.marker.step() == pytest.approx(0.5)
        assert patches(world.api) == []
        world.now += 0.5
        world.marker.step()
        assert len(patches(world.api)) == attempts
    world.api.forever = b"{}"
    world.now += 60.0
    world.api.calls.clear()
    assert world.marker.step() > 2.0
    assert len(patches(world.api)) == 3


@pytest.mark.parametrize("status", [404, 409, 422])
def test_a_pod_that_is_gone_needs_no_mark(world: World, status: int) -> None:
    world.serve(pod_json(1), "GPU-0")
    world.api.forever = ApiError("gone", status)
    assert not world.marker.mark_all()


def test_what_a_pod_was_given_beside_is_written_once_and_again_where_it_is_more(
    world: World,
) -> None:
    body = pod_json(1, 2, devices=[1])
    meta = body["metadata"]
    world.serve(body, "0")  # by index, as the original tells it
    (change,) = (item for _, item in patches(world.api))
    units = {ALIYUN.given: '{"GPU-0":1}'}
    assert change == {"metadata": {"uid": meta["uid"], "annotations": units}}
    meta["annotations"] |= units
    view: WatchEvent[Pod] = WatchEvent("MODIFIED", decoded(body))
    world.pods.apply(view)
    world.api.calls.clear()
    world.marker.look()
    assert patches(world.api) == []
    more = world.record[0]
    ids = frozenset({device_id("GPU-0", 5), device_id("GPU-0", 6)})
    world.record.append(CheckpointEntry(more.uid, "c1", ids, more.response))
    world.marker.look()
    ((_, change),) = patches(world.api)
    assert change["metadata"]["annotations"] == {ALIYUN.given: '{"GPU-0":3}'}


def test_units_of_an_init_container_that_are_taken_over_count_once(world: World) -> None:
    body = pod_json(2, devices=[1], inits=[2])
    world.serve(body, "GPU-0")
    one = world.record.pop()
    ids = frozenset({device_id("GPU-0", 5), device_id("GPU-0", 6)})
    for name in ("i0", "c0"):
        world.record.append(CheckpointEntry(one.uid, name, ids, one.response))
    world.marker.look()
    _, change = patches(world.api)[-1]
    assert change["metadata"]["annotations"] == {ALIYUN.given: '{"GPU-0":2}'}


def test_what_a_pod_was_given_beside_is_written_later_where_it_cannot_be_now(world: World) -> None:
    world.api.forever = ApiUnavailable("away", 503)
    world.serve(pod_json(1, devices=[1]), "GPU-0")
    world.api.forever = b"{}"
    world.marker.look()
    assert len(patches(world.api)) == 2


def test_while_the_api_server_is_away_one_pod_is_tried_in_each_look(world: World) -> None:
    for _ in range(3):
        world.serve(pod_json(1, devices=[1]), "GPU-0")
    world.api.calls.clear()
    world.api.forever = ApiUnreachable("away", 0)
    world.marker.look()
    assert len(patches(world.api)) == 1


def test_nothing_is_forgotten_before_the_pods_are_known(world: World) -> None:
    body = pod_json(1)
    uid = body["metadata"]["uid"]
    world.pods.listed = False
    world.allocator.learn([CheckpointEntry(uid, "c0", frozenset([device_id("GPU-0", 0)]), b"")])
    world.now += 60.0
    assert world.marker.step() == 2.0
    world.pods.replace((), 0.0)
    event: WatchEvent[Pod] = WatchEvent("ADDED", decoded(body))
    world.pods.apply(event)
    world.marker.mark_all()
    assert [change["metadata"]["uid"] for _, change in patches(world.api)] == [uid]


def test_a_wrong_device_is_told_of_once_and_counted(world: World) -> None:
    wrong = pod_json(1, devices=[1])
    world.serve(pod_json(1), "GPU-0")
    world.serve(wrong, "GPU-0")
    for _ in range(2):
        world.marker.look()
        assert world.marker.wrong_containers == 1
    (answer,) = world.told
    assert answer.pod.ref.uid == wrong["metadata"]["uid"]
    assert "was bound to 1 units of GPU-1, but was told of device GPU-0" in str(answer)
    deleted: WatchEvent[Pod] = WatchEvent("DELETED", decoded(wrong))
    world.pods.apply(deleted)
    world.marker.look()
    assert world.marker.wrong_containers == 0
