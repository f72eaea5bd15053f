"""The demo's autoscaler: descriptions of groups, and objects left behind."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.placeholders import FOR
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.autoscaler import GROUPS, MAPS
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.demo import autoscaling
from gpushare_localcluster.demo.autoscaling import PLACEHOLDERS, Autoscaling, read_groups
from gpushare_localcluster.demo.processes import ExtenderProcess
from tests.support.waiting import poll

MEM = "aliyun.com/gpu-mem"
KEPT = "cluster-autoscaler.kubernetes.io/scale-down-disabled"


def test_a_group_is_a_shape_and_its_bounds() -> None:
    small, text = read_groups({"told": "2x16GiB,min=1,max=3", "small": "1x8"})
    assert (text.name, text.min_size, text.max_size) == ("told", 1, 3)
    assert (small.name, small.min_size, small.max_size) == ("small", 0, 10)
    allocatable = text.node("told-1")["status"]["allocatable"]
    assert (allocatable[MEM], allocatable["aliyun.com/gpu-count"]) == ("32", "2")
    (untold,) = read_groups({"untold": "0x16GiB"})
    assert MEM not in untold.node("untold-1")["status"]["allocatable"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "2x16MiB",
        "65x1",
        "2x16,most=3",
        "2x16,min",
        "2x16,max=x",
        "2x16,max=-1",
        "2x16,",
    ],
)
def test_what_is_no_group_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"node-groups: gpu: {text!r} is not as 4x")):
        read_groups({"gpu": text})


class NoExtender(ExtenderProcess):
    """An extender process that only counts its starts."""

    def __init__(self) -> None:
        super().__init__(Path(), Path(), Path(), 0)
        self.starts: list[tuple[str, ...]] = []

    def start(self, *more: str, module: str = "") -> None:
        self.starts.append((*more, module))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    created = ApiServer(Store())
    created.start()
    yield created
    created.stop()


def test_switched_off_it_says_what_the_extender_has_left(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaling, "_PATIENCE", 0.2)
    api, extender, text = ApiClient(server.url, user_agent="test"), NoExtender(), list[str]()
    under_test = Autoscaling(api, server.url, extender, text.append)
    under_test.on()
    under_test.on()
    assert under_test.is_on
    api.create(MAPS, {"metadata": {"name": GROUPS}, "data": {"gpu": "1x8,max=1"}})
    container = {"name": "main", "image": "pause", "resources": {"requests": {MEM: "8"}}}
    container["resources"]["limits"] = container["resources"]["requests"]  # type: ignore[index]
    pods = f"/api/v1/namespaces/{PLACEHOLDERS}/pods"
    pod = {"metadata": {"name": "for-x", "labels": {FOR: "x"}}, "spec": {"containers": [container]}}
    api.create(pods, pod)
    error = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    api.patch(f"{pods}/for-x/status", {"status": {"conditions": [error]}})
    poll(lambda: text == ["node gpu-1 comes, for placeholders/for-x"], "the autoscaler runs")
    api.patch("/api/v1/nodes/gpu-1", {"metadata": {"annotations": {KEPT: "true"}}})
    assert under_test.off() == f"placeholder for-x, {KEPT} of node gpu-1"
    assert not under_test.is_on
    assert [len(words) for words in extender.starts] == [4, 1]
    api.delete(f"{pods}/for-x", grace_seconds=0)
    api.patch("/api/v1/nodes/gpu-1", {"metadata": {"annotations": {KEPT: None}}})
    assert under_test.off() is None
    assert api.get(MAPS)["items"] == []
    api.close()
