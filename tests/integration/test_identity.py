"""A device is a card, not an index: a charge stays with its card, through the real watch.

The extender's own objects against a true API server: nodes and pods come by watches, and a
restart is a second set of objects that reads the writes of the first.
"""

import json

import pytest

from tests.integration.cluster import MARK, Cluster, Json
from tests.integration.conftest import MakeWired
from tests.integration.plugin_world import PluginNode
from tests.integration.wired import Wired
from tests.support.waiting import poll

UUIDS = "gpushare.io/device-uuids"
DEVICES = "gpushare.io/devices"
ALLOCATION = "scheduler.framework.gpushare.allocation"
NO_COUNT = "the GPU count of the node is missing"


def cards(*uuids: str, mem: int = 16, identity: bool = False) -> str:
    """An inventory of cards with these uuids, in this order."""
    devices = [{"uuid": uuid, "mem": mem} for uuid in uuids]
    return json.dumps({"v": 1, "unit": "GiB", "devices": devices, "servesByIdentity": identity})


def card_node(cluster: Cluster, *uuids: str, identity: bool = False) -> str:
    notes = {DEVICES: cards(*uuids, identity=identity)}
    return cluster.node(devices=len(uuids), total=16 * len(uuids), annotations=notes)


def show(wired: Wired, cluster: Cluster, node: str, *uuids: str, identity: bool = False) -> None:
    """Write another inventory, and wait until the books have the new one."""
    cluster.annotate_node(node, DEVICES, cards(*uuids, identity=identity))
    poll(
        lambda: wired.ledger.entries_and_specs()[1][node].uuids == uuids, f"the books know {uuids}"
    )


def bound(wired: Wired, cluster: Cluster, node: str, *sizes: int) -> list[Json]:
    pods = [cluster.pod(size) for size in sizes]
    assert [wired.bind(pod, node) for pod in pods] == [""] * len(pods)
    poll(lambda: wired.ledger.counts()["bound"] == len(pods), "the watch has shown them")
    return pods


@pytest.mark.parametrize("identity", [False, True])
def test_a_full_card_that_comes_to_another_index_is_not_given_out_again(
    wired: Wired, cluster: Cluster, identity: bool
) -> None:
    """Three cards of 16; one is idle, dies, and the full ones come to other indices."""
    node = card_node(cluster, "GPU-a", "GPU-b", "GPU-c", identity=identity)
    wired.knows(node)
    pods = bound(wired, cluster, node, 16, 16, 16)
    by_card = {cluster.annotations(pod)[UUIDS]: pod for pod in pods}
    cluster.delete_pod(by_card.pop("GPU-a"))
    poll(lambda: wired.used(node) == [0, 16, 16], "one card is idle")
    show(wired, cluster, node, "GPU-b", "GPU-c", identity=identity)
    # Where the plug-in goes by the index, the card that has come there may have been given.
    assert wired.used(node) == ([16, 16] if identity else [16, 32])
    assert wired.bind(cluster.pod(1), node) != ""
    for pod in by_card.values():
        cluster.delete_pod(pod)
    poll(lambda: wired.used(node) == [0, 0], "all of it is free again")


def test_a_restart_knows_the_cards_by_the_bindings(make_wired: MakeWired, cluster: Cluster) -> None:
    node = card_node(cluster, "GPU-a", "GPU-b", identity=True)
    before = make_wired()
    before.start()
    before.knows(node)
    deleted, stays = bound(before, cluster, node, 16, 9)
    assert [cluster.annotations(pod)[UUIDS] for pod in (deleted, stays)] == ["GPU-a", "GPU-b"]
    cluster.delete_pod(deleted)
    cluster.annotate_node(node, DEVICES, cards("GPU-b", "GPU-c", identity=True))
    after = make_wired()
    after.start()
    after.knows(node)
    poll(lambda: after.ledger.counts()["bound"] == 1, "it has read the pod")
    assert after.used(node) == [9, 0]


def test_a_pod_that_has_another_card_than_was_written_counts_on_both(
    make_wired: MakeWired, cluster: Cluster
) -> None:
    """The kubelet's record says so, the device plug-in finds the pod, and the extender is told."""
    place = PluginNode(cluster)
    wired = make_wired()
    try:
        place.kubelet.start()
        pod = place.pod(4, devices=[0])
        ids = [f"{place.uuid(2)}-_-{number}" for number in range(4)]
        place.kubelet.hold(pod, "c0", ids, {"NVIDIA_VISIBLE_DEVICES": "2"})
        place.start_plugin()
        wired.start()
        wired.knows(place.name)
        poll(lambda: wired.used(place.name) == [4, 0, 4, 0], "it counts on both")
        after = make_wired()
        after.start()
        assert after.used(place.name) == [4, 0, 4, 0]
        assert place.metric("gpushare_device_plugin_wrong_containers") == 1
        cluster.delete_pod(pod)
        poll(lambda: wired.used(place.name) == [0, 0, 0, 0], "all of it is free again")
    finally:
        place.stop()


def test_what_a_pods_owner_wrote_as_uuids_does_not_outlive_the_binding(
    wired: Wired, cluster: Cluster
) -> None:
    node = cluster.node()
    wired.knows(node)
    pod = cluster.pod(4, annotations={UUIDS: "GPU-made-up"})
    assert wired.bind(pod, node) == ""
    assert cluster.annotations(pod)[UUIDS] == ""


def test_memory_without_a_count_is_not_one_giant_device(wired: Wired, cluster: Cluster) -> None:
    node = cluster.node(devices=4, total=64)
    wired.knows(node)
    bound(wired, cluster, node, 10)
    cluster.resize(node, count="0")
    poll(lambda: wired.ledger.entries_and_specs()[1][node].closed is not None, "the node is closed")
    pod = cluster.pod(40)
    filter_result = wired.filter(pod, [node])
    assert filter_result["FailedAndUnresolvableNodes"] == {node: NO_COUNT}
    assert wired.bind(pod, node) != ""
    cluster.resize(node, count="4")
    poll(lambda: wired.ledger.entries_and_specs()[1][node].closed is None, "the count is back")
    assert wired.used(node) == [10, 0, 0, 0]


def test_a_device_charged_by_either_of_two_annotations_is_not_given_out(
    wired: Wired, cluster: Cluster
) -> None:
    """The device plug-in of the original reads IDX, its command line the map."""
    node = cluster.node()
    wired.knows(node)
    notes = {f"{MARK}IDX": "0", ALLOCATION: '{"0":{"1":12}}'}
    cluster.pod(12, annotations=notes, spec={"nodeName": node})
    poll(lambda: wired.used(node) == [12, 12], "both are charged")
    assert wired.bind(cluster.pod(12), node) != ""
