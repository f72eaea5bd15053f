"""Compute and memory are of one device, from kube-scheduler to the container's variables."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from gpushare.core.model import Allocation, Reason, Request
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare.wire.device_request import LIMITS_LABEL, MEMORY_LIMIT
from gpushare.wire.inventory import MAX_SHARERS
from tests.contract.apiserver.client import Json
from tests.e2e.binaries import OLD_SCHEDULER, RELEASE, needed
from tests.e2e.cluster import Cluster, pod
from tests.e2e.conftest import MakeCluster, MakeWorld
from tests.e2e.objects import CORES, NODES, PODS
from tests.e2e.plane import ADMIN
from tests.e2e.plugins import DEVICES, UNITS, Ours, OursByDriver, OursByHamiCore, OursByMps
from tests.e2e.processes import until

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[2]
_UNITS, _PERCENT = 2, 60
"""The request of each pod: by memory a card takes eight pods, by compute one."""


def devices_of(body: Json) -> set[tuple[str, str]]:
    """(device of the memory, device of the compute) for each container, by the Binding."""
    notes = body["metadata"]["annotations"]
    memory = json.loads(notes["scheduler.framework.gpushare.allocation"])
    compute = json.loads(notes["gpushare.alibabacloud.com/core-percentage"])
    assert memory.keys() == compute.keys()
    return {
        (device, second)
        for container, devices in memory.items()
        for device, second in zip(devices, compute[container], strict=True)
    }


def full_of_compute(cluster: Cluster) -> list[str]:
    """The indices of the devices of all pods that run, once no more fit beside one that waits."""
    cluster.burst([pod(_UNITS, cores=_PERCENT) for _ in range(DEVICES + 1)])
    until(lambda: len(cluster.running()) == DEVICES, cluster.told)
    running = cluster.running()
    (pending,) = (item for uid, item in cluster.pods.items() if uid not in running)
    cluster.world.objects.refusal(pending, "Insufficient GPU Cores in one device")
    assert cluster.running() == running
    places = [place for uid in running for place in devices_of(cluster.pods[uid])]
    assert all(memory == compute for memory, compute in places)
    cluster.kill([pending["metadata"]["uid"]])
    return sorted(memory for memory, _ in places)


@pytest.mark.parametrize(
    ("kind", "variables"),
    [
        (OursByHamiCore, {"CUDA_DEVICE_SM_LIMIT": "60", "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"}),
        (OursByMps, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "60"}),
        (OursByDriver, {"NVIDIA_GPU_MEMORY_LIMIT": "2048"}),
    ],
)
def test_equal_pods_that_come_at_once_have_compute_of_the_device_of_their_memory(
    make_cluster: MakeCluster, kind: type[Ours], variables: dict[str, str]
) -> None:
    cluster = make_cluster(kind)
    cluster.node.advertises(CORES, 100 * DEVICES)
    assert full_of_compute(cluster) == [str(index) for index in range(DEVICES)]
    devices = cluster.given()
    assert (devices.wrong, devices.nothing, devices.right) == ([], [], DEVICES), cluster.told()
    limited = kind is not OursByDriver
    for item in cluster.node.created():
        assert variables.items() <= item.env.items()
        assert any("SM_LIMIT" in name or "THREAD" in name for name in item.env) == limited
    if not limited:
        # The device plug-in looks when it has started.
        cluster.restart("device plug-in")
        until(lambda: told_of_no_limit(cluster) == cluster.running(), cluster.told)


def told_of_no_limit(cluster: Cluster) -> set[str]:
    """The uids of the pods with an event that nothing limits their compute."""
    selector = "reason=GPUShareComputeNotLimited"
    events = cluster.world.api.get("/api/v1/namespaces/default/events", fieldSelector=selector)
    return {item["involvedObject"]["uid"] for item in events.body["items"]}


def limited_pod(**spec: object) -> Json:
    """A pod that asks for 4 units and may use 8."""
    body = pod(4)
    body["metadata"]["annotations"][MEMORY_LIMIT] = "8"
    body["spec"] |= spec
    return body


@pytest.mark.parametrize("kind", [OursByMps, OursByDriver, Ours])
def test_a_pod_may_use_its_limit_where_nodes_hold_it(
    make_cluster: MakeCluster, kind: type[Ours]
) -> None:
    cluster, label = make_cluster(kind), {LIMITS_LABEL: "true"}
    objects = cluster.world.objects
    bodies = [limited_pod(), limited_pod(nodeSelector=label)]
    cluster.burst(bodies)
    careless, labelled = (
        next(item for item in cluster.pods.values() if item["metadata"]["name"] == name)
        for name in (body["metadata"]["name"] for body in bodies)
    )
    objects.refusal(careless, f'write {LIMITS_LABEL}: "true" into the nodeSelector')
    objects.refusal(labelled, "didn't match Pod's node affinity/selector")
    # A pod that comes past kube-scheduler with a placement is refused by the kubelet.
    stray_body = limited_pod(nodeSelector=label, nodeName=cluster.node.name)
    allocation, request = Allocation("", ((0, 4),)), Request(4, 1, containers=((0, 4),))
    stray_body["metadata"]["annotations"] |= encode(allocation, request, UNITS, "1", ALIYUN)
    cluster.burst([stray_body])
    until(lambda: not cluster.running() and bool(cluster.refused()), cluster.told)
    (stray,) = cluster.refused()
    # Of the isolation where there is none, of the node selector elsewhere.
    assert ("NodeAffinity" in stray) == (kind is not Ours)
    cluster.kill([careless["metadata"]["uid"]])
    cluster.world.api.patch(f"{NODES}/{cluster.node.name}", {"metadata": {"labels": label}})
    cluster.settled()
    if kind is Ours:
        (refused_pod,) = set(cluster.refused()) - {stray}
        assert f"its annotation {MEMORY_LIMIT} needs a node that limits memory" in refused_pod
        return
    (created,) = cluster.node.created()
    variables = {
        OursByMps: {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M"},
        OursByDriver: {"NVIDIA_GPU_MEMORY_LIMIT": "8192"},
    }
    assert variables[kind].items() <= created.env.items()
    notes = cluster.pods[labelled["metadata"]["uid"]]["metadata"]["annotations"]
    assert (notes[ALIYUN.pod], json.loads(notes[ALIYUN.allocation])) == ("4", {"0": {"0": 4}})
    cluster.clear()


def test_a_pod_that_asks_for_compute_and_no_memory_never_runs(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(Ours)
    cluster.node.advertises(CORES, 100 * DEVICES)
    cluster.burst([pod(0, cores=30)])
    (alone,) = cluster.pods.values()
    cluster.world.objects.refusal(alone, f"{CORES}: cores are asked for without aliyun.com/gpu-mem")
    assert cluster.node.created() == []
    assert cluster.running() == set()
    cluster.kill(cluster.pods)


def test_compute_that_is_taken_from_a_node_as_the_pages_say_stays_away(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(Ours)
    node = cluster.node
    node.advertises(CORES, 100 * DEVICES)
    cluster.plugin.kill()  # which would write it again
    page = (ROOT / "docs" / "install-device-plugin.md").read_text()
    (script,) = re.findall(r"^```\n(P=.*?)^```", page, re.MULTILINE | re.DOTALL)
    config = cluster.world.plane.kubeconfig(ADMIN)
    kubectl = f"{needed('kubectl')} --kubeconfig {config}"
    script = script.replace("kubectl", kubectl).replace("NODE", node.name)
    subprocess.run(["sh", "-ec", script], check=True, timeout=60, capture_output=True)
    node.kill_kubelet()
    node.start_kubelet()  # it returns when the kubelet has written the status anew
    status = cluster.world.api.get(f"{NODES}/{node.name}").body["status"]
    assert [CORES in status[item] for item in ("capacity", "allocatable")] == [False, False]


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (RELEASE, ()),
        (OLD_SCHEDULER, ("--form", "policy")),
        (OLD_SCHEDULER, ("--form", "config")),
    ],
)
def test_kube_scheduler_counts_the_sum_and_the_extender_each_card(
    make_world: MakeWorld, version: str, options: tuple[str, ...]
) -> None:
    world = make_world(version=version, options=options)
    objects = world.objects
    world.start()
    node = objects.node(devices=2, units=16)
    amounts = {CORES: "200"}  # as our device plug-in writes
    objects.patch(
        f"{NODES}/{node}/status", {"status": {"capacity": amounts, "allocatable": amounts}}
    )

    def asks(units: int, cores: int) -> Json:
        return objects.api.create(PODS, pod(units, cores=cores)).body

    much, alone = asks(4, 150), asks(0, 30)
    objects.refusal(much, "150 are asked of one device, which has 100 (percent): write 100 or less")
    objects.refusal(alone, f"{CORES}: cores are asked for without aliyun.com/gpu-mem")
    landed = [objects.lands(asks(4, 60), world.told) for _ in range(2)]
    assert sorted(device for _, devices in landed for device in devices) == [0, 1]
    # 80 are left of the sum, and 40 of each card.
    objects.refusal(asks(4, 60), "Insufficient GPU Cores in one device")
    objects.refusal(asks(4, 90), f"Insufficient {CORES}")
    objects.lands(asks(4, 40), world.told)
    assert [objects.node_of(item) for item in (much, alone)] == ["", ""]
    world.agrees()
    objects.sound()


def test_a_percentage_of_memory_is_charged_in_units_of_the_card(make_world: MakeWorld) -> None:
    world = make_world(version=RELEASE)
    objects = world.objects
    world.start()
    small, large = (objects.node(devices=1, units=units) for units in (16, 40))

    def asks(units: int, percent: int = 0) -> Json:
        body = pod(units)
        if percent:
            (container,) = body["spec"]["containers"]
            for amounts in container["resources"].values():
                amounts[ALIYUN.share] = str(percent)
        return objects.api.create(PODS, body).body

    landed = [objects.lands(asks(1, 60), world.told)[0] for _ in range(2)]
    assert sorted(landed) == sorted([small, large])
    objects.refusal(asks(1, 60), "Insufficient GPU Memory in one device")
    # 10 of 16 units are charged, and 24 of 40.
    objects.refusal(asks(17), "Insufficient GPU Memory in one device")
    assert objects.lands(asks(16), world.told)[0] == large
    assert objects.lands(asks(6), world.told)[0] == small


def test_a_card_takes_no_more_pods_than_the_label_of_its_node_says(make_world: MakeWorld) -> None:
    world = make_world(version=RELEASE)
    objects = world.objects
    world.start()
    node = objects.node(devices=2, units=16)
    objects.patch(f"{NODES}/{node}", {"metadata": {"labels": {MAX_SHARERS: "2"}}})
    landed = [objects.lands(objects.api.create(PODS, pod(1)).body, world.told) for _ in range(4)]
    assert sorted(device for _, devices in landed for device in devices) == [0, 0, 1, 1]
    late = objects.api.create(PODS, pod(1)).body
    objects.refusal(late, Reason.MOST_SHARERS.value)
    objects.patch(f"{NODES}/{node}", {"metadata": {"labels": {MAX_SHARERS: "3"}}})
    assert objects.lands(late, world.told)[0] == node
    world.agrees()
    objects.sound()
