"""A container starts if the kubelet's record has the devices of the pod's Binding."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushare.device_plugin.cards import device_id
from gpushare.device_plugin.identity import CheckpointEntry, PodKey
from gpushare.device_plugin.kubelet import CHECKPOINT, KubeletError, parse_answer, read_checkpoint
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.start_check import StartCheck
from gpushare.errors import ApiNotFound, ApiUnreachable, GpuShareError, MessageError, RequestRefused
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import Pod
from tests.support.scripted_api import ScriptedApi
from tests.unit.device_plugin.pods import cards, decoded, pod_json, told

Json = dict[str, Any]

NODE = cards(16, 16)


def ids(card: int, count: int = 4, first: int = 0) -> list[str]:
    return [device_id(f"GPU-{card}", number) for number in range(first, first + count)]


@dataclass
class World:
    """The check, over records of the test."""

    record: list[CheckpointEntry] | GpuShareError = field(default_factory=list)
    view: dict[PodKey, dict[str, frozenset[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api = ScriptedApi(forever=ApiUnreachable("away", 0))
        self.pods = Pods(self.api, ALIYUN, "node")
        self.check = StartCheck(self.pods, self._entries, lambda: self.view, lambda: NODE)

    def _entries(self) -> list[CheckpointEntry]:
        if isinstance(self.record, GpuShareError):
            raise self.record
        return self.record

    def add(self, body: Json, devices: str, ids: list[str], name: str = "c0") -> None:
        assert isinstance(self.record, list)
        entry = CheckpointEntry(body["metadata"]["uid"], name, frozenset(ids), told(devices))
        self.record.append(entry)

    def watch(self, *bodies: Json) -> None:
        for body in bodies:
            event: WatchEvent[Pod] = WatchEvent("ADDED", decoded(body))
            self.pods.apply(event)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("devices", ["GPU-1", "1"])
def test_what_was_told_by_uuid_or_index_is_right(world: World, devices: str) -> None:
    body = pod_json(4, devices=[1], uuids=["GPU-1"])
    world.watch(body)
    world.add(body, devices, ids(1))
    world.check.check(ids(1))
    assert [world.check.wrong(entry) for entry in world.check.record()] == [None]


@pytest.mark.parametrize("devices", ["GPU-0", "0", "GPU-0,GPU-1", "no-gpu-has-4GiB-to-run", ""])
def test_what_was_told_wrongly_does_not_start(world: World, devices: str) -> None:
    body = pod_json(4, devices=[1], uuids=["GPU-1"])
    world.watch(body)
    world.add(body, devices, ids(1))
    with pytest.raises(RequestRefused, match="was bound to 4 units of GPU-1, but was told of"):
        world.check.check(ids(1))
    (wrong,) = [world.check.wrong(entry) for entry in world.check.record()]
    assert wrong is not None
    assert (wrong.pod.ref.uid, wrong.container) == (body["metadata"]["uid"], "c0")


def test_ids_that_two_containers_have_are_right_for_both(world: World) -> None:
    body = pod_json(4, devices=[1], inits=[4])
    world.watch(body)
    world.add(body, "GPU-1", ids(1), "i0")
    world.add(body, "GPU-0", ids(1))
    with pytest.raises(
        RequestRefused, match="was bound to 4 units of GPU-1, but was told of device GPU-0"
    ):
        world.check.check(ids(1))


def test_the_record_of_a_pod_that_is_gone_counts_for_nothing(world: World) -> None:
    deleted_pod, body = pod_json(4, devices=[0]), pod_json(4, devices=[1])
    world.watch(body)
    world.add(deleted_pod, "GPU-0", ids(1))
    world.add(body, "GPU-1", ids(1))
    world.check.check(ids(1))


def test_other_ids_are_another_container(world: World) -> None:
    body = pod_json(4, devices=[1])
    world.watch(body)
    world.add(body, "GPU-1", ids(1))
    for other_ids in (ids(1, 3), ids(1, 5), ids(1, 4, first=1)):
        with pytest.raises(RequestRefused, match="no container with these"):
            world.check.check(other_ids)


def test_a_pod_that_is_not_known_is_read(world: World) -> None:
    body = pod_json(4, devices=[1])
    world.add(body, "GPU-0", ids(0))
    world.view = {("default", body["metadata"]["name"]): {"c0": frozenset(ids(0))}}
    world.api.answers.append(json.dumps({"kind": "Pod", **body}).encode())
    with pytest.raises(RequestRefused, match="was bound to 4 units of GPU-1"):
        world.check.check(ids(0))


def test_a_pod_that_there_is_not_any_more_does_not_start(world: World) -> None:
    body = pod_json(4, devices=[1])
    world.add(body, "GPU-0", ids(0))
    world.view = {("default", body["metadata"]["name"]): {"c0": frozenset(ids(0))}}
    world.api.answers.append(ApiNotFound("deleted", 404))
    with pytest.raises(RequestRefused, match="the API server does not have the pod"):
        world.check.check(ids(0))


def test_while_nobody_tells_whose_it_is_only_a_choice_of_ours_starts(world: World) -> None:
    our_name, theirs = pod_json(4), pod_json(4)
    world.add(our_name, "GPU-0", ids(0))
    world.check.check(ids(0))
    world.add(theirs, "GPU-0", ids(1))
    with pytest.raises(RequestRefused, match="the API server does not answer"):
        world.check.check(ids(1))


def test_a_pod_whose_devices_cannot_be_told_does_not_start(world: World) -> None:
    body = pod_json(4, annotations={ALIYUN.idx: "", ALIYUN.allocation: ""})
    world.watch(body)
    world.add(body, "GPU-1", ids(1))
    with pytest.raises(RequestRefused, match="name no device that can be used"):
        world.check.check(ids(1))


def test_without_the_record_nothing_starts(world: World) -> None:
    world.record = KubeletError("checkpoint cannot be read")
    with pytest.raises(RequestRefused, match="cannot be read"):
        world.check.check(ids(1))


# -- the kubelet's file -------------------------------------------------------------------------


def test_the_record_is_read(tmp_path: Path) -> None:
    item = {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": "aliyun.com/gpu-mem",
        "DeviceIDs": {"-1": ["a"], "0": ["b"]},
        "AllocResp": base64.b64encode(b"x").decode(),
    }
    other_ids = {**item, "ResourceName": "example.com/nic"}
    text = json.dumps({"Data": {"PodDeviceEntries": [item, other_ids]}, "Checksum": 1}).encode()
    (tmp_path / CHECKPOINT).write_bytes(text)
    assert read_checkpoint(tmp_path, "aliyun.com/gpu-mem") == (
        CheckpointEntry("u", "c", frozenset("ab"), b"x"),
    )
    empty = json.dumps({"Data": {"PodDeviceEntries": None}}).encode()
    (tmp_path / CHECKPOINT).write_bytes(empty)
    assert read_checkpoint(tmp_path, "aliyun.com/gpu-mem") == ()


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"Data": 3}', b'{"Data":{"PodDeviceEntries":[{}]}}', b"\xff"]
    + [b'{"Data":{"PodDeviceEntries":3}}', b"[" * 100000],
)
def test_a_file_that_is_none_is_said_to_be_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / CHECKPOINT).write_bytes(text)
    with pytest.raises(MessageError, match="kubelet_internal_checkpoint"):
        read_checkpoint(tmp_path, "aliyun.com/gpu-mem")


def test_an_answer_that_cannot_be_read_is_said_to_be_none() -> None:
    with pytest.raises(MessageError, match="AllocResp"):
        parse_answer(b"\xff\xff")
