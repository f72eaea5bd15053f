"""Binds that wait for their group, in a real process: they hold connections, and no threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, Json, fresh, inventory
from tests.integration.process import Extender
from tests.support.waiting import PATIENCE, poll

Start = Callable[..., Extender]

_GROUP, _SIZE = "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-min-member"
_THREADS = 20
"""Threads of the extender; 16 of them are kept from binds."""
_MEMBERS = 100
"""Binds that wait: more than there are threads."""
_FILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- urlPrefix: http://127.0.0.1:1/gpushare-scheduler
  filterVerb: filter
  bindVerb: bind
  httpTimeout: {seconds}s
  nodeCacheCapable: true
  managedResources: [{{name: aliyun.com/gpu-mem, ignoredByScheduler: false}}]
"""


@pytest.fixture
def start(tmp_path: Path, cluster: Cluster) -> Iterator[Start]:
    """Starts the program for a kube-scheduler that waits so many seconds for an answer."""
    started: list[Extender] = []

    def start(seconds: int) -> Extender:
        file = tmp_path / f"scheduler-{len(started)}.yaml"
        file.write_text(_FILE.format(seconds=seconds))
        flags = ("--leadership", "off", "--threads", str(_THREADS), "--scheduler-config", str(file))
        extender = Extender(tmp_path, cluster.kubeconfig(tmp_path), *flags)
        started.append(extender)
        extender.wait_ready()
        return extender

    yield start
    for extender in started:
        extender.stop()


def members(cluster: Cluster, count: int, size: int) -> list[Json]:
    """So many pods of a group of that size."""
    notes = {_GROUP: fresh("group"), _SIZE: str(size)}
    return [cluster.pod(4, annotations=notes) for _ in range(count)]


def _are_waiting(extender: Extender, pods: int) -> bool:
    """Whether so many pods wait at the gate."""
    return extender.figure("gate_pods") == pods


def all_wait(extender: Extender, pods: list[Json], node: str) -> list["Future[str]"]:
    """The binds of the group, once all of the pods wait at the gate."""
    binds = []
    for number, pod in enumerate(pods, 1):
        binds.append(extender.bind_later(pod, node))
        # No more at once than the extender takes.
        poll(partial(_are_waiting, extender, number), lambda: extender.log)
    return binds


def test_binds_that_wait_hold_no_threads_and_are_sent_together(
    start: Start, cluster: Cluster
) -> None:
    extender = start(300)
    node = cluster.node(total=16 * 64, annotations=inventory(*[16] * 64))
    extender.knows(node)
    pods = members(cluster, _MEMBERS + 1, _MEMBERS + 1)
    binds = all_wait(extender, pods[:-1], node)
    assert cluster.bindings() == []
    assert sum(extender.used(node)) == 4 * _MEMBERS
    # Others are served.
    assert extender.bind(alone := cluster.pod(4), node) == ""
    assert cluster.node_of(alone) == node
    assert extender.bind(pods[-1], node) == ""
    assert [bind.result(PATIENCE) for bind in binds] == [""] * _MEMBERS
    assert all(cluster.node_of(pod) == node for pod in pods)
    # Metrics are a document that is kept for a moment.
    poll(lambda: extender.figure("gate_pods") == 0, lambda: extender.log)


def test_a_group_that_is_not_whole_in_time_is_refused_and_leaves_nothing(
    start: Start, cluster: Cluster
) -> None:
    extender = start(8)
    node = cluster.node(total=32, annotations=inventory(16, 16))
    extender.knows(node)
    pods = members(cluster, 2, 3)
    for bind in [extender.bind_later(pod, node) for pod in pods]:
        assert "its group is not whole: " in bind.result(PATIENCE)
    assert cluster.bindings() == []
    assert sum(extender.used(node)) == 0
    poll(lambda: extender.figure("gate_timeouts_total") >= 1, lambda: extender.log)


def test_binds_that_wait_are_answered_when_the_process_stops(
    start: Start, cluster: Cluster
) -> None:
    extender = start(300)
    node = cluster.node(total=32, annotations=inventory(16, 16))
    extender.knows(node)
    binds = all_wait(extender, members(cluster, 2, 3), node)
    extender.terminate()
    for bind in binds:
        assert "this process stops" in bind.result(PATIENCE)
    poll(extender.ended, "it ends")
    assert cluster.bindings() == []


def test_a_process_that_is_killed_while_a_group_waits_leaves_no_charge(
    start: Start, cluster: Cluster
) -> None:
    extender = start(300)
    node = cluster.node(total=32, annotations=inventory(16, 16))
    extender.knows(node)
    pods = members(cluster, 2, 2)
    all_wait(extender, pods[:1], node)
    extender.kill()
    assert cluster.bindings() == []
    after = start(300)
    after.knows(node)
    assert sum(after.used(node)) == 0
    first = after.bind_later(pods[0], node)
    assert after.bind(pods[1], node) == ""
    assert first.result(PATIENCE) == ""
