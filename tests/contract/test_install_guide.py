"""The pages on installation name existing files, and their examples work."""

import os
import re
import shutil
import stat
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.settings import read_settings
from gpushare.wire.annotations import ALIYUN
from tests.contract.admission import Call, refusals
from tests.contract.manifests import EXTENDER, ROOT, check_schema, container, scheduler_file
from tests.contract.test_admission_policy import rejected

Json = dict[str, Any]

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to render with"),
]

PAGES = ("install", "install-static-pods", "tenants", "original", "operate")
GUIDE = "\n".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
BLOCKS = [
    # Blocks within lists are indented.
    textwrap.dedent(block)
    for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
]
OVERLAY, REPLACED_FILE, IPV6, POD, QUOTA, REHEARSAL = (yaml.safe_load(block) for block in BLOCKS)


def rendered(folder: Path, overlay: Json) -> list[Json]:
    """The documents of the guide's kustomization, in a folder somewhere else."""
    clone = os.path.relpath(EXTENDER, folder)
    resources = [
        name.replace("../gpushare/config/extender", clone) for name in overlay["resources"]
    ]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**overlay, "resources": resources}))
    finished = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return list(yaml.safe_load_all(finished.stdout))


def of_kind(documents: list[Json], kind: str) -> Json:
    (result,) = (document for document in documents if document["kind"] == kind)
    return result


def test_the_kustomization_sets_both_images(tmp_path: Path) -> None:
    pod = of_kind(rendered(tmp_path, OVERLAY), "Deployment")["spec"]["template"]
    expected = {
        image["name"]: f"{image.get('newName', image['name'])}:{image['newTag']}"
        for image in OVERLAY["images"]
    }
    assert container(pod, "gpushare")["image"] == expected["gpushare"]
    assert container(pod, "kube-scheduler")["image"] == expected["registry.k8s.io/kube-scheduler"]


def test_where_there_is_only_ipv6_probes_are_answered_at_all_addresses(tmp_path: Path) -> None:
    pod = of_kind(rendered(tmp_path, {**OVERLAY, **IPV6}), "Deployment")["spec"]["template"]
    (command, *flags) = container(pod, "gpushare")["args"]
    assert command == "serve"
    settings = read_settings(flags, {}, lambda _policy: None)
    assert settings.health_listen == "[::]:32767"


def test_an_older_kube_scheduler_gets_a_file_of_its_version(tmp_path: Path) -> None:
    text = (EXTENDER / "second-scheduler" / "kube-scheduler.yaml").read_text()
    older = re.sub("k8s.io/v1$", "k8s.io/v1beta3", text, flags=re.MULTILINE)
    file = tmp_path / "kube-scheduler.yaml"
    file.write_text(older)
    assert scheduler_file(file).api_version.endswith("/v1beta3")
    assert scheduler_file(file).warnings == ()
    documents = rendered(tmp_path, {**OVERLAY, **REPLACED_FILE})
    generated = of_kind(documents, "ConfigMap")
    assert generated["data"] == {"kube-scheduler.yaml": older}
    volumes = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": generated["metadata"]["name"]} in [v.get("configMap") for v in volumes]


def test_the_pod_to_try_passes_the_policy_and_the_sample_is_refused() -> None:
    assert not rejected(POD["spec"])
    sample = yaml.safe_load((ROOT / "config" / "samples" / "one-device.yaml").read_text())
    assert rejected({"schedulerName": "default-scheduler", **sample["spec"]})


def test_the_pod_of_the_rehearsal_passes_the_policy_and_fits_the_node_of_the_page_alone() -> None:
    check_schema(REHEARSAL)
    spec = REHEARSAL["spec"]
    assert not rejected(spec)
    (taint,) = re.findall(r"kubectl taint node NODE (\S+)=\w+:NoSchedule", GUIDE)
    (label,) = re.findall(r"kubectl label node NODE (gpushare-\S+)", GUIDE)
    assert spec["tolerations"] == [{"key": taint, "operator": "Exists"}]
    assert [f"{key}={value}" for key, value in spec["nodeSelector"].items()] == [label]


def test_the_quota_is_what_kubernetes_takes() -> None:
    check_schema(QUOTA)
    names = (ALIYUN.resource, *(percent.resource for percent in ALIYUN.percents))
    assert [*QUOTA["spec"]["hard"]] == [f"requests.{name}" for name in names]


def test_the_pod_of_the_check_is_refused() -> None:
    (name,) = re.findall(r"--annotations=(\w+)=", GUIDE)
    pod = {"metadata": {"annotations": {name: "0"}}, "spec": {}}
    (message,) = refusals("placements", Call("CREATE", pod))
    assert f"`{message.partition(':')[0]}`" in GUIDE


def test_the_extenders_user_can_read_the_files_whatever_umask_root_has(tmp_path: Path) -> None:
    line = r"^ *((?:mkdir|cp|install) .*/etc/kubernetes/gpushare\b.*)"
    created = re.findall(line, GUIDE, re.MULTILINE)
    commands = "\n".join(["umask 077", *created]).replace("/etc/kubernetes", str(tmp_path))
    subprocess.run(["sh", "-ec", commands], cwd=ROOT, check=True, timeout=60)
    folder = tmp_path / "gpushare"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "kube-scheduler.yaml").stat().st_mode) == 0o644


def test_every_path_that_is_named_is_there() -> None:
    names = set(re.findall(r"(?<![\w/.-])config/[\w./+-]*[\w]", GUIDE))
    folders = ("second-scheduler", "admission", "existing-scheduler", "placements")
    assert {f"config/extender/{folder}" for folder in folders} <= names
    for path in names:
        assert (ROOT / path).exists(), path


def test_every_folder_that_is_applied_is_deleted_in_reverse() -> None:
    applied = re.findall(r"kubectl apply -k ([\w/-]+)", GUIDE)
    deleted = re.findall(r"kubectl delete -k ([\w/-]+)", GUIDE)
    first = list(dict.fromkeys(applied))
    wirings = [["my-gpushare", "config/extender/admission"], ["config/extender/existing-scheduler"]]
    both = "config/extender/placements"
    assert first == [*(folder for wiring in wirings for folder in wiring), both]
    # docs/dialects.md says who applies this folder.
    by_choice = "config/extender/mistakes"
    in_reverse = [folder for wiring in wirings for folder in reversed(wiring)]
    assert deleted == [both, by_choice, *in_reverse]


def test_every_version_of_the_file_is_deleted(tmp_path: Path) -> None:
    (selector,) = re.findall(r"delete configmap -l (\S+)", GUIDE)
    label, _, value = selector.partition("=")
    shutil.copy(EXTENDER / "second-scheduler" / "kube-scheduler.yaml", tmp_path)
    for overlay in (OVERLAY, {**OVERLAY, **REPLACED_FILE}):
        generated = of_kind(rendered(tmp_path, overlay), "ConfigMap")
        assert generated["metadata"]["labels"][label] == value


def test_the_flags_of_serve_exist() -> None:
    (block,) = re.findall(r"^gpushare serve (.*?)```", GUIDE, re.DOTALL | re.MULTILINE)
    settings = read_settings(block.replace("\\\n", "").split(), {}, lambda path: {})
    assert settings.tls_client_names == "kube-scheduler"
    for flag in re.findall(r"(?<=`)--[a-z-]+(?==| [a-z]+`|`)", GUIDE):
        known_names = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
        rest_items = {"--config", "--patches", "--memory-unit", "--feature-gates"}
        assert f"`{flag}`" in known_names or flag in rest_items, flag
