"""The bench of kube-scheduler's settings chooses as a scheduler does."""

from random import Random

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import fits
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.ranking import Ranking
from gpushare.sim.engine import Cluster
from gpushare.trace.nodes_and_pods import MIB, TraceNode, request_of
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.objects import read_node, read_pod
from gpushare_localcluster.scheduler.plugins.resources import NodeResourcesFit
from tests.bench.scheduler_settings import KubeScheduler, SchedulerSetting, fit_scores
from tests.unit.sim.test_engine import PODS

MANY = [
    TraceNode(f"n{index:03}", 32_000 + 1000 * (index % 7), 65_536, 2 + index % 3, 1000, "T4")
    for index in range(250)
]
FITTING = [request_of(pod) for pod in PODS if pod.devices <= 2 and "P4" not in pod.models]


def make(setting: SchedulerSetting) -> tuple[Cluster, KubeScheduler]:
    judge = KubeScheduler(Ranking(DeviceBestFit(), 99, fits), setting, 1)
    return Cluster(MANY, judge), judge


def test_with_every_pod_by_the_policy_the_placements_are_the_simulator_s() -> None:
    cluster, _ = make(SchedulerSetting("every", every=True))
    plain = Cluster(MANY, Ranking(DeviceBestFit(), 99, fits))
    chance = Random(1)
    for request in chance.choices(FITTING, k=400):
        assert cluster.place(request) == plain.place(request)


def test_a_sample_begins_where_the_last_one_ended_and_has_enough_nodes() -> None:
    cluster, _ = make(SchedulerSetting("sampled", percentage=40, weight=150))
    small = Request(10, 1, cpu=10, memory=MIB)
    rows = []
    for _ in range(30):
        placement = cluster.place(small)
        assert placement is not None
        rows.append(placement.row)
    # 40 % of 250: the first looks at rows 0 to 99, then 100 to 199, then 200 to 49.
    spans = [(100 * number % 250, 100) for number in range(30)]
    assert all((row - first) % 250 < count for row, (first, count) in zip(rows, spans, strict=True))


def test_a_pod_that_a_sample_has_no_device_for_is_tried_with_the_next() -> None:
    cluster, judge = make(SchedulerSetting("sampled", percentage=40))
    for row in range(249):
        devices = MANY[row].devices
        shares = tuple((device, 501) for device in range(devices))
        cluster.put(row, shares, Request(501, devices))
    placement = cluster.place(Request(500, 1, cpu=10))
    assert placement is not None
    assert placement.row == 249
    assert (judge.asked, judge.missed) == (1, 1)
    assert cluster.place(Request(500, 4, cpu=10)) is None
    assert (judge.asked, judge.missed) == (2, 1)


def test_nodes_are_scored_as_by_the_scheduler_of_the_local_cluster() -> None:
    cluster, _ = make(SchedulerSetting("ours"))
    chance = Random(2)
    for request in chance.choices(FITTING, k=150):
        cluster.place(request)
    new_request = Request(100, 1, cpu=3000, memory=5000 * MIB)
    pod = _pod(new_request.cpu, new_request.memory)
    view = cluster.view
    scores = fit_scores(view, np.arange(len(MANY)), new_request, packs=False).tolist()
    for row, node in enumerate(MANY):
        raw = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi", "pods": "110"}
        info = NodeInfo(read_node({"metadata": {"name": "n"}, "status": {"allocatable": raw}}))
        used = node.cpu - int(view.cpu_free[row]), node.memory * MIB - int(view.memory_free[row])
        if all(used):
            info = info.with_pod(read_pod(_pod(*used)))
        assert scores[row] == NodeResourcesFit().score(CycleState(), read_pod(pod), info)


def _pod(cpu: int, memory: int) -> dict[str, object]:
    requests = {"cpu": f"{cpu}m", "memory": str(memory)}
    container = {"name": "c", "image": "x", "resources": {"requests": requests}}
    return {"metadata": {"uid": "u", "name": "p"}, "spec": {"containers": [container]}}
