"""The Helm chart renders the same as the kustomize bases, for every supported Kubernetes."""

import copy
import functools
import json
import subprocess
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]  # it has no annotations
import pytest
import yaml

from gpushare import __version__
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.chart import CHART, ROOT, Json, call, rendered, template
from tests.e2e.conftest import MakePair, MakePlane
from tests.e2e.pair import moved
from tests.e2e.plane import ADMIN
from tests.e2e.test_installed import OURS, no_right_was_missed, placed, second_scheduler

CONFIG = ROOT / "config"
DEVICE_PLUGIN = ("devicePlugin.enabled=true", "wiring=existing-scheduler")
POLICIES = {
    "placements": (
        CONFIG / "extender" / "placements",
        ("bindings", "edits", "new-pods", "static-pods"),
    ),
    "device-plugin": (CONFIG / "device-plugin", ("own-node", "variables")),
    "claims": (CONFIG / "extender" / "claims", ("device-class", "rights", "scheduler-name")),
    "scheduler-name": (CONFIG / "extender" / "admission", ("policy",)),
    "mistakes": (CONFIG / "extender" / "mistakes", ("policy",)),
}
CLAIMS = ("extender.claims.driver=gpu.nvidia.com",)
_OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")
_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/component")
_TO_VIEW = "rbac.authorization.k8s.io/aggregate-to-view"


@functools.cache
def kustomized(folder: str) -> list[Json]:
    command: list[str | Path] = [needed("kubectl"), "kustomize", CONFIG / folder]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return list(yaml.safe_load_all(finished.stdout))


def compared(documents: list[Json]) -> dict[tuple[str, str], Json]:
    """Documents by kind and name, without the labels and name hashes that a tool adds."""
    result = {}
    for document in copy.deepcopy(documents):
        metadata = document["metadata"]
        labels = metadata.pop("labels", {})
        assert labels["app.kubernetes.io/name"] == "gpushare"
        if _TO_VIEW in labels:
            metadata["labels"] = {_TO_VIEW: labels.pop(_TO_VIEW)}
        assert labels.keys() <= {*_OF_HELM, *_LABELS}
        if document["kind"] == "ConfigMap":
            metadata["name"] = metadata["name"].rpartition("-")[0] or metadata["name"]
            text = document["data"].pop("kube-scheduler.yaml")
            document["data"] = yaml.safe_load(text)
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]
            pod["metadata"]["annotations"].pop("checksum/config", None)
            for volume in (item for item in pod["spec"]["volumes"] if "configMap" in item):
                volume["configMap"]["name"] = "gpushare-scheduler-config"
        result[document["kind"], metadata["name"]] = document
    assert len(result) == len(documents)
    return result


def named(documents: list[Json]) -> list[Json]:
    """The same, the ConfigMap's name as kustomize makes it."""
    for document in documents:
        if document["kind"] == "ConfigMap":
            document["metadata"]["name"] += "-hash"
    return documents


@pytest.mark.parametrize(
    ("folder", "values"),
    [
        ("extender/second-scheduler", ()),
        ("extender/existing-scheduler", ("wiring=existing-scheduler",)),
    ],
)
def test_the_chart_gives_what_the_base_gives(folder: str, values: tuple[str, ...]) -> None:
    assert compared(named(rendered(*values))) == compared(kustomized(folder))


def test_the_chart_gives_the_device_plug_in_of_the_base() -> None:
    base = compared(kustomized("device-plugin"))
    workload = {key: item for key, item in base.items() if "Admission" not in key[0]}
    rights = compared(rendered("wiring=existing-scheduler"))
    our_value = compared(rendered(*DEVICE_PLUGIN))
    assert {key: item for key, item in our_value.items() if key not in rights} == workload


@pytest.mark.parametrize("kind", POLICIES)
def test_the_policies_are_the_files_of_the_bases(kind: str) -> None:
    folder, names = POLICIES[kind]
    files = sorted((CHART / "policies" / kind).iterdir())
    assert [file.stem for file in files] == sorted(names)
    for file in files:
        assert file.read_bytes() == (folder / file.name).read_bytes(), f"copy {file.name} anew"


def test_the_device_plug_in_may_have_an_image_of_its_own() -> None:
    def images(*values: str) -> set[str]:
        documents = rendered("devicePlugin.enabled=true", "image.tag=v1", *values)
        pods = [
            item["spec"]["template"]["spec"]
            for item in documents
            if "template" in item.get("spec", {})
        ]
        return {c["image"] for pod in pods for c in pod["containers"] if "kube" not in c["name"]}

    assert images() == {"gpushare:v1"}
    own_value = ("devicePlugin.image.repository=r.example:5000/dp",)
    assert images(*own_value) == {"gpushare:v1", "r.example:5000/dp:v1"}
    both = images(*own_value, "devicePlugin.image.tag=v3")
    assert both == {"gpushare:v1", "r.example:5000/dp:v3"}


def test_each_policy_comes_with_its_value() -> None:
    def policies(*values: str) -> set[str]:
        return {
            item["metadata"]["name"]
            for item in rendered(*values)
            if item["kind"] == "ValidatingAdmissionPolicy"
        }

    assert policies() == set()
    placements = {f"gpushare-{name}" for name in ("bindings", "edits", "new-pods", "static-pods")}
    assert policies("policies.placements=true") == placements
    of_the_plugin = {"gpushare-device-plugin", "gpushare-device-plugin-deletes"}
    both = policies("policies.placements=true", "devicePlugin.enabled=true")
    assert both == placements | of_the_plugin | {"gpushare-variables"}
    assert policies("policies.schedulerName=true") == {"gpushare-scheduler-name"}
    assert policies("policies.mistakes=true") == {"gpushare-mistakes"}


def documents(*values: str) -> dict[tuple[str, str], Json]:
    """By kind and name, without labels."""
    result = {}
    for item in rendered(*values):
        item["metadata"].pop("labels", None)
        result[item["kind"], item["metadata"]["name"]] = item
    return result


def test_claims_come_with_the_driver_as_the_base_has_them() -> None:
    created = rendered(*CLAIMS)
    for document in created:  # files of the base come without labels
        document["metadata"].setdefault("labels", {"app.kubernetes.io/name": "gpushare"})
    assert compared(named(created)) == compared(kustomized("extender/second-scheduler-claims"))


def test_claims_know_the_driver_and_the_account() -> None:
    created = documents("extender.claims.driver=gpu.example.com", "wiring=existing-scheduler")
    (selector,) = created["DeviceClass", "gpushare.io"]["spec"]["selectors"]
    assert selector["cel"]["expression"] == "device.driver == 'gpu.example.com'"
    subjects = created["ClusterRoleBinding", "gpushare-claims"]["subjects"]
    assert subjects == created["ClusterRoleBinding", "gpushare-extender"]["subjects"]
    assert [item["kind"] for item in subjects] == ["User"]


@pytest.mark.parametrize("minor", range(22, 38))
def test_every_document_fits_the_schema_of_every_supported_release(minor: int) -> None:
    values = ["devicePlugin.enabled=true", "networkPolicy.enabled=true"]
    if minor >= 30:
        values += [f"policies.{name}=true" for name in ("placements", "schedulerName", "mistakes")]
    if minor >= 36:
        values += CLAIMS
    documents = rendered(*values, version=f"1.{minor}.0")
    for document in documents:
        # The oldest available schemas; fields of 1.25 that we use existed in 1.22.
        kubernetes_validate.validate(document, f"1.{max(minor, 25)}", strict=True)
    (config,) = (item for item in documents if item["kind"] == "ConfigMap")
    (version,) = {22: {"v1beta2"}, 23: {"v1beta3"}, 24: {"v1beta3"}}.get(minor, {"v1"})
    text = yaml.safe_load(config["data"]["kube-scheduler.yaml"])
    assert text["apiVersion"] == f"kubescheduler.config.k8s.io/{version}"


def test_the_versions_are_those_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize(
    ("values", "version", "text"),
    [
        (
            ("scheduler.image.tag=v9.9.9",),
            "1.37.0",
            "not newer than the API server, which is v1.37",
        ),
        (("scheduler.image.tag=v1.34.0",), "1.33", "not newer than the API server, which is v1.33"),
        (("scheduler.image.tag=v1.21.0",), "1.33", "must be from 1.22 on"),
        (("wiring=third",), "1.37.0", "wiring"),
        (("extender.args={policy=binpack}",), "1.37.0", "/extender/args/0"),
        (("memoryUnit=GB",), "1.37.0", "memoryUnit"),
        (("replicas=2",), "1.37.0", "replicas"),
        (("policies.placements=true",), "1.29.4", "need Kubernetes 1.30, and this is v1.29.4"),
        (("policies.mistakes=true",), "1.29.4", "need Kubernetes 1.30, and this is v1.29.4"),
        (
            ("policies.schedulerName=true", "wiring=existing-scheduler"),
            "1.37.0",
            "second-scheduler",
        ),
        (CLAIMS, "1.35.2", "extender.claims.driver needs Kubernetes 1.36, and this is v1.35.2"),
        (("extender.claims.driver=Gpu",), "1.37.0", "/extender/claims/driver"),
        (("podMonitor.enabled=true",), "1.37.0", "needs the Prometheus operator's PodMonitor"),
        (("rules.enabled=true",), "1.37.0", "needs the Prometheus operator's PrometheusRule"),
        (("podMonitor.enabled=true", "serviceMonitor.enabled=true"), "1.37.0", "choose one"),
        (("dashboard.labels=x",), "1.37.0", "/dashboard/labels"),
        ((), "1.21.0", "kubeVersion: >=1.22.0-0"),
    ],
)
def test_what_cannot_work_is_refused_with_one_sentence(
    values: tuple[str, ...], version: str, text: str
) -> None:
    finished = template(*values, version=version)
    assert finished.returncode != 0
    assert text in finished.stderr
    assert not finished.stdout.strip()


@pytest.mark.parametrize("version", ["1.33", "1.33.0", "v1.33.0-gke.100", "v1.33.0+k3s1"])
def test_the_scheduler_is_of_the_api_servers_version(version: str) -> None:
    (deployment,) = (item for item in rendered(version=version) if item["kind"] == "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "registry.k8s.io/kube-scheduler:v1.33.0"


def test_what_clusters_differ_in_is_a_value(tmp_path: Path) -> None:
    taint = {"key": "gpu", "operator": "Exists"}
    near: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    place = {"tolerations": [taint], "affinity": near}
    limits = {"limits": {"memory": "1Gi"}}
    values = {
        "extender": {"podPolicies": "binpack,spread", "shadow": "fgd", "metricsDetail": "pods"},
        "scheduler": place,
        "devicePlugin": {
            **place,
            "enabled": True,
            "priorityClassName": "mine",
            "resources": limits,
        },
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    created = {item["kind"]: item for item in rendered(more=("--values", str(file)))}
    plugin = created["DaemonSet"]["spec"]["template"]["spec"]
    scheduler = created["Deployment"]["spec"]["template"]["spec"]
    for pod in (plugin, scheduler):
        assert taint in pod["tolerations"]
        assert any(item["key"] == "nvidia.com/gpu" for item in pod["tolerations"])
        assert pod["affinity"] == near
    assert plugin["priorityClassName"] == "mine"
    assert plugin["containers"][0]["resources"]["limits"] == limits["limits"]
    arguments = scheduler["containers"][1]["args"]
    text = {"--pod-policies=binpack,spread", "--shadow=fgd", "--metrics-detail=pods"}
    assert text <= {*arguments}


@pytest.mark.parametrize("wakes", [True, False])
@pytest.mark.parametrize("guards", [True, False])
def test_the_right_to_patch_nodes_is_there_for_what_uses_it(wakes: bool, guards: bool) -> None:
    words = {"wakesScheduler": wakes, "scaleDownGuard": guards}
    values = [f"extender.{key}={str(value).lower()}" for key, value in words.items()]
    created = rendered(*values)
    (role,) = (
        item
        for item in created
        if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", "gpushare-extender")
    )
    patches = any(
        "nodes" in rule["resources"] and "patch" in rule["verbs"] for rule in role["rules"]
    )
    assert patches == (guards or wakes)
    (deployment,) = (item for item in created if item["kind"] == "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][-1]["args"]
    assert ("--scale-down-guard" in arguments) == guards


def test_placeholders_have_rights_in_their_namespace_alone() -> None:
    def found(*values: str) -> list[Json]:
        return [
            item
            for item in rendered(*values)
            if item["metadata"]["name"] == "gpushare-extender-placeholders"
        ]

    assert found() == []
    created = found("extender.placeholders=asks")
    assert [(item["kind"], item["metadata"]["namespace"]) for item in created] == [
        ("Role", "asks"),
        ("RoleBinding", "asks"),
    ]
    assert [(rule["resources"], rule["verbs"]) for rule in created[0]["rules"]] == [
        (["pods"], ["create", "delete"]),
        (["pods/status"], ["patch"]),
    ]
    (deployment,) = (
        item for item in rendered("extender.placeholders=asks") if item["kind"] == "Deployment"
    )
    arguments = deployment["spec"]["template"]["spec"]["containers"][1]["args"]
    assert "--placeholders=asks" in arguments


@pytest.mark.parametrize(
    ("folder", "value", "argument", "kinds"),
    [
        (
            "moves",
            "extender.defragMovesPerHour=4",
            "--defrag-moves-per-hour=4",
            ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
        ),
        ("kueue", "extender.kueue.enabled=true", "--kueue", ["ClusterRole", "ClusterRoleBinding"]),
    ],
)
def test_further_rights_come_with_their_option_alone(
    folder: str, value: str, argument: str, kinds: list[str]
) -> None:
    def found(*values: str) -> list[Json]:
        name = f"gpushare-extender-{folder}"
        return [item for item in rendered(*values) if item["metadata"]["name"] == name]

    assert found() == []
    created = found(value)
    assert sorted(item["kind"] for item in created) == kinds
    shipped = [*yaml.safe_load_all((CONFIG / "extender" / folder / "rights.yaml").read_text())]
    rules = {item["kind"]: item["rules"] for item in shipped if "rules" in item}
    assert {item["kind"]: item["rules"] for item in created if "rules" in item} == rules
    (deployment,) = (item for item in rendered(value) if item["kind"] == "Deployment")
    assert argument in deployment["spec"]["template"]["spec"]["containers"][1]["args"]


def test_another_namespace_is_refused() -> None:
    assert "install it into kube-system" in template(namespace="default").stderr


def test_the_device_plugin_sees_processes_and_cgroups_of_its_node_where_it_is_to() -> None:
    def spec(*values: str) -> Json:
        (result,) = (
            item for item in rendered(*DEVICE_PLUGIN, *values) if item["kind"] == "DaemonSet"
        )
        return dict(result["spec"]["template"]["spec"])

    without, seeing = spec(), spec("devicePlugin.readMemory=true")
    assert seeing.pop("hostPID") is True
    host = {"path": "/sys/fs/cgroup", "type": "Directory"}
    assert seeing["volumes"].pop() == {"name": "cgroup", "hostPath": host}
    mount = {"name": "cgroup", "mountPath": "/sys/fs/cgroup", "readOnly": True}
    assert seeing["containers"][0]["volumeMounts"].pop() == mount
    assert seeing == without


def test_the_driver_guarantees_memory_where_that_is_wanted() -> None:
    def arguments(*values: str) -> list[str]:
        (result,) = (
            item for item in rendered(*DEVICE_PLUGIN, *values) if item["kind"] == "DaemonSet"
        )
        return list(result["spec"]["template"]["spec"]["containers"][0]["args"])

    expected = arguments("devicePlugin.driverGuarantee=true")
    expected.remove("--driver-guarantee")
    assert expected == arguments()
    assert template("devicePlugin.driverGuarantee=some").returncode


OPERATOR = ("--api-versions", "monitoring.coreos.com/v1")


def test_a_pod_monitor_selects_the_pods() -> None:
    values = ("podMonitor.enabled=true", "devicePlugin.enabled=true", "podMonitor.labels.team=ml")
    documents = rendered(*values, more=OPERATOR)
    monitors = [item for item in documents if item["kind"] == "PodMonitor"]
    pods = [item["spec"]["template"] for item in documents if "template" in item.get("spec", {})]
    assert len(monitors) == len(pods) == 2
    for monitor in monitors:
        assert monitor["metadata"]["labels"]["team"] == "ml"
        expected = monitor["spec"]["selector"]["matchLabels"].items()
        (pod,) = (item for item in pods if expected <= item["metadata"]["labels"].items())
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"]
        ports = [port["name"] for c in pod["spec"]["containers"] for port in c.get("ports", ())]
        assert endpoint["port"] in ports


def test_a_service_monitor_selects_services_that_select_the_pods() -> None:
    values = ("serviceMonitor.enabled=true", "devicePlugin.enabled=true")
    documents = rendered(*values, more=OPERATOR)
    monitors = [item for item in documents if item["kind"] == "ServiceMonitor"]
    services = [item for item in documents if item["kind"] == "Service"]
    pods = [item["spec"]["template"] for item in documents if "template" in item.get("spec", {})]
    assert len(monitors) == len(services) == len(pods) == 2
    for monitor in monitors:
        expected = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = (item for item in services if expected <= item["metadata"]["labels"].items())
        kubernetes_validate.validate(service, "1.37", strict=True)
        (port,) = service["spec"]["ports"]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["honorLabels"]
        assert endpoint["port"] == port["name"]
        chosen = service["spec"]["selector"].items()
        (pod,) = (item for item in pods if chosen <= item["metadata"]["labels"].items())
        ports = {
            item["name"]: item["containerPort"]
            for container in pod["spec"]["containers"]
            for item in container.get("ports", ())
        }
        assert ports[port["targetPort"]] == port["port"]


def test_rules_and_dashboard_are_the_files() -> None:
    values = ("rules.enabled=true", "rules.labels.team=ml", "dashboard.enabled=true")
    documents = rendered(*values, more=OPERATOR)
    (rule,) = (item for item in documents if item["kind"] == "PrometheusRule")
    assert rule["metadata"]["labels"]["team"] == "ml"
    assert rule["spec"] == yaml.safe_load((CHART / "monitoring" / "rules.yaml").read_text())
    (board,) = (item for item in documents if item["metadata"]["name"] == "gpushare-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    file = (CHART / "monitoring" / "dashboard.json").read_text()
    assert json.loads(board["data"]["gpushare.json"]) == json.loads(file)


def test_helm_lints_it_without_a_word() -> None:
    finished = call("lint", CHART, "--namespace", "kube-system", "--strict", "--quiet")
    assert (finished.returncode, finished.stdout.strip()) == (0, ""), finished.stderr


def test_what_it_installs_places_pods_and_is_changed_and_removed(
    make_plane: MakePlane, make_pair: MakePair
) -> None:
    plane = make_plane()  # helm takes over nothing that others have applied
    path = ("--namespace", "kube-system", "--kubeconfig", plane.kubeconfig(ADMIN))
    deployment = "/apis/apps/v1/namespaces/kube-system/deployments/gpushare-scheduler"

    def done(*arguments: str | Path) -> str:
        result = call(*arguments, *path)
        assert result.returncode == 0, result.stderr
        return result.stdout

    values = ["policies.placements=true", "devicePlugin.enabled=true"]
    if int(RELEASE.split(".")[1]) >= 36:
        values += CLAIMS
    policies = [part for value in values for part in ("--set", value)]
    message = done("install", "gpushare", CHART, *policies)
    assert "kubectl inspect gpushare" in message
    try:
        text, access, flags = second_scheduler(plane)
        objects, pair = plane.objects(), make_pair(moved(text), access, flags=flags)
        objects.node(devices=4, units=16)
        pair.start()
        placed(objects, 4, pair.told, schedulerName=OURS)
        no_right_was_missed(pair)
        pod = plane.api().get(deployment).body["spec"]["template"]
        before = pod["metadata"]["annotations"]["checksum/config"]
        done("upgrade", "gpushare", CHART, *policies, "--set", "extender.args={--policy=binpack}")
        pod = plane.api().get(deployment).body["spec"]["template"]
        assert pod["metadata"]["annotations"]["checksum/config"] == before
        assert "--policy=binpack" in pod["spec"]["containers"][1]["args"]
    finally:
        done("uninstall", "gpushare")
    assert plane.api().get(deployment).status == 404
