"""Containers with a share of compute and without a limit are counted, and reported once."""

import pytest

from gpushare.daemon.events import Details
from gpushare.device_plugin.container import Contract, answer
from gpushare.device_plugin.event_messages import PluginEvents
from gpushare.device_plugin.identity import CheckpointEntry, ContainerCandidate, Grant, granted
from gpushare.device_plugin.memory import ComputeCheck, Unenforced
from gpushare.device_plugin.pods import Pods
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.events import ObjectReference
from gpushare.wire.objects import Pod
from tests.support.scripted_api import ScriptedApi
from tests.unit.device_plugin.pods import Json, cards, decoded, pod_json, read

NODE = cards(16, 16)


class Recorded:
    """A recorder that keeps the events."""

    def __init__(self) -> None:
        self.told: list[tuple[ObjectReference, str, str, str, bool]] = []

    def record(
        self,
        regarding: ObjectReference,
        reason: str,
        action: str,
        note: str,
        *,
        warning: bool = False,
        details: Details | None = None,
    ) -> None:
        del details
        self.told.append((regarding, reason, action, note, warning))


class World:
    """A check, with the pods and the record that it reads."""

    def __init__(self) -> None:
        self.pods = Pods(ScriptedApi(forever=b"{}"), ALIYUN, "node")
        self.pods.replace((), 0.0)
        self.record: list[CheckpointEntry] = []
        self.recorder = Recorded()
        self.found: list[Unenforced] = []
        self.check = ComputeCheck(self.pods, self._tell)

    def _tell(self, unenforced: Unenforced) -> None:
        self.found.append(unenforced)
        PluginEvents(self.recorder, "node").compute(unenforced)

    def serve(self, body: Json, isolation: str, *, pods_by_key: bool = True) -> None:
        """Put all containers of the pod on record, served with that isolation.

        pods_by_key: whether the kubelet's pod was certain.
        """
        event: WatchEvent[Pod] = WatchEvent("ADDED", decoded(body))
        self.pods.apply(event)
        pod = read(body)
        for container in pod.gpu_containers:
            grant = granted(ContainerCandidate(pod, container), NODE)
            assert isinstance(grant, Grant)
            if not pods_by_key:
                grant = Grant(grant.shares, grant.total)
            messages = answer(grant, Contract(ALIYUN, 1024, isolation), pod.ref.uid, container.name)
            message = messages.SerializeToString()
            self.record.append(CheckpointEntry(pod.ref.uid, container.name, frozenset(), message))

    def look(self) -> int:
        self.check.look(self.record)
        return self.check.unenforced_containers


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("isolation", "pods_by_key", "why"),
    [
        ("none", True, "--isolation none has none"),
        ("driver", True, "--isolation driver has none"),
        ("mps", False, "which pod the kubelet asked for was not certain"),
    ],
)
def test_compute_that_nothing_limits_is_counted_and_told_of_once(
    world: World, isolation: str, pods_by_key: bool, why: str
) -> None:
    body = pod_json(2, 4, cores=(20, 40))
    world.serve(body, isolation, pods_by_key=pods_by_key)
    assert [world.look(), world.look()] == [2, 2]
    ((about, reason, _, note, warning),) = world.recorder.told
    assert (about.uid, reason, warning) == (
        body["metadata"]["uid"],
        "GPUShareComputeNotLimited",
        True,
    )
    assert note.startswith(
        f"no limit of compute is set for c0 (20 percent), c1 (40 percent): {why}"
    )


@pytest.mark.parametrize("isolation", ["hami-core", "mps"])
def test_compute_with_a_limit_is_not(world: World, isolation: str) -> None:
    world.serve(pod_json(2, cores=(20,)), isolation)
    assert world.look() == 0
    assert world.found == []


def test_who_asks_for_none_or_for_all_of_its_cards_needs_no_limit(world: World) -> None:
    world.serve(pod_json(2), "none")
    world.serve(pod_json(4, devices=(0, 1), cores=(200,)), "driver")
    assert world.look() == 0
    world.serve(pod_json(4, devices=(0, 1), cores=(198,)), "driver")
    assert world.look() == 1


def test_a_pod_that_is_gone_or_has_ended_counts_no_more(world: World) -> None:
    deleted, ended = pod_json(2, cores=(20,)), pod_json(2, cores=(20,))
    world.serve(deleted, "none")
    world.serve(ended, "none")
    assert world.look() == 2
    for kind, body in (
        ("DELETED", deleted),
        ("MODIFIED", {**ended, "status": {"phase": "Succeeded"}}),
    ):
        event: WatchEvent[Pod] = WatchEvent(kind, decoded(body))
        world.pods.apply(event)
    assert world.look() == 0
