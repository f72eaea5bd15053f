"""Public reports, tried on our own programs: tests/data/field has the inputs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.cli.main import main
from gpushare_localcluster.client import HttpClient
from tests.integration.cluster import COUNT, MEM, NODES, PODS, Cluster, Json

FIELD = Path(__file__).parents[1] / "data" / "field"
NODE_LABEL = "kubernetes.io/hostname"


def objects(name: str) -> Iterator[Json]:
    yield from yaml.safe_load_all((FIELD / name).read_text(encoding="utf-8"))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """(exit code, all that the command says)."""
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out + err


def gpu_node(cluster: Cluster, name: str, **more: Json) -> None:
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", MEM: "32", COUNT: "2"}
    cluster.create(
        NODES,
        "",
        {
            "metadata": {"name": name, "labels": {NODE_LABEL: name}},
            "spec": more.get("spec", {}),
            "status": {
                "capacity": amounts,
                "allocatable": amounts | more.get("allocatable", {}),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
    )


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("moved-v1beta1.yaml", "healthzBindAddress: a key of v1beta1"),
        ("policy-duplicate-key.json", "'filterVerb' stands twice"),
    ],
)
def test_a_file_that_kube_scheduler_refuses_is_refused(
    capsys: pytest.CaptureFixture[str], file: str, wrong: str
) -> None:
    code, text = said(capsys, "serve", "--scheduler-config", str(FIELD / file))
    assert code != 0
    assert wrong in text


def test_another_separator_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    files = (
        "--nodes",
        str(FIELD / "nodes-v100m16.csv"),
        "--pods",
        str(FIELD / "pods-semicolon.csv"),
    )
    code, text = said(capsys, "simulate", "inflation", *files, "--policy", "binpack")
    assert code != 0
    assert "pods-semicolon.csv line 1: its columns are separated by ';': write commas" in text


def test_a_pod_that_accepts_a_model_that_is_there_is_not_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pods = str(FIELD / "pods-alternative-model.csv")
    files = ("--nodes", str(FIELD / "nodes-v100m16.csv"), "--pods", pods)
    code, text = said(capsys, "simulate", "inflation", *files, "--policy", "binpack")
    assert code == 0
    assert "ALLOC@100" in text
    assert "left out" not in text.lower()


def test_what_no_node_offers_fits_nowhere(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet says 0 of a node whose device plug-in is away, and the inventory stays."""
    for body in objects("node-offers-nothing.yaml"):
        cluster.create(NODES, "", body)
    words = ("--kubeconfig", cluster.kubeconfig(tmp_path), "-o", "json")
    code, text = said(capsys, "whatif", "--pods", "4GiB", *words)
    assert code == 1
    assert [pod["fit"] for pod in json.loads(text)["pods"]] == [0]


def test_nodes_that_kube_scheduler_refuses_have_no_room(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_node(cluster, "gpu-1", spec={"unschedulable": True})
    gpu_node(cluster, "gpu-2", allocatable={MEM: "0"})
    words = ("--kubeconfig", cluster.kubeconfig(tmp_path))
    code, text = said(capsys, "whatif", "--pods", "4GiB", *words)
    assert code == 1
    assert "4GiB: 0 fit" in text
    assert "cordoned" in text


def test_a_node_without_a_score_has_room(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpu-1", "gpu-2"):
        gpu_node(cluster, name)
    (pod,) = objects("explain-score-zero.yaml")
    cluster.create(PODS, "default", pod)
    code, text = said(capsys, "explain", "on2", "--kubeconfig", cluster.kubeconfig(tmp_path))
    assert code == 0
    assert "would not fit" not in text


def test_a_count_under_limits_is_told_of(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_node(cluster, "gpu-1")
    pod = next(objects("gpu-count-as-resource.yaml"))
    cluster.create(PODS, "default", pod)
    name, kubeconfig = pod["metadata"]["name"], cluster.kubeconfig(tmp_path)
    _, text = said(capsys, "explain", name, "--kubeconfig", kubeconfig)
    assert COUNT in text
    assert "pods wait where it is used up though devices have room" in text


def test_device_memory_of_the_whole_pod_is_refused_as_by_kube_apiserver(cluster: Cluster) -> None:
    (body,) = objects("podlevel.yaml")
    client = HttpClient(cluster.server.url)
    reply = client.call(
        "POST",
        "/api/v1/namespaces/default/pods",
        json.dumps(body).encode(),
        timeout=5.0,
        headers={"Content-Type": "application/json"},
    )
    client.close()
    assert reply.status == 422
    assert f'Unsupported value: "{MEM}"' in json.loads(reply.body)["message"]


def test_whole_and_shared_devices_on_one_node_are_told_of(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_node(cluster, "gpu-1", allocatable={"nvidia.com/gpu": "2"})
    for body in objects("whole-and-shared.yaml"):
        body["spec"]["nodeName"] = "gpu-1"
        cluster.create(PODS, "default", body)
    _, text = said(capsys, "doctor", "--kubeconfig", cluster.kubeconfig(tmp_path))
    assert "nvidia.com/gpu" in text
