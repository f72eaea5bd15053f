"""The folders of HAMi-core's containers: made once, and removed only after the pod is gone."""

import os
from pathlib import Path

import pytest

from gpushare.device_plugin import hami_folders
from gpushare.device_plugin.hami_folders import ContainerFolders
from gpushare.device_plugin.identity import CheckpointEntry
from gpushare.device_plugin.pods import Pods
from gpushare.errors import RequestRefused
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import Pod
from tests.support.scripted_api import ScriptedApi
from tests.support.waiting import poll
from tests.unit.device_plugin.pods import Json, decoded, pod_json


class World:
    """The folders of a node with the pods of the watch and the kubelet's record."""

    def __init__(self, folder: Path) -> None:
        self.parent = folder / "containers"
        self.pods = Pods(ScriptedApi(forever=b"{}"), ALIYUN, "node")
        self.pods.replace((), 0.0)
        self.record: list[CheckpointEntry] = []
        self.folders = ContainerFolders(str(folder), self.pods)

    def show(self, body: Json, kind: str = "ADDED") -> str:
        """Have the watch show the pod; return the uid."""
        event: WatchEvent[Pod] = WatchEvent(kind, decoded(body))
        self.pods.apply(event)
        return str(body["metadata"]["uid"])

    def looks(self, count: int = 2) -> list[str]:
        """The names of the folders after so many looks, each with its removals."""
        for _ in range(count):
            self.folders.look(self.record)
            poll(lambda: not self.folders.removing, "a removal does not end", 60.0)
        return sorted(path.name for path in self.parent.iterdir())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(hami_folders, "_LOOKS", 2)
    return World(tmp_path)


def test_the_folder_of_a_pod_stays_until_the_pod_is_gone(world: World) -> None:
    body = pod_json(1)
    uid = world.show(body)
    world.folders.make(uid, "c0")
    assert (world.parent / f"{uid}_c0").stat().st_mode & 0o777 == 0o777
    (world.parent / f"{uid}_c0" / "GPU-0.cache").touch()
    ended = {**body, "status": {"phase": "Succeeded"}}
    world.show(ended, "MODIFIED")
    assert world.looks() == [f"{uid}_c0"]
    world.show(ended, "DELETED")
    assert world.looks(1) == [f"{uid}_c0"]
    assert world.looks(1) == []


def test_the_folder_of_a_pod_in_the_kubelets_record_stays(world: World) -> None:
    world.folders.make("uid-of-none", "c0")
    world.record.append(CheckpointEntry("uid-of-none", "c0", frozenset(), b""))
    assert world.looks(3) == ["uid-of-none_c0"]
    world.record.clear()
    assert world.looks() == []


def test_a_pod_that_was_unknown_for_a_moment_keeps_the_folder(world: World) -> None:
    body = pod_json(1)
    uid = world.show(body)
    world.folders.make(uid, "c0")
    for _ in range(2):
        world.show(body, "DELETED")
        assert world.looks(1) == [f"{uid}_c0"]
        world.show(body)
        assert world.looks(1) == [f"{uid}_c0"]


def test_what_is_no_folder_of_a_container_stays(world: World, tmp_path: Path) -> None:
    world.folders.make("gone", "c0")
    (world.parent / "lost+found").mkdir()
    (tmp_path / "libvgpu.so").touch()
    (world.parent / "gone_c0" / "link").symlink_to(tmp_path)
    assert world.looks() == ["lost+found"]
    assert (tmp_path / "libvgpu.so").exists()


def test_one_look_removes_a_bounded_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hami_folders, "_MOST_REMOVALS", 2)
    for number in range(3):
        world.folders.make(f"gone-{number}", "c0")
    assert world.looks() == ["gone-2_c0"]
    assert world.looks(1) == []


def test_a_folder_that_cannot_be_removed_is_told_of_and_keeps_no_other_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hami_folders, "_MOST_REMOVALS", 1)
    for name in ("a", "b"):
        world.folders.make(name, "c0")
    with monkeypatch.context() as without_rm:
        without_rm.setenv("PATH", "")
        assert world.looks() == ["a_c0", "b_c0"]
    assert "are not removed" in caplog.text
    assert world.looks(1) == ["a_c0"]
    assert "folders of pods that are gone stay number=1" in caplog.text


def test_while_a_removal_goes_on_no_other_begins(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program, started, may_end = (tmp_path / name for name in ("rm", "started", "may-end"))
    program.write_text(
        f"#!/bin/sh\necho >> {started}\nuntil [ -e {may_end} ]; do sleep 0.1; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    world.folders.make("gone", "c0")
    for _ in range(5):
        world.folders.look(world.record)
    poll(started.exists, "no removal begins", 60.0)
    world.folders.look(world.record)
    assert "a removal of folders goes on looks=2" in caplog.text
    may_end.touch()
    poll(lambda: not world.folders.removing, "the removal does not end", 60.0)
    assert started.read_text() == "\n"


def test_before_the_first_container_there_is_nothing_to_remove(world: World) -> None:
    world.folders.look([])
    assert not world.parent.exists()


def test_a_folder_that_cannot_be_made_refuses_the_container(world: World) -> None:
    world.parent.touch()
    with pytest.raises(RequestRefused, match=r"hami-core: .* cannot be made"):
        world.folders.make("uid", "c0")
