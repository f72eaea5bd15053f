"""The servers of the API-server suite, and the fixtures of its tests."""

import itertools
import os
from collections.abc import Iterator

import pytest

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.controllers.manager import ControllerManager
from tests.contract.apiserver.client import Api, Json
from tests.e2e import versions
from tests.e2e.binaries import NEWEST, RELEASE, needed
from tests.e2e.plane import Plane

SERVER = os.environ.get("TEST_APISERVER", "localcluster")
"""The kind of API server that keeps these promises: ours, or (by `make e2e`) kube-apiserver."""

newest = pytest.mark.skipif(
    SERVER != "localcluster" and RELEASE != NEWEST,
    reason="an older kube-apiserver does not have it yet, or answers 500 (1.30 does)",
)
"""Promises of the newest API server alone, which the local one keeps."""

CONTROLLERS = (
    "deployment-controller",
    "garbage-collector-controller",
    "job-controller",
    "replicaset-controller",
    "statefulset-controller",
)
"""Those of kube-controller-manager that run; others would take nodes made by hand for dead ones."""

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A real kube-apiserver, shared by all tests."""
    real = Plane(tmp_path_factory.mktemp("plane"), needed("etcd"), needed("kube-apiserver"))
    try:
        real.start()
        yield real
    finally:
        real.stop()


@pytest.fixture(scope="module", params=[SERVER])
def server(request: pytest.FixtureRequest) -> Iterator[Api]:
    """A running API server, ours shared by the tests of a module."""
    if request.param == "kube-apiserver":
        real: Plane = request.getfixturevalue("plane")
        versions.record(real.version())
        yield real.api()
        return
    local = ApiServer(Store(), bookmark_every=0.2)
    local.start()
    yield Api(local.url)
    local.stop()


@pytest.fixture(scope="module")
def controller_manager(request: pytest.FixtureRequest, server: Api) -> Iterator[None]:
    """Controllers beside the server while the module's tests run: ours, or those of Kubernetes."""
    if SERVER != "kube-apiserver":
        our_value = ControllerManager(ApiClient(server.url, user_agent="controllers"))
        our_value.start()
        yield
        our_value.stop()
        return
    real: Plane = request.getfixturevalue("plane")
    process = real.start_controllers(needed("kube-controller-manager"), *CONTROLLERS)
    try:
        yield
        process.running()
    finally:
        process.kill()


@pytest.fixture
def api(server: Api) -> Api:
    return server


@pytest.fixture
def namespace(api: Api) -> str:
    """Path of a namespace of the test's own."""
    name = f"test-{next(_numbers)}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}"


@pytest.fixture
def node_name(api: Api) -> str:
    """Name of a node of the test's own."""
    name = f"node-{next(_numbers)}"
    resources = {"cpu": "8", "memory": "64Gi", "pods": "110", "aliyun.com/gpu-mem": "16"}
    status = {"capacity": resources, "allocatable": resources}
    api.create("/api/v1/nodes", {"metadata": {"name": name}, "status": status})
    return name


def pod(name: str = "p", *, gpu_mem: object = "3", **spec: object) -> Json:
    container = {
        "name": "main",
        "image": "registry.example/app:1",
        "resources": {"limits": {"aliyun.com/gpu-mem": gpu_mem}},
    }
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def config_map(name: str, labels: Json | None = None, **data: str) -> Json:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def binding(name: str, node: str, **metadata: object) -> Json:
    return {
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": {"name": name, **metadata},
        "target": {"kind": "Node", "name": node},
    }
