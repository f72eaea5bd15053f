"""`--filter-answer best`: filter chooses, over HTTP, under a scheduler of the local cluster."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_localcluster.scheduler.profiles import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.integration.cluster import Cluster, Json
from tests.integration.conftest import StartExtender
from tests.integration.process import Extender
from tests.integration.verbs import never_over, scheduler_entry
from tests.support.waiting import poll


@pytest.fixture
def best(start_extender: StartExtender) -> Extender:
    extender = start_extender("--filter-answer", "best")
    extender.wait_ready()
    return extender


@pytest.fixture
def scheduler(cluster: Cluster, best: Extender) -> Iterator[Scheduler]:
    entry = scheduler_entry(f"http://127.0.0.1:{best.port}/gpushare-scheduler")
    options = SchedulerOptions((entry,), initial_backoff=0.05, max_backoff=0.2, seed=1)
    scheduler = Scheduler(cluster.server.url, options)
    yield scheduler
    scheduler.stop()


def calls(extender: Extender) -> Counter[str]:
    """How often each verb was called."""
    text = extender.probe("/metrics").body.decode()
    result = re.findall(r'^gpushare_requests_total\{.*verb="(\w+)"\} (\d+)', text, re.MULTILINE)
    counter: Counter[str] = Counter()
    for verb, number in result:
        counter[verb] += int(number)
    return counter


def test_filter_answers_one_node_and_the_others_are_not_said_to_fail(
    cluster: Cluster, best: Extender
) -> None:
    roomy, tight, full = cluster.node(), cluster.node(), cluster.node(devices=1, total=8)
    best.knows(roomy, tight, full)
    assert best.bind(cluster.pod(10), tight) == ""
    assert best.bind(cluster.pod(8), full) == ""
    answer = best.filter(cluster.pod(6), [roomy, full, tight])
    assert answer["NodeNames"] == [tight]
    assert set(answer["FailedNodes"]) == {full}
    assert answer["FailedAndUnresolvableNodes"] == {}


@pytest.mark.parametrize(
    ("file", "flags", "answered"),
    [
        ("kube-scheduler.yaml", (), 1),
        ("kube-scheduler.yaml", ("--filter-answer", "all"), 2),
        ("kube-scheduler-shared.yaml", (), 2),
        ("", (), 2),
    ],
)
def test_by_default_the_file_says_whether_one_node_is_answered(
    cluster: Cluster,
    start_extender: StartExtender,
    file: str,
    flags: tuple[str, ...],
    answered: int,
) -> None:
    folder = Path(__file__).parents[2] / "config" / "scheduler"
    names = ("--scheduler-config", str(folder / file)) if file else ()
    extender = start_extender(*names, *flags)
    extender.wait_ready()
    nodes = [cluster.node(), cluster.node()]
    extender.knows(*nodes)
    pod = cluster.pod(6)
    pod["spec"]["schedulerName"] = "default-scheduler"
    assert len(extender.filter(pod, nodes)["NodeNames"]) == answered


def test_a_scheduler_places_every_pod_without_asking_to_prioritize(
    cluster: Cluster, best: Extender, scheduler: Scheduler
) -> None:
    nodes = [cluster.node() for _ in range(3)]
    best.knows(*nodes)
    # Five on each device leave one unit there; filter sees a pod before others are bound.
    pods = [cluster.pod(3) for _ in range(30)]
    scheduler.start()
    poll(lambda: all(map(cluster.node_of, pods)), "all pods are bound")
    assert Counter(map(cluster.node_of, pods)) == dict.fromkeys(nodes, 10)
    last = cluster.pod(2)
    text = "3 Insufficient GPU Memory in one device"
    poll(lambda: text in _message(cluster, last), "the pod that is too much is told so")
    cluster.delete_pod(pods[0])
    poll(lambda: cluster.node_of(last) != "", "it takes the place of one that goes")
    assert calls(best)["prioritize"] == 0
    assert calls(best)["filter"] >= len(pods)
    best.agrees(cluster)
    never_over(best)


def _message(cluster: Cluster, pod: Json) -> str:
    conditions = cluster.get(pod)["status"].get("conditions", [])
    return "".join(condition.get("message", "") for condition in conditions)
