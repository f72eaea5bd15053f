"""A slice of a recorded trace, sent through a scheduler over HTTP, ends as in a simulation.

Nodes of the openb trace and the pods that ask for GPU, in the aliyun model: a device has 16 units,
shares are rounded up. (kube-scheduler places the other pods without asking an extender.) Both sides
learn which pods come, pod by pod; a pod that fits nowhere is given up. The scheduler is our
small one and, by `make e2e`, a real kube-scheduler. The same for a cluster of unequal cards.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from werkzeug.serving import make_server

from gpushare import sim
from gpushare.core.mutable_cluster import ranking
from gpushare.core.policy import load_policy
from gpushare.core.workload import class_of
from gpushare.core.workload_estimator import WorkloadEstimator
from gpushare.daemon.callers import Callers
from gpushare.extender.door.app import Routes, build_app
from gpushare.extender.learning.policy_refresher import SPACING
from gpushare.sim.engine import Cluster as Simulated
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, read_nodes, read_pods, request_of
from gpushare.wire.gpu_models import LABELS
from gpushare.wire.scheduler.profiles import Profile
from gpushare_localcluster.scheduler.profiles import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.contract.apiserver.conftest import SERVER
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.pair import HOME, port_of, printed
from tests.e2e.processes import Process
from tests.integration.cluster import COUNT, MEM, NODES, PODS, Cluster, Json
from tests.integration.conftest import MakeWired
from tests.integration.verbs import scheduler_entry
from tests.integration.wired import Wired
from tests.support.waiting import poll

_OPENB = Path(sim.__path__[0]) / "data" / "openb"
_UNITS, _NODES, _LOAD, _SEED = 16, 16, 1.2, 3

Slice = tuple[list[TraceNode], list[TracePod]]
"""Some nodes, and pods that ask for more than these have."""


def openb() -> Slice:
    """Equal devices."""
    rng = np.random.default_rng(_SEED)
    nodes = read_nodes(_OPENB / "openb_node_list_gpu_node.csv.xz")
    pods = [pod for pod in read_pods(_OPENB / "openb_pod_list_default.csv.xz") if pod.devices]
    rows = sorted(rng.choice(len(nodes), _NODES, replace=False).tolist())
    some = [replace(nodes[row], capacity=_UNITS) for row in rows]
    expected, sampled_pods = _LOAD * _UNITS * sum(node.devices for node in some), []
    for row in rng.permutation(len(pods)).tolist():
        if expected <= 0:
            break
        sampled_pods.append(replace(pods[row], units=-(-pods[row].units * _UNITS // 1000)))
        expected -= sampled_pods[-1].devices * sampled_pods[-1].units
    return some, sampled_pods


def unequal() -> Slice:
    """Cards of 24, 48 and 80 GiB, and pods that fit all, some and one of these."""
    kinds = (("A10", 24, 4, 6), ("L40S", 48, 4, 3), ("A100", 80, 8, 4))
    nodes = [
        TraceNode(f"{model.lower()}-{n}", 12_000 * devices, 2**17 * devices, devices, units, model)
        for model, units, devices, count in kinds
        for n in range(count)
    ]
    rng = np.random.default_rng(_SEED)
    small = [(1, 5), (1, 10), (1, 10)] * 6
    sizes = [*small, (1, 20), (1, 24), (1, 40), (1, 80), (2, 40), (4, 80)]
    expected = _LOAD * sum(sum(node.sizes) for node in nodes)
    pods: list[TracePod] = []
    while expected > 0:
        devices, units = sizes[rng.integers(len(sizes))]
        cpu = 1000 * devices * int(rng.integers(1, 8))
        times = (None, None, None)
        pods.append(TracePod(f"pod-{len(pods)}", cpu, 4096, devices, units, (), *times))
        expected -= devices * units
    return nodes, pods


def simulated(nodes: list[TraceNode], pods: list[TracePod], policies: list[str]) -> float:
    """% of the GPU that is allocated in the end. policies: which one ranks, for each pod."""
    devices = Counter(units for node in nodes for units in node.sizes)
    learned = WorkloadEstimator(devices)
    cluster = Simulated(nodes, ranking(load_policy(policies[0], learned.workload()), len(nodes)))
    learned.record_policies(0, learned.sizes)
    for pod, policy, after in zip(pods, policies, [*policies[1:], policies[-1]], strict=True):
        request = request_of(pod)
        cluster.place(request)
        learned.created("", class_of(request))
        if learned.is_due() or after != policy:
            cluster.scorer = ranking(load_policy(after, learned.workload()), len(nodes))
            learned.record_policies(learned.pod_count, learned.sizes)
    return 100 * cluster.allocated / cluster.capacity


@contextmanager
def served(wired: Wired) -> Iterator[int]:
    """The port where the extender answers HTTP."""
    app = build_app(wired.service, Routes(), 2**20, Callers())
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


Scheduling = Callable[[Cluster, int, Path], AbstractContextManager[None]]
"""Runs a scheduler on the cluster that asks the extender at this port; files go to the folder."""


@contextmanager
def small(cluster: Cluster, port: int, folder: Path) -> Iterator[None]:
    """Our own scheduler."""
    del folder
    entry = scheduler_entry(f"http://127.0.0.1:{port}/gpushare-scheduler")
    scheduler = Scheduler(
        cluster.server.url, SchedulerOptions((entry,), (Profile(percentage=100),))
    )
    scheduler.start()
    try:
        yield
    finally:
        scheduler.stop()


@contextmanager
def real(cluster: Cluster, port: int, folder: Path) -> Iterator[None]:
    """kube-scheduler, with the file that our command prints."""
    program = needed("kube-scheduler")
    text = printed(RELEASE)
    text = text.replace(HOME, cluster.kubeconfig(folder)).replace(str(port_of(text)), str(port))
    file = folder / "scheduler-file"
    file.write_text(text)
    flags = ("--config", file, "--leader-elect=false", "--secure-port", "0")
    scheduler = Process("kube-scheduler", (program, *flags), folder)
    try:
        yield
        scheduler.running()
    finally:
        scheduler.kill()


def send_node(cluster: Cluster, node: TraceNode) -> None:
    amounts = {
        "cpu": f"{node.cpu}m",
        "memory": f"{node.memory}Mi",
        "pods": "1000",
        MEM: str(node.devices * node.capacity),
        COUNT: str(node.devices),
    }
    meta = {"name": node.name, "labels": {LABELS[0]: node.model}}
    status = {"capacity": amounts, "allocatable": amounts}
    cluster.create(NODES, "", {"metadata": meta, "status": status})


def send_pod(cluster: Cluster, pod: TracePod) -> Json:
    amounts = {
        "cpu": f"{pod.cpu}m",
        "memory": f"{pod.memory}Mi",
        MEM: str(pod.devices * pod.units),
    }
    resources = {"requests": amounts, "limits": {MEM: amounts[MEM]}}
    container = {"name": "main", "image": "x", "resources": resources}
    meta = {"name": pod.name, "annotations": {COUNT: str(pod.devices)}}
    return cluster.create(PODS, "default", {"metadata": meta, "spec": {"containers": [container]}})


def place(cluster: Cluster, wired: Wired, pod: TracePod) -> None:
    """Have the pod placed, or given up; return when the extender has seen the end."""
    before = wired.learning.state()["learned_pods_total"]
    send_pod_result = send_pod(cluster, pod)

    def decided() -> bool:
        body = cluster.get(send_pod_result)
        conditions = body["status"].get("conditions") or ()
        # After an error (a busy machine's time-out) the pod is tried again.
        refusals = any(condition.get("reason") == "Unschedulable" for condition in conditions)
        return bool(body["spec"].get("nodeName") or refusals)

    poll(decided, f"{pod.name} is placed or refused")
    poll(lambda: wired.learning.state()["learned_pods_total"] > before, f"{pod.name} is learned")
    if not cluster.node_of(send_pod_result):
        cluster.delete_pod(send_pod_result)


@pytest.mark.parametrize("scheduling", [small] if SERVER == "localcluster" else [small, real])
@pytest.mark.parametrize(
    "asked",
    [(openb, "shadow-price"), (unequal, "shadow-price"), (unequal, "auto")],
    ids=["openb", "unequal", "unequal-auto"],
)
def test_what_is_allocated_over_http_is_what_a_simulation_allocates(
    cluster: Cluster,
    make_wired: MakeWired,
    tmp_path: Path,
    scheduling: Scheduling,
    asked: tuple[Callable[[], Slice], str],
) -> None:
    slice_of, policy = asked
    nodes, pods = slice_of()
    for node in nodes:
        send_node(cluster, node)
    wired = make_wired(policy=policy)
    wired.start()
    wired.learning.refresh()
    ranked: list[str] = []
    with served(wired) as port, scheduling(cluster, port, tmp_path):
        for pod in pods:
            ranked.append(wired.managed.ranking_policy)
            place(cluster, wired, pod)
            wired.clock += SPACING
            wired.learning.refresh()
    wired.agrees(cluster)
    result = wired.inspect()["nodes"]
    capacity = sum(node["totalGPU"] for node in result)
    allocated = 100 * sum(node["usedGPU"] for node in result) / capacity
    assert wired.learning.state()["refits_total"] >= 3
    assert (wired.learning.state()["trials_total"] >= 1) == (policy == "auto")
    assert capacity == sum(sum(node.sizes) for node in nodes)
    assert allocated == pytest.approx(simulated(nodes, pods, ranked), abs=0.5)
