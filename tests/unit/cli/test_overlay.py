"""`gpushare whatif --need --overlay`: the needed nodes, as documents for autoscalers."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.cli.whatif import main
from gpushare.wire.quantity import to_bytes, to_milli
from tests.unit.cli.fake_kubectl import FakeKubectl, inventory, node, pending

Capsys = pytest.CaptureFixture[str]

TEMPLATE = "k8s.io/cluster-autoscaler/node-template"
CAPACITY = "capacity.cluster-autoscaler.kubernetes.io"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def overlay(capsys: Capsys, *words: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Return the documents and the text. code: the exit code."""
    ended = main(["--need", "--overlay", *words])
    out, err = capsys.readouterr()
    assert (ended, err) == (code, "")
    return [*yaml.safe_load_all(out)], out


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("name,cpu_milli,memory_mib,gpu,units,model\na,96000,786432,8,80,A100\n")
    rows = "".join(f"t{n},64000,1024,8,80,A100\n" for n in range(2)) + "s,1,1,1,24,\n"
    pods.write_text(f"name,cpu_milli,memory_mib,gpu,units,models\n{rows}")
    return ["--nodes", str(nodes), "--pods", str(pods), "--unit", "GiB"]


def test_each_shape_that_is_needed_is_told_to_each_autoscaler(
    tables: list[str], capsys: Capsys
) -> None:
    shapes = ("2x16GiB", "4x24GiB,cpu=64,memory=256Gi", "a")
    answer, out = overlay(
        capsys, *tables, *(word for shape in shapes for word in ("--shape", shape))
    )
    assert len(answer) == 2 * 3
    karpenter, aws, cluster_api = answer[3:]
    assert karpenter == {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "gpushare-like-a"},
        "spec": {
            "requirements": [{"key": "gpushare.io/shape", "operator": "In", "values": ["8x80GiB"]}],
            "capacity": {
                "aliyun.com/gpu-mem": "640",
                "aliyun.com/gpu-core.percentage": "800",
                "aliyun.com/gpu-mem.percentage": "800",
            },
        },
    }
    assert aws == {
        "tags": {
            f"{TEMPLATE}/resources/aliyun.com/gpu-mem": "640",
            f"{TEMPLATE}/resources/aliyun.com/gpu-core.percentage": "800",
            f"{TEMPLATE}/resources/aliyun.com/gpu-mem.percentage": "800",
            f"{TEMPLATE}/label/gpushare.io/shape": "8x80GiB",
            f"{TEMPLATE}/label/nvidia.com/gpu.product": "A100",
        }
    }
    assert cluster_api == {
        "annotations": {
            f"{CAPACITY}/cpu": "96000m",
            f"{CAPACITY}/memory": "786432Mi",
            f"{CAPACITY}/gpu-type": "aliyun.com/gpu-mem",
            f"{CAPACITY}/gpu-count": "640",
            f"{CAPACITY}/labels": "gpushare.io/shape=8x80GiB,nvidia.com/gpu.product=A100",
        }
    }
    assert answer[0]["metadata"]["name"] == "gpushare-4x24gib-cpu-64-memory-256gi"
    assert to_milli(answer[2]["annotations"][f"{CAPACITY}/cpu"]) == 64_000
    assert to_bytes(answer[2]["annotations"][f"{CAPACITY}/memory"]) == 256 << 30
    titles = [line for line in out.splitlines() if re.match(r"# \d+ x ", line)]
    assert titles == ["# 1 x 4x24GiB,cpu=64,memory=256Gi", "# 1 x like a"]


def test_nodes_like_one_that_is_there_are_known_by_its_instance_type(
    kubectl: FakeKubectl, capsys: Capsys
) -> None:
    existing = node("a", inventory=inventory(16, 24))
    existing["metadata"]["labels"] = {
        INSTANCE_TYPE: "g5.x",
        "aliyun.accelerator/nvidia_name": "A10",
    }
    pending_pods = [pending(f"w{n}", 20) for n in range(2)]
    kubectl.cluster([existing], pending_pods, page=500)
    (karpenter, aws, _), _ = overlay(capsys)
    (requirement,) = karpenter["spec"]["requirements"]
    assert requirement == {"key": INSTANCE_TYPE, "operator": "In", "values": ["g5.x"]}
    # The node offers no cores. No label tells of devices of several sizes.
    assert karpenter["spec"]["capacity"] == {
        "aliyun.com/gpu-mem": "40",
        "aliyun.com/gpu-mem.percentage": "200",
    }
    assert aws["tags"] == {
        f"{TEMPLATE}/resources/aliyun.com/gpu-mem": "40",
        f"{TEMPLATE}/resources/aliyun.com/gpu-mem.percentage": "200",
        f"{TEMPLATE}/label/aliyun.accelerator/nvidia_name": "A10",
    }


def test_where_nothing_is_needed_nothing_is_told(kubectl: FakeKubectl, capsys: Capsys) -> None:
    kubectl.cluster([node("a")], [], page=500)
    answer, out = overlay(capsys)
    assert answer == []
    assert out == "# no node is needed: what is there has room\n"


def test_pods_that_no_node_takes_are_told(kubectl: FakeKubectl, capsys: Capsys) -> None:
    kubectl.cluster([node("a")], [], page=500)
    words = ("--pods", "64GiB x 3", "--shape", "2x16GiB")
    assert overlay(capsys, *words, code=1) == (
        [],
        "# no node of these shapes takes 3 of the pods\n",
    )
    documents, out = overlay(capsys, *words, "--pods", "16GiB x 3", code=1)
    assert documents
    assert out.startswith("# no node of these shapes takes 3 of the pods\n# 1 x 2x16GiB\n")


@pytest.mark.parametrize("words", [["--pods", "8GiB"], ["--need", "-o", "json"]])
def test_it_goes_with_the_question_alone(words: list[str], capsys: Capsys) -> None:
    assert main(["--overlay", *words]) == 2
    assert "--overlay goes with --need, and without -o" in capsys.readouterr().err
