"""The servers that the API-server suite runs against, and what its tests start from."""

import itertools
from collections.abc import Iterator

import pytest

from gpushare.localcluster.api.apiserver import ApiServer
from gpushare.localcluster.api.store import Store
from tests.contract.apiserver.client import Api, Json

SERVERS = ("localcluster",)
"""Every kind of API server that keeps these promises; a real one joins by a name and a URL."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=SERVERS)
def server() -> Iterator[str]:
    """URL of a running API server, shared by the tests of a module."""
    local = ApiServer(Store(), bookmark_every=0.2)
    local.start()
    yield local.url
    local.stop()


@pytest.fixture
def api(server: str) -> Api:
    return Api(server)


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
