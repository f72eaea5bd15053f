"""The admission policy: pods that its expressions reject, and pods that must pass.

The expressions run in an interpreter of CEL; their evaluation by kube-apiserver is for the tests
with a real one.
"""

import re
import shutil
from typing import Any

import pytest
import yaml

from gpushare.wire.annotations import ALIYUN
from tests.contract.admission import evaluate
from tests.contract.manifests import ROOT, one, scheduler_file, second_pod, static_pod

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to render with"),
]

Json = dict[str, Any]

OURS = "gpushare-scheduler"
MEM = "aliyun.com/gpu-mem"


def spec() -> Json:
    return dict(one("admission", "ValidatingAdmissionPolicy", "gpushare")["spec"])


def rejected(pod_spec: object) -> bool:
    """Whether the policy rejects the pod. An expression that cannot be evaluated fails the test."""
    pod = {"object": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": pod_spec}}
    request = [evaluate(c["expression"], pod) for c in spec()["matchConditions"]]
    values = [evaluate(v["expression"], pod) for v in spec()["validations"]]
    assert {type(value) for value in request + values} == {bool}
    return all(request) and not all(values)


def asking(path: str, amount: str = "1", **more: object) -> Json:
    return {"name": "c", "image": "x", "resources": {path: {MEM: amount}}, **more}


PLAIN = {"name": "c", "image": "x", "resources": {"limits": {"cpu": "1"}}}
GPU_PODS = {
    "limits": {"containers": [asking("limits")]},
    "requests": {"containers": [asking("requests")]},
    "the second container": {"containers": [PLAIN, asking("limits")]},
    "an init container": {"containers": [PLAIN], "initContainers": [asking("limits")]},
    "an amount of 0, of which kube-scheduler asks too": {"containers": [asking("limits", "0")]},
}
OTHER_PODS: dict[str, Json] = {
    "no resources": {"containers": [{"name": "c", "image": "x"}]},
    "empty resources": {"containers": [{"name": "c", "image": "x", "resources": {}}]},
    "empty limits": {"containers": [{"name": "c", "resources": {"limits": {}, "requests": {}}}]},
    "other resources": {"containers": [PLAIN], "initContainers": [PLAIN]},
    "another GPU resource": {
        "containers": [{"name": "c", "resources": {"limits": {"x/gpu": "1"}}}]
    },
    "no containers at all": {},
    "nothing in the lists": {"containers": [], "initContainers": []},
}


@pytest.mark.parametrize("case", GPU_PODS)
@pytest.mark.parametrize("second", ["default-scheduler", "gpushare-scheduler-2", "", None])
def test_a_gpu_pod_of_another_scheduler_is_rejected(case: str, second: str | None) -> None:
    name = {} if second is None else {"schedulerName": second}
    assert rejected({**GPU_PODS[case], **name})


@pytest.mark.parametrize("case", GPU_PODS)
def test_a_gpu_pod_of_our_scheduler_passes(case: str) -> None:
    assert not rejected({**GPU_PODS[case], "schedulerName": OURS})


@pytest.mark.parametrize("case", OTHER_PODS)
@pytest.mark.parametrize("second", ["default-scheduler", OURS, None])
def test_a_pod_without_gpu_memory_passes_whatever_its_scheduler(
    case: str, second: str | None
) -> None:
    name = {} if second is None else {"schedulerName": second}
    assert not rejected({**OTHER_PODS[case], **name})


def test_the_pods_of_the_scheduler_and_the_extender_pass() -> None:
    for pod in (second_pod(), static_pod("gpushare-extender"), static_pod("kube-scheduler")):
        assert not rejected({"schedulerName": "default-scheduler", **pod["spec"]})


def test_the_message_is_the_line_to_add() -> None:
    (validation,) = spec()["validations"]
    sentence = re.search(r"set (spec\.schedulerName: \S+)$", validation["message"])
    assert sentence is not None
    (name,) = yaml.safe_load(sentence[1]).values()
    file = ROOT / "config" / "extender" / "second-scheduler" / "kube-scheduler.yaml"
    config = scheduler_file(file)
    assert config.scheduler_names == (name,)
    resources = [r.name for entry in config.extenders for r in entry.managed_resources]
    # Percents are never asked for without memory, which tells the pods.
    assert resources == [MEM, *(percent.resource for percent in ALIYUN.percents)]
    assert MEM in validation["message"]
    assert MEM in spec()["matchConditions"][0]["expression"]


def test_what_cannot_be_judged_passes_and_only_new_pods_are_looked_at() -> None:
    assert spec()["failurePolicy"] == "Ignore"
    assert "paramKind" not in spec()  # a parameter that is missing would be one more way to fail
    assert spec()["matchConstraints"] == {
        "resourceRules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["pods"],
                "operations": ["CREATE"],
            }
        ]
    }


def test_the_binding_puts_the_policy_in_force() -> None:
    policy = one("admission", "ValidatingAdmissionPolicy", "gpushare")
    binding = one("admission", "ValidatingAdmissionPolicyBinding", "gpushare")
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }
