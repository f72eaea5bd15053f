"""Fixtures of the tests of the extender against an API server.

`world` is one extender process that many tests share: each test gets it empty, makes objects with
its names, and checks the books at the end. Tests that end, stall or configure processes start one.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare.kube.listwatch import Timing
from tests.integration.cluster import MEM, NPU, Cluster
from tests.integration.process import Extender
from tests.integration.verbs import never_over
from tests.integration.wired import QUICK, Wired


@dataclass(frozen=True)
class World:
    """An API server, and an extender process that follows its objects."""

    cluster: Cluster
    extender: Extender


StartExtender = Callable[..., Extender]
MakeWired = Callable[..., Wired]


def scheduler_file(folder: Path) -> str:
    """The configuration of a kube-scheduler with an extender of two resources."""
    entry = {
        "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 1,
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "managedResources": [{"name": MEM}, {"name": NPU}],
    }
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    file = folder / "scheduler.json"
    file.write_text(json.dumps({**head, "extenders": [entry]}))
    return str(file)


@pytest.fixture(scope="session")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    cluster = Cluster()
    flags = ("--leadership", "off", "--body-limit", "200000")
    file = scheduler_file(folder)
    kubeconfig = cluster.kubeconfig(folder)
    extender = Extender(folder, kubeconfig, *flags, "--scheduler-config", file)
    try:
        extender.wait_ready()
        yield World(cluster, extender)
    finally:
        extender.kill()
        cluster.stop()


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """The shared process, with empty books; audited after the test."""
    cluster, extender = shared_world.cluster, shared_world.extender
    begin = len(extender.log)
    yield shared_world
    try:
        extender.agrees(cluster)
        extender.agrees(cluster, NPU)
        assert "Traceback" not in extender.log[begin:], extender.log[begin:]
    finally:
        cluster.clear()
        extender.agrees(cluster)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """An API server of the test alone."""
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def start_extender(tmp_path: Path, cluster: Cluster) -> Iterator[StartExtender]:
    """Starts extender processes on `cluster`, by flags; all are ended."""
    started: list[Extender] = []

    def start(*flags: str, leadership: str = "off") -> Extender:
        kubeconfig = cluster.kubeconfig(tmp_path)
        started.append(Extender(tmp_path, kubeconfig, "--leadership", leadership, *flags))
        return started[-1]

    yield start
    for extender in started:
        extender.kill()
        assert "Traceback" not in extender.log, extender.log


@pytest.fixture
def make_wired(tmp_path: Path, cluster: Cluster) -> Iterator[MakeWired]:
    """Make the extender's objects on `cluster`, not started; audit their books at the end.

    By then nothing goes wrong any more, so whatever went wrong before must have come right.
    """
    created: list[Wired] = []

    def make(timing: Timing = QUICK, kubeconfig: str = "", policy: str = "device-bestfit") -> Wired:
        created.append(Wired(kubeconfig or cluster.kubeconfig(tmp_path), timing, policy))
        return created[-1]

    yield make
    cluster.faults.clear()
    cluster.hook = None
    for extender in created:
        try:
            extender.agrees(cluster)
            never_over(extender)
        finally:
            extender.stop()


@pytest.fixture
def wired(make_wired: MakeWired) -> Wired:
    """The extender's objects on `cluster`, ready."""
    extender = make_wired()
    extender.start()
    return extender
