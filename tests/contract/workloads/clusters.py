"""The clusters that the workloads suite runs on, with two nodes: the local one, or real parts.

By `make e2e`: kube-apiserver, kube-controller-manager, kube-scheduler. The kubelet is ours on both.
"""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.reading import PodLogs
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.controllers.manager import ControllerManager
from gpushare_localcluster.kubelet import Kubelet
from gpushare_localcluster.scheduler.profiles import options_from
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.contract.apiserver.client import Api
from tests.contract.kubectl import Server
from tests.e2e.binaries import needed
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.processes import Process

NODES = ("node-1", "node-2")
_CONTROLLERS = (
    *("deployment", "garbage-collector", "job", "namespace", "replicaset", "statefulset"),
)
"""Those of kube-controller-manager that run; others take nodes made by hand for dead ones."""
_CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
}


@dataclass(frozen=True)
class Running:
    """A running cluster, as an administrator reaches it."""

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
        tls = ssl.create_default_context(cafile=str(plane.ca))
        token = plane.token(ADMIN)
        client = ApiClient(plane.url, user_agent="kubelet", token=token, tls=tls)
        kubelet = Kubelet(client, PodLogs())
        ends.callback(kubelet.stop)
        kubelet.start()
        yield Running(plane.api(), file.read_text(), None)


def _with_nodes(
    make: Callable[[Path], contextlib.AbstractContextManager[Running]], folder: Path
) -> contextlib.AbstractContextManager[Running]:
    @contextlib.contextmanager
    def made() -> Iterator[Running]:
        with make(folder) as cluster:
            for name in NODES:
                add_node(cluster.api, name)
            yield cluster

    return made()


KINDS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Running]]] = {
    "localcluster": partial(_with_nodes, _local),
    "kube-apiserver": partial(_with_nodes, _real),
}


def shared(cluster: Running, namespace: str) -> Server:
    """The cluster, with a namespace that is made for the caller."""
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    return Server(cluster.api, cluster.kubeconfig, namespace, cluster.local)


def add_node(api: Api, name: str, **spec: object) -> None:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "500", "aliyun.com/gpu-mem": "16"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    api.create("/api/v1/nodes", {"metadata": meta, "spec": spec, "status": status})
