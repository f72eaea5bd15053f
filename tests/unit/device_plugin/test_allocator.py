"""The allocator's answers, call by call: its questions, waits, memory and forgetting."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpushare.device_plugin.allocator import MAX_WAIT, Allocator, Served
from gpushare.device_plugin.cards import Fault, Problem, device_id
from gpushare.device_plugin.identity import CheckpointEntry, PodDevices
from gpushare.device_plugin.kubelet import KubeletError
from gpushare.device_plugin.pods import Found, Pods
from gpushare.errors import ApiNotFound, ApiUnavailable, RequestRefused
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import Pod
from tests.support.scripted_api import ScriptedApi
from tests.unit.device_plugin.pods import cards, decoded, pod_json

Json = dict[str, Any]

NODE = cards(16, 16, 16, 16)
LOST = Problem(Fault.LOST, "is lost")
ALL = [device_id(card.uuid, number) for card in NODE.all for number in range(16)]


class World:
    """An allocator, the pods of the watch, and the kubelet's view.

    `meanwhile` happens during a wait for changes; the clock advances by the time of the wait.
    """

    def __init__(self) -> None:
        self.api = ScriptedApi()
        self.pods = Pods(self.api, ALIYUN, "node")
        self.by_kubelet: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        self.cards = NODE
        self.broken = 0
        self.now = 0.0
        self.meanwhile: list[Any] = []
        self.record: list[CheckpointEntry] = []
        self.other_card_ids: list[Served] = []
        self.pods.wait = self._wait  # type: ignore[method-assign]
        self.allocator = Allocator(
            self.pods,
            self._listed,
            lambda: self.cards,
            record=lambda: self.record,
            other_card_ids=self.other_card_ids.append,
            clock=lambda: self.now,
        )

    def _wait(self, changes: int, seconds: float) -> None:
        del changes
        self.now += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def _listed(self) -> PodDevices:
        if self.broken:
            self.broken -= 1
            raise KubeletError("rejected by rate limit")
        return self.by_kubelet

    def watch(self, *bodies: Json, kind: str = "ADDED") -> None:
        for body in bodies:
            event: WatchEvent[Pod] = WatchEvent(kind, decoded(body))
            self.pods.apply(event)

    def admit(self, body: Json) -> None:
        """The kubelet begins to admit the pod."""
        names = [item["name"] for item in body["spec"]["containers"]]
        self.by_kubelet[key(body)] = dict.fromkeys(names, frozenset())

    def ask(self, units: int, available: Iterable[str] = ALL, must: Iterable[str] = ()) -> set[str]:
        """The cards that the answer is of."""
        served = self.allocator.allocate(self.allocator.prefer([*available], [*must], units))
        for owner in served.owners:
            containers = self.by_kubelet.get((owner.pod.ref.namespace, owner.pod.ref.name), {})
            if owner.container.name in containers:
                containers[owner.container.name] = served.ids
        return set(served.grant.uuids)


def key(body: Json) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]


@pytest.fixture
def world() -> World:
    return World()


def test_only_the_pod_that_the_kubelet_shows_is_served(world: World) -> None:
    pods = [pod_json(4, devices=[index]) for index in range(4)]
    world.watch(*pods)
    for index in (2, 0, 3, 1):
        world.admit(pods[index])
        assert world.ask(4) == {f"GPU-{index}"}
    assert world.now == 0.0
    assert world.allocator.certain(ALL[:4])


def test_an_answer_that_is_no_pod_says_nothing_of_the_pod(world: World) -> None:
    key_of_pod = ("default", "a")
    world.api.forever = b"<html>"
    assert world.pods.look_up([key_of_pod]) == {key_of_pod: Found.UNKNOWN}
    world.api.forever = ApiNotFound("", 404)
    assert world.pods.look_up([key_of_pod]) == {key_of_pod: Found.GONE}


def test_a_list_that_fails_once_is_asked_for_again(world: World) -> None:
    pods = [pod_json(4, devices=[0]), pod_json(4, devices=[1])]
    world.watch(*pods)
    world.admit(pods[1])
    world.broken = 1
    assert world.ask(4) == {"GPU-1"}


def test_by_the_watch_alone_nothing_is_decided_before_it_had_time(world: World) -> None:
    pod, late = pod_json(4, devices=[0]), pod_json(4, devices=[1])
    world.watch(pod)
    world.broken = 1000
    world.meanwhile = [lambda: None, lambda: world.watch(late)]
    with pytest.raises(RequestRefused, match="are to have different devices"):
        world.ask(4)
    assert world.now == pytest.approx(1.0)


def test_by_the_watch_alone_one_pod_is_served_in_the_end(world: World) -> None:
    world.watch(pod_json(4, devices=[2]))
    world.broken = 1000
    ids = world.allocator.prefer(ALL, [], 4)
    assert world.allocator.allocate(ids).grant.uuids == {"GPU-2"}
    assert world.now == pytest.approx(1.0)
    assert not world.allocator.certain(ids)


def test_a_pod_that_nobody_knows_is_never_taken_for_another(world: World) -> None:
    world.watch(pod_json(4, devices=[2]))
    static = pod_json(4)
    world.admit(static)
    with pytest.raises(RequestRefused, match="no pod of this node is known"):
        world.ask(4)


def test_a_pod_that_the_watch_shows_late_is_read(world: World) -> None:
    late = pod_json(4, devices=[3])
    body = {"kind": "Pod", **late}
    world.admit(late)
    world.api.answers.append(json.dumps(body).encode())
    assert world.ask(4) == {"GPU-3"}
    (call,) = world.api.calls
    assert call.path == f"/api/v1/namespaces/default/pods/{late['metadata']['name']}"


def test_a_pod_is_read_as_soon_as_the_api_server_answers_again(world: World) -> None:
    late = pod_json(4, devices=[3])
    world.admit(late)
    world.api.answers.append(ApiUnavailable("no answer", 0))
    world.api.answers.append(json.dumps({"kind": "Pod", **late}).encode())
    assert world.ask(4) == {"GPU-3"}


def test_news_in_time_decides(world: World) -> None:
    ended, new = pod_json(4, devices=[0]), pod_json(4, devices=[1])
    world.watch(ended, new)
    world.admit(ended)
    world.admit(new)
    failed = {**ended, "status": {"phase": "Failed"}}
    world.meanwhile = [lambda: None, lambda: world.watch(failed, kind="MODIFIED")]
    assert world.ask(4) == {"GPU-1"}


def test_a_container_that_takes_over_ids_gets_the_device_of_its_pod(world: World) -> None:
    second, body = pod_json(2, devices=[0]), pod_json(2, devices=[1], inits=[3])
    world.watch(second, body)
    world.admit(body)
    ids = world.allocator.prefer(ALL, [], 3)
    world.allocator.allocate(ids)
    served = world.allocator.allocate(ids[:2])
    assert [owner.container.name for owner in served.owners] == ["c0"]
    assert served.grant.uuids == {"GPU-1"}
    assert world.other_card_ids == []


def test_a_question_without_an_allocation_is_not_taken_for_another_pods(world: World) -> None:
    """The kubelet was told which ids to prefer, and failed the pod for another reason."""
    remaining, body = pod_json(2, devices=[0]), pod_json(2, devices=[1], inits=[2])
    world.watch(remaining, body)
    world.admit(remaining)
    world.allocator.prefer(ALL, [], 2)
    del world.by_kubelet[key(remaining)]
    world.watch({**remaining, "status": {"phase": "Failed"}}, kind="MODIFIED")
    world.admit(body)
    ids = world.allocator.prefer(ALL, [], 2)
    assert world.allocator.allocate(ids).grant.uuids == {"GPU-1"}
    assert world.allocator.allocate(ids).grant.uuids == {"GPU-1"}


def test_other_ids_than_preferred_change_no_device(world: World) -> None:
    body = pod_json(2, devices=[1])
    world.watch(body)
    world.admit(body)
    world.allocator.prefer(ALL, [], 2)
    served = world.allocator.allocate([device_id("GPU-3", 0), device_id("GPU-3", 1)])
    assert served.grant.uuids == {"GPU-1"}
    assert world.other_card_ids == [served]


def test_ids_that_another_pod_has_are_left_alone_where_there_are_others(world: World) -> None:
    """The list may be of the moment when the kubelet had forgotten ids of a running allocation."""
    first, second = pod_json(2, devices=[1]), pod_json(2, devices=[1])
    world.watch(first, second)
    world.admit(first)
    one = world.allocator.prefer(ALL, [], 2)
    world.allocator.allocate(one)
    world.by_kubelet[key(first)]["c0"] = frozenset(one)
    world.admit(second)
    assert not set(world.allocator.prefer(ALL, [], 2)) & set(one)


def test_a_kubelet_that_was_restarted_has_its_record_believed(world: World) -> None:
    body = pod_json(2, devices=[1], inits=[2])
    uid = body["metadata"]["uid"]
    world.watch(body)
    world.admit(body)
    world.ask(2)
    ids = frozenset([device_id("GPU-1", 0), device_id("GPU-1", 1)])
    # The kubelet was killed before the write of the init container's ids.
    world.allocator.reset([])
    assert world.ask(2) == {"GPU-1"}
    world.allocator.reset([CheckpointEntry(uid, "i0", ids, b"")])
    served = world.allocator.allocate(ids)
    assert [owner.container.name for owner in served.owners] == ["c0"]


def test_a_pod_is_complete_when_each_container_has_been_served(world: World) -> None:
    body = pod_json(2, 1, devices=[1], inits=[1])
    world.watch(body)
    world.admit(body)
    for units in (1, 2, 1):
        assert not world.allocator.complete(world.pods.now()[0][key(body)])
        world.ask(units)
    assert world.allocator.complete(world.pods.now()[0][key(body)])
    world.allocator.forget(())
    assert not world.allocator.complete(world.pods.now()[0][key(body)])


def test_what_another_process_served_meanwhile_is_learned_in_doubt(world: World) -> None:
    """As after a change of process between an init container and the next container."""
    body = pod_json(4, devices=[2], inits=[2])
    world.watch(body)
    world.admit(body)
    ids = [device_id("GPU-2", 0), device_id("GPU-2", 1)]
    world.record.append(CheckpointEntry(body["metadata"]["uid"], "i0", frozenset(ids), b""))
    assert world.ask(4, must=ids) == {"GPU-2"}


def test_ids_that_another_process_was_asked_for_are_the_one_pods_that_is_shown(
    world: World,
) -> None:
    pods = [pod_json(2, devices=[index]) for index in range(4)]
    world.watch(*pods)
    world.admit(pods[2])
    served = world.allocator.allocate([device_id("GPU-2", 5), device_id("GPU-2", 6)])
    assert served.grant.uuids == {"GPU-2"}


def pods_by_name(world: World) -> Mapping[str, str]:
    return {name: pod.ref.uid for (_, name), pod in world.pods.now()[0].items()}


def test_a_pod_that_came_again_is_not_given_the_device_of_the_former(world: World) -> None:
    former = pod_json(4, devices=[0])
    name = former["metadata"]["name"]
    world.watch(former)
    world.admit(former)
    world.ask(4)
    again = pod_json(4, devices=[2])
    again["metadata"]["name"] = name
    world.admit(again)
    world.api.answers.append(json.dumps({"kind": "Pod", **again}).encode())
    assert world.ask(4) == {"GPU-2"}
    # The watch shows the new pod later, after the end of the former.
    world.watch(former, kind="MODIFIED")
    assert pods_by_name(world) == {name: again["metadata"]["uid"]}
    world.watch(former, kind="DELETED")
    assert pods_by_name(world) == {name: again["metadata"]["uid"]}
    world.watch(again)
    world.watch(again, kind="DELETED")
    assert pods_by_name(world) == {}


@pytest.mark.parametrize("units", [2, 4])
def test_a_pod_that_came_again_after_a_refused_one_is_read_before_it_is_refused(
    world: World, units: int
) -> None:
    former = pod_json(4, devices=[9])  # there is no such card
    world.watch(former)
    world.admit(former)
    with pytest.raises(RequestRefused):
        world.ask(4)
    again = pod_json(units, devices=[2])
    again["metadata"]["name"] = former["metadata"]["name"]
    world.admit(again)
    world.api.answers.append(json.dumps({"kind": "Pod", **again}).encode())
    assert world.ask(units) == {"GPU-2"}


def test_a_pod_that_came_again_and_cannot_be_read_is_refused(world: World) -> None:
    former = pod_json(4, devices=[0])
    world.watch(former)
    world.admit(former)
    world.ask(4)
    world.admit(former)  # as its successor of that name, which the watch has yet to show
    world.api.forever = ApiUnavailable("no answer", 0)
    with pytest.raises(RequestRefused, match="no pod of this node is known"):
        world.ask(4)
    assert world.now == pytest.approx(MAX_WAIT)


def test_other_ids_than_preferred_are_nobodys_where_two_questions_are_open(world: World) -> None:
    """As where a pod's own thread allocates what a restart lost, while another is admitted."""
    one, two = pod_json(2, devices=[0]), pod_json(2, devices=[1])
    world.watch(one, two)
    world.admit(one)
    world.allocator.prefer(ALL, [], 2)
    del world.by_kubelet[key(one)]
    world.admit(two)
    world.allocator.prefer(ALL, [], 2)
    with pytest.raises(RequestRefused, match="the kubelet took ids without asking which"):
        world.allocator.allocate([device_id("GPU-3", 0), device_id("GPU-3", 1)])


def test_an_edit_before_the_kubelet_asks_moves_no_pod(world: World) -> None:
    body = pod_json(2, devices=[1])
    world.watch(body)
    notes = {**body["metadata"]["annotations"], ALIYUN.idx: "3", ALIYUN.allocation: ""}
    edited = {**body, "metadata": {**body["metadata"], "annotations": notes}}
    world.watch(edited, kind="MODIFIED")
    world.admit(body)
    assert world.ask(2) == {"GPU-1"}


def test_a_pod_that_nobody_can_read_is_not_taken_for_one_that_the_kubelet_has_failed(
    world: World,
) -> None:
    """Kubelets up to 1.33 go on showing a failed pod; the phase is not known yet."""
    failed, unread = pod_json(4, devices=[0]), pod_json(4, devices=[1])
    world.watch(failed)
    world.admit(failed)
    world.admit(unread)
    world.api.forever = ApiUnavailable("no answer", 0)
    ids = world.allocator.prefer(ALL, [], 4)
    world.allocator.allocate(ids)
    assert world.now == pytest.approx(MAX_WAIT)
    assert not world.allocator.certain(ids)


def test_what_was_not_certain_is_not_after_the_kubelet_has_started_again(world: World) -> None:
    world.watch(pod_json(4, devices=[2]))
    world.broken = 1000
    ids = world.allocator.prefer(ALL, [], 4)
    world.allocator.allocate(ids)
    world.allocator.reset([])
    world.allocator.forget([])
    assert not world.allocator.certain(ids)


def test_two_questions_that_are_open_at_once_have_ids_of_their_own(world: World) -> None:
    """A kubelet that allocates what a restart lost, while it admits, asks before it has taken."""
    one, two = pod_json(2, devices=[0]), pod_json(2, 1, devices=[0])
    world.watch(one, two)
    world.admit(one)
    for_one = world.allocator.prefer(ALL, [], 2)
    del world.by_kubelet[key(one)]
    world.admit(two)
    for_two = world.allocator.prefer(ALL, [], 2)
    for ids, body in ((for_two, two), (for_one, one)):
        (owner,) = world.allocator.allocate(ids).owners
        assert owner.pod.key == key(body)


def test_a_pod_that_came_again_after_a_refused_one_is_not_given_that_ones_device(
    world: World,
) -> None:
    """The pod was refused for a reason that has passed, so now the device could be served."""
    former = pod_json(4, devices=[0])
    world.watch(former)
    world.admit(former)
    world.cards = replace(NODE, all=(replace(NODE.all[0], problem=LOST), *NODE.all[1:]))
    with pytest.raises(RequestRefused):
        world.ask(4)
    world.cards = NODE
    again = pod_json(4, devices=[2])
    again["metadata"]["name"] = former["metadata"]["name"]
    world.admit(again)
    world.api.answers.append(json.dumps({"kind": "Pod", **again}).encode())
    assert world.ask(4) == {"GPU-2"}


def test_a_name_that_nobody_knew_a_moment_ago_is_read_before_its_pod_is_refused(
    world: World,
) -> None:
    former, again = pod_json(4), pod_json(4, devices=[2])
    again["metadata"]["name"] = former["metadata"]["name"]
    world.admit(former)
    world.api.answers.extend([ApiNotFound("deleted", 404)] * 2)
    with pytest.raises(RequestRefused):
        world.ask(4)
    world.api.answers.append(json.dumps({"kind": "Pod", **again}).encode())
    assert world.ask(4) == {"GPU-2"}


def test_a_pod_that_cannot_be_read_at_once_is_not_refused_for_what_is_wrong_with_another(
    world: World,
) -> None:
    failed, late = pod_json(4, devices=[9]), pod_json(4, devices=[2])  # there is no card 9
    world.watch(failed)
    world.admit(failed)
    world.admit(late)
    world.api.forever = ApiUnavailable("no answer", 0)
    ended = {**failed, "status": {"phase": "Failed"}}
    world.meanwhile = [lambda: None, lambda: world.watch(ended, late)]
    assert world.ask(4) == {"GPU-2"}


def test_a_pod_whose_turn_went_to_one_that_nobody_knew_is_served_when_its_own_comes(
    world: World,
) -> None:
    pod, late = pod_json(3, devices=[0], inits=[1]), pod_json(1, devices=[1])
    world.watch(pod)
    world.broken = 1000
    served = world.allocator.allocate(world.allocator.prefer(ALL, [], 1))
    assert [str(owner.container.name) for owner in served.owners] == ["i0"]
    assert not world.allocator.certain(served.ids)
    # The kubelet had asked for the other pod, as the record says.
    world.record.append(CheckpointEntry(late["metadata"]["uid"], "c0", served.ids, b""))
    world.broken = 0
    world.watch(late)
    world.by_kubelet[key(late)] = {"c0": served.ids}
    world.admit(pod)
    free = [item for item in ALL if item not in served.ids]
    assert world.ask(1, free) == {"GPU-0"}
    assert world.ask(3, free) == {"GPU-0"}


def test_a_container_that_the_record_has_is_served_though_that_was_not_certain(
    world: World,
) -> None:
    body = pod_json(1, devices=[2], inits=[1])
    world.watch(body)
    world.broken = 1000
    first = world.allocator.allocate(world.allocator.prefer(ALL, [], 1))
    world.record.append(CheckpointEntry(body["metadata"]["uid"], "i0", first.ids, b""))
    second = world.allocator.allocate(world.allocator.prefer(ALL, first.ids, 1))
    assert [str(owner.container.name) for owner in second.owners] == ["c0"]


def test_a_pod_is_complete_by_an_uncertain_answer_once_the_record_has_it(world: World) -> None:
    body = pod_json(1, devices=[2])
    world.watch(body)
    world.broken = 1000
    ids = world.allocator.allocate(world.allocator.prefer(ALL, [], 1)).ids
    pod = world.pods.now()[0][key(body)]
    assert not world.allocator.complete(pod)
    world.allocator.learn([CheckpointEntry(body["metadata"]["uid"], "c0", ids, b"")])
    assert world.allocator.complete(pod)
