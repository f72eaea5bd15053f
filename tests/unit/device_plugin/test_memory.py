"""Memory use is reported as far as NVML makes sense, and a hanging driver shows nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare.device_plugin.cards import device_id
from gpushare.device_plugin.devices import CardMemory
from gpushare.device_plugin.identity import CheckpointEntry
from gpushare.device_plugin.kubelet import KubeletError
from gpushare.device_plugin.memory import NO_LIMIT, STALE_SECONDS, Cgroups, ContainerUse, Memory
from gpushare.device_plugin.node_pod import NodePod, node_pod
from gpushare.device_plugin.pods import Pods
from gpushare.errors import ApiUnreachable, SettingsError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.device_request import LIMITS_LABEL, MEMORY_LIMIT
from gpushare.wire.objects import PODS, STARTED_PODS, Pod
from gpushare.wire.whole_card import WHOLE_CARD
from tests.support.scripted_api import ScriptedApi
from tests.unit.device_plugin.pods import Json, cards, pod_json, told

GIB = 2**30
MIB = 2**20
NODE = cards(16, 16)
DRIVER = {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "0"}
MPS = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M"}


@dataclass
class World:
    """A node in a folder, and a driver with the answers of the test."""

    root: Path
    processes: dict[str, dict[int, int | None]] = field(default_factory=dict)
    percents: dict[str, dict[int, int]] = field(default_factory=dict)
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    record: list[CheckpointEntry] = field(default_factory=list)
    messages: list[ContainerUse] = field(default_factory=list)
    now: float = 1000.0
    card_used: int = 8 * GIB
    away: bool = False

    def __post_init__(self) -> None:
        self.pods = Pods(ScriptedApi(forever=ApiUnreachable("away", 0)), ALIYUN, "node")
        self.memory_of = Memory(
            *(self, Cgroups(self.root), self.pods, self.recorded, lambda: NODE),
            tell=self.messages.append,
            clock=lambda: self.now,
        )

    def recorded(self) -> Sequence[CheckpointEntry]:
        if self.away:
            raise KubeletError("away")
        return self.record

    def memory(self, uuid: str) -> CardMemory:
        if uuid in self.silent:
            raise SettingsError("it is lost")
        return CardMemory(16 * GIB, self.card_used, self.processes.get(uuid, {}))

    def sm_percents(self, uuid: str) -> dict[int, int] | None:
        return self.percents.get(uuid)

    def limit(self, uuid: str, cgroup: Path) -> tuple[int, int]:
        try:
            return self.limits[f"{uuid}/{cgroup.name}"]
        except KeyError:
            raise SettingsError("not found") from None

    def run(self, body: Json, pids: Sequence[int], envs: dict[str, str] | None = None) -> list[str]:
        """Start containers c0, ... of the pod, each with a process; return the containers' ids."""
        meta = body["metadata"]
        uid = "e4175508-9416-4bd3-9a17-" + f"{pids[0]:012x}"
        meta["uid"] = uid
        ids = [f"{pid:064x}" for pid in pids]
        for number, (pid, item) in enumerate(zip(pids, ids, strict=True)):
            path = f"kubepods/pod{uid}/{item}"
            (self.root / f"proc/{pid}").mkdir(parents=True)
            (self.root / f"proc/{pid}/cgroup").write_text(f"0::/{path}\n")
            (self.root / "sys/fs/cgroup" / path).mkdir(parents=True)
            holding = frozenset([device_id("GPU-0", pid)])
            self.record.append(CheckpointEntry(uid, f"c{number}", holding, told(**(envs or {}))))
        body["status"]["containerStatuses"] = [
            {"name": f"c{number}", "containerID": f"containerd://{item}"}
            for number, item in enumerate(ids)
        ]
        self.watch("ADDED", body)
        return ids

    def watch(self, kind: str, body: Json) -> None:
        event: WatchEvent[Pod] = WatchEvent(kind, STARTED_PODS.decode(_text(body)))
        self.pods.apply(event)

    def look(self) -> list[tuple[str, str, int, int, bool | None]]:
        """(container, card, asked, used in MiB, whether its limit holds)."""
        self.memory_of.look()
        return [
            (use.container, use.uuid, use.granted // MIB, use.used // MIB, use.enforced)
            for use in self.memory_of.seen().uses
        ]


def _text(body: Json) -> bytes:
    return json.dumps(body).encode()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_processes_of_a_container_are_added_up_by_card(world: World) -> None:
    body = pod_json(4, 2)
    ids = world.run(body, [11, 12])
    (world.root / "proc/13").mkdir()
    (world.root / "proc/13/cgroup").write_text(
        f"0::/kubepods/pod{body['metadata']['uid']}/{ids[0]}/deeper\n"
    )
    world.processes["GPU-0"] = {11: GIB, 13: GIB, 12: 5 * MIB, 99: 3 * GIB}
    assert world.look() == [("c0", "GPU-0", 4096, 2048, None), ("c1", "GPU-0", 2048, 5, None)]
    assert world.memory_of.seen().cards == {"GPU-0": 8 * GIB, "GPU-1": 8 * GIB}
    assert world.messages == []


def test_the_use_of_sms_is_added_up_by_container_and_missing_without_samples(world: World) -> None:
    body = pod_json(4, 2)
    ids = world.run(body, [11, 12])
    (world.root / "proc/13").mkdir()
    (world.root / "proc/13/cgroup").write_text(
        f"0::/kubepods/pod{body['metadata']['uid']}/{ids[0]}/deeper\n"
    )
    world.processes["GPU-0"] = {11: GIB, 13: None, 12: 5 * MIB, 99: GIB}
    world.processes["GPU-1"] = {11: GIB}
    # 12 is idle, 98 has ended, and NVML has no samples of GPU-1.
    world.percents["GPU-0"] = {11: 30, 13: 25, 98: 60, 99: 40}
    world.look()
    assert [
        (use.container, use.uuid, use.percent) for use in world.memory_of.seen().compute_uses
    ] == [("c0", "GPU-0", 55), ("c1", "GPU-0", 0)]
    world.percents["GPU-0"] = {11: 90, 13: 90}
    world.look()
    assert [use.percent for use in world.memory_of.seen().compute_uses] == [100, 0]
    world.now += STALE_SECONDS + 1
    assert world.memory_of.seen().compute_uses == ()


@pytest.mark.parametrize("size", [None, 17 * GIB, 2**64 - 1])
def test_what_nvml_does_not_know_or_cannot_be_is_not_shown(world: World, size: int | None) -> None:
    world.run(pod_json(4), [11])
    (world.root / "proc/12").mkdir()
    (world.root / "proc/12/cgroup").write_text((world.root / "proc/11/cgroup").read_text())
    for processes in ({11: size, 12: GIB}, {12: GIB, 11: size}):
        world.processes["GPU-0"] = processes
        assert world.look() == []
    assert world.messages == []


def test_a_card_that_does_not_tell_leaves_the_others_figures_alone(world: World) -> None:
    world.run(pod_json(4), [11])
    world.run(pod_json(4, devices=[1]), [21])
    world.processes = {"GPU-0": {11: GIB}, "GPU-1": {21: GIB}}
    world.silent = {"GPU-0"}
    assert world.look() == [("c0", "GPU-1", 4096, 1024, None)]
    assert world.memory_of.seen().cards == {"GPU-1": 8 * GIB}
    world.silent = set()
    world.card_used = 17 * GIB
    assert world.look() == []
    assert world.memory_of.seen().cards == {}


def test_who_has_a_whole_card_exceeds_nothing_by_using_it(world: World) -> None:
    world.run(pod_json(1, cores=(100,), annotations={WHOLE_CARD: "true"}), [11])
    world.processes["GPU-0"] = {11: 12 * GIB}
    assert world.look() == [("c0", "GPU-0", 16384, 12288, None)]
    assert world.messages == []


def test_who_keeps_a_limit_above_its_request_exceeds_nothing(world: World) -> None:
    body = pod_json(4, annotations={MEMORY_LIMIT: "8"})
    body["spec"]["nodeSelector"] = {LIMITS_LABEL: "true"}
    world.run(body, [11])
    world.processes["GPU-0"] = {11: 7 * GIB}
    assert world.look() == [("c0", "GPU-0", 4096, 7168, None)]
    assert world.messages == []
    world.processes["GPU-0"] = {11: 9 * GIB}
    world.look()
    assert [(use.allowed, use.exceeded) for use in world.messages] == [(8 * GIB, True)]


def test_a_container_on_another_card_than_its_pods_was_given_nothing_there(world: World) -> None:
    world.run(pod_json(4), [11])
    world.processes["GPU-1"] = {11: 2 * MIB}
    assert world.look() == [("c0", "GPU-1", 0, 2, None)]
    assert [use.exceeded for use in world.messages] == [True]


def test_figures_go_when_the_driver_hangs(world: World) -> None:
    world.run(pod_json(4), [11])
    world.processes["GPU-0"] = {11: GIB}
    assert world.look()
    world.now += STALE_SECONDS
    assert world.memory_of.seen().uses
    world.now += 0.1
    assert (world.memory_of.seen().uses, world.memory_of.seen().cards) == ((), {})


@pytest.mark.parametrize(
    ("limit", "used", "holds"),
    [
        (4 * GIB, GIB, True),
        (3 * GIB, 0, True),
        (4 * GIB + 1, GIB, False),
        (NO_LIMIT, 0, False),
        (4 * GIB, 4 * GIB + 1, False),  # the used memory counts more than the shown limit
    ],
)
def test_a_limit_of_the_driver_holds_where_nvml_shows_it(
    world: World, limit: int, used: int, holds: bool
) -> None:
    (container,) = world.run(pod_json(4), [11], DRIVER)
    world.limits[f"GPU-0/{container}"] = (limit, used)
    assert world.look() == [("c0", "GPU-0", 4096, used // MIB, holds)]
    world.look()
    assert len(world.messages) == (0 if holds else 1)


def test_a_limit_that_is_not_shown_is_neither_held_nor_broken(world: World) -> None:
    world.run(pod_json(4), [11], DRIVER)
    world.run(pod_json(4), [21], MPS)
    world.processes["GPU-0"] = {11: GIB, 21: GIB}
    assert [item[-1] for item in world.look()] == [None, None]
    world.processes["GPU-0"] = {11: GIB, 21: 5 * GIB}
    assert [item[-1] for item in world.look()] == [None, False]
    assert [use.isolation for use in world.messages] == ["mps"]


@pytest.mark.parametrize("text", ["", "-1", "4096M", "1" * 400, "x"])
def test_a_number_that_the_driver_cannot_have_taken_is_no_limit(world: World, text: str) -> None:
    (container,) = world.run(pod_json(4), [11], {**DRIVER, "NVIDIA_GPU_MEMORY_LIMIT": text})
    world.limits[f"GPU-0/{container}"] = (NO_LIMIT, GIB)
    world.processes["GPU-0"] = {11: GIB}
    assert world.look() == [("c0", "GPU-0", 4096, 1024, None)]


def test_each_excess_is_told_once_while_the_pod_is_there(world: World) -> None:
    body = pod_json(4)
    world.run(body, [11])
    for used in (5 * GIB, GIB, 5 * GIB):
        world.processes["GPU-0"] = {11: used}
        world.look()
    assert len(world.messages) == 1
    world.watch("DELETED", body)
    assert world.look() == []
    world.watch("ADDED", body)
    world.look()
    assert len(world.messages) == 2


def test_without_the_kubelets_record_the_last_figures_stay(world: World) -> None:
    world.run(pod_json(4), [11])
    world.processes["GPU-0"] = {11: GIB}
    before = world.look()
    world.away = True
    with pytest.raises(KubeletError):
        world.look()
    assert [use.container for use in world.memory_of.seen().uses] == [before[0][0]]


def test_ids_of_containers_stay_where_the_kubelets_own_api_tells_none(world: World) -> None:
    body = pod_json(4)
    ids = world.run(body, [11])
    event: WatchEvent[Pod] = WatchEvent("MODIFIED", PODS.decode(_text(body)))
    world.pods.apply(event)
    pod = world.pods.by_uid(body["metadata"]["uid"])
    assert pod is not None
    assert pod.container_names == {ids[0]: "c0"}


@pytest.mark.parametrize(
    "statuses", [None, [], [{}], [{"name": "c0"}], [{"name": "c0", "containerID": ""}]]
)
def test_a_pod_that_does_not_run_yet_has_no_containers(statuses: object) -> None:
    body = pod_json(4)
    body["status"] |= {"containerStatuses": statuses, "initContainerStatuses": None}
    pod: NodePod = node_pod(STARTED_PODS.decode(_text(body)), ALIYUN)
    assert pod.container_names is None
