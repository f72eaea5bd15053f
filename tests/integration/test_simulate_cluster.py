"""A live cluster as nodes and pods for the simulator, and the left-out objects that are told."""

from pathlib import Path

import pytest

from gpushare.cli.cluster import live_trace
from gpushare.cli.main import main
from gpushare.errors import ApiError, SettingsError
from gpushare.trace.nodes_and_pods import TraceNode, TracePod
from gpushare.wire.annotations import ALIYUN
from tests.integration.cluster import COUNT, MEM, NODES, PODS, Cluster, inventory

CPU = {"requests": {"cpu": "500m", "memory": "1Gi"}}


def trace(
    cluster: Cluster, folder: Path, unit: str = "GiB"
) -> tuple[list[TraceNode], list[TracePod], list[str]]:
    return live_trace({"kubeconfig": cluster.kubeconfig(folder)}, MEM, unit)


def cpu_pod(cluster: Cluster, node: str, **labels: str) -> None:
    body = {
        "metadata": {"name": f"cpu-{node}-{len(labels)}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x", "resources": CPU}]},
    }
    cluster.create(PODS, "default", body)


def test_nodes_and_pods_come_in_the_words_of_a_trace(cluster: Cluster, tmp_path: Path) -> None:
    name = cluster.node(devices=4, total=64)
    created = cluster.pod(8, annotations={COUNT: "2"})
    (node,), (pod,), notes = trace(cluster, tmp_path)
    assert node == TraceNode(name, 96_000, 768 * 1024, 4, 16, "")
    assert pod.name == f"default/{created['metadata']['name']}"
    assert (pod.devices, pod.units) == (2, 4)
    assert pod.created
    assert notes == []


def test_pods_come_with_their_compute(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node()
    limits = {MEM: "4", ALIYUN.cores: "60"}
    spec = {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}
    cluster.pod(name="some", annotations={COUNT: "2"}, spec=spec)
    cluster.pod(4, name="plain")
    _, pods, _ = trace(cluster, tmp_path)
    # Of each device of the node.
    assert {pod.name: pod.cores for pod in pods} == {"default/some": 30, "default/plain": 0}


def test_a_percentage_of_memory_comes_as_the_units_of_the_largest_card(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.node(annotations=inventory(16, 40))
    limits = {MEM: "1", ALIYUN.share: "60"}
    spec = {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}
    cluster.pod(name="some", spec=spec)
    _, (pod,), _ = trace(cluster, tmp_path)
    assert (pod.units, pod.devices) == (24, 1)


def test_what_daemons_take_makes_the_node_smaller(cluster: Cluster, tmp_path: Path) -> None:
    name = cluster.node()
    cpu_pod(cluster, name)
    cpu_pod(cluster, name, **{"pod-template-generation": "1"})
    (node,), (pod,), _ = trace(cluster, tmp_path)
    assert (node.cpu, node.memory) == (95_500, 767 * 1024)
    assert (pod.devices, pod.cpu) == (0, 500)


def test_pods_without_gpu_elsewhere_and_pods_that_ended_are_no_load(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.node()
    cpu_pod(cluster, cluster.node(total=0))
    cluster.set_phase(cluster.pod(4), "Succeeded")
    nodes, pods, notes = trace(cluster, tmp_path)
    assert (len(nodes), pods, notes) == (1, [], [])


def test_what_is_left_out_is_said(cluster: Cluster, tmp_path: Path) -> None:
    uneven, empty = cluster.node(devices=3), cluster.node(annotations=inventory(0))
    cluster.pod(4, annotations={COUNT: "3"})
    nodes, pods, notes = trace(cluster, tmp_path)
    assert (nodes, pods) == ([], [])
    text = "\n".join(notes)
    assert f"node {uneven} is left out: GPU Memory is not a whole multiple" in text
    assert f"node {empty} is left out: a device has no memory" in text
    assert "a pod is left out: aliyun.com/gpu-mem: 4 cannot be split evenly" in text


def test_a_node_whose_devices_differ_comes_with_each_of_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.node(annotations=inventory(16, 8))
    (node,), _, notes = trace(cluster, tmp_path)
    assert (node.devices, node.capacity, node.sizes) == (2, 16, (16, 8))
    assert notes == []


def test_a_list_of_several_pages_comes_whole(cluster: Cluster, tmp_path: Path) -> None:
    names = {cluster.node() for _ in range(501)}
    assert {node.name for node in trace(cluster, tmp_path)[0]} == names


def test_the_command_simulates_the_cluster_of_a_kubeconfig(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(4):
        cluster.node(devices=4, total=64)
    for units in (3, 5, 7, 16):
        cluster.pod(units)
    before = [cluster.all(NODES), cluster.all(PODS)]
    words = ["--from-cluster", "--kubeconfig", cluster.kubeconfig(tmp_path), "--seeds", "42"]
    assert main(["simulate", "churn", *words, "--policy", "device-bestfit"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("churn: cluster, 4 pods on 4 nodes with 16 devices\n")
    assert output.err == ""
    assert [cluster.all(NODES), cluster.all(PODS)] == before
    cluster.stop()
    assert main(["simulate", "churn", *words]) == 1
    assert capsys.readouterr().err.startswith("gpushare simulate: ")


def test_without_a_unit_amounts_are_in_that_of_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node(annotations=inventory(16384, 16384, unit="MiB"))
    assert [node.capacity for node in trace(cluster, tmp_path, "")[0]] == [16384]
    assert not trace(cluster, tmp_path, "GiB")[0]


def test_a_cluster_that_cannot_be_asked_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    config = {"kubeconfig": cluster.kubeconfig(tmp_path)}
    cluster.stop()
    with pytest.raises(ApiError):
        live_trace(config, MEM, "GiB")
    with pytest.raises(SettingsError, match="--unit"):
        live_trace(config, MEM, "apples")
    with pytest.raises(SettingsError, match="does not exist"):
        live_trace({"kubeconfig": str(tmp_path / "none")}, MEM, "GiB")
