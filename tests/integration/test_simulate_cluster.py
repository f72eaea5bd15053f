"""A live cluster as rows for the simulator: the rows, and the left-out objects that are told."""

from pathlib import Path

import pytest

from gpushare.cli.cluster import live_rows
from gpushare.cli.main import main
from gpushare.errors import ApiError, SettingsError
from gpushare.trace.nodes_and_pods import nodes_of, of_items, pods_of
from gpushare.wire.annotations import ALIYUN
from tests.integration.cluster import COUNT, MEM, NODES, PODS, Cluster, Json, inventory

CPU = {"requests": {"cpu": "500m", "memory": "1Gi"}}


def rows(cluster: Cluster, folder: Path, unit: str = "GiB") -> dict[str, list[Json]]:
    result: dict[str, list[Json]] = live_rows(  # type: ignore[assignment]  # cells are anything
        {"kubeconfig": cluster.kubeconfig(folder)}, MEM, unit
    )
    return result


def cpu_pod(cluster: Cluster, node: str, **labels: str) -> None:
    body = {
        "metadata": {"name": f"cpu-{node}-{len(labels)}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x", "resources": CPU}]},
    }
    cluster.create(PODS, "default", body)


def test_nodes_and_pods_come_in_the_words_of_a_trace(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.node(devices=4, total=64)
    pod = cluster.pod(8, annotations={COUNT: "2"})
    result = rows(cluster, tmp_path)
    (nodes_of_result,) = nodes_of(of_items("nodes", result["nodes"]), "nodes")
    assert (nodes_of_result.name, nodes_of_result.cpu, nodes_of_result.memory) == (
        node,
        96_000,
        768 * 1024,
    )
    assert (nodes_of_result.devices, nodes_of_result.capacity) == (4, 16)
    (pods_of_result,) = pods_of(of_items("pods", result["pods"]), "pods")
    assert pods_of_result.name == f"default/{pod['metadata']['name']}"
    assert (pods_of_result.devices, pods_of_result.units) == (2, 4)
    assert pods_of_result.created
    assert result["notes"] == []


def test_pods_come_with_their_compute(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node()
    limits = {MEM: "4", ALIYUN.cores: "60"}
    spec = {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}
    cluster.pod(name="some", annotations={COUNT: "2"}, spec=spec)
    cluster.pod(4, name="plain")
    result = rows(cluster, tmp_path)
    request = {item.name: item for item in pods_of(of_items("pods", result["pods"]), "pods")}
    assert request["default/some"].cores == 30  # of each device of the node
    assert ["cores" in row for row in result["pods"]].count(True) == 1


def test_a_percentage_of_memory_comes_as_the_units_of_the_largest_card(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.node(annotations=inventory(16, 40))
    limits = {MEM: "1", ALIYUN.share: "60"}
    spec = {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}
    cluster.pod(name="some", spec=spec)
    (pod,) = pods_of(of_items("pods", rows(cluster, tmp_path)["pods"]), "pods")
    assert (pod.units, pod.devices) == (24, 1)


def test_what_daemons_take_makes_the_node_smaller(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.node()
    cpu_pod(cluster, node)
    cpu_pod(cluster, node, **{"pod-template-generation": "1"})
    result = rows(cluster, tmp_path)
    assert [(row["cpu_milli"], row["memory_mib"]) for row in result["nodes"]] == [
        (95_500, 767 * 1024)
    ]
    assert [(row["gpu"], row["cpu_milli"]) for row in result["pods"]] == [(0, 500)]


def test_pods_without_gpu_elsewhere_and_pods_that_ended_are_no_load(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.node()
    cpu_pod(cluster, cluster.node(total=0))
    cluster.set_phase(cluster.pod(4), "Succeeded")
    result = rows(cluster, tmp_path)
    assert (len(result["nodes"]), result["pods"], result["notes"]) == (1, [], [])


def test_what_is_left_out_is_said(cluster: Cluster, tmp_path: Path) -> None:
    uneven = cluster.node(devices=3)
    cluster.pod(4, annotations={COUNT: "3"})
    result = rows(cluster, tmp_path)
    assert (result["nodes"], result["pods"]) == ([], [])
    notes = "\n".join(map(str, result["notes"]))
    assert f"node {uneven} is left out: GPU Memory is not a whole multiple" in notes
    assert "a pod is left out: aliyun.com/gpu-mem: 4 cannot be split evenly" in notes


def test_a_node_whose_devices_differ_comes_with_each_of_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.node(annotations=inventory(16, 8))
    result = rows(cluster, tmp_path)
    (nodes_of_result,) = nodes_of(of_items("nodes", result["nodes"]), "nodes")
    assert (nodes_of_result.devices, nodes_of_result.capacity, nodes_of_result.sizes) == (
        2,
        16,
        (16, 8),
    )
    assert result["notes"] == []


def test_a_list_of_several_pages_comes_whole(cluster: Cluster, tmp_path: Path) -> None:
    names = {cluster.node() for _ in range(501)}
    assert {row["name"] for row in rows(cluster, tmp_path)["nodes"]} == names


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


def test_a_pod_may_have_the_longest_name_there_is(cluster: Cluster, tmp_path: Path) -> None:
    pod = cluster.pod(4, name="a" * 253)
    (row,) = pods_of(of_items("pods", rows(cluster, tmp_path)["pods"]), "pods")
    assert row.name == f"default/{pod['metadata']['name']}"


def test_what_no_trace_would_say_is_left_out_by_name(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.node()
    broken = cluster.node(annotations=inventory(0))
    for units in (3, 5, 2_000_000_000):
        cluster.pod(units, name=f"p{units}")
    words = ["--from-cluster", "--kubeconfig", cluster.kubeconfig(tmp_path), "--seeds", "42"]
    assert main(["simulate", "inflation", *words, "--policy", "device-bestfit"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("inflation: cluster, 2 pods on 1 nodes with 2 devices\n")
    says = [line.split(": no whole")[0] for line in output.err.splitlines()]
    assert [line.split(":")[1].strip() for line in says] == [
        f"{broken} is left out",
        "default/p2000000000 is left out",
    ]


def test_without_a_unit_amounts_are_in_that_of_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node(annotations=inventory(16384, 16384, unit="MiB"))
    assert [node["units"] for node in rows(cluster, tmp_path, "")["nodes"]] == [16384]
    assert not rows(cluster, tmp_path, "GiB")["nodes"]


def test_a_cluster_that_cannot_be_asked_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    config = {"kubeconfig": cluster.kubeconfig(tmp_path)}
    cluster.stop()
    with pytest.raises(ApiError):
        live_rows(config, MEM, "GiB")
    with pytest.raises(SettingsError, match="--unit"):
        live_rows(config, MEM, "apples")
    with pytest.raises(SettingsError, match="does not exist"):
        live_rows({"kubeconfig": str(tmp_path / "none")}, MEM, "GiB")
