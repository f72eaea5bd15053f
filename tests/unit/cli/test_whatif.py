"""`gpushare whatif`: words, manifests and saved reports, and mistakes in one line."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.claims import no_claims
from gpushare.cli.cluster_files import resource_of_report
from gpushare.cli.listed_cluster import ListedResource, Priorities
from gpushare.cli.plans import nodes_added
from gpushare.cli.pod_specs import ManifestReader, pods_of_words
from gpushare.cli.whatif import main
from gpushare.core.model import NodeSpec, Request
from gpushare.errors import SettingsError
from gpushare.explain.placer import PodBatch
from gpushare.explain.whatif import new_names
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.device_request import APART, SPLIT, USE_MODELS
from tests.unit.cli.fake_kubectl import MEM, FakeKubectl, inventory, node, pending, pod
from tests.unit.extender.kit import NPU, pod_json

Inspect = Callable[..., tuple[int, str, str]]
NODE = NodeSpec("gpu-a", (16, 16), (True, False), ("T4", "T4"), ("a", "b"))


@pytest.mark.parametrize(
    ("text", "unit", "request_", "count"),
    [
        ("8GiB", "GiB", Request(8, 1), None),
        ("8", "MiB", Request(8, 1), None),
        ("8GiB", "256MiB", Request(32, 1), None),
        ("8 GiB x 3", "GiB", Request(8, 1), 3),
        ("8GiB on 2 x 3", "MiB", Request(8192, 2), 3),
    ],
)
def test_pods_in_words(text: str, unit: str, request_: Request, count: int | None) -> None:
    answer = pods_of_words(text, unit, ALIYUN.resource)
    assert answer is not None
    assert (answer.request.units, answer.request.devices) == (request_.units, request_.devices)
    assert answer.count == count


@pytest.mark.parametrize("text", ["8GiB + 30%", "8GiB+30% x 3", "8 GiB +30 % on 2 x 3"])
def test_pods_in_words_may_ask_for_compute(text: str) -> None:
    answer = pods_of_words(text, "GiB", ALIYUN.resource)
    assert answer is not None
    request = answer.request
    devices = 2 if "on 2" in text else 1
    assert (request.units, request.devices, request.cores) == (8, devices, 30)
    total = {MEM: 8 * devices, ALIYUN.cores: 30 * devices}
    assert dict(request.resources) == total
    assert request.percent_containers[0] == ((0, 30 * devices),)


@pytest.mark.parametrize("text", ["pods.yaml", "8GB", "-", "x 3", "8GiB + 30", "8GiB 30%"])
def test_other_words_may_be_a_file(text: str) -> None:
    assert pods_of_words(text, "GiB", ALIYUN.resource) is None


@pytest.mark.parametrize(
    "text", ["0GiB", "100MiB", "8GiB on 0", "8GiB on 999", "8GiB + 0%", "8GiB + 101%"]
)
def test_an_amount_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=text.split(maxsplit=1)[0]):
        pods_of_words(text, "GiB", ALIYUN.resource)


def pods_of_documents(
    documents: Sequence[object], source: str, names: Sequence[Names], classes: Priorities
) -> list[PodBatch]:
    reader = ManifestReader(names, lambda: classes, no_claims("there is no cluster"))
    return reader.pods(documents, source)[0]


def test_pods_of_manifests() -> None:
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 3, "template": pod_json("x", 6)},
    }
    items = {"kind": "List", "items": [pod_json("one", 4), deployment]}
    answer = pods_of_documents([None, items], "pods.yaml", [ALIYUN], Priorities())
    assert [(item.name, item.request.units, item.count) for item in answer] == [
        ("pod/one", 4, 1),
        ("deployment/web", 6, 3),
    ]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("text", "document 1: is no object of Kubernetes"),
        ({"kind": "Service", "metadata": {"name": "s"}}, "Service s makes no pods"),
        (pod_json("plain"), "asks for no aliyun.com/gpu-mem"),
        (pod_json("npu", 4, resource=NPU.resource), "asks for no aliyun.com/gpu-mem"),
        (pod_json("hami", limits={"nvidia.com/gpumem": 4096}), "claim .nvidia.com/gpumem is HAMi"),
        (pod_json("odd", "5Gi"), "Pod odd: "),
        (
            {
                "kind": "Pod",
                "metadata": {"name": "claims"},
                "spec": {"resourceClaims": [{"name": "gpu"}]},
            },
            "Pod claims: asks by claims, which do not count here: there is no cluster; say their",
        ),
        (
            {"kind": "Job", "spec": {"parallelism": "many", "template": pod_json("x", 4)}},
            "'many' is no number of pods",
        ),
    ],
)
def test_a_manifest_that_is_of_no_use_is_named(document: object, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        pods_of_documents([document], "pods.yaml", [ALIYUN, NPU], Priorities())


def books_of(*nodes: NodeSpec) -> ListedResource:
    books = ListedResource(ALIYUN, Ledger(), "GiB")
    books.ledger.replace_nodes(nodes)
    return books


def test_nodes_that_come() -> None:
    words = ["3:8x80GiB", "1:gpu-a", "1:1x24GiB,cpu=8,memory=1Ki,model=NVIDIA A10"]
    books = books_of(NODE, replace(NODE, name="new-2"))
    answer = nodes_added(words, books, new_names({"gpu-a", "new-2"}))
    *three, like, text = [spec for spec, _ in answer]
    assert [spec.name for spec in three] == ["new-1", "new-3", "new-4"]
    assert three[0].capacity == (80,) * 8
    assert (like.capacity, like.healthy, like.models) == ((16, 16), (True, True), ("T4", "T4"))
    assert not any(like.uuids)
    assert (text.cpu, text.memory, text.models) == (8000, 1024, ("NVIDIA-A10",))


@pytest.mark.parametrize("text", ["8x80GiB", "0:8x80GiB", "2:nobody", "2:0x80GiB", "2:8x0GiB"])
def test_nodes_that_cannot_come_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        list(nodes_added([text], books_of(), new_names(())))


def whatif(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def saved(kubectl: FakeKubectl, inspect: Inspect, tmp_path: Path) -> Path:
    """Return a report of a cluster with two devices, and a pod of 4 on one of them."""
    pods = [pod("p1", "a"), pod("lost", "a", 3, idx=None)]
    kubectl.cluster([node("a")], pods, page=5)  # or 500, or 5000
    code, out, _ = inspect("-o", "json")
    assert code == 0
    file = tmp_path / "saved.json"
    file.write_text(out)
    return file


def test_a_saved_report_is_as_good_as_the_cluster(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, from_file, _ = whatif(capsys, "--snapshot", str(saved), "--pods", "9GiB", "-o", "json")
    assert code == 0
    code, live, _ = whatif(capsys, "--pods", "9GiB", "-o", "json")
    assert code == 0
    one, second = json.loads(from_file), json.loads(live)
    assert one.pop("notes") != second.pop("notes")  # it has no CPU and memory
    assert one == second
    assert one["pods"][0]["fit"] == 2


def test_compute_keeps_pods_out_and_strands_memory(
    kubectl: FakeKubectl, inspect: Inspect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a live cluster and of its saved report, for words and for a table of pods."""
    pods = [pod("some", "a", cores=60), pod("plain", "a", idx="1")]
    kubectl.cluster([node("a")], pods, page=5)
    file, table = tmp_path / "saved.json", tmp_path / "pods.csv"
    file.write_text(inspect("-o", "json")[1])
    header = "name,cpu_milli,memory_mib,gpu,units,cores"
    table.write_text(f"{header}\nsmall,0,0,1,1,40\nsmaller,0,0,1,1,\n")
    words = ("--pods", "4GiB + 100%", "--pods", "2GiB + 50% x 3", "--pods", str(table))
    kubectl.cluster([node("a")], pods, page=500)
    for place in ((), ("--snapshot", str(file))):
        text = json.loads(whatif(capsys, *place, *words, "-o", "json")[1])
        assert [item["fit"] for item in text["pods"]] == [0, 2, 1, 0]
        assert [item.get("cores") for item in text["pods"]] == [100, 50, 40, None]
        assert "strandedByCores" not in text["before"]
        # 4 and 1 units are used of the first device, 4 and 4 of the second.
        assert (text["after"]["free"], text["after"]["strandedByCores"]) == (0, 19)
    lines = whatif(capsys, *words)[1].splitlines()
    assert (
        "Then:     0 GiB of 32 GiB free on 2 devices of 1 node, 19 GiB stranded by compute" in lines
    )
    (reason,) = (line for line in lines if "2GiB + 50% x 3" in line)
    assert reason.endswith("2 of 3 fit (2 on a); then: 1 Insufficient GPU Cores in one device")


def test_compute_that_a_node_advertises_is_counted_by_kube_scheduler_too(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that advertises none takes no such pod then; a new one has 100 of each device."""
    plain, advertises = node("plain"), node("advertises")
    advertises["status"]["allocatable"][ALIYUN.cores] = "100"
    kubectl.cluster([plain, advertises], [], page=500)
    words = ("--pods", "1GiB + 60%", "--add", "1:advertises", "-o", "json")
    text = json.loads(whatif(capsys, *words)[1])
    assert {item["node"]: item["pods"] for item in text["pods"][0]["on"]} == {
        "advertises": 1,
        "new-1": 2,
    }


def test_a_saved_report_has_what_kube_schedulers_filters_look_at_in_nodes(
    kubectl: FakeKubectl, inspect: Inspect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    tainted, plain = node("tainted"), node("plain")
    tainted["spec"] = {"taints": [taint]}
    plain["metadata"]["labels"] = {"pool": "x"}
    kubectl.cluster([tainted, plain], [], page=500)
    file = tmp_path / "saved.json"
    file.write_text(inspect("-o", "json")[1])
    batches = pod_json("wanted", 9)
    batches["spec"] |= {"nodeSelector": {"pool": "y"}}
    large = pod_json("large", 9)
    large["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1000"
    manifest = tmp_path / "pods.json"
    manifest.write_text(json.dumps({"kind": "List", "items": [batches, large]}))
    words = ("--pods", "9GiB", "--pods", str(manifest), "-o", "json")
    (_, from_file, _), (_, live, _) = (
        whatif(capsys, *way, *words) for way in (("--snapshot", str(file)), ())
    )
    one, second = json.loads(from_file), json.loads(live)
    assert "has no CPU and memory of pods, and no pods that wait, so" in one.pop("notes")[0]
    assert second.pop("notes") != []
    assert one == second
    assert [item["fit"] for item in one["pods"]] == [2, 0, 0]


def test_a_report_of_an_older_release_is_read(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(saved.read_text())
    del document["nodes"][0]["scheduling"]
    saved.write_text(json.dumps(document))
    words = ("--snapshot", str(saved), "--pods", "9GiB", "-o", "json")
    text = json.loads(whatif(capsys, *words)[1])
    assert "no labels, taints and allocatable of some nodes" in text["notes"][0]
    assert text["pods"][0]["fit"] == 2
    document["nodes"][0]["leftOut"] = "cordoned"
    saved.write_text(json.dumps(document))
    assert json.loads(whatif(capsys, *words)[1])["pods"][0]["fit"] == 0


def test_a_split_pod_is_told_with_its_parts(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pods.json"
    file.write_text(json.dumps(pod_json("split", 40, annotations={SPLIT: "10+30"})))
    words = ("--snapshot", str(saved), "--pods", str(file), "--add", "1:2x32GiB", "-o", "json")
    (answer,) = json.loads(whatif(capsys, *words)[1])["pods"]
    assert (answer["units"], answer["devices"], answer["split"]) == (30, 2, [30, 10])
    assert answer["on"] == [{"node": "new-1", "pods": 1}]
    _, out, _ = whatif(capsys, *words[:2], "--gang", str(file))
    assert "needs 1 x 30 + 10 GiB at once: 0 fit now" in out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("x", "scheduling: is no object"),
        ({"taints": {}}, "taints: is no list of objects"),
        ({"taints": [], "labels": []}, "labels: is no object"),
        ({"taints": [], "labels": {"a": 1}}, "scheduling: a: is no text"),
        ({"taints": [], "allocatable": {"cpu": "8"}}, "scheduling: cpu: '8' is no number"),
    ],
)
def test_filters_of_another_form_are_one_line(saved: Path, change: object, text: str) -> None:
    document = json.loads(saved.read_text())
    document["nodes"][0]["scheduling"] = change
    with pytest.raises(SettingsError, match=text):
        resource_of_report(document, "saved.json", "binpack")


def blind(kubectl: FakeKubectl) -> None:
    """A cordoned node, and a node without a device plug-in; a pending pod with a PriorityClass."""
    cordoned, away = node("gpu-1"), node("gpu-2", inventory=inventory(16, 16))
    cordoned["spec"] = {"unschedulable": True}
    away["status"]["allocatable"] = away["status"]["allocatable"] | {MEM: "0"}
    late = pending("late", 4)
    late["spec"] |= {"priority": 7}
    kubectl.cluster([cordoned, away], [late], page=500)


def test_nodes_that_kube_scheduler_leaves_out_fit_nothing(
    kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECTL", str(kubectl.path))
    blind(kubectl)
    code, out, _ = whatif(capsys, "--pods", "4GiB", "--add", "1:gpu-1")
    lacks = f"no {MEM} allocatable"
    assert (code, out.splitlines()[1:7]) == (
        0,
        [
            "Nodes:    gpu-1 cordoned; gpu-2 plug-in away",
            "Added:    1 node: new-1",
            "Waiting:  1 pod waits already; 1 of 1 fit",
            "          default/late (priority 7): 1 of 1 fit (1 on new-1)",
            "Pods:     4GiB: 7 fit (7 on new-1)",
            "Then:     64 GiB of 96 GiB free on 6 devices of 3 nodes",
        ],
    )
    _, out, _ = whatif(capsys, "--pods", "4GiB")
    assert f"Pods:     4GiB: 0 fit; then: 1 cordoned, 1 {lacks}\n" in out
    code, out, _ = whatif(capsys, "--pods", "4GiB", "--priority", "9", "-o", "json")
    answer = json.loads(out)
    assert [item["fit"] for item in (*answer["waiting"], *answer["pods"])] == [0, 0]
    assert answer["leftOut"][0] == {"node": "gpu-1", "why": "cordoned"}
    assert answer["pods"][0]["priority"] == 9


def test_priorities_are_those_of_the_cluster() -> None:
    names = pod_json("one", 4)
    names["spec"]["priorityClassName"] = "high"
    expected = Priorities({"high": 1000}, 5)
    answer = pods_of_documents([names, pod_json("two", 4)], "f", [ALIYUN], expected)
    assert [item.priority for item in answer] == [1000, 5]
    with pytest.raises(SettingsError, match="there is no PriorityClass 'high'"):
        pods_of_documents([names], "f", [ALIYUN], Priorities())


def test_a_gang_is_answered_alike_on_a_cluster_and_on_a_saved_report(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ((), ("--snapshot", str(saved))):
        code, out, _ = whatif(capsys, *place, "--gang", "9GiB x 3", "--gang", "9GiB x 2")
        assert code == 1
        torn, whole = (line for line in out.splitlines() if line.startswith("Gang:"))
        assert torn.startswith("Gang:     9GiB x 3: needs 3 x 9 GiB at once: 2 fit now (2 on a);")
        assert whole == "Gang:     9GiB x 2: needs 2 x 9 GiB at once: 2 fit now (2 on a)"
        code, out, _ = whatif(capsys, *place, "--gang", "9GiB x 3", "-o", "json")
        assert code == 1
        assert whatif(capsys, *place, "--gang", "9GiB x 2")[0] == 0
        document = json.loads(out)
        (gang,) = document["gangs"]
        assert (gang["fits"], gang["pods"][0]["wanted"], gang["pods"][0]["fit"]) == (False, 3, 2)
        assert document["before"] == document["after"]


def test_all_pods_of_a_file_are_one_gang(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"parallelism": 2, "template": pod_json("x", 9)},
    }
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"kind": "List", "items": [job, pod_json("head", 9)]}))
    words = ("--snapshot", str(saved), "--gang", str(file), "--add", "1:1x4GiB")
    _, out, _ = whatif(capsys, *words)
    lines = out.splitlines()
    assert lines[2].startswith("Gang:     job/train: needs 2 x 9 GiB at once: 2 fit (2 on a)")
    assert lines[3].startswith("Gang:     pod/head: needs 1 x 9 GiB at once: 0 fit; then: ")
    assert lines[4] == "          so none of these pods is placed"


def test_pods_of_a_template_that_stay_apart_need_a_device_each(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, fits = tmp_path / "pods.json", []
    for annotations in ({}, {APART: "required"}):
        template = pod_json("x", 1, annotations=annotations)
        job = {
            "kind": "Job",
            "metadata": {"name": "train"},
            "spec": {"parallelism": 40, "template": template},
        }
        file.write_text(json.dumps({"kind": "List", "items": [job, job | {"metadata": {}}]}))
        _, out, _ = whatif(capsys, "--snapshot", str(saved), "--pods", str(file), "-o", "json")
        fits.append([pods["fit"] for pods in json.loads(out)["pods"]])
    assert fits == [[22, 0], [2, 2]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"apiVersion": "inspect.gpushare.io/v0"}, "save one with"),
        ({"kind": "Other"}, "save one with"),
        ({"nodes": "x"}, "nodes: is no list of objects"),
        ({"unit": "GB"}, "unit: 'GB' is no unit"),
        ({"nodes": []}, "no node in it shares"),
    ],
)
def test_a_report_of_another_version_or_form_is_one_line(
    saved: Path, change: dict[str, object], text: str
) -> None:
    document = json.loads(saved.read_text())
    with pytest.raises(SettingsError, match=text):
        resource_of_report(document | change, "saved.json", "binpack")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "nothing is asked"),
        (("--gang", "8GiB"), "how many at once? write '8GiB x 3'"),
        (("--gang", "nofile.yaml"), "--gang: 'nofile.yaml' is no file"),
        (("--pods", "nofile.yaml"), "is no file, nor is it as '8GiB x 3'"),
        (("--pods", "8GiB", "--policy", "best"), "best"),
        (("--without", "nobody"), "no node 'nobody' that could go"),
        (("--pods", "8GiB", "--unit", "GB"), "--unit: must be GiB"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    saved: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    del saved
    code, out, err = whatif(capsys, *words)
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.splitlines()) == 1


def tainted(name: str, *keys: str) -> dict[str, Any]:
    """Return a node with these taints; a key may have a value."""
    item = node(name)
    pairs = (key.partition("=") for key in keys)
    item["spec"] = {
        "taints": [{"key": key, "value": value, "effect": "NoSchedule"} for key, _, value in pairs]
    }
    return item


def test_pods_in_words_tolerate_the_taints_of_gpu_nodes(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [tainted("gke", "nvidia.com/gpu=present"), tainted("aks", "sku=gpu")]
    kubectl.cluster([*nodes, tainted("team", "team=a")], [], page=500)
    code, out, _ = whatif(capsys, "--pods", "16GiB x 4")
    assert (code, out.splitlines()[1:4]) == (
        0,
        [
            "Nodes:    team taint team",
            "Taints:   pods in words tolerate nvidia.com/gpu=present:NoSchedule,"
            " sku=gpu:NoSchedule (--tolerate says otherwise)",
            "Pods:     16GiB x 4: 4 of 4 fit (2 on aks, 2 on gke)",
        ],
    )
    document = json.loads(whatif(capsys, "--pods", "16GiB x 4", "-o", "json")[1])
    assert [taint["key"] for taint in document["tolerated"]] == ["nvidia.com/gpu", "sku"]


def test_pods_in_words_tolerate_what_running_gpu_pods_tolerate_by_name(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    running, careless = pod("p1", "a"), pod("p2", "b")
    running["spec"]["tolerations"] = [{"key": "team", "operator": "Exists"}]
    careless["spec"]["tolerations"] = [{"operator": "Exists"}]
    kubectl.cluster([tainted("a", "team=a"), tainted("b", "other")], [running, careless], page=500)
    _, out, _ = whatif(capsys, "--pods", "12GiB")
    assert "Nodes:    b taint other\n" in out
    assert "Pods:     12GiB: 2 fit (2 on a)\n" in out


@pytest.mark.parametrize(
    ("words", "fit"),
    [
        (("none",), 0),
        (("all",), 4),
        (("team",), 2),
        (("team=a",), 2),
        (("team=a:NoSchedule", "nvidia.com/gpu"), 4),
        ((), 2),
    ],
)
def test_the_command_line_says_which_taints_pods_in_words_tolerate(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], fit: int
) -> None:
    cordoned = tainted("cordoned", "team=a")
    cordoned["spec"]["unschedulable"] = True
    nodes = [tainted("gke", "nvidia.com/gpu=present"), tainted("team", "team=a"), cordoned]
    kubectl.cluster(nodes, [], page=500)
    flags = [part for word in words for part in ("--tolerate", word)]
    document = json.loads(whatif(capsys, "--pods", "16GiB", *flags, "-o", "json")[1])
    assert document["pods"][0]["fit"] == fit


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("team=b",), "'team=b': no node with devices has such a taint; their taints: team=a:"),
        (("none", "team"), "none and all go alone"),
        (("team=a:Never",), "is not KEY[=VALUE][:EFFECT]"),
    ],
)
def test_a_taint_that_no_node_has_is_refused(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    kubectl.cluster([tainted("team", "team=a")], [], page=500)
    flags = [part for word in words for part in ("--tolerate", word)]
    code, out, err = whatif(capsys, "--pods", "16GiB", *flags)
    assert (code, out) == (2, "")
    assert text in err


def test_manifests_tolerate_what_they_say_alone(
    kubectl: FakeKubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.cluster([tainted("gke", "nvidia.com/gpu=present")], [], page=500)
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod_json("plain", 4)))
    code, out, _ = whatif(capsys, "--pods", str(file))
    assert code == 1
    assert "Nodes:    gke taint nvidia.com/gpu\n" in out
    assert "Taints:" not in out
    assert "0 of 1 fit; then: 1 untolerated taint nvidia.com/gpu" in out


def test_pods_of_a_saved_report_tolerate_the_taints_of_their_node(
    kubectl: FakeKubectl, inspect: Inspect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.cluster([tainted("a", "team=a"), tainted("b", "team=a")], [pod("p1", "a")], page=5)
    file = tmp_path / "saved.json"
    file.write_text(inspect("-o", "json")[1])
    code, out, _ = whatif(capsys, "--snapshot", str(file), "--without", "a")
    assert (code, out.splitlines()[2]) == (0, "Without:  a: 1 of 1 pod fit elsewhere")


def test_other_objects_of_a_file_are_passed_over(
    kubectl: FakeKubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.cluster([node("a")], [], page=500)
    spec = {"replicas": 2, "template": pod_json("x", 8)}
    items = [
        {"kind": "Service", "metadata": {"name": "web"}},
        {"kind": "Deployment", "metadata": {"name": "web"}, "spec": spec},
        {"kind": "Deployment", "metadata": {"name": "front"}, "spec": {"template": pod_json("y")}},
    ]
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    code, out, err = whatif(capsys, "--pods", str(file))
    assert code == 0
    assert "Pods:     deployment/web: 2 of 2 fit (2 on a)\n" in out
    assert err == (
        "Passed over: Service web makes no pods; Deployment front asks for no aliyun.com/gpu-mem,"
        " and by no claim\n"
    )


def test_parts_of_an_object_are_named(
    kubectl: FakeKubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.cluster([node("a")], [], page=500)
    groups = [
        {"groupName": "small", "replicas": 2, "template": pod_json("x", 4)},
        {"groupName": "large", "replicas": 1, "template": pod_json("x", 16)},
    ]
    spec = {"headGroupSpec": {"template": pod_json("head")}, "workerGroupSpecs": groups}
    file = tmp_path / "ray.json"
    file.write_text(json.dumps({"kind": "RayCluster", "metadata": {"name": "r"}, "spec": spec}))
    _, out, err = whatif(capsys, "--pods", str(file))
    assert "Pods:     raycluster/r small: 2 of 2 fit (2 on a)\n" in out
    assert "Pods:     raycluster/r large: 1 of 1 fit (1 on a)\n" in out
    assert err == ""


def test_a_daemon_set_has_a_pod_on_each_node_that_it_selects(
    kubectl: FakeKubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cordoned nodes included, and as many as nodes come; not those with an untolerated taint."""
    cordoned = node("cordoned")
    cordoned["spec"] = {"unschedulable": True}
    nodes = [node("a"), cordoned, tainted("team", "team"), node("small", 4, 1)]
    kubectl.cluster(nodes, [], page=500)
    file = tmp_path / "daemons.json"
    spec = {"template": pod_json("x", 8)}
    file.write_text(json.dumps({"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": spec}))
    words = ("--pods", str(file), "--add", "1:a", "-o", "json")
    code, out, _ = whatif(capsys, *words)
    assert code == 1
    assert {item["name"]: item["fit"] for item in json.loads(out)["pods"]} == {
        "daemonset/d on a": 1,
        "daemonset/d on cordoned": 1,
        "daemonset/d on new-1": 1,
        "daemonset/d on small": 0,
    }


def test_a_daemon_set_has_a_pod_on_each_node_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, file = tmp_path / "nodes.csv", tmp_path / "daemons.json"
    table.write_text("name,cpu_milli,memory_mib,gpu,units\na,1000,1024,1,8\nb,1000,1024,1,8\n")
    spec = {"template": pod_json("x", 2)}
    file.write_text(json.dumps({"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": spec}))
    _, out, _ = whatif(capsys, "--nodes", str(table), "--pods", str(file))
    assert "daemonset/d on a: 1 of 1 fit (1 on a)" in out
    assert "daemonset/d on b: 1 of 1 fit (1 on b)" in out


def test_a_deployment_that_runs_asks_for_more_pods(
    kubectl: FakeKubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = [pod("web-5d-a", "a"), pod("web-5d-b", "a"), pending("web-5d-c")]
    for item in running:
        item["metadata"]["labels"] = {"pod-template-hash": "5d"}
    kubectl.cluster([node("a")], running, page=500)
    kubectl.answers("config view --minify --output=jsonpath={..namespace}", "default")
    manifest = tmp_path / "web.json"
    for name, space, warns in (("web", {}, True), ("web", {"namespace": "x"}, False)):
        metadata = {"name": name, **space}
        spec = {"replicas": 2, "template": pod_json("x", 4)}
        manifest.write_text(json.dumps({"kind": "Deployment", "metadata": metadata, "spec": spec}))
        code, out, err = whatif(capsys, "--pods", str(manifest))
        assert (code, "deployment/web: 2 of 2 fit" in out) == (0, True)
        text = "Warning: Deployment web has 3 pods already, which keep their devices: the answer is"
        assert err == (f"{text} about 2 more\n" if warns else "")


def test_mistakes_of_pods_that_count_are_warned_of(
    kubectl: FakeKubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.cluster([node("a")], [], page=500)
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod_json("web", 4, limits={"aliyun.com/gpu-core": 30})))
    code, out, err = whatif(capsys, "--pods", str(file))
    assert code == 1
    assert "0 of 1 fit; then: 1 too little aliyun.com/gpu-core even if empty" in out
    assert err.startswith("Warning: pod/web: aliyun.com/gpu-core is none of gpushare's resources")


def labelled(name: str) -> dict[str, Any]:
    """Return a node with two GPUs of 16 GiB by labels of GPU feature discovery alone."""
    item = node(name, 0)
    labels = {"count": "2", "memory": "16384", "product": "Tesla-T4"}
    item["metadata"]["labels"] = {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}
    return item


def test_nodes_with_labels_of_gpus_are_judged_as_once_shared(
    kubectl: FakeKubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = pod_json("whole", limits={"nvidia.com/gpu": "1"})
    whole["spec"]["nodeName"] = "gfd"
    kubectl.cluster([labelled("gfd"), node("cpu", 0)], [whole], page=500)
    code, out, err = whatif(capsys, "--pods", "8GiB")
    assert (code, out) == (2, "")
    assert "no node shares aliyun.com/gpu-mem" in err
    assert "(1 have labels of GPUs: whatif --as-shared)" in err
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod_json("x", 16, annotations={USE_MODELS: "t4"})))
    words = ("--as-shared", "--pods", str(file), "--pods", "8GiB")
    code, out, _ = whatif(capsys, *words)
    assert code == 0
    assert "Pods:     pod/x: 1 of 1 fit (1 on gfd)\n" in out
    assert "Pods:     8GiB: 2 fit (2 on gfd)\n" in out
    assert "; 2 GPUs on 1 node count as shared by labels alone; pods with whole GPUs there" in out


def test_what_devices_share_already_counts_as_it_is(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compute is advertised as by the other nodes."""
    shared = labelled("a") | {"status": node("a", 8, 1)["status"]}
    shared["status"]["allocatable"][ALIYUN.cores] = "100"
    kubectl.cluster([shared, labelled("b")], [], page=500)
    words = ("--as-shared", "--pods", "8GiB + 50%", "-o", "json")
    (answer,) = json.loads(whatif(capsys, *words)[1])["pods"]
    assert {item["node"]: item["pods"] for item in answer["on"]} == {"a": 1, "b": 4}
    assert whatif(capsys, "--as-shared", "--pods", "1", "--nodes", "x.csv")[0] == 2
