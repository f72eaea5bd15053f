"""A cluster for the whole suite, and a namespace, a kubectl and the pods for each test."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.apiserver.client import Json
from tests.contract.apiserver.conftest import SERVER
from tests.contract.kubectl import Kubectl, Server
from tests.contract.workloads.clusters import KINDS, Running, shared
from tests.e2e import versions
from tests.e2e.processes import until

_numbers = itertools.count(1)


@pytest.fixture(scope="package", params=[SERVER])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH")
    with KINDS[request.param](tmp_path_factory.mktemp("workloads")) as cluster:
        if cluster.local is None:
            version = str(cluster.api.get("/version").body["gitVersion"]).removeprefix("v")
            versions.record(version, kubectl=Path(shutil.which("kubectl") or ""))
        yield cluster


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
def server(running: Running) -> Iterator[Server]:
    """The cluster, with a namespace that is the test's own."""
    name = f"workloads-{next(_numbers)}"
    yield shared(running, name)
    for kind in ("deployments", "replicasets", "statefulsets", "daemonsets"):
        path = f"/apis/apps/v1/namespaces/{name}/{kind}"
        running.api.delete(path, {"propagationPolicy": "Background"})
    path = f"/apis/batch/v1/namespaces/{name}/jobs"
    running.api.delete(path, {"propagationPolicy": "Background"})


@pytest.fixture
def kubectl(server: Server, home: Path) -> Kubectl:
    return Kubectl(server, home)


class Pods:
    """Queries about the pods in the test's namespace."""

    def __init__(self, server: Server) -> None:
        self._api = server.api
        self.path = f"/api/v1/namespaces/{server.namespace}/pods"

    def all(self) -> list[Json]:
        """The pods that are not terminating, by name."""
        items = self._api.get(self.path).body["items"]
        alive = [item for item in items if "deletionTimestamp" not in item["metadata"]]
        return sorted(alive, key=lambda item: str(item["metadata"]["name"]))

    def names(self) -> list[str]:
        return [str(item["metadata"]["name"]) for item in self.all()]

    def images(self) -> list[str]:
        return [str(item["spec"]["containers"][0]["image"]) for item in self.all()]

    def become(self, condition: Callable[[list[Json]], bool], description: str) -> None:
        until(lambda: condition(self.all()), lambda: f"{description}; there are {self.names()}")

    def gone(self) -> None:
        path = self.path
        until(lambda: not self._api.get(path).body["items"], lambda: f"left: {self.names()}")


@pytest.fixture
def pods(server: Server) -> Pods:
    return Pods(server)
