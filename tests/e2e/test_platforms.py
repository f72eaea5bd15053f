"""The chart's presets: the device plug-in's pod fits the nodes of each platform."""

import json
import subprocess
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]  # it has no annotations
import pytest
import yaml

from tests.e2e.binaries import needed
from tests.e2e.chart import CHART, ROOT, Json, call, rendered, template
from tests.e2e.conftest import MakePlane
from tests.e2e.plane import ADMIN

PRESETS: dict[str, Json] = yaml.safe_load((CHART / "platforms.yaml").read_text())
ENABLED = ("devicePlugin.enabled=true", "wiring=existing-scheduler")
DEFAULT_CONTEXT = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def daemon_set(*values: str, more: tuple[str, ...] = ()) -> Json:
    (result,) = (
        item for item in rendered(*ENABLED, *values, more=more) if item["kind"] == "DaemonSet"
    )
    return dict(result)


def pod_spec(*values: str, more: tuple[str, ...] = ()) -> Json:
    return dict(daemon_set(*values, more=more)["spec"]["template"]["spec"])


def folders(spec: Json) -> dict[str, str]:
    """The folders of the node that the pod sees, by the path in its container."""
    of = {item["name"]: item["hostPath"]["path"] for item in spec["volumes"] if "hostPath" in item}
    mounts = spec["containers"][0]["volumeMounts"]
    return {item["mountPath"]: of[item["name"]] for item in mounts if item["name"] in of}


def test_the_schema_and_the_page_have_the_platforms_that_there_are() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]["platform"]["enum"]) == {"", *PRESETS}
    page = (ROOT / "docs" / "platforms.md").read_text()
    table = page.partition("## Presets of the chart\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [name.strip(" `") for row in rows for name in row.split(",")]
    assert sorted(names) == sorted(["platform", *PRESETS])
    finished = template(*ENABLED, "platform=windows")
    assert finished.returncode != 0
    assert "platform" in finished.stderr


@pytest.mark.parametrize("platform", PRESETS)
def test_a_preset_fits_the_schema_and_sees_the_folders_that_are_there(platform: str) -> None:
    documents = rendered(*ENABLED, f"platform={platform}")
    for document in documents:
        if document["kind"] != "SecurityContextConstraints":
            kubernetes_validate.validate(document, "1.37", strict=True)
    preset = PRESETS[platform]
    spec = pod_spec(f"platform={platform}")
    assert spec.get("runtimeClassName", "") == preset.get("runtimeClassName", "")
    kubelet = preset.get("kubeletFolder", "/var/lib/kubelet")
    expected = {
        # A constant of the kubelet, independent of --root-dir.
        "/var/lib/kubelet/device-plugins": "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources": f"{kubelet}/pod-resources",
        "/var/lib/kubelet/pods-api": f"{kubelet}/pods-api",
        "/var/run/nvidia-container-devices/all": "/dev/null",
        "/var/run/cdi": "/var/run/cdi",
        "/etc/nvidia-container-runtime": preset.get("toolkitFolder"),
        "/usr/local/nvidia": preset.get("driverFolder"),
    }
    assert folders(spec) == {inside: path for inside, path in expected.items() if path}
    context = spec["containers"][0]["securityContext"]
    assert context.pop("seLinuxOptions", None) == preset.get("seLinuxOptions")
    assert context == preset.get("securityContext", DEFAULT_CONTEXT)


def test_without_a_platform_it_is_as_with_kubeadm() -> None:
    assert rendered(*ENABLED) == rendered(*ENABLED, "platform=kubeadm")


def test_a_value_of_ones_own_wins_over_the_preset() -> None:
    values = ("devicePlugin.kubeletFolder=/data/kubelet", "devicePlugin.runtimeClassName=other")
    spec = pod_spec("platform=k0s", *values)
    assert folders(spec)["/var/lib/kubelet/pod-resources"] == "/data/kubelet/pod-resources"
    assert spec["runtimeClassName"] == "other"


def constraints(*values: str) -> list[Json]:
    return [
        item for item in rendered(*ENABLED, *values) if item["kind"] == "SecurityContextConstraints"
    ]


def test_openshift_lets_the_pod_have_what_it_asks_for_and_no_more() -> None:
    assert constraints() == []
    assert [item for item in rendered("platform=openshift") if item["kind"][:8] == "Security"] == []
    (scc,) = constraints("platform=openshift")
    assert scc["users"] == ["system:serviceaccount:kube-system:gpushare-device-plugin"]
    spec = pod_spec("platform=openshift")
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {*scc["volumes"]}
    assert scc["allowHostDirVolumePlugin"]
    denied = ("IPC", "Network", "Ports", "PID")
    assert not any(scc[f"allowHost{item}"] for item in denied)
    assert not scc["allowPrivilegedContainer"]
    assert not scc["allowPrivilegeEscalation"]
    assert scc["requiredDropCapabilities"] == ["ALL"]
    privileged = ("platform=openshift", "devicePlugin.securityContext.privileged=true")
    (scc,) = constraints(*privileged, "devicePlugin.readMemory=true")
    assert scc["allowPrivilegedContainer"]
    assert scc["requiredDropCapabilities"] == []
    assert scc["allowHostPID"]


def test_what_pods_of_clusters_differ_in_is_a_value(tmp_path: Path) -> None:
    more = {
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "podLabels": {"team": "ml"},
        "podAnnotations": {"sidecar.istio.io/inject": "false"},
        "updateStrategy": {"type": "OnDelete"},
        "cdiFolder": "",
    }
    place = {
        "podLabels": {"team": "ml"},
        "podAnnotations": {"note": "x"},
        "priorityClassName": "mine",
    }
    file = tmp_path / "values.json"
    file.write_text(json.dumps({"devicePlugin": {**more, "enabled": True}, "scheduler": place}))
    created = {item["kind"]: item for item in rendered(more=("--values", str(file)))}
    plugin, scheduler = created["DaemonSet"], created["Deployment"]
    template, spec = plugin["spec"]["template"], plugin["spec"]["template"]["spec"]
    assert template["metadata"]["labels"] == {"app": "gpushare-device-plugin", "team": "ml"}
    assert template["metadata"]["annotations"] == more["podAnnotations"]
    assert more["env"][0] in spec["containers"][0]["env"]  # type: ignore[index]
    assert spec["volumes"][-1] == more["volumes"][0]  # type: ignore[index]
    assert spec["containers"][0]["volumeMounts"][-1] == more["volumeMounts"][0]  # type: ignore[index]
    assert plugin["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "/var/run/cdi" not in folders(spec)
    template = scheduler["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "ml"
    assert template["metadata"]["annotations"]["note"] == "x"
    assert template["spec"]["priorityClassName"] == "mine"
    for document in created.values():
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_tenants_are_told_of_the_runtime_class() -> None:
    def told(*values: str) -> str:
        settings = [part for value in (*ENABLED, *values) for part in ("--set", value)]
        path = ("--namespace", "kube-system", "--dry-run=client")
        finished = call("install", "gpushare", CHART, *path, *settings)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.partition("NOTES:")[2]

    assert "runtimeClassName" not in told()
    assert "`runtimeClassName: nvidia`" in told("platform=k3s")


def test_a_real_api_server_takes_each_preset(make_plane: MakePlane) -> None:
    plane = make_plane("--allow-privileged=true")
    command: list[str | Path] = [needed("kubectl"), "--kubeconfig", plane.kubeconfig(ADMIN)]
    for platform in PRESETS:
        documents = [
            item
            for item in rendered(*ENABLED, f"platform={platform}")
            if item["kind"] != "SecurityContextConstraints"
        ]
        text = yaml.safe_dump_all(documents)
        finished = subprocess.run(
            [*command, "apply", "--dry-run=server", "--validate=strict", "-f", "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert finished.returncode == 0, (platform, finished.stderr)
        assert "daemonset.apps/gpushare-device-plugin created (server dry run)" in finished.stdout
