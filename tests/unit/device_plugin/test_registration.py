"""Times of registration: again and again, soon where that helps, and never in vain for long.

A real server and a kubelet's registration over gRPC; time is the test's.
"""

import json
import logging
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.allocator import Allocator
from gpushare.device_plugin.devices import FileSource
from gpushare.device_plugin.health import Health
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.registration import Registration, own_socket
from gpushare.device_plugin.server import PluginServer
from gpushare.wire.annotations import ALIYUN
from tests.support.scripted_api import ScriptedApi
from tests.support.waiting import poll
from tests.unit.device_plugin.fake_kubelet import RESOURCE, FakeKubelet

CARD = {"uuid": "GPU-0", "index": 0, "memoryMiB": 4096}


class World:
    """A kubelet, and processes of ours that register with it."""

    def __init__(self, folder: Path) -> None:
        self.kubelet = FakeKubelet(folder)
        self.devices = folder / "devices.json"
        self.devices.write_text(json.dumps({"devices": [CARD]}))
        self.made: list[Registration] = []
        self.now = 1000.0

    def process(self) -> Registration:
        health = Health(FileSource(str(self.devices)), "GiB", 0, recover=1.0)
        pods = Pods(ScriptedApi(), ALIYUN, "node")
        server = PluginServer(
            self.kubelet.plugins / own_socket(),
            health,
            Allocator(pods, dict, health.cards),
            lambda ids: None,
            answer=lambda served: pb.ContainerAllocateResponse(),
            observe=lambda *told: None,
        )
        self.made.append(
            Registration(
                *(self.kubelet.plugins, RESOURCE, server, lambda: None), clock=lambda: self.now
            )
        )
        return self.made[-1]

    def step(self, process: Registration) -> float:
        """The pause after a step, which then has passed."""
        pause = process.step()
        self.now += pause
        return pause

    def registers_again(self, process: Registration) -> float:
        """Seconds until the kubelet is told of the process again."""
        began, registered = self.now, self.kubelet.registered
        while True:
            attempts = self.now
            self.step(process)
            if self.kubelet.registered > registered:
                return attempts - began

    def registered(self, process: Registration) -> None:
        """Return once the kubelet follows the process."""
        self.step(process)
        self.followed(process)

    def followed(self, process: Registration) -> None:
        poll(lambda: process.problem() == "", process.problem)
        self.step(process)


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="dp-") as folder:
        result = World(Path(folder))
        yield result
        for item in result.made:
            item.stop()
        result.kubelet.stop()


def test_a_kubelet_that_refuses_at_first_is_asked_again_at_once_then_ever_more_slowly(
    world: World,
) -> None:
    world.kubelet.start()
    world.kubelet.refuses = 13
    process = world.process()
    began, tries = world.now, []
    while world.kubelet.refuses:
        remaining = world.kubelet.refuses
        world.step(process)
        if world.kubelet.refuses < remaining:
            tries.append(world.now)
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[0] < 0.1
    assert pauses == sorted(pauses)
    assert 30.0 <= pauses[-1] < 31.0
    assert began < tries[0]


def test_a_kubelet_that_starts_anew_is_told_at_once_however_long_it_was_away(world: World) -> None:
    world.kubelet.start()
    process = world.process()
    world.registered(process)
    world.kubelet.stop()
    for _ in range(2000):
        world.step(process)
    assert "does not answer: is the kubelet running?" in process.problem()
    world.kubelet.start()
    assert world.registers_again(process) < 0.5


def test_a_kubelet_that_lets_go_of_us_is_told_without_waiting_for_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_LOOK_SECONDS", "_FOLLOWED_LOOK_SECONDS"):
        monkeypatch.setattr(f"gpushare.device_plugin.registration.{name}", 3600.0)
    monkeypatch.setattr("gpushare.device_plugin.server._LOOK_SECONDS", 3600.0)
    world.kubelet.start()
    process = world.process()
    process.start()
    poll(lambda: process.problem() == "", process.problem)
    world.kubelet.drop_plugins()
    world.kubelet.wait(lambda: world.kubelet.registered == 2, "registers again")
    poll(lambda: process.problem() == "", process.problem)


def test_a_kubelet_that_followed_us_only_between_two_looks_is_told_at_once(world: World) -> None:
    world.kubelet.start()
    process = world.process()
    process.step()
    poll(lambda: process.problem() == "", process.problem)
    world.kubelet.drop_plugins()
    poll(lambda: process.problem() != "", "the kubelet still follows us")
    assert world.registers_again(process) < 0.2


def test_a_kubelet_that_is_away_is_not_said_to_follow_another(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.kubelet.start()
    process = world.process()
    world.registered(process)
    with caplog.at_level(logging.INFO):
        world.kubelet.stop()
        for _ in range(100):
            world.step(process)
        world.kubelet.start()
        world.registered(process)
    assert "another device plug-in" not in caplog.text


def test_a_kubelet_that_follows_us_no_more_again_and_again_may_follow_another(world: World) -> None:
    world.kubelet.start()
    process = world.process()
    world.registered(process)
    pauses = []
    for _ in range(4):
        world.kubelet.drop_plugins()
        poll(lambda: process.problem() != "", "let go")
        pauses.append(world.registers_again(process))
        world.followed(process)
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.15
    world.kubelet.drop_plugins()
    poll(lambda: process.problem() != "", "let go")
    world.step(process)
    assert f"has another device plug-in registered {RESOURCE}?" in process.problem()


@pytest.mark.parametrize(("one_plugin", "gaps"), [(False, 0), (True, 1)])
def test_a_process_that_takes_over_leaves_no_gap_or_ends_it_at_once(
    world: World, one_plugin: bool, gaps: int
) -> None:
    world.kubelet.one_plugin = one_plugin
    world.kubelet.start()
    old, new = world.process(), world.process()
    world.registered(old)
    world.registered(new)
    old.stop()
    poll(lambda: (new.problem() != "") == one_plugin, "let go")
    world.registered(new)
    world.kubelet.wait_advertised(4)
    # No gap at all if the new process is back before the kubelet has marked the dropped devices.
    assert world.kubelet.gaps <= gaps


def test_sockets_of_processes_that_were_killed_are_removed_and_no_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kubelet.start()
    old, dead = world.process(), world.kubelet.plugins / own_socket()
    world.registered(old)
    dead.touch()
    # One that is new may be about to be listened on.
    world.registered(world.process())
    assert dead.exists()
    monkeypatch.setattr("gpushare.device_plugin.registration._DEAD_SECONDS", -1.0)
    world.registered(world.process())
    assert not dead.exists()
    assert old.problem() == ""
