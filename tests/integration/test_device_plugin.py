"""The device plug-in gives each container the device that its pod was bound to, whatever the order
in which the kubelet asks; where the pod is not certain, the plug-in refuses and says why.
"""

import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from gpushare.device_plugin.cards import NVIDIA_IDS, ORIGINAL_IDS, device_id, form_of, uuids_of
from gpushare.device_plugin.kubelet import CHECKPOINT
from gpushare.device_plugin.registration import ORIGINAL
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import LIMITS_LABEL, MEMORY_LIMIT
from gpushare.wire.inventory import decode_inventory
from gpushare_localcluster.api.resources import EVENTS
from gpushare_localcluster.pod_status import AdmissionError, granted_devices
from tests.integration.cluster import NODES, Cluster, Json
from tests.integration.plugin_world import UNITS, PluginNode
from tests.support.faults import status
from tests.support.waiting import poll

MakeNode = Callable[..., PluginNode]

BY_KUBELET = ("--pods-api-socket", "@")
"""Flags of a node with a kubelet that has the Pods API."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def make_node(cluster: Cluster) -> Iterator[MakeNode]:
    nodes: list[PluginNode] = []

    def make(*flags: str, **more: object) -> PluginNode:
        nodes.append(PluginNode(cluster, *flags, **more))  # type: ignore[arg-type]  # handed on
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()
    cluster.clear()


@pytest.fixture
def node(make_node: MakeNode) -> PluginNode:
    return make_node().start()


def check_right(node: PluginNode, *pods: Json) -> None:
    """Each container of the pods has the devices of its annotations, at admission and at start."""
    for pod in pods:
        uid = pod["metadata"]["uid"]
        expected = {node.uuid(index) for index in granted_devices(pod)}
        holding = [item for item in node.kubelet.grants if item.uid == uid]
        assert holding
        for item in holding:
            envs = node.kubelet.start_container(uid, item.container)
            assert set(envs["NVIDIA_VISIBLE_DEVICES"].split(",")) <= expected


def refused(node: PluginNode, pod: Json) -> str:
    """Why the pod is not admitted."""
    with pytest.raises(AdmissionError) as caught:
        node.kubelet.add(pod)
    return str(caught.value)


def shuffled_pods(node: PluginNode, dice: random.Random) -> list[Json]:
    """Four pods of 4 units for each device, in any order."""
    places = [index for index in range(4) for _ in range(4)]
    dice.shuffle(places)
    pods = [node.pod(4, devices=[place]) for place in places]
    dice.shuffle(pods)
    return pods


@pytest.mark.parametrize("flags", [(), BY_KUBELET])
def test_equal_pods_get_their_own_devices_in_any_order(
    make_node: MakeNode, flags: tuple[str, ...]
) -> None:
    node = make_node(*flags).start()
    pods = shuffled_pods(node, random.Random(7))
    for pod in pods:
        node.kubelet.add(pod)
        check_right(node, pod)
        (holding,) = (item for item in node.kubelet.grants if item.uid == pod["metadata"]["uid"])
        (index,) = granted_devices(pod)
        assert uuids_of(holding.ids) == {node.uuid(index)}
    for pod in pods:
        poll(lambda pod=pod: node.assigned(pod), "is not marked")  # type: ignore[misc]
    assert node.metric("gpushare_device_plugin_other_ids_total") == 0


def test_init_containers_sidecars_and_several_containers_get_their_own(node: PluginNode) -> None:
    dice = random.Random(3)
    pods = [
        pod
        for index in range(4)
        for pod in (
            node.pod(2, devices=[index], inits=[2]),
            node.pod(1, devices=[index], inits=[2, 1]),
            node.pod(1, 2, devices=[index]),
            node.pod(2, devices=[index], sidecars=[1]),
            node.pod(2, 2, devices=[index], inits=[1, 3]),
            node.pod(0, devices=[index], inits=[1]),
        )
    ]
    dice.shuffle(pods)
    for pod in pods:
        node.kubelet.add(pod)
    check_right(node, *pods)
    for pod in pods:
        poll(lambda pod=pod: node.assigned(pod), "is not marked")  # type: ignore[misc]


def test_a_pod_has_several_devices(node: PluginNode) -> None:
    pod = node.pod(8, devices=[1, 3], count=2)
    node.kubelet.add(pod)
    envs = node.kubelet.start_container(pod["metadata"]["uid"], "c0")
    assert envs["NVIDIA_VISIBLE_DEVICES"] == f"{node.uuid(1)},{node.uuid(3)}"
    assert (envs[ALIYUN.idx], envs["ALIYUN_COM_GPU_MEM_CONTAINER"]) == ("1,3", "8")


def test_the_node_says_what_it_has_and_that_it_serves_by_identity(node: PluginNode) -> None:
    node_object_result = node.node_object()
    inventory = decode_inventory(node_object_result["metadata"]["annotations"][ALIYUN.inventory])
    assert [(device.uuid, device.mem) for device in inventory.devices] == [
        (node.uuid(index), UNITS) for index in range(4)
    ]
    assert (inventory.serves_by_identity, inventory.marks_assigned) == (True, True)
    assert node_object_result["metadata"]["labels"]["gpushare"] == "true"
    for item in ("capacity", "allocatable"):
        assert node_object_result["status"][item][ALIYUN.count] == "4"
        assert node_object_result["status"][item][ALIYUN.cores] == "400"


def test_compute_that_nothing_limits_is_an_event_and_a_metric(
    node: PluginNode, cluster: Cluster
) -> None:
    pod = node.pod(2, devices=[1], cores=[30])
    node.kubelet.add(pod)
    # The plug-in looks when it has started.
    node.stop_plugin()
    node.start_plugin()
    metric = "gpushare_device_plugin_compute_unenforced_containers"
    poll(lambda: node.metric(metric) == 1, "not counted")

    def notes() -> list[str]:
        return [
            body["message"]
            for body in cluster.all(EVENTS)
            if body["reason"] == "GPUShareComputeNotLimited"
            and body["involvedObject"]["uid"] == pod["metadata"]["uid"]
        ]

    poll(lambda: bool(notes()), "no event")
    (note,) = notes()
    assert "for c0 (30 percent): --isolation none has none" in note


# -- restarts -------------------------------------------------------------------------------------


def test_a_kubelet_that_starts_again_is_told_of_us_and_mixes_nothing_up(node: PluginNode) -> None:
    pods = shuffled_pods(node, random.Random(5))
    for pod in pods[:8]:
        node.kubelet.add(pod)
    # The plug-in was killed before it could write down the last container.
    last = pods[7]["metadata"]["uid"]
    node.kubelet.grants = [item for item in node.kubelet.grants if item.uid != last]
    node.kubelet.write_checkpoint()
    for _ in range(2):
        node.kubelet.restart()
        node.kubelet.wait_advertised(node.units)
        for pod in reversed(pods[:12]):
            node.kubelet.add(pod)
        check_right(node, *pods[:12])
    for pod in pods[12:]:
        node.kubelet.add(pod)
    check_right(node, *pods)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_plugin_that_starts_again_knows_what_was_given_out(node: PluginNode, number: int) -> None:
    pods = [node.pod(2, devices=[index], inits=[2]) for index in (0, 1, 2, 3, 0, 1)]
    for pod in pods[:4]:
        node.kubelet.add(pod)
    assert node.stop_plugin(number) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    node.kubelet.wait_advertised(0)
    node.start_plugin()
    node.kubelet.wait_advertised(node.units)
    for pod in pods[4:]:
        node.kubelet.add(pod)
    check_right(node, *pods)


def test_while_a_plugin_is_replaced_pods_come_and_go(node: PluginNode) -> None:
    stays = node.pod(2, devices=[3], inits=[1])
    node.kubelet.add(stays)
    replaced = threading.Event()

    def pods_come() -> int:
        count = 0
        while not replaced.is_set() or count < 2:
            count += 1
            pods = [node.pod(2, devices=[(count + more) % 4]) for more in range(3)]
            for pod in reversed(pods):
                node.kubelet.add(pod)
            check_right(node, *pods)
            for pod in pods:
                node.cluster.delete_pod(pod)
                node.kubelet.remove(pod["metadata"]["uid"])
        return count

    with ThreadPoolExecutor(1) as pool:
        arrivals = pool.submit(pods_come)
        try:
            node.replace_plugin()
        finally:
            replaced.set()
        assert arrivals.result() > 2
    assert (node.kubelet.registered, node.kubelet.gaps) == (2, 0)
    after = node.pod(2, devices=[1], inits=[1])
    node.kubelet.add(after)
    check_right(node, stays, after)


def test_a_plugin_that_an_older_kubelet_drops_for_its_predecessor_is_back_at_once(
    node: PluginNode,
) -> None:
    node.kubelet.one_plugin = True
    node.replace_plugin()
    node.kubelet.wait(lambda: node.kubelet.registered == 3, "registers again")
    node.kubelet.wait_advertised(node.units)
    pod = node.pod(4, devices=[2])
    node.kubelet.add(pod)
    check_right(node, pod)
    assert "another device plug-in" not in node.log


def test_pods_that_are_known_are_served_while_the_api_server_is_away(
    make_node: MakeNode, cluster: Cluster
) -> None:
    node = make_node().start()
    pods = [node.pod(2, devices=[index]) for index in range(4)]
    node.knows(*pods)
    cluster.stop()
    try:
        for pod in reversed(pods):
            node.kubelet.add(pod)
        check_right(node, *pods)
    finally:
        cluster.restart()
    for pod in pods:
        poll(lambda pod=pod: node.assigned(pod), "is not marked")  # type: ignore[misc]


@pytest.mark.long
def test_a_kubelet_with_the_pods_api_needs_no_api_server(
    make_node: MakeNode, cluster: Cluster
) -> None:
    node = make_node(*BY_KUBELET, "--isolation", "driver")
    pods = [node.pod(2, devices=[index]) for index in range(4)]
    pods[0]["metadata"]["annotations"][MEMORY_LIMIT] = "3"
    pods[0]["spec"]["nodeSelector"] = {LIMITS_LABEL: "true"}
    cluster.stop()
    try:
        node.kubelet.start()
        node.start_plugin(wait=False)
        node.kubelet.wait_advertised(node.units)
        for pod in reversed(pods):
            node.kubelet.add(pod)
        check_right(node, *pods)
        envs = [node.kubelet.start_container(pod["metadata"]["uid"], "c0") for pod in pods[:2]]
        assert [item["NVIDIA_GPU_MEMORY_LIMIT"] for item in envs] == ["3072", "2048"]
    finally:
        cluster.restart()
    poll(node.ready, "never ready")
    for pod in pods:
        poll(lambda pod=pod: node.assigned(pod), "is not marked")  # type: ignore[misc]
    assert node.stop_plugin() == 0


# -- doubts ---------------------------------------------------------------------------------------


def test_a_pod_that_the_watch_does_not_show_yet_is_read(
    make_node: MakeNode, cluster: Cluster
) -> None:
    # Neither list nor watch.
    cluster.hook = lambda request: status(503) if request.path == "/api/v1/pods" else None
    node = make_node()
    node.kubelet.start()
    node.start_plugin(wait=False)
    node.kubelet.wait_advertised(node.units)
    pods = [node.pod(2, devices=[index]) for index in (2, 1)]
    for pod in pods:
        node.kubelet.add(pod)
    check_right(node, *pods)


def test_a_pod_that_has_come_again_under_its_name_gets_its_own_device(node: PluginNode) -> None:
    first = node.pod(2, devices=[1], name="web-0")
    node.kubelet.add(first)
    node.cluster.delete_pod(first)
    node.kubelet.remove(first["metadata"]["uid"])
    second = node.pod(2, devices=[3], name="web-0")
    node.kubelet.add(second)
    check_right(node, second)


def test_where_two_pods_may_be_meant_that_differ_none_is_served(node: PluginNode) -> None:
    pods = [node.pod(4, devices=[index]) for index in (0, 1)]
    # As no kubelet should: this one shows both pods while it admits one.
    node.kubelet.pods[pods[0]["metadata"]["uid"]] = pods[0]
    message = refused(node, pods[1])
    assert "2 containers wait for as many that are to have different devices" in message
    assert not any(pod["metadata"]["name"] in message for pod in pods)
    assert node.kubelet.grants == []
    alike = [node.pod(6, devices=[2]) for _ in range(2)]
    node.kubelet.pods[alike[0]["metadata"]["uid"]] = alike[0]
    node.kubelet.add(alike[1])
    check_right(node, alike[1])


def test_without_pod_resources_only_what_is_certain_is_served(node: PluginNode) -> None:
    pods = [node.pod(4, devices=[index]) for index in (0, 1)]
    alone = node.pod(3, devices=[2])
    node.knows(*pods, alone)
    node.kubelet.lists = False
    node.kubelet.add(alone)
    assert "are to have different devices" in refused(node, pods[1])
    node.kubelet.lists = True
    node.kubelet.add(pods[0])
    check_right(node, alone, pods[0])


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        ({ALIYUN.idx: "", ALIYUN.allocation: ""}, "name no device that can be used"),
        ({ALIYUN.uuids: "GPU-gone"}, "its device GPU-gone is not on this node"),
        ({ALIYUN.idx: "0,0"}, "does not match"),
    ],
)
def test_a_pod_whose_device_cannot_be_told_is_refused_and_others_go_on(
    node: PluginNode, notes: dict[str, str], why: str
) -> None:
    odd = node.pod(4, devices=[0], annotations=notes)
    refused_result = refused(node, odd)
    assert why in refused_result
    assert odd["metadata"]["name"] not in refused_result
    other_pod = node.pod(4, devices=[1])
    node.kubelet.add(other_pod)
    check_right(node, other_pod)


def test_ids_that_are_none_of_ours_are_refused(node: PluginNode) -> None:
    with pytest.raises(AdmissionError, match="GPU-other::1: no id of this node"):
        node.kubelet.allocate([f"{node.uuid(0)}::0", "GPU-other::1"])


def forms(node: PluginNode) -> set[str]:
    """The forms of the ids that the kubelet has of the plug-in."""
    return {form_of([device]) for device in node.kubelet.devices}


def test_ids_are_nvidias_unless_a_pod_of_the_node_has_others(make_node: MakeNode) -> None:
    node = make_node()
    node.kubelet.start()
    pod = node.pod(8, devices=[1])
    uid = pod["metadata"]["uid"]
    ids = [device_id(node.uuid(1), number, ORIGINAL_IDS) for number in range(8)]
    node.kubelet.hold(pod, "c0", ids, {"NVIDIA_VISIBLE_DEVICES": node.uuid(1)})
    node.start_plugin()
    node.kubelet.wait_advertised(node.units)
    assert forms(node) == {ORIGINAL_IDS}
    node.kubelet.start_container(uid, "c0")
    other_pod = node.pod(8, devices=[1])
    node.kubelet.add(other_pod)
    check_right(node, other_pod)

    # The node is empty when the plug-in starts the next time.
    for item in (pod, other_pod):
        node.kubelet.remove(item["metadata"]["uid"])
        node.cluster.delete_pod(item)
    node.stop_plugin()
    node.start_plugin()
    poll(lambda: forms(node) == {NVIDIA_IDS}, "still the original's")
    new = node.pod(8, devices=[1])
    node.kubelet.add(new)
    check_right(node, new)


def test_the_form_of_ids_may_be_set(make_node: MakeNode) -> None:
    node = make_node("--unit-ids", "original").start()
    assert forms(node) == {ORIGINAL_IDS}


# -- ids of other cards ---------------------------------------------------------------------------


def test_a_kubelet_that_takes_other_ids_than_preferred_starts_no_wrong_device(
    node: PluginNode,
) -> None:
    node.kubelet.take_preferred = False
    pods = shuffled_pods(node, random.Random(2))
    for pod in pods:
        node.kubelet.add(pod)
    check_right(node, *pods)
    assert node.metric("gpushare_device_plugin_other_ids_total") > 0


def test_pods_of_a_plugin_that_gave_any_ids_leave_room_for_ours(node: PluginNode) -> None:
    """As after the original's: the containers run on one card, by ids of another."""
    theirs = node.pod(8, devices=[0])
    ids = [f"{node.uuid(1)}-_-{number}" for number in range(8)]
    node.kubelet.hold(theirs, "c0", ids, {"NVIDIA_VISIBLE_DEVICES": "0"})
    node.kubelet.restart()
    node.kubelet.wait_advertised(node.units)
    other_pod = node.pod(12, devices=[1])
    node.kubelet.add(other_pod)
    check_right(node, other_pod)
    node.kubelet.start_container(theirs["metadata"]["uid"], "c0")


def test_a_container_that_was_told_of_a_wrong_device_does_not_start(node: PluginNode) -> None:
    pod = node.pod(4, devices=[0])
    ids = [f"{node.uuid(1)}-_-{number}" for number in range(4)]
    node.kubelet.hold(pod, "c0", ids, {"NVIDIA_VISIBLE_DEVICES": node.uuid(1)})
    with pytest.raises(grpc.RpcError) as caught:
        node.kubelet.start_container(pod["metadata"]["uid"], "c0")
    message = str(caught.value)
    assert (
        f"was bound to 4 units of {node.uuid(0)}, but was told of device {node.uuid(1)}" in message
    )
    assert "delete the pod" in message


def test_a_container_that_cannot_be_checked_does_not_start(node: PluginNode) -> None:
    pod = node.pod(4, devices=[0])
    node.kubelet.add(pod)
    (node.kubelet.plugins / CHECKPOINT).write_text("{")
    with pytest.raises(grpc.RpcError) as caught:
        node.kubelet.start_container(pod["metadata"]["uid"], "c0")
    assert CHECKPOINT in str(caught.value)
    node.kubelet.write_checkpoint()
    check_right(node, pod)


# -- cards ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_card_that_is_unhealthy_gets_no_pod_until_it_is_well(node: PluginNode) -> None:
    other_pod = node.pod(4, devices=[2])
    node.kubelet.add(other_pod)
    node.cards[2]["healthy"] = False
    node.write_cards()
    node.kubelet.wait_advertised(3 * UNITS)

    def told() -> list[bool]:
        notes = node.node_object()["metadata"]["annotations"]
        return [device.healthy for device in decode_inventory(notes[ALIYUN.inventory]).devices]

    poll(lambda: told() == [True, True, False, True], "not told")
    assert "is unhealthy" in refused(node, node.pod(4, devices=[2]))
    check_right(node, other_pod)
    node.cards[2]["healthy"] = True
    node.write_cards()
    node.kubelet.wait_advertised(4 * UNITS)
    after = node.pod(4, devices=[2])
    node.kubelet.add(after)
    check_right(node, after)


def test_a_file_with_nonsense_changes_nothing(node: PluginNode) -> None:
    for nonsense in ("", "{", '{"devices": 3}', '{"devices": [{"uuid": 1}]}'):
        (node.folder / "devices.json").write_text(nonsense)
    poll(lambda: "devices not read" in node.log, "not said")
    pod = node.pod(4, devices=[2])
    node.kubelet.add(pod)
    check_right(node, pod)


# -- settings -------------------------------------------------------------------------------------


def test_beside_the_originals_plugin_it_does_not_start(node: PluginNode) -> None:
    with socket.socket(socket.AF_UNIX) as original:
        original.bind(str(node.kubelet.plugins / ORIGINAL))
        original.listen()
        code, message = node.ended("--health-port", "0")
    assert code == 2
    assert "another device plug-in serves" in message
    pod = node.pod(4, devices=[2])
    node.kubelet.add(pod)
    check_right(node, pod)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--devices-file", "/nowhere.json"], "devices-file: /nowhere.json cannot be read"),
        (["--memory-unit", "TiB"], "memory-unit: 'TiB' is none of GiB, MiB"),
        (["--memory-unit", "MiB", "--reserve-mib", "-1"], "reserve-mib: -1 is not from 0"),
        (["--memory-mib", "NVIDIA GB10=0"], "memory-mib: 'NVIDIA GB10=0' is not of the form"),
        (["--memory-mib", "114688"], "memory-mib: '114688' is not of the form MODEL=MIB"),
        (["--node-name", "Not A Node"], "node-name: 'Not A Node' is no name of a node"),
        (["--kubeconfig", "/nowhere"], "kubeconfig /nowhere does not exist"),
        (["--isolation", "mps"], "mps-pipe-dir"),
        (["--isolation", "hami-core", "--hami-core-dir", "/nowhere"], "hami-core needs /nowhere"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(
    make_node: MakeNode, flags: list[str], why: str
) -> None:
    code, message = make_node().ended(*flags)
    assert (code, why in message) == (2, True), message


def test_a_container_of_hami_core_has_a_folder(make_node: MakeNode, tmp_path: Path) -> None:
    (tmp_path / "libvgpu.so").touch()
    node = make_node("--isolation", "hami-core", "--hami-core-dir", str(tmp_path)).start()
    pod = node.pod(4, devices=[2])
    node.kubelet.add(pod)
    folder = tmp_path / "containers" / f"{pod['metadata']['uid']}_c0"
    poll(folder.exists, "no folder is made")


def test_what_somebody_removes_of_the_node_is_written_again(
    make_node: MakeNode, cluster: Cluster
) -> None:
    node = make_node().start()

    def bare(body: Json) -> Json:
        notes = {**body["metadata"]["annotations"], ALIYUN.inventory: "{}"}
        return {**body, "metadata": {**body["metadata"], "annotations": notes, "labels": {}}}

    cluster.change(NODES, "", node.name, bare)
    # A change of the cards has the node looked at; so does time.
    node.cards[0]["healthy"] = False
    node.write_cards()
    poll(lambda: "gpushare" in (node.node_object()["metadata"].get("labels") or {}), "not written")
    decode_inventory(node.node_object()["metadata"]["annotations"][ALIYUN.inventory])
