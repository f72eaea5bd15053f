"""The command that explains a pod, with a kubectl of the test."""

import http.server
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from gpushare.cli.explain import main
from tests.support.terminal import on_terminal
from tests.unit.cli.fake_kubectl import MEM, FakeKubectl, inventory, node, pod
from tests.unit.cli.test_inspect_claims import claim, slice_on
from tests.unit.wire.dra.objects import device

Inspect = Callable[..., tuple[int, str, str]]


@contextmanager
def extender(status: int, body: bytes) -> Iterator[str]:
    """A health listener that answers this; its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def waiting(name: str, limits: dict[str, Any]) -> dict[str, Any]:
    changes = pod(name, "", 1, idx=None)
    changes["kind"] = "Pod"
    changes["spec"]["containers"][0]["resources"]["limits"] = limits
    changes["status"] = {"phase": "Pending"}
    return changes


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    """Node a with 6 and 16 GiB, the second device closed by a ConfigMap; pods late, plain, two."""
    closes = {"metadata": {"name": "unhealthy-gpu-a"}, "data": {"gpus": "1"}}
    nodes = [node("a", inventory=inventory(16, 16))]
    holds = [pod("half", "a", 10)]
    for kind, items in (("Node", nodes), ("Pod", holds), ("ConfigMap", [closes])):
        document = {"kind": f"{kind}List", "metadata": {"resourceVersion": "7"}, "items": items}
        (kubectl.folder / kind).write_text(json.dumps(document))
    two = {MEM: 4, "example.com/npu-mem": 4}
    for item in (waiting("late", {MEM: 8}), waiting("plain", {}), waiting("two", two)):
        name = item["metadata"]["name"]
        kubectl.answers(f"get --raw /api/v1/namespaces/default/pods/{name}", json.dumps(item))
    kubectl.answers("config view --minify --output=jsonpath={..namespace}", "")
    kubectl.otherwise(
        'case "$3" in\n'
        f'/api/v1/nodes*) cat "{kubectl.folder}/Node" ;;\n'
        f'/api/v1/pods*) cat "{kubectl.folder}/Pod" ;;\n'
        f'*/configmaps*) cat "{kubectl.folder}/ConfigMap" ;;\n'
        "*) echo 'Error from server (NotFound): pods \"x\" not found' >&2; exit 1 ;; esac"
    )
    return kubectl


@pytest.mark.parametrize("name", ["late", "pod/late", "default/late"])
def test_a_pod_is_explained_from_lists(cluster: FakeKubectl, inspect: Inspect, name: str) -> None:
    code, out, err = inspect("explain", name)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Pod:        default/late is pending and asks for 8 GiB on one device (aliyun.com/gpu-mem)",
        "Free now:   at most 6 GiB on a device 0",
        "Nodes:      0 of 1 have room on their devices: 1 Insufficient GPU Memory in one device",
        "Would fit:  on a once default/half (10 GiB) ends; or on a once closed device 1 returns",
        "Scheduler:  no scheduler has looked at it yet: does one run with the name"
        " 'default-scheduler'?",
    ]


def test_a_terminal_breaks_long_lines_at_blanks(cluster: FakeKubectl) -> None:
    code = "import sys; from gpushare.cli.explain import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "late"]
    output = on_terminal(words, {**os.environ, **cluster.environ}, 60)
    assert output.splitlines()[:3] == [
        "Pod:        default/late is pending and asks for 8 GiB on",
        "            one device (aliyun.com/gpu-mem)",
        "Free now:   at most 6 GiB on a device 0",
    ]


def test_the_document_is_the_same_in_both_forms(cluster: FakeKubectl, inspect: Inspect) -> None:
    document = json.loads(inspect("explain", "late", "-o", "json")[1])
    assert document["kind"] == "GPUShareExplanation"
    assert yaml.safe_load(inspect("explain", "late", "-o=yaml")[1]) == document


@pytest.mark.parametrize(
    ("words", "expected", "text"),
    [
        (("nosuch",), 1, 'Error from server (NotFound): pods "x" not found'),
        (("plain",), 1, "pod default/plain asks for no aliyun.com/gpu-mem"),
        (("..",), 2, "'..' is no name of a pod"),
        (("late", "--unit", "kg"), 2, "--unit: must be GiB"),
        (("late", "--extender", "https://x"), 2, "is not http://HOST:PORT"),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    cluster: FakeKubectl, inspect: Inspect, words: tuple[str, ...], expected: int, text: str
) -> None:
    code, out, err = inspect("explain", *words)
    assert (code, out, err.count("\n")) == (expected, "", 1)
    assert text in err


def test_a_pod_of_two_resources_is_told_why(cluster: FakeKubectl, inspect: Inspect) -> None:
    resources = ("--resource", MEM, "--resource", "example.com/npu-mem")
    code, out, _ = inspect("explain", "two", *resources)
    assert code == 0
    assert "aliyun.com/gpu-mem, example.com/npu-mem: a pod may ask for one of them alone" in out


def test_a_cluster_without_gpus_is_said(cluster: FakeKubectl, inspect: Inspect) -> None:
    empty = {"kind": "NodeList", "metadata": {}, "items": [node("cpu", total=0)]}
    (cluster.folder / "Node").write_text(json.dumps(empty))
    code, out, err = inspect("explain", "late")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: no node shares aliyun.com/gpu-mem: ")


def test_config_maps_that_may_not_be_read_are_a_warning(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    (cluster.folder / "ConfigMap").unlink()
    code, out, err = inspect("explain", "late")
    assert code == 0
    assert err.startswith("Warning: devices that ConfigMaps in kube-system close count as open: ")
    assert "Fits now:   on a" in out


def test_a_running_extender_is_asked(cluster: FakeKubectl, inspect: Inspect) -> None:
    with extender(200, b'{"lines": ["Pod:        hello"]}') as url:
        assert inspect("explain", "late", "--extender", url) == (0, "Pod:        hello\n", "")
    with extender(503, b'{"error": "gpushare is not ready"}') as url:
        assert inspect("explain", "late", "--extender", url)[0] == 1
    with extender(404, b"there are /livez") as url:
        code, _, err = inspect("explain", "late", "--extender", url)
        assert (code, err.count("\n")) == (1, 1)
        assert "answered 404, and no explanation" in err


def test_a_pod_with_claims_is_judged_on_the_devices_that_slices_show(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = waiting("claims", {})
    changes["spec"]["resourceClaims"] = [
        {"name": name, "resourceClaimName": name} for name in ("small", "late")
    ]
    claims = [
        claim("small", 10, ("n1", "gpu-0")),
        claim("other", 60, ("n1", "gpu-0")),
        claim("late", 20),
    ]
    for item in claims:
        item["metadata"]["namespace"] = "default"
    slices = [slice_on("n1", device(0))]
    kubectl.cluster([node("n1", 0)], [], page=500, slices=slices, claims=claims)
    kubectl.answers("get --raw /api/v1/namespaces/default/pods/claims", json.dumps(changes))
    assert main(["claims", "-n", "default"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Pod:        default/claims is pending, and asks by claims",
        "Claim:      default/small is allocated on n1: 10 GiB of gpu-0 (GPU-100); reserved for"
        " uses-small",
        "Claim:      default/late has no devices and asks for 1 x gpushare.io with memory 20Gi",
        "Devices:    0 of 1 nodes have devices for its claims",
        "Would fit:  on n1 once claim default/other (of uses-other) ends",
        "Scheduler:  default-scheduler has said nothing yet",
    ]


def test_an_extended_resource_of_a_class_is_judged_as_claims(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    made = waiting("extended", {"deviceclass.resource.kubernetes.io/gpushare.io": "1"})
    slices = [slice_on("n1", device(0))]
    kubectl.cluster([node("n1", 0)], [], page=500, slices=slices, claims=[])
    kubectl.answers("get --raw /api/v1/namespaces/default/pods/extended", json.dumps(made))
    assert main(["extended", "-n", "default"]) == 0
    out = capsys.readouterr().out
    assert "Devices:    1 of 1 nodes have devices for its claims" in out
    assert "Pod:        default/extended is pending, and asks by claims" in out


def test_an_extended_resource_without_a_class_is_no_claim(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    made = waiting("extended", {"example.com/nic": "1"})
    kubectl.cluster([node("n1", 8)], [], page=500)
    kubectl.answers("get --raw /api/v1/namespaces/default/pods/extended", json.dumps(made))
    assert main(["extended", "-n", "default"]) == 1
    assert "no aliyun.com/gpu-mem: gpushare has no say in it\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limits", "annotations", "words"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}, {}, "nvidia.com/gpumem is HAMi's"),
        ({}, {"gpu-memory": "4096"}, "gpu-memory is KAI's"),
        ({"tke.cloud.tencent.com/qgpu-core": "30"}, {}, "qgpu-core is qGPU's"),
        ({"aliyun.com/gpu-core": "30"}, {}, "aliyun.com/gpu-core.percentage is probably meant"),
        ({"aliyun.com/gpu-memory": "4"}, {}, "aliyun.com/gpu-mem is probably meant"),
        ({"nvidia.com/gpu": "1"}, {}, "for a part of a card write aliyun.com/gpu-mem"),
        ({"aliyun.com/gpu-mems": "1"}, {}, "gpushare has no say in it"),  # a node offers it
    ],
)
def test_a_manifest_that_was_not_changed_is_told_what_to_write(
    kubectl: FakeKubectl,
    capsys: pytest.CaptureFixture[str],
    limits: dict[str, str],
    annotations: dict[str, str],
    words: str,
) -> None:
    moved = waiting("moved", limits)
    moved["metadata"]["annotations"] = annotations
    offering = node("n1", 8)
    offering["status"]["allocatable"]["aliyun.com/gpu-mems"] = "1"
    kubectl.cluster([offering], [], page=500)
    kubectl.answers("get --raw /api/v1/namespaces/default/pods/moved", json.dumps(moved))
    assert main(["moved", "-n", "default"]) == 1
    assert words in capsys.readouterr().err


def test_it_says_when_a_node_was_asked_for(cluster: FakeKubectl, inspect: Inspect) -> None:
    late = json.loads(json.dumps(waiting("late", {MEM: 8})))
    uid = late["metadata"]["uid"]
    asks = waiting("for-late", {MEM: 8})
    asks["metadata"] |= {
        "labels": {"gpushare.io/placeholder-for": uid},
        "creationTimestamp": "2027-01-15T12:03:00Z",
    }
    asks["spec"]["schedulerName"] = "gpushare-placeholder"
    pods = json.loads((cluster.folder / "Pod").read_text())
    text = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    for conditions, line in (([], 0), ([text], 1)):
        asks["status"]["conditions"] = conditions
        listed_pods = pods | {"items": [*pods["items"], asks]}
        (cluster.folder / "Pod").write_text(json.dumps(listed_pods))
        out = inspect("explain", "late")[1]
        assert out.count("New node:   asked for at 2027-01-15 12:03:00 UTC\n") == line
    answer = json.loads(inspect("explain", "late", "-o", "json")[1])
    assert answer["newNode"] == {"askedAt": "2027-01-15T12:03:00Z", "whyNot": None}
