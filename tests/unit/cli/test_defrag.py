"""`gpushare defrag`: plans of a cluster and of a saved report, and answers without a plan."""

import json
import time
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.defrag import main
from gpushare.explain.defrag import CHECKPOINT, _is_bound_by_more
from gpushare.wire.demands import demands_of
from gpushare.wire.device_request import SPLIT
from gpushare.wire.groups import group_of
from gpushare.wire.moves import kept_owned
from gpushare.wire.objects import PODS, Pod, controller_of
from gpushare.wire.pods import has_ended, priority_of
from tests.support.figures import ROOT, renew, shown
from tests.unit.cli.fake_kubectl import MEM, FakeKubectl, inventory, node, pending, pod
from tests.unit.cli.test_inspect_claims import slice_on
from tests.unit.wire.dra.objects import device

Inspect = Callable[..., tuple[int, str, str]]
Capsys = pytest.CaptureFixture[str]
Answer = Callable[..., tuple[int, str, str]]

PAGE = ROOT / "docs" / "defrag.md"
HOUR = 3600


def running(
    name: str,
    place: str,
    units: int,
    *,
    hours: float = 5,
    namespace: str = "team-a",
    owner: str = "StatefulSet",
    **more: Any,
) -> dict[str, Any]:
    """Return a movable pod at NODE:DEVICE. more: of the spec."""
    host, _, device = place.partition(":")
    changes = pod(name, host, units, idx=device, namespace=namespace)
    changes["metadata"]["labels"] = {"gpushare.io/movable": "true", "app": name.rpartition("-")[0]}
    changes["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "apps/v1",
            "kind": owner,
            "name": name.rpartition("-")[0],
            "uid": "u",
            "controller": True,
        }
    ]
    changes["spec"] |= more
    started = datetime.fromtimestamp(time.time() - hours * HOUR - 20, UTC)
    changes["status"]["startTime"] = f"{started:%Y-%m-%dT%H:%M:%SZ}"
    return changes


def budget(namespace: str, disruptions: int, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": disruptions},
    }


class Cluster:
    """The answers of a kubectl: nodes, pods, namespaces and budgets; None for a forbidden list."""

    def __init__(self, kubectl: FakeKubectl) -> None:
        self.kubectl = kubectl
        self.nodes = [node(name, inventory=inventory(80, 80)) for name in ("gpu-1", "gpu-2")]
        self.nodes.append(node("gpu-3", inventory=inventory(40)))
        self.pods = [
            running("notebook-0", "gpu-1:0", 10),
            running("embed-7f9c-x", "gpu-1:1", 22, hours=30, owner="ReplicaSet"),
            pod("train-0", "gpu-1", 20, idx="0", namespace="team-b"),
            running("serve-0", "gpu-2:0", 60, hours=100),
            running("serve-1", "gpu-2:1", 50, hours=100),
        ]
        self.pods[1]["metadata"]["annotations"]["gpushare.io/checkpoint-seconds"] = "1800"
        late = pending("late-0", 120, namespace="team-a")
        late["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
        late["kind"] = "Pod"
        self.pods.append(late)
        self.namespaces: list[dict[str, Any]] | None = [{"metadata": {"name": "team-a"}}]
        self.budgets: list[dict[str, Any]] | None = [budget("team-a", 1)]
        self.slices: list[dict[str, Any]] = []

    def pod(self, name: str) -> dict[str, Any]:
        return next(item for item in self.pods if item["metadata"]["name"] == name)

    def ready(self) -> None:
        """Let the kubectl answer."""
        lists: dict[str, tuple[str, list[dict[str, Any]] | None]] = {
            "/api/v1/nodes": ("Node", self.nodes),
            "/api/v1/namespaces[?]": ("Namespace", self.namespaces),
            "/apis/policy/v1/poddisruptionbudgets": ("PodDisruptionBudget", self.budgets),
            "/api/v1/pods": ("Pod", self.pods),
            "*/configmaps": ("ConfigMap", []),
        }
        if self.slices:
            lists["*/resourceslices"] = ("ResourceSlice", self.slices)
        cases = []
        for path, (kind, items) in lists.items():
            file = self.kubectl.folder / kind
            document = {"kind": f"{kind}List", "metadata": {"resourceVersion": "7"}}
            file.write_text(json.dumps(document | {"items": items}))
            forbidden = "echo 'Error from server (Forbidden): no' >&2; exit 1"
            cases.append(f"{path}*) {forbidden if items is None else f'cat {file}'} ;;")
        cases.append("*) echo 'Error from server (NotFound): no' >&2; exit 1 ;;")
        self.kubectl.otherwise('case "$3" in\n' + "\n".join(cases) + " esac")
        for item in self.pods:
            metadata = item["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            self.kubectl.answers(f"get --raw {path}", json.dumps(item))


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> Cluster:
    return Cluster(kubectl)


@pytest.fixture
def defrag(cluster: Cluster, capsys: Capsys) -> Answer:
    def run(*words: str) -> tuple[int, str, str]:
        cluster.ready()
        try:
            code = main(words)
        except SystemExit as end:
            code = int(str(end.code))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def document(defrag: Answer, *words: str, code: int = 0) -> dict[str, Any]:
    answer, out, err = defrag(*words, "-o", "json")
    assert (answer, err) == (code, "")
    decoded: dict[str, Any] = json.loads(out)
    return decoded


def reasons(answer: dict[str, Any]) -> dict[str, str]:
    return {stay["name"]: stay["rule"] for stay in answer["stays"]}


def test_the_page_shows_what_is_printed(
    defrag: Answer, inspect: Inspect, pytestconfig: pytest.Config
) -> None:
    for of, words in (("a plan", ["--for", "2x60GiB"]), ("no plan", ["--for", "2x75GiB"])):
        _, out, err = defrag(*words)
        assert err == ""
        text = f"```text\n$ gpushare defrag {' '.join(words)}\n{out}```"
        if pytestconfig.getoption("--regenerate-scenarios"):
            renew(PAGE, of, text)
        assert shown(PAGE, of) == text
    code, out, _ = inspect("explain", "team-a/late-0")
    assert code == 0
    (line,) = [item for item in out.splitlines() if item.startswith("Moves:")]
    assert line.split(maxsplit=1)[1] in PAGE.read_text("utf-8")


def test_a_plan_for_a_pod_that_waits_is_that_of_its_size(defrag: Answer) -> None:
    sized, waits = (
        document(defrag, "--for", *words)["plan"]
        for words in (["2x60GiB"], ["pod", "team-a/late-0"])
    )
    assert [item["name"] for item in sized["moves"]] == ["embed-7f9c-x", "notebook-0"]
    for plan in (sized, waits):
        for move in plan["moves"]:
            move["lostSeconds"] = round(move["lostSeconds"] / 60)
        del plan["lostUnitSeconds"], plan["lostGpuHours"]
    assert sized == waits
    assert document(defrag, "--for", "pod/late-0", "-n", "team-a")["plan"]["node"] == "gpu-1"


def test_each_part_of_a_split_pod_counts_by_itself(cluster: Cluster, defrag: Answer) -> None:
    late = pending("split-0", 110, namespace="team-a")
    late["metadata"]["annotations"] = {SPLIT: "50+60"}
    cluster.pods.append(late | {"kind": "Pod"})
    _, out, _ = defrag("--for", "pod", "team-a/split-0")
    assert out.splitlines()[0] == (
        "Room:     1 move would open 60 + 50 GiB for pod team-a/split-0 on gpu-1 devices 0, 1"
    )
    answer = document(defrag, "--for", "pod", "team-a/split-0")
    assert answer["for"]["split"] == [60, 50]
    assert [move["name"] for move in answer["plan"]["moves"]] == ["embed-7f9c-x"]
    assert answer["plan"]["moves"][0]["split"] is None


def test_no_place_is_made_and_nobody_moves_to_where_cards_are_given_to_claims(
    cluster: Cluster, defrag: Answer
) -> None:
    before = document(defrag, "--for", "2x60GiB")["plan"]
    assert before["node"] == "gpu-1"
    cluster.slices = [slice_on("gpu-1", device(1))]
    answer = document(defrag, "--for", "2x60GiB", code=1)
    assert answer["plan"] is None
    to = before["moves"][0]["to"]["node"]
    cluster.slices = [slice_on(to, device(1))]
    second = document(defrag, "--for", "2x60GiB")["plan"]
    assert to not in {second["node"], *(move["to"]["node"] for move in second["moves"])}


def test_the_cost_is_what_was_not_saved(defrag: Answer) -> None:
    plan = document(defrag, "--for", "2x60GiB")["plan"]
    lost = {move["name"]: move["lostSeconds"] for move in plan["moves"]}
    assert lost["embed-7f9c-x"] == 1800
    assert 5 * HOUR < lost["notebook-0"] < 5 * HOUR + 300
    units = 22 * 1800 + 10 * lost["notebook-0"]
    assert plan["lostUnitSeconds"] == pytest.approx(units)
    assert plan["lostGpuHours"] == pytest.approx(units / 80 / HOUR)


def test_a_percentage_of_memory_costs_the_charged_units(cluster: Cluster, defrag: Answer) -> None:
    cluster.pods[0] = running("notebook-0", "gpu-1:0", 1)
    limits = cluster.pods[0]["spec"]["containers"][0]["resources"]["limits"]
    limits["aliyun.com/gpu-mem.percentage"] = 25
    plan = document(defrag, "--for", "2x60GiB")["plan"]
    units = 22 * 1800 + 20 * plan["moves"][1]["lostSeconds"]
    moved = [(move["name"], move.get("share")) for move in plan["moves"]]
    assert moved == [("embed-7f9c-x", None), ("notebook-0", 25)]
    assert plan["lostUnitSeconds"] == pytest.approx(units)
    assert plan["lostGpuHours"] == pytest.approx(units / 80 / HOUR)


def test_a_moved_pod_goes_where_its_own_policy_puts_it(cluster: Cluster, defrag: Answer) -> None:
    targets = {}
    for policy in ("binpack", "spread", "unknown"):
        cluster.pod("notebook-0")["metadata"]["annotations"]["gpushare.io/policy"] = policy
        moves = document(defrag, "--for", "2x60GiB", "--policy", "binpack")["plan"]["moves"]
        targets[policy] = {move["name"]: move["to"]["node"] for move in moves}["notebook-0"]
    assert targets == {"binpack": "gpu-3", "spread": "gpu-2", "unknown": "gpu-3"}


def test_what_fits_needs_no_move(defrag: Answer) -> None:
    code, out, _ = defrag("--for", "40GiB")
    assert code == 0
    assert out.splitlines()[0].endswith("fits now on gpu-3 device 0: nothing has to move")


def _without_label(pod_json: dict[str, Any]) -> None:
    del pod_json["metadata"]["labels"]["gpushare.io/movable"]


def _opted_out(pod_json: dict[str, Any]) -> None:
    pod_json["metadata"]["labels"]["gpushare.io/movable"] = "false"


def _of_a_job(pod_json: dict[str, Any]) -> None:
    pod_json["metadata"]["ownerReferences"][0] |= {"kind": "Job", "apiVersion": "batch/v1"}


def _of_a_daemon(pod_json: dict[str, Any]) -> None:
    pod_json["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet"


def _static(pod_json: dict[str, Any]) -> None:
    pod_json["metadata"]["ownerReferences"][0] |= {"kind": "Node", "apiVersion": "v1"}


def _bare(pod_json: dict[str, Any]) -> None:
    del pod_json["metadata"]["ownerReferences"]


def _only_a_reference(pod_json: dict[str, Any]) -> None:
    pod_json["metadata"]["ownerReferences"][0]["controller"] = False


def _of_a_group(pod_json: dict[str, Any]) -> None:
    pod_json["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "g"


def _important(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["priority"] = 1


def _ending(pod_json: dict[str, Any]) -> None:
    pod_json["metadata"]["deletionTimestamp"] = pod_json["status"]["startTime"]


def _young(pod_json: dict[str, Any]) -> None:
    started = datetime.fromtimestamp(time.time() - 500, UTC)
    pod_json["status"]["startTime"] = f"{started:%Y-%m-%dT%H:%M:%SZ}"


def _not_running(pod_json: dict[str, Any]) -> None:
    pod_json["status"]["phase"] = "Pending"


def _near_others(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["affinity"] = {"podAntiAffinity": {}}


def _spread(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["topologySpreadConstraints"] = [{"maxSkew": 1}]


def _with_a_claim(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]


def _with_a_resource_claim(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]


def _with_a_host_path(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/data"}}]


def _with_a_host_port(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 1}]


def _on_the_hosts_network(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["hostNetwork"] = True


def _of_unknown_devices(pod_json: dict[str, Any]) -> None:
    del pod_json["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"]


def _of_no_other_node(pod_json: dict[str, Any]) -> None:
    pod_json["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "gpu-1"}


CHANGES = [
    (_without_label, "CONSENT"),
    (_opted_out, "CONSENT"),
    (_of_a_job, "OWNER"),
    (_of_a_daemon, "OWNER"),
    (_static, "OWNER"),
    (_bare, "OWNER"),
    (_only_a_reference, "OWNER"),
    (_of_a_group, "GROUP"),
    (_important, "PRIORITY"),
    (_ending, "ENDING"),
    (_young, "AGE"),
    (_not_running, "AGE"),
    (_near_others, "CONSTRAINTS"),
    (_spread, "CONSTRAINTS"),
    (_with_a_claim, "CONSTRAINTS"),
    (_with_a_resource_claim, "CONSTRAINTS"),
    (_with_a_host_path, "CONSTRAINTS"),
    (_with_a_host_port, "CONSTRAINTS"),
    (_on_the_hosts_network, "CONSTRAINTS"),
    (_of_unknown_devices, "DEVICES"),
    (_of_no_other_node, "NO_PLACE"),
]


@pytest.mark.parametrize(("change", "rule"), CHANGES)
def test_a_pod_is_moved_by_all_rules_or_not_at_all(
    cluster: Cluster, defrag: Answer, change: Callable[[dict[str, Any]], None], rule: str
) -> None:
    names = [node["metadata"]["name"] for node in cluster.nodes]
    for item, name in zip(cluster.nodes, names, strict=True):
        item["metadata"]["labels"] = {"kubernetes.io/hostname": name}
    change(cluster.pod("notebook-0"))
    answer = document(defrag, "--for", "2x60GiB", code=1)
    assert answer["plan"] is None
    assert reasons(answer)["notebook-0"] == rule


@pytest.mark.parametrize("change", [change for change, _ in CHANGES])
def test_what_a_mover_keeps_of_a_pod_says_the_same(
    cluster: Cluster, change: Callable[[dict[str, Any]], None]
) -> None:
    answer = cluster.pod("notebook-0")
    answer["metadata"]["annotations"] |= {CHECKPOINT: "60", "other": "x" * 1000}
    change(answer)
    whole = PODS.decode(json.dumps(answer).encode())
    trimmed = kept_owned(whole, CHECKPOINT)
    assert trimmed is not None
    reads: tuple[Callable[[Pod], object], ...] = (
        *(controller_of, group_of, demands_of, priority_of, has_ended),
        *(_is_bound_by_more, lambda pod: pod.spec and pod.spec.node_name),
        *(lambda pod: pod.metadata and pod.metadata.labels, lambda pod: pod.status),
    )
    for decoded in reads:
        assert decoded(trimmed) == decoded(whole)
    assert trimmed.metadata
    assert trimmed.metadata.annotations == {CHECKPOINT: "60"}


def test_of_a_pod_of_very_much_a_mover_keeps_nothing(cluster: Cluster) -> None:
    trimmed = cluster.pod("notebook-0")
    trimmed["metadata"]["labels"] |= {f"l{at}": "" for at in range(100)}
    assert kept_owned(PODS.decode(json.dumps(trimmed).encode()), CHECKPOINT) is None


@pytest.mark.parametrize(
    ("budgets", "rule"),
    [
        ([], "NO_BUDGET"),
        ([budget("team-b", 1)], "NO_BUDGET"),
        ([budget("team-a", 1, app="other")], "NO_BUDGET"),
        ([budget("team-a", 0)], "SPENT"),
        ([budget("team-a", 1), budget("team-a", 1, app="notebook")], "BUDGETS"),
        (None, "NO_BUDGET"),
    ],
)
def test_a_pod_is_moved_only_if_a_budget_allows_it(
    cluster: Cluster, defrag: Answer, budgets: list[dict[str, Any]] | None, rule: str
) -> None:
    cluster.budgets = budgets
    answer = document(defrag, "--for", "2x60GiB", code=1)
    assert reasons(answer)["notebook-0"] == rule
    is_moved = any("PodDisruptionBudgets are not known" in note for note in answer["notes"])
    assert is_moved == (budgets is None)


def test_a_namespace_consents_for_its_pods_that_do_not_say_otherwise(
    cluster: Cluster, defrag: Answer
) -> None:
    for name in ("notebook-0", "embed-7f9c-x"):
        _without_label(cluster.pod(name))
    label = {"gpushare.io/movable": "true"}
    cluster.namespaces = [{"metadata": {"name": "team-a", "labels": label}}]
    assert len(document(defrag, "--for", "2x60GiB")["plan"]["moves"]) == 2
    _opted_out(cluster.pod("notebook-0"))
    assert reasons(document(defrag, "--for", "2x60GiB", code=1))["notebook-0"] == "CONSENT"
    cluster.namespaces = None
    answer = document(defrag, "--for", "2x60GiB", code=1)
    assert any("labels of namespaces are not known" in note for note in answer["notes"])


def test_the_place_is_where_the_pod_that_waits_may_run(cluster: Cluster, defrag: Answer) -> None:
    for item in cluster.nodes:
        item["metadata"]["labels"] = {"zone": item["metadata"]["name"]}
    cluster.pod("late-0")["spec"]["nodeSelector"] = {"zone": "gpu-1"}
    assert document(defrag, "--for", "pod", "team-a/late-0")["plan"]["node"] == "gpu-1"
    cluster.pod("late-0")["spec"]["nodeSelector"] = {"zone": "gpu-2"}
    answer = document(defrag, "--for", "pod", "team-a/late-0", code=1)
    assert {item["node"] for item in answer["stays"]} == {"gpu-2"}


def test_a_pod_of_higher_priority_has_others_of_its_own_moved(
    cluster: Cluster, defrag: Answer
) -> None:
    _important(cluster.pod("notebook-0"))
    assert document(defrag, "--for", "2x60GiB", "--priority", "1")["plan"]
    cluster.pod("late-0")["spec"]["priority"] = 1
    assert document(defrag, "--for", "pod", "team-a/late-0")["plan"]


def test_the_host_counts(cluster: Cluster, defrag: Answer) -> None:
    cluster.pod("embed-7f9c-x")["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4"}
    assert document(defrag, "--for", "2x60GiB,cpu=8")["plan"]
    answer = document(defrag, "--for", "2x60GiB,cpu=9", code=1)
    assert answer["plan"] is None


def test_a_saved_report_names_who_may_move(
    cluster: Cluster, defrag: Answer, inspect: Inspect, tmp_path: Path
) -> None:
    pods = deepcopy(cluster.pods)
    cluster.kubectl.cluster(cluster.nodes, pods)
    file = tmp_path / "saved.json"
    file.write_text(inspect("-o", "json")[1])
    words = ["--snapshot", str(file), "--for", "pod", "team-a/late-0"]
    answer = document(defrag, *words, "--movable", "team-a/*")
    assert [move["name"] for move in answer["plan"]["moves"]] == ["embed-7f9c-x", "notebook-0"]
    assert answer["plan"]["lostUnitSeconds"] is None
    answer = document(defrag, *words, "--movable", "team-a/note*", code=1)
    assert reasons(answer)["embed-7f9c-x"] == "CONSENT"
    code, _, err = defrag(*words)
    assert code == 2
    assert "--movable" in err


def test_a_cluster_that_could_never_have_it_is_said_to_be_one(defrag: Answer) -> None:
    code, out, _ = defrag("--for", "3x60GiB")
    assert code == 1
    assert "no node has devices for 3 x 60 GiB" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--for", "many"], "'many': write 2x40GiB"),
        (["--for", "pod"], "write 2x40GiB"),
        (["--for", "2x40GiB", "x"], "write 2x40GiB"),
        (["--for", "0x40GiB"], "from 1 to"),
        (["--for", "2x0GiB"], "is no number of units"),
        (["--for", "2x40GiB,gpu=1"], "'gpu' is not one of cpu="),
        (["--for", "2x40GiB,cpu=1,cpu=2"], "something twice"),
        (["--for", "2x40GiB,cpu=x"], "cpu"),
        (["--for", "2x40GiB,cores=101"], "cores=101 is not from 0 to 100"),
        (["--for", "2x40GiB", "--moves", "0"], "--moves: 0 is not from 1 to 8"),
        (["--for", "2x40GiB", "--policy", "nope"], "nope"),
        (["--for", "2x40GiB", "--movable", "x"], "goes with --snapshot"),
        (["--for", "2x40GiB", "--unit", "bytes"], "unit"),
        (["--for", "pod", "team-a/nobody"], "no pod team-a/nobody waits"),
        (["--for", "pod", "team-a/notebook-0"], "no pod team-a/notebook-0 waits"),
        (["--for", "pod", "Team/x"], "is no name of a namespace"),
        (["--for", "pod", "team-a/late-0", "--priority", "3"], "goes with a size"),
        (["--for", "2x40GiB", "--snapshot", "/nowhere", "--movable", "*"], "/nowhere"),
        (["--moves", "2"], "--for"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(defrag: Answer, words: list[str], text: str) -> None:
    code, out, err = defrag(*words)
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.splitlines()) == 1 + err.count("See '")


def test_a_cluster_that_does_not_answer_ends_with_2(kubectl: FakeKubectl, capsys: Capsys) -> None:
    kubectl.otherwise("echo 'Unable to connect to the server: no' >&2; exit 1")
    assert main(["--for", "2x40GiB"]) == 2
    assert capsys.readouterr().err == ("gpushare defrag: Unable to connect to the server: no\n")


def test_yaml_says_the_same(defrag: Answer) -> None:
    code, out, _ = defrag("--for", "2x60GiB", "-o", "yaml")
    assert code == 0
    assert "kind: GPUShareDefragPlan" in out


def test_cores_count(cluster: Cluster, defrag: Answer) -> None:
    for name in ("notebook-0", "embed-7f9c-x"):
        limits = cluster.pod(name)["spec"]["containers"][0]["resources"]["limits"]
        assert MEM in limits
        limits["aliyun.com/gpu-core.percentage"] = 60
    assert document(defrag, "--for", "45GiB,cores=40")["plan"]["moves"] == []
    assert len(document(defrag, "--for", "45GiB,cores=50")["plan"]["moves"]) == 1
