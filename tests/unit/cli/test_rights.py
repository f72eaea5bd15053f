"""What the commands answer to a user who has rights in one namespace alone."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.cli.defrag import main as defrag
from gpushare.cli.explain import main as explain
from gpushare.cli.inspect import main as inspect_pods
from gpushare.cli.main import main as gpushare
from gpushare.cli.rights import lacks
from gpushare.cli.whatif import main as whatif
from gpushare.errors import ApiError
from gpushare.wire.annotations import ALIYUN
from tests.unit.cli.fake_kubectl import FakeKubectl, inventory, node, pending, pod
from tests.unit.cli.test_inspect_claims import claim, slice_on
from tests.unit.kube.scripted_server import reply, scripted_server, write_kubeconfig
from tests.unit.wire.dra.objects import DRIVER, device

Inspect = Callable[..., tuple[int, str, str]]

NAMESPACE = "team"
NODES = (
    'nodes is forbidden: User "tina" cannot list resource "nodes" in API group "" at the cluster'
    " scope"
)
LACKS = "no right to list nodes of the whole cluster (the ClusterRole gpushare-viewer has it)"
MESSAGE = "0/2 nodes are available: 2 Insufficient GPU Memory in one device."
NOTE = "0 of 2 nodes take the pod: 2 Insufficient GPU Memory in one device; free now: at most 3 GiB"


def event(note: str, at: str, controller: str = "gpushare-extender") -> dict[str, Any]:
    return {
        "reportingComponent": controller,
        "reason": "GPUShareNoFit",
        "message": note,
        "eventTime": at,
    }


@pytest.fixture
def tenant(kubectl: FakeKubectl) -> FakeKubectl:
    """A cluster that shows the namespace alone: pods runs and late, and the events of late."""
    pods = [pod("runs", "gpu-1", namespace=NAMESPACE), pending("late", 8, namespace=NAMESPACE)]
    pods[1]["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": MESSAGE}
    ]
    path = f"get --raw /api/v1/namespaces/{NAMESPACE}"
    for item in pods:
        text = json.dumps({"kind": "Pod", **item})
        kubectl.answers(f"{path}/pods/{item['metadata']['name']}", text)
    (kubectl.folder / "pods").write_text(json.dumps({"kind": "PodList", "items": pods}))
    events = [
        event("older", "2027-01-15T11:00:00.000001Z"),
        event("Successfully ...", "2027-01-15T13:00:00.000001Z", "kubelet"),
        event(NOTE, "2027-01-15T12:00:00.000001Z"),
    ]
    late = f"{path}/events?fieldSelector=involvedObject.uid%3Duid-late"
    kubectl.answers(late, json.dumps({"kind": "EventList", "items": events}))
    kubectl.answers("config view --minify --output=jsonpath={..namespace}", NAMESPACE)
    refuses(kubectl, NODES)
    return kubectl


def refuses(kubectl: FakeKubectl, text: str) -> None:
    """Refuse all but the pods of the namespace in these words."""
    kubectl.otherwise(
        'case "$3" in\n'
        f'/api/v1/namespaces/{NAMESPACE}/pods*) cat "{kubectl.folder}/pods" ;;\n'
        f"*) echo 'Error from server (Forbidden): {text}' >&2; exit 1 ;; esac"
    )


def test_a_pending_pod_is_explained_by_itself_and_its_events(
    tenant: FakeKubectl, inspect: Inspect
) -> None:
    assert inspect("explain", "late") == (
        0,
        "Pod:        team/late is pending and asks for 8 units on one device (aliyun.com/gpu-mem)\n"
        f"Event:      2027-01-15 12:00:00 UTC: {NOTE}\n"
        "Event:      2027-01-15 11:00:00 UTC: older\n"
        "Judged:     by the pod, its condition PodScheduled and gpushare's events alone: "
        f"{LACKS}\n"
        f"Scheduler:  default-scheduler says: {MESSAGE}\n",
        "",
    )
    document = json.loads(inspect("explain", "late", "--unit", "GiB", "-o", "json")[1])
    assert document["unit"] == "GiB"
    assert document["basis"].endswith(LACKS)
    assert document["events"][0] == {
        "at": "2027-01-15T12:00:00Z",
        "reason": "GPUShareNoFit",
        "note": NOTE,
    }
    assert document["scheduler"]["message"] == MESSAGE


def test_a_bound_pod_is_explained_by_its_annotations(tenant: FakeKubectl, inspect: Inspect) -> None:
    code, out, err = inspect("explain", "runs")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Pod:        team/runs is bound to gpu-1: 4 units on device 0 (aliyun.com/gpu-mem)",
        f"Judged:     by the pod and its condition PodScheduled alone: {LACKS}",
    ]


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem is probably meant"),
        ("nvidia.com/gpumem", "nvidia.com/gpumem is HAMi's"),
        ("nvidia.com/gpu", "gpushare has no say in it"),  # nodes may offer it
    ],
)
def test_a_pod_with_another_resource_is_told_of_a_mistake(
    tenant: FakeKubectl, inspect: Inspect, resource: str, words: str
) -> None:
    item = pending("stray", 0, namespace=NAMESPACE)
    item["spec"]["containers"] = [{"name": "main", "resources": {"limits": {resource: "1"}}}]
    path = f"get --raw /api/v1/namespaces/{NAMESPACE}/pods/stray"
    tenant.answers(path, json.dumps({"kind": "Pod", **item}))
    code, out, err = inspect("explain", "stray")
    assert (code, out) == (1, "")
    assert words in err


def test_a_pod_with_claims_is_explained_by_the_words_of_its_scheduler(
    tenant: FakeKubectl, inspect: Inspect
) -> None:
    item = pending("asks", 0, namespace=NAMESPACE, reason="cannot allocate all claims")
    item["spec"] = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
    path = f"get --raw /api/v1/namespaces/{NAMESPACE}/pods/asks"
    tenant.answers(path, json.dumps({"kind": "Pod", **item}))
    code, out, err = inspect("explain", "asks")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Pod:        team/asks is pending, and asks by claims",
        f"Judged:     by the pod and its condition PodScheduled alone: {LACKS}",
        "Scheduler:  default-scheduler says: cannot allocate all claims",
    ]


def test_both_programs_answer_alike(
    tenant: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (explain(["late"]), inspect_pods(["explain", "late"])) == (0, 0)
    first, second = capsys.readouterr().out.split("Pod:")[1:]
    assert first == second


def test_other_errors_are_told_as_they_are(tenant: FakeKubectl, inspect: Inspect) -> None:
    tenant.before("echo 'Error from server (Expired): too old' >&2; exit 1")
    assert inspect("explain", "late") == (1, "", "Error from server (Expired): too old\n")


def test_without_the_right_to_list_nodes_the_pods_of_the_namespace_are_shown(
    tenant: FakeKubectl, inspect: Inspect
) -> None:
    warning = f"Warning: {LACKS}: shown are the pods of namespace team, by their annotations\n"
    code, out, err = inspect()
    assert (code, err) == (0, warning)
    assert out.splitlines() == [
        "POD   NAMESPACE  NODE   GPU Memory(units)  DEVICES  PHASE",
        "runs  team       gpu-1  4                  0(4)     Running",
        "",
        "PENDING POD  NAMESPACE  GPU Memory(units)  REASON",
        f"late         team       8                  {MESSAGE}",
    ]
    assert inspect("-n", NAMESPACE, "--unit", "GiB", "--no-headers") == (
        0,
        "runs  team  gpu-1  4  0(4)  Running\n",
        warning,
    )


@pytest.mark.parametrize(("written", "units"), [("16", 10), ("", 1), ("nonsense", 1)])
def test_a_percentage_of_memory_is_shown_as_one_with_the_units_of_its_card(
    tenant: FakeKubectl, inspect: Inspect, written: str, units: int
) -> None:
    part = pod("part", "gpu-1", 1, namespace=NAMESPACE, share=60)
    part["metadata"]["annotations"][ALIYUN.dev] = written
    (tenant.folder / "pods").write_text(json.dumps({"kind": "PodList", "items": [part]}))
    line = ["part", NAMESPACE, "gpu-1", "60%", f"0({units})", "Running"]
    assert inspect()[1].splitlines()[1].split() == line
    (document,) = json.loads(inspect("-o", "json")[1])["pods"]
    assert (document["allocated"], document["share"]) == (units, 60)
    assert document["devices"] == [{"index": 0, "allocated": units}]


def test_units_are_told_whatever_index_and_map_an_annotation_has(
    tenant: FakeKubectl, inspect: Inspect
) -> None:
    odd = pod("odd", "gpu-1", 4, namespace=NAMESPACE)
    odd["metadata"]["annotations"] = {
        ALIYUN.dev: "16",
        ALIYUN.idx: "2147483647",
        ALIYUN.allocation: json.dumps({"0": {"1": 4}}),
    }
    (tenant.folder / "pods").write_text(json.dumps({"kind": "PodList", "items": [odd]}))
    (document,) = json.loads(inspect("-o", "json")[1])["pods"]
    assert document["allocated"] == 4
    assert document["devices"] == [{"index": index, "allocated": 4} for index in (1, 2147483647)]


def test_a_percentage_of_memory_without_a_device_is_shown_as_requested(
    tenant: FakeKubectl, inspect: Inspect
) -> None:
    part = pod("part", "gpu-1", 1, namespace=NAMESPACE, share=60)
    part["metadata"]["annotations"] = {ALIYUN.dev: "16"}
    (tenant.folder / "pods").write_text(json.dumps({"kind": "PodList", "items": [part]}))
    (document,) = json.loads(inspect("-o", "json")[1])["pods"]
    assert (document["allocated"], document["share"], document["devices"]) == (1, 60, [])


def test_the_document_tells_no_sum_that_is_unknown(tenant: FakeKubectl, inspect: Inspect) -> None:
    document = json.loads(inspect("-o", "json")[1])
    assert (document["total"], document["free"], document["nodes"]) == (None, None, [])
    (runs,), (late,) = document["pods"], document["pending"]
    assert (runs["node"], runs["devices"]) == ("gpu-1", [{"index": 0, "allocated": 4}])
    assert late["requested"] == 8


@pytest.mark.parametrize("words", [("gpu-1",), ("-o", "name"), ("-w",), ("-l", "a=b"), ("--top",)])
def test_a_question_about_nodes_is_refused_in_one_line(
    tenant: FakeKubectl, inspect: Inspect, words: Sequence[str]
) -> None:
    text = f"error: {LACKS}: this needs all nodes and pods; -n NAMESPACE alone shows the pods there"
    assert inspect(*words) == (1, "", f"{text}\n")


@pytest.mark.parametrize(
    ("command", "words", "prefix"),
    [(whatif, ("--pods", "8GiB"), "error: "), (defrag, ("--for", "8GiB"), "gpushare defrag: ")],
)
def test_what_needs_the_whole_cluster_says_so_and_what_is_left(
    tenant: FakeKubectl,
    capsys: pytest.CaptureFixture[str],
    command: Callable[[Sequence[str]], int],
    words: Sequence[str],
    prefix: str,
) -> None:
    assert command(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"{prefix}{LACKS}: {command.__module__.rpartition('.')[2]} needs all")
    assert "--snapshot FILE" in err


def test_the_simulator_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": NODES}
    body = json.dumps({**status, "reason": "Forbidden", "code": 403}).encode()
    words = ["simulate", "churn", "--from-cluster", "--kubeconfig"]
    with scripted_server() as server:
        server.script = reply(403, body)
        user = {"token": "of-a-tenant"}
        assert gpushare([*words, write_kubeconfig(tmp_path / "config", server.url, user)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{LACKS}: simulate --from-cluster needs all nodes and pods; --nodes FILE" in err


VIEWER = Path(__file__).parents[3] / "config" / "extender" / "base" / "viewer.yaml"
PATH = re.compile(
    r"get --raw /(?:api/v1|apis/(?P<group>[^/]+)/v\w+)/(?:namespaces/[^/]+/)?"
    r"(?P<of>\w+)(?P<name>/)?"
)
MANIFEST = """\
kind: Pod
metadata: {name: big}
spec:
  priorityClassName: high
  containers: [{name: main, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (inspect_pods, ("-o", "wide")),
        (explain, ("late",)),
        (explain, ("claims",)),
        (whatif, ("--pods", "MANIFEST", "--claims", DRIVER)),
        (defrag, ("--for", "8GiB")),
    ],
)
def test_the_role_of_viewers_has_the_rights_that_the_commands_need(
    kubectl: FakeKubectl,
    tmp_path: Path,
    command: Callable[[Sequence[str]], int],
    words: Sequence[str],
) -> None:
    pods = [pending("late", 8), pending("claims", 0)]
    pods[1]["spec"] = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
    page = 5000 if command is inspect_pods else 500
    slices = [slice_on("n1", device(0))]
    nodes = [node("a", inventory=inventory(16)), node("n1", 0)]
    kubectl.cluster(
        nodes, [pod("half", "a", 10), *pods], page=page, slices=slices, claims=[claim("gpu", 20)]
    )
    for item in pods:
        path = f"get --raw /api/v1/namespaces/default/pods/{item['metadata']['name']}"
        kubectl.answers(path, json.dumps({"kind": "Pod", **item}))
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    command([word.replace("MANIFEST", str(tmp_path / "manifest.yaml")) for word in words])
    matches = [match for line in kubectl.log if (match := PATH.search(line))]
    needed = {(m["group"] or "", m["of"], "get" if m["name"] else "list") for m in matches}
    rules = yaml.safe_load(VIEWER.read_text())["rules"]
    granted = {
        (group, of, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for of in rule["resources"]
        for verb in rule["verbs"]
    }
    assert needed - granted <= {("", "configmaps", "list")}  # of kube-system, see docs/tenants.md
    assert ("", "nodes", "list") in needed


def test_the_missing_right_is_named() -> None:
    words = NODES.replace("nodes", "pods").replace("at the cluster scope", 'in the namespace "x"')
    text = "no right to list pods of that namespace (the ClusterRole gpushare-viewer has it)"
    assert lacks(ApiError(words, 403)) == text
    assert lacks(ApiError("go away", 403)) == "no right to read the cluster (go away)"
