"""The clusters that the workloads suite runs on, with two nodes: the local one, or real parts.

By `make e2e`: kube-apiserver, kube-controller-manager, kube-scheduler. The kubelet is ours on both.
"""

import contextlib
import itertools
import shutil
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare.localcluster.api.apiserver import ApiServer
from gpushare.localcluster.api.podlogs import PodLogs
from gpushare.localcluster.api.store import Store
from gpushare.localcluster.client import ApiClient
from gpushare.localcluster.controllers.manager import ControllerManager
from gpushare.localcluster.kubelet import Kubelet
from gpushare.localcluster.scheduler.config import options_from
from gpushare.localcluster.scheduler.scheduler import Scheduler
from gpushare.wire.scheduler_config import decode_scheduler_config
from tests.contract.apiserver.client import Api, Json
from tests.contract.apiserver.conftest import SERVER
from tests.contract.kubectl import Kubectl, Server
from tests.e2e import versions
from tests.e2e.binaries import needed
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.processes import Process, until

NODES = ("node-1", "node-2")
_CONTROLLERS = ("daemonset", "deployment", "garbage-collector", "job", "replicaset", "statefulset")
_CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Running:
    """A running cluster, as its administrator reaches it."""

    api: Api
    kubeconfig: str
    local: ApiServer | None


@contextlib.contextmanager
def _local(_: Path) -> Iterator[Running]:
    server = ApiServer(Store())
    with contextlib.ExitStack() as ends:
        server.start()
        ends.callback(server.stop)
        controllers = ControllerManager(ApiClient(server.url, user_agent="controllers"))
        ends.callback(controllers.stop)
        controllers.start()
        options = options_from(decode_scheduler_config(_CONFIG), seed=7)
        scheduler = Scheduler(server.url, options)
        ends.callback(scheduler.stop)
        scheduler.start()
        kubelet = Kubelet(ApiClient(server.url, user_agent="kubelet"), server.logs)
        ends.callback(kubelet.stop)
        kubelet.start()
        yield Running(Api(server.url), server.kubeconfig(), server)


@contextlib.contextmanager
def _real(folder: Path) -> Iterator[Running]:
    programs = {name: needed(name) for name in ("kube-controller-manager", "kube-scheduler")}
    plane = Plane(folder, needed("etcd"), needed("kube-apiserver"))
    with contextlib.ExitStack() as ends:
        ends.callback(plane.stop)
        plane.start()
        file = plane.kubeconfig(ADMIN)
        access = ("--kubeconfig", file, "--authentication-kubeconfig", file)
        flags: dict[str, tuple[str | Path, ...]] = {
            "kube-controller-manager": (
                "--controllers",
                ",".join(f"{name}-controller" for name in _CONTROLLERS),
            ),
            "kube-scheduler": (),
        }
        for name, program in programs.items():
            command: list[str | Path] = [
                *(program, *access, "--authorization-kubeconfig", file),
                *("--leader-elect=false", "--secure-port", "0", *flags[name]),
            ]
            ends.callback(Process(name, command, folder).kill)
        versions.record(plane.version(), kubectl=Path(shutil.which("kubectl") or ""))
        tls = ssl.create_default_context(cafile=str(plane.ca))
        token = plane.token(ADMIN)
        client = ApiClient(plane.url, user_agent="kubelet", token=token, tls=tls)
        kubelet = Kubelet(client, PodLogs())
        ends.callback(kubelet.stop)
        kubelet.start()
        yield Running(plane.api(), file.read_text(), None)


_KINDS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Running]]] = {
    "localcluster": _local,
    "kube-apiserver": _real,
}


@pytest.fixture(scope="package", params=[SERVER])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH")
    with _KINDS[request.param](tmp_path_factory.mktemp("workloads")) as cluster:
        for name in NODES:
            add_node(cluster.api, name)
        yield cluster


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
def server(running: Running) -> Iterator[Server]:
    """The cluster, with a namespace that is the test's own."""
    name = f"workloads-{next(_numbers)}"
    running.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield Server(running.api, running.kubeconfig, name, running.local)
    for kind in ("deployments", "replicasets", "statefulsets", "daemonsets"):
        path = f"/apis/apps/v1/namespaces/{name}/{kind}"
        running.api.delete(path, {"propagationPolicy": "Background"})
    path = f"/apis/batch/v1/namespaces/{name}/jobs"
    running.api.delete(path, {"propagationPolicy": "Background"})


@pytest.fixture
def kubectl(server: Server, home: Path) -> Kubectl:
    return Kubectl(server, home)


def add_node(api: Api, name: str, **spec: object) -> None:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "500", "aliyun.com/gpu-mem": "16"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    api.create("/api/v1/nodes", {"metadata": meta, "spec": spec, "status": status})


class Pods:
    """The pods of the test's namespace, by what the tests ask of them."""

    def __init__(self, server: Server) -> None:
        self._api = server.api
        self.path = f"/api/v1/namespaces/{server.namespace}/pods"

    def all(self) -> list[Json]:
        """Those that are not on their way out, by name."""
        items = self._api.get(self.path).body["items"]
        alive = [item for item in items if "deletionTimestamp" not in item["metadata"]]
        return sorted(alive, key=lambda item: str(item["metadata"]["name"]))

    def names(self) -> list[str]:
        return [str(item["metadata"]["name"]) for item in self.all()]

    def images(self) -> list[str]:
        return [str(item["spec"]["containers"][0]["image"]) for item in self.all()]

    def become(self, condition: Callable[[list[Json]], bool], what: str) -> None:
        until(lambda: condition(self.all()), lambda: f"{what}; there are {self.names()}")

    def gone(self) -> None:
        path = self.path
        until(lambda: not self._api.get(path).body["items"], lambda: f"left: {self.names()}")


@pytest.fixture
def pods(server: Server) -> Pods:
    return Pods(server)
