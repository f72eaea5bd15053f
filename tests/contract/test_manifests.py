"""The manifests are what Kubernetes takes, and ask for no more rights and privileges than needed:
each is listed here.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no annotations
import pytest
import yaml

from gpushare import __version__
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.kept import LEASE, MOVES
from gpushare.wire.objects import PODS
from gpushare.wire.pods import request_of
from gpushare.wire.quantity import to_bytes
from gpushare.wire.scheduler.entry import our_entry
from tests.contract.manifests import (
    FOLDERS,
    ROOT,
    STATIC_PODS,
    check_schema,
    container,
    one,
    rendered,
    rights,
    scheduler_file,
    second_pod,
    static_pod,
)

Json = dict[str, Any]

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to render with"),
]

SHIPPED = ROOT / "config" / "scheduler" / "kube-scheduler.yaml"
RBAC = "rbac.authorization.k8s.io"
ACCOUNT = {"kind": "ServiceAccount", "name": "gpushare-extender", "namespace": "kube-system"}
USER = {"apiGroup": RBAC, "kind": "User", "name": "gpushare-extender"}

LEASES = "coordination.k8s.io"
VIEWER = "gpushare-viewer"
SIZE_APIS = (
    ("podgroups", "scheduling.k8s.io"),
    ("podgroups", "scheduling.x-k8s.io"),
    ("podgroups", "scheduling.volcano.sh"),
    ("leaderworkersets", "leaderworkerset.x-k8s.io"),
    ("jobsets", "jobset.x-k8s.io"),
)
READS = {
    ("", "", "nodes", "list", ""),
    ("", "", "nodes", "watch", ""),
    ("", "", "nodes", "patch", ""),
    ("", "", "pods", "get", ""),
    ("", "", "pods", "list", ""),
    ("", "", "pods", "watch", ""),
    ("", "policy", "poddisruptionbudgets", "list", ""),
    ("", "policy", "poddisruptionbudgets", "watch", ""),
    ("kube-system", "", "configmaps", "list", ""),
    ("kube-system", "", "configmaps", "watch", ""),
    *(("", group, kind, verb, "") for kind, group in SIZE_APIS for verb in ("list", "watch")),
}
WRITES = {
    ("", "", "pods/binding", "create", ""),
    ("", "events.k8s.io", "events", "create", ""),
    ("", "events.k8s.io", "events", "patch", ""),
}
OWN_LEASE = {
    ("kube-system", LEASES, "leases", "get", LEASE),
    ("kube-system", LEASES, "leases", "update", LEASE),
    ("kube-system", LEASES, "leases", "create", ""),
}
SCHEDULERS_LEASE = {("kube-system", LEASES, "leases", "get", "kube-scheduler")}
CLAIMS_READ = ("resourceslices", "resourceclaims", "deviceclasses", "devicetaintrules")
SECOND_LEASE = {
    ("kube-system", LEASES, "leases", "get", "gpushare-scheduler"),
    ("kube-system", LEASES, "leases", "update", "gpushare-scheduler"),
    ("kube-system", LEASES, "leases", "create", ""),
}
TO_MOVE = {
    ("", "", "namespaces", "list", ""),
    ("", "policy", "poddisruptionbudgets", "list", ""),
    ("", "", "pods/eviction", "create", ""),
    ("kube-system", "", "configmaps", "get", MOVES),
    ("kube-system", "", "configmaps", "update", MOVES),
    ("kube-system", "", "configmaps", "create", ""),
}
TO_ANSWER_KUEUE = {
    *(
        ("", "kueue.x-k8s.io", of, verb, "")
        for of in ("workloads", "admissionchecks", "resourceflavors")
        for verb in ("list", "watch")
    ),
    *(
        ("", "kueue.x-k8s.io", f"{of}/status", "patch", "")
        for of in ("workloads", "admissionchecks")
    ),
}
CLAIMS = {
    ("", "resource.k8s.io", of, verb, "") for of in CLAIMS_READ for verb in ("get", "list", "watch")
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_rendered_document_fits_the_schema_of_kubernetes(folder: str) -> None:
    documents = rendered(folder)
    assert documents
    for document in documents:
        check_schema(document)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)


def test_a_key_that_does_not_exist_does_not_pass() -> None:
    account = one("base", "ServiceAccount", "gpushare-extender")
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schema({**account, "automountToken": True})


@pytest.mark.parametrize("file", sorted(STATIC_PODS.iterdir()), ids=lambda file: file.name)
def test_every_static_pod_fits_the_schema_of_kubernetes(file: Path) -> None:
    pod = yaml.safe_load(file.read_text())
    check_schema(pod)
    assert pod["kind"] == "Pod"
    # The kubelet refuses a static pod that names other objects of the API.
    assert "serviceAccountName" not in pod["spec"]
    assert {next(iter(v.keys() - {"name"})) for v in pod["spec"]["volumes"]} <= {
        "hostPath",
        "emptyDir",
    }


# -- rights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "account", "expected"),
    [
        ("base", ACCOUNT, READS | WRITES | OWN_LEASE),
        ("second-scheduler", ACCOUNT, READS | WRITES | OWN_LEASE | SECOND_LEASE),
        ("existing-scheduler", USER, READS | WRITES | SCHEDULERS_LEASE),
        ("claims", ACCOUNT, CLAIMS),
        (
            "second-scheduler-claims",
            ACCOUNT,
            READS | WRITES | OWN_LEASE | SECOND_LEASE | CLAIMS,
        ),
        ("kueue", ACCOUNT, TO_ANSWER_KUEUE),
        ("moves", ACCOUNT, TO_MOVE),
    ],
)
def test_the_rights_are_these_and_no_other(folder: str, account: Json, expected: set[Any]) -> None:
    assert set(rights(folder, account)) == expected


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_gives_a_right_to_change_pods_or_to_everything(folder: str) -> None:
    for document in rendered(folder):
        for rule in document.get("rules", ()):
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert "*" not in words
            assert "pods" not in rule["resources"] or set(rule["verbs"]) <= {"get", "list", "watch"}
            assert not words & {"bindings", "pods/status", "escalate", "impersonate", "secrets"}


def test_every_binding_is_of_a_role_that_is_there_and_of_one_account() -> None:
    values = {
        "system:kube-scheduler",
        "system:volume-scheduler",
        "extension-apiserver-authentication-reader",
    }
    accounts = dict.fromkeys(("second-scheduler-claims", "claims", "kueue", "moves"), ACCOUNT)
    accounts["existing-scheduler"] = USER
    for folder, account in accounts.items():
        roles = {d["metadata"]["name"] for d in rendered(folder) if "rules" in d} - {VIEWER}
        bindings = [d for d in rendered(folder) if "subjects" in d]
        assert {b["roleRef"]["name"] for b in bindings} - values == roles
        assert all(b["subjects"] == [account] for b in bindings)
    kinds = {document["kind"] for document in rendered("existing-scheduler")}
    assert "ServiceAccount" not in kinds  # the user of the certificate is no account


def test_a_viewer_may_read_what_the_commands_read_and_nothing_else() -> None:
    role = one("base", "ClusterRole", VIEWER)
    assert role["metadata"]["labels"][f"{RBAC}/aggregate-to-view"] == "true"
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {of for rule in role["rules"] for of in rule["resources"]} == {
        *("nodes", "pods", "namespaces", "poddisruptionbudgets", "priorityclasses"),
        *("resourceclaimtemplates", *CLAIMS_READ),
    }
    # Binding the role is the decision of whoever runs the cluster.
    assert [d for d in rendered("base") if d.get("roleRef", {}).get("name") == VIEWER] == []


def test_the_chart_has_the_same_role_of_viewers() -> None:
    text = (ROOT / "config" / "helm" / "gpushare" / "templates" / "rights.yaml").read_text()
    (part,) = (part for part in text.split("\n---\n") if f"name: {VIEWER}" in part)
    plain = "\n".join(line for line in part.splitlines() if "{{" not in line)
    of_chart, role = yaml.safe_load(plain), one("base", "ClusterRole", VIEWER)
    assert of_chart["rules"] == role["rules"]
    assert of_chart["metadata"]["labels"].items() <= role["metadata"]["labels"].items()


# -- pods -----------------------------------------------------------------------------------------


def all_pods() -> list[tuple[str, Json]]:
    names = ("gpushare-extender", "kube-scheduler")
    return [("second", second_pod()), *((name, static_pod(name)) for name in names)]


def test_our_pods_are_placed_while_no_extender_answers() -> None:
    shipped = scheduler_file(SHIPPED)
    resources = {resource.name for resource in our_entry(shipped, None).managed_resources}
    assert resources
    for name, pod in all_pods():
        meta = {"name": "x", "namespace": "kube-system", "uid": "u", **pod.get("metadata", {})}
        decoded = PODS.decode(json.dumps({**pod, "metadata": meta}).encode())
        assert request_of(decoded, ALIYUN).units == 0, name
        for part in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            request = part["resources"]
            # kube-scheduler asks about the names alone, whatever the amount.
            assert not resources & {*request.get("requests", ()), *request.get("limits", ())}, name
        assert "schedulerName" not in pod["spec"], name


@pytest.mark.parametrize("pod", [second_pod, lambda: static_pod("gpushare-extender")])
def test_the_extender_may_not_take_the_memory_of_its_node(pod: Any) -> None:
    """Beside it run kube-scheduler, and on a control plane etcd and kube-apiserver."""
    resources = container(pod(), "gpushare")["resources"]
    assert resources["limits"] == {"memory": "1Gi"}
    request, maximum = (to_bytes(resources[of]["memory"]) for of in ("requests", "limits"))
    assert request <= maximum
    assert maximum >= 2 * 400 * 2**20  # 400 MiB: measured, see docs/decisions/bind.md


def test_the_second_scheduler_is_placed_where_its_images_run() -> None:
    # Windows nodes of managed clusters have no taint.
    assert second_pod()["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_an_autoscaler_may_take_the_second_schedulers_node_away() -> None:
    # It spares pods of kube-system without a budget, and pods with an emptyDir, that do not say so.
    annotations = second_pod()["metadata"]["annotations"]
    assert annotations == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}


def test_the_second_scheduler_is_one_and_never_two_at_once() -> None:
    deployment = one("second-scheduler", "Deployment", "gpushare-scheduler")
    spec = deployment["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    kinds = {document["kind"] for folder in FOLDERS for document in rendered(folder)}
    assert "PodDisruptionBudget" not in kinds  # it would hold up every drain of the node


def restricted(pod: Json, name: str) -> None:
    """Fail unless the container keeps the Pod Security Standard `restricted`."""
    whole, context = pod["spec"]["securityContext"], container(pod, name)["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] > 0
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"] is True  # this one beyond the standard
    assert not {"privileged", "runAsNonRoot", "runAsUser", "seccompProfile"} & context.keys()


def test_the_pods_keep_the_restricted_standard() -> None:
    pod = second_pod()
    for part in ("kube-scheduler", "gpushare"):
        restricted(pod, part)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
    kinds = {next(iter(volume.keys() - {"name"})) for volume in pod["spec"]["volumes"]}
    assert kinds == {"configMap", "emptyDir"}
    # The static pod needs the host's network and a folder of it, and nothing else of what
    # `restricted` forbids.
    restricted(static_pod("gpushare-extender"), "gpushare")


@pytest.mark.parametrize("pod", [second_pod, lambda: static_pod("gpushare-extender")])
def test_the_extender_can_write_in_tmp_alone(pod: Any) -> None:
    mounts = container(pod(), "gpushare")["volumeMounts"]
    assert [m["mountPath"] for m in mounts if not m.get("readOnly")] == ["/tmp"]  # noqa: S108 -- a path in a pod


def test_the_user_is_the_one_of_the_image() -> None:
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    for pod in (second_pod(), static_pod("gpushare-extender")):
        context = pod["spec"]["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))


def test_a_build_pulls_one_image_which_can_be_a_mirrors() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)", text, re.MULTILINE)
    assert re.search(r":\d+\.\d+\.\d+-", base)
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    stage_names = {name for _, name in stages}
    # `scratch` is empty, and pulled from nowhere.
    assert {origin for origin, _ in stages} - stage_names - {"scratch"} == {"${BASE}"}
    assert len(stages) == len(re.findall(r"^FROM ", text, re.MULTILINE))
    # That line would have the builder pull docker/dockerfile from Docker Hub, whatever BASE is.
    assert not re.search(r"^#\s*syntax\s*=", text, re.MULTILINE)


def test_every_image_is_pinned_and_ours_is_of_this_version() -> None:
    for name, pod in all_pods():
        for part in pod["spec"]["containers"]:
            image, _, tag = part["image"].rpartition(":")
            assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), name
            assert image in ("gpushare", "registry.k8s.io/kube-scheduler")
            assert image != "gpushare" or tag == __version__
            assert part["imagePullPolicy"] == "IfNotPresent"


def test_the_image_imports_nothing_from_where_others_may_write() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^WORKDIR (.*)$", text, re.MULTILINE)[-1] == "/"
    assert "PYTHONSAFEPATH=1" in text


def test_the_image_is_built_with_what_is_locked_alone() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    fetching = [line for line in text.splitlines() if re.search(r"\bpip .*install|pip wheel", line)]
    assert len(fetching) >= 3
    for line in fetching:
        assert "--require-hashes" in line or "--no-deps" in line, line
    assert "--no-build-isolation" in text
    for line in (ROOT / "requirements-build.in").read_text().split():
        assert re.search(rf"^{line}==.*", (ROOT / "requirements-build.lock").read_text(), re.M)
