"""Real kubelets start containers on the devices in the Binding, even under faults.

kube-apiserver, kube-scheduler, our extender (policy `spread`, so that equal pods lie on different
devices), kubelet and a device plug-in are real; the container runtime records its calls. A plug-in
that guesses by size, like the original, shows that these tests find wrong devices.
"""

import contextlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.cluster import Cluster, pod
from tests.e2e.conftest import MakeCluster
from tests.e2e.objects import MEM
from tests.e2e.plugins import (
    DEVICES,
    UNITS,
    BySize,
    Ours,
    OursByAnnotations,
    OursByCdi,
    OursByMounts,
    OursByWatch,
    Plugin,
)
from tests.e2e.processes import until

pytestmark = pytest.mark.timeout(400)

_AWAY = ("UnexpectedAdmissionError", f"OutOf{MEM}")
"""Why a kubelet refuses a pod, for good, while it has no device plug-in or no units."""
_TAKE_IT_AWAY = ("device plug-in", "kubelet", "node")
"""Parts without which it has none for a moment."""


def all_run_on_their_devices(cluster: Cluster, containers: int) -> None:
    """Fail unless so many containers with GPU memory were created, each on the right device."""
    devices = cluster.given()
    assert (devices.wrong, devices.nothing, cluster.refused()) == ([], [], []), cluster.told()
    assert devices.right == containers


def equal_pods_come(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.burst([pod(2) for _ in range(24)])
        cluster.settled()
        cluster.clear()


def test_a_plugin_that_goes_by_size_is_seen_to_mix_up_equal_pods(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(BySize, pairing="off")
    equal_pods_come(cluster)
    devices = cluster.given()
    assert devices.count == 48
    assert devices.wrong
    assert all(", written is [" in item for item in devices.wrong), devices.wrong


@pytest.mark.parametrize("pairing", ["auto", "on"])
def test_pairing_keeps_a_plugin_that_goes_by_size_right(
    make_cluster: MakeCluster, pairing: str
) -> None:
    cluster = make_cluster(BySize, pairing=pairing)
    equal_pods_come(cluster)
    devices = cluster.given()
    assert devices.count == 48
    # The plug-in gives no device to a pod that it took for an equal one that already runs.
    assert devices.wrong == [], cluster.told()


@pytest.mark.parametrize("kind", [Ours, OursByWatch])
def test_hundreds_of_equal_pods_run_on_their_devices(
    make_cluster: MakeCluster, kind: type[Plugin]
) -> None:
    cluster = make_cluster(kind)
    for units, size in ((1, 60), (2, 32), (4, 16)):
        cluster.burst([pod(units) for _ in range(size)])
        cluster.settled()
        assert cluster.misplaced() == []
        cluster.clear()
    all_run_on_their_devices(cluster, 108)


@pytest.mark.parametrize("kind", [Ours, OursByWatch])
def test_pods_that_are_bound_while_the_kubelet_is_away_run_on_their_devices(
    make_cluster: MakeCluster, kind: type[Plugin]
) -> None:
    """The kubelet then admits the pods in an unknown order."""
    cluster = make_cluster(kind)
    for _ in range(2):
        cluster.burst_unseen([pod(2) for _ in range(24)])
        cluster.settled()
        cluster.clear()
    devices = cluster.given()
    assert (devices.wrong, devices.nothing) == ([], []), cluster.told()
    # The kubelet refuses pods that it admits before the device plug-in is back.
    assert all(any(reason in item for reason in _AWAY) for item in cluster.refused())
    assert devices.right + len(cluster.refused()) == 48


def mixed() -> list[Json]:
    """Pods of all kinds, most with containers of equal size."""
    return [
        *(pod(2), pod(3), pod(1, 2), pod(2, 2, sidecars=[1]), pod(4, devices=2)),
        *(pod(2, init=[2]), pod(1, init=[2, 1]), pod(0, 2, init=[0])),
    ]


@pytest.mark.parametrize("kind", [Ours, OursByMounts, OursByCdi, OursByAnnotations])
def test_each_container_of_mixed_pods_has_its_own_share(
    make_cluster: MakeCluster, kind: type[Plugin]
) -> None:
    """However devices are handed over."""
    cluster = make_cluster(kind)
    dice = random.Random(11)
    for _ in range(3):
        bodies = [*mixed(), *mixed()]
        dice.shuffle(bodies)
        cluster.burst(bodies)
        cluster.settled()
        assert cluster.misplaced() == []
        cluster.clear()
    all_run_on_their_devices(cluster, 3 * 2 * 14)


@contextlib.contextmanager
def exporter(cluster: Cluster) -> Iterator[None]:
    """One that asks the kubelet ten times a second which container has which units."""
    ended = threading.Event()

    def ask() -> None:
        with grpc.insecure_channel(f"unix://{cluster.node.pod_resources}") as channel:
            call = channel.unary_unary("/v1.PodResourcesLister/List", bytes, bytes)
            while not ended.wait(0.1):
                call(b"", timeout=20)

    with ThreadPoolExecutor(1) as pool:
        requests = pool.submit(ask)
        try:
            yield
        finally:
            ended.set()
    requests.result()


def test_containers_that_start_again_keep_their_device(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(Ours)
    bodies = [pod(2) for _ in range(8)]
    for body in bodies:
        body["spec"]["containers"][0]["command"] = ["false"]
    cluster.burst(bodies)
    until(lambda: cluster.given().count >= 2 * len(bodies), cluster.told)
    assert (cluster.given().wrong, cluster.given().nothing) == ([], [])


def test_pods_that_take_place_and_name_of_killed_ones_run_on_their_devices(
    make_cluster: MakeCluster,
) -> None:
    """On a full node the kubelet may still hold units that the extender allocates again.

    An exporter reads pod-resources meanwhile, which makes the kubelet recount units.
    """
    cluster = make_cluster(Ours)
    dice = random.Random(5)
    with exporter(cluster):
        cluster.burst([pod(2) for _ in range(DEVICES * UNITS // 2)])
        for _ in range(4):
            cluster.settled()
            killed = dice.sample(sorted(cluster.running()), 12)
            cluster.kill(killed)
            cluster.burst([pod(2, name=cluster.name_of(uid)) for uid in killed])
        cluster.settled()
    devices = cluster.given()
    assert (devices.wrong, devices.nothing) == ([], []), cluster.told()
    # The kubelet refuses pods without free units.
    assert all(any(reason in item for reason in _AWAY) for item in cluster.refused())


@pytest.mark.parametrize("part", ["extender", "API server", "device plug-in", "kubelet", "node"])
def test_a_part_that_is_killed_and_comes_back_mixes_nothing_up(
    make_cluster: MakeCluster, part: str
) -> None:
    cluster = make_cluster(Ours)
    cluster.burst([pod(1) for _ in range(8)])
    cluster.settled()
    before = cluster.running()
    cluster.burst([*mixed(), *(pod(2) for _ in range(8))])
    until(lambda: len(cluster.node.created()) > len(before), cluster.told)
    cluster.restart(part)
    cluster.burst([pod(1) for _ in range(6)])
    cluster.settled()
    # A restarted node has lost its containers.
    assert part == "node" or before <= cluster.running(), cluster.told()
    error, expected = cluster.refused(), _AWAY if part in _TAKE_IT_AWAY else ()
    assert all(any(reason in item for reason in expected) for item in error), error
    cluster.clear()
    full = [pod(2) for _ in range(DEVICES * UNITS // 2)]
    cluster.burst(full)
    cluster.settled()
    assert len(cluster.running()) == len(full), cluster.told()
    until(lambda: not cluster.unmarked(), lambda: f"{cluster.unmarked()}\n{cluster.told()}")
    devices = cluster.given()
    assert (devices.wrong, devices.nothing) == ([], []), cluster.told()


def test_a_plugin_that_is_replaced_while_pods_come_refuses_none(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(Ours)
    plugin = cluster.plugin
    assert isinstance(plugin, Ours)
    replaced = threading.Event()
    count = 0
    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(plugin.replace)
        replacing.add_done_callback(lambda _: replaced.set())
        while not replaced.is_set():
            bodies = [*mixed(), *(pod(2) for _ in range(8))]
            cluster.burst(bodies)
            cluster.settled()
            cluster.clear()
            count += 14 + 8
    replacing.result()
    all_run_on_their_devices(cluster, count)
    cluster.node.advertises(MEM, DEVICES * UNITS)
