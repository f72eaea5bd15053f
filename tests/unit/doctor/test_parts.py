"""Reading: certificates, metrics, images, pods and the two forms of the report."""

import json
import shutil
import subprocess
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from urllib3.exceptions import InsecureRequestWarning

from gpushare.doctor.certificate import ends_at
from gpushare.doctor.checks.scheduler_file import minor_of
from gpushare.doctor.checks.server import rights_to_review
from gpushare.doctor.facts import ListedPods
from gpushare.doctor.finding import Check, some
from gpushare.doctor.main import main, warn_once_of_unverified_tls
from gpushare.doctor.objects import read_lease, read_node, read_pods
from gpushare.doctor.report import as_document, as_text
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_list import DEVICE_LIST, DeviceList
from tests.support.documents import check
from tests.unit.doctor.facts import MEM, NOW, found, healthy
from tests.unit.test_docs import rows


def test_a_server_that_is_not_verified_is_warned_of_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InsecureRequestWarning)
        warn_once_of_unverified_tls()
        for line in range(3):
            text = "Unverified HTTPS request is being made to host '10.0.0.1'."
            warnings.warn_explicit(text, InsecureRequestWarning, "connectionpool.py", line, "pool")
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("version", "minor"),
    [("v1.27.3", 27), ("1.22", 22), ("v1.30.2-eks-1", 30), ("latest", 0), ("v2.1.0", 0), ("", 0)],
)
def test_a_release_is_read_from_a_tag(version: str, minor: int) -> None:
    assert minor_of(version) == minor


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[[int], Path]:
    """Makes one that is good for so many days."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here")

    def make(days: int) -> Path:
        certificate_file = tmp_path / "cert.pem"
        words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(certificate_file)]
        command = [openssl, *words, "-subj", "/CN=x", "-days", str(days), *files]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return certificate_file

    return make


@pytest.mark.parametrize("days", [10, 20_000])
def test_the_end_of_a_certificate_is_what_openssl_was_told(
    days: int, certificate: Callable[[int], Path]
) -> None:
    """20,000 days lie beyond 2050, where X.509 changes the form of the date."""
    expected = datetime.now(UTC).timestamp() + days * 86400
    assert ends_at(certificate(days).read_text()) == pytest.approx(expected, abs=120)


def test_comments_around_a_certificate_may_be_in_any_language(
    certificate: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = certificate(100)
    file.write_text("subject=O = Müller\n" + file.read_text(), encoding="utf-8")
    assert main(["--kubeconfig", "/nowhere", "--tls-cert", str(file)]) == 1
    assert f"{file} is good until" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-----BEGIN CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        ends_at(text)


def test_pods_tell_of_schedulers_originals_and_amounts() -> None:
    def pod(
        name: str, image: str, limit: object = None, namespace: str = "ns", **spec: object
    ) -> dict[str, object]:
        resources = {} if limit is None else {"limits": {MEM: limit}}
        return {
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": name,
                "creationTimestamp": "2027-01-15T07:59:00Z",
            },
            "spec": {"containers": [{"image": image, "resources": resources}], **spec},
            "status": {"phase": "Running"},
        }

    facts = read_pods(
        [
            pod("s", "registry.k8s.io/kube-scheduler:v1.30.2@sha256:0", namespace="kube-system"),
            pod("t", "tenant/kube-scheduler:v1.10.0"),
            pod("o", "registry:5000/acs/k8s-gpushare-schd-extender:1.11", namespace="kube-system"),
            pod("gpushare-schd-extender", "tenant/kube-scheduler:v1.10.0"),
            pod("gpu", "cuda", "4"),
            pod("none", "cuda", "0", nodeName="n1"),
            pod("bad", "cuda", "four", schedulerName="other"),
            {"metadata": None, "spec": [], "status": "x"},
        ],
        ALIYUN,
        NOW,
    )
    assert facts.schedulers == ["v1.30.2"]
    assert facts.originals == ["kube-system/o"]
    assert facts.alike == ["ns/gpushare-schd-extender"]
    assert [(pod.name, pod.scheduler, bool(pod.broken)) for pod in facts.gpu] == [
        ("ns/gpu", "default-scheduler", False),
        ("ns/bad", "other", True),
    ]
    assert facts.gpu[0].age == 60.0


@pytest.mark.parametrize("labels", [{}, {"node-role.kubernetes.io/control-plane": ""}])
def test_a_static_pod_tells_of_the_control_plane_from_its_nodes_alone(
    labels: dict[str, str],
) -> None:
    """Any kubelet may make one in kube-system."""

    def static(name: str, image: str) -> dict[str, object]:
        notes = {"kubernetes.io/config.mirror": "x"}
        metadata = {"namespace": "kube-system", "name": name, "annotations": notes}
        spec = {"nodeName": "n", "containers": [{"image": image}]}
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}

    pods = [static("s", "x/kube-scheduler:v1.10.0"), static("gpushare-schd-extender", "x")]
    facts = read_pods(pods, ALIYUN, NOW)
    assert (facts.originals, facts.alike) == ([], ["kube-system/gpushare-schd-extender"])
    assert facts.schedulers == []
    node = read_node({"metadata": {"name": "n", "labels": labels}}, ALIYUN, "GiB")
    finding = found(healthy(pods=facts, nodes=(node,)), "scheduler-version")
    assert (finding.level, "1.10 runs here" in finding.message) == (
        ("fail" if labels else "ok"),
        bool(labels),
    )


def placed(bound_pod: str, **notes: str) -> ListedPods:
    """A pod on a device, bound at that time, with those annotations."""
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound_pod}
    annotations = {ALIYUN.idx: "0", **{getattr(ALIYUN, name): text for name, text in notes.items()}}
    pod = {
        "metadata": {"namespace": "ns", "name": "p", "uid": "p", "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {MEM: "4"}}}]},
        "status": {"phase": "Running", "conditions": [condition]},
    }
    return read_pods([pod], ALIYUN, NOW)


@pytest.mark.parametrize(
    ("bound_pod", "level"), [("2027-01-15T06:00:00Z", "ok"), ("2027-01-15T07:59:00Z", "fail")]
)
def test_a_pod_served_late_was_bound_when_it_was_bound(bound_pod: str, level: str) -> None:
    """The original's plug-in writes over the assume time when it serves the pod."""
    pods = placed(bound_pod, assigned="true", assume_time=str(int(NOW) * 10**9))
    assert found(healthy(pods=pods), "two-binders").level == level


@pytest.mark.parametrize(("mark", "level"), [("true", "ok"), ("false", "warn")])
def test_a_pod_is_served_when_a_device_plug_in_has_marked_it(mark: str, level: str) -> None:
    pods = placed("2027-01-15T06:00:00Z", assigned=mark)
    assert found(healthy(pods=pods), "unserved-pods").level == level


def test_a_lease_of_odd_fields_is_held_by_nobody() -> None:
    odd = read_lease({"metadata": {"namespace": "x"}, "spec": {"renewTime": "soon"}})
    assert (odd.holder, odd.duration, odd.renewed) == ("", 0.0, 0.0)


FINDINGS = [Check("a").ok("fine"), Check("bee").fail("bro\x1b[31mken\nline", "mend it")]


def test_a_line_for_each_finding_that_moves_no_cursor() -> None:
    assert as_text(FINDINGS, colours=False) == (
        "ok    a    fine\nfail  bee  bro?[31mken?line -> mend it\n1 ok, 0 warn, 1 fail, 0 skip\n"
    )


def test_a_long_line_goes_on_below_its_text() -> None:
    text = as_text(
        [Check("bee").fail("one two three four five six seven", "mend it")],
        colours=False,
        columns=40,
    )
    assert text.splitlines()[:2] == [
        "fail  bee  one two three four five six",
        "           seven -> mend it",
    ]


def test_colours_are_around_the_level_alone() -> None:
    first = as_text(FINDINGS, colours=True).splitlines()[0]
    assert first == "\033[32mok  \033[0m  a    fine"


def test_the_document_has_its_keys() -> None:
    document = json.loads(as_document(FINDINGS))
    check(document)
    assert yaml.safe_load(as_document(FINDINGS, "yaml")) == document
    assert document["apiVersion"] == "gpushare.io/v1"
    assert document["kind"] == "DoctorReport"
    assert document["result"] == "fail"
    assert document["counts"] == {"ok": 1, "warn": 0, "fail": 1, "skip": 0}
    assert document["findings"][0] == {"check": "a", "level": "ok", "what": "fine", "todo": ""}


def test_many_names_are_cut_short() -> None:
    assert some(["b", "a"]) == "a, b"
    assert some("edcba") == "a, b, c and 2 more"


def test_every_right_of_the_documents_is_asked_about() -> None:
    inquired = {(right.verb, right.resource) for right in rights_to_review("kube-system", None)}
    # One file in many needs that one; a ConfigMap that cannot be read is found by reading it.
    inquired.add(("get", "configmaps"))
    for cells in rows("Rights")[2:]:
        resource = cells[0].split("`")[0]
        for verb in cells[1].split(", "):
            assert (verb, resource) in inquired, (verb, resource)


def asking(
    name: str, limits: dict[str, str], node: str = "n1", **container: object
) -> dict[str, object]:
    pod_document = {"name": "main", "resources": {"limits": limits}, **container}
    meta = {"namespace": "default", "name": name, "uid": name}
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [pod_document]}}


def test_what_does_not_go_with_device_memory_is_read_of_pods() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    facts = read_pods(
        [
            asking("whole", {"nvidia.com/gpu": "2"}),
            asking("count", {ALIYUN.count: "1"}),
            asking("env", {MEM: "4"}, env=env),
            asking("both", {MEM: "4", "nvidia.com/gpu": "2"}, "n2"),
            asking("plain", {MEM: "4"}),
            asking("cores", {ALIYUN.cores: "30"}),
            asking("share", {ALIYUN.share: "25"}),
            asking("no-cores", {ALIYUN.cores: "0"}),
        ],
        ALIYUN,
        NOW,
    )
    assert facts.whole == [("default/whole", "n1"), ("default/both", "n2")]
    assert [name for name, _ in facts.without_memory] == [
        "default/count",
        "default/cores",
        "default/share",
    ]
    assert "cores are asked for without aliyun.com/gpu-mem" in facts.without_memory[1][1]
    assert facts.cores_alone == [("default/cores", "n1")]
    mistakes = {pod.name: pod.misplaced for pod in facts.gpu}
    assert "sets NVIDIA_VISIBLE_DEVICES itself" in mistakes["default/env"]
    assert "nvidia.com/gpu is asked for beside" in mistakes["default/both"]
    assert mistakes["default/plain"] == ""


def test_pods_that_seem_to_want_a_part_of_a_card_are_read() -> None:
    def pod(name: str, limits: dict[str, str], node: str = "", **changes: Any) -> Any:
        item: Any = asking(name, limits, node, **changes.pop("container", {}))
        item["metadata"] |= changes.pop("metadata", {})
        item["spec"] |= changes
        return item

    env = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    hidden = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}
    daemon = {"ownerReferences": [{"kind": "DaemonSet"}]}
    kai = {"annotations": {"gpu-fraction": "0.5"}}
    facts = read_pods(
        [
            pod("hami", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}),
            pod("whole", {"nvidia.com/gpu": "1"}),
            pod("whole-runs", {"nvidia.com/gpu": "1"}, "n1"),
            pod("misspelt", {"aliyun.com/gpu-memory": "4"}),
            pod("kai", {}, "n1", metadata=kai),
            pod("kai-by-kai", {}, "n1", metadata=kai, schedulerName="kai-scheduler"),
            pod("env", {}, "n1", container=env),
            pod("hidden", {}, "n1", container=hidden),
            pod("daemon", {}, "n1", container=env, metadata=daemon),
            pod("system", {}, "n1", container=env, metadata={"namespace": "kube-system"}),
            pod("nic", {"example.com/nic": "1"}),
        ],
        ALIYUN,
        NOW,
    )
    mistakes = {pod.name.partition("/")[2]: pod.mistake for pod in facts.strays}
    assert [*mistakes] == ["hami", "whole", "misspelt", "kai", "env"]
    assert mistakes["hami"].startswith("nvidia.com/gpumem is HAMi's")
    assert "sets NVIDIA_VISIBLE_DEVICES and asks for no aliyun.com/gpu-mem" in mistakes["env"]


def test_a_node_of_both_device_plugins_is_read_as_such() -> None:
    amounts = {MEM: "32", ALIYUN.count: "2", "nvidia.com/gpu": "2", "nvidia.com/mig-1g": "0"}
    document = {"metadata": {"name": "n1"}, "status": {"capacity": amounts}}
    assert read_node(document, ALIYUN, "GiB").whole == ("nvidia.com/gpu",)


@pytest.mark.parametrize("field", ["capacity", "allocatable"])
def test_the_compute_that_a_node_advertises_is_read(field: str) -> None:
    document = {"metadata": {"name": "n1"}, "status": {field: {ALIYUN.cores: "200"}}}
    assert read_node(document, ALIYUN, "GiB").cores == 200


def test_what_is_done_for_autoscalers_is_seen() -> None:
    notes = {"gpushare.io/scale-down-guard": "{}"}
    node = {"metadata": {"name": "n", "annotations": notes}}
    assert read_node(node, ALIYUN, "GiB").is_kept
    assert not read_node({"metadata": {"name": "n"}}, ALIYUN, "GiB").is_kept
    asks = {"namespace": "asks", "name": "for-a"}
    pods = [
        {"metadata": asks, "spec": {"schedulerName": "gpushare-placeholder"}},
        {"metadata": asks | {"name": "other"}, "spec": {}},
    ]
    assert read_pods(pods, ALIYUN, NOW).placeholders == ["asks/for-a"]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ('{"strategy":"cdi-cri","reason":"a"}', DeviceList("cdi-cri", "a")),
        ('{"strategy":1}', None),
        (None, None),
    ],
)
def test_how_devices_are_handed_over_is_read_of_the_node(
    text: str | None, output: DeviceList | None
) -> None:
    annotations = {} if text is None else {DEVICE_LIST: text}
    node = {"metadata": {"name": "n", "annotations": annotations}}
    assert read_node(node, ALIYUN, "GiB").device_list == output


def test_a_pod_of_our_device_plugin_is_read_with_its_reason_to_wait() -> None:
    def pod(namespace: str, **labels: str) -> dict[str, Any]:
        pending = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        meta = {"namespace": namespace, "name": "p", "labels": labels}
        return {
            "metadata": {**meta, "creationTimestamp": "2027-01-15T07:50:00Z"},
            "spec": {"nodeName": "n1", "runtimeClassName": "nvidia"},
            "status": {"containerStatuses": [pending]},
        }

    plugin_pods = pod("kube-system", app="gpushare-device-plugin")
    remaining = [pod("team", app="gpushare-device-plugin"), pod("kube-system", app="gpushare")]
    (decoded,) = read_pods([plugin_pods, *remaining], ALIYUN, NOW).plugins
    assert (decoded.name, decoded.node, decoded.runtime_class) == ("kube-system/p", "n1", "nvidia")
    assert (decoded.waiting_reason, decoded.age) == ("CrashLoopBackOff", 600.0)
