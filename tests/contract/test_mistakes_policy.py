"""The admission policy that warns of likely mistakes: pods and templates that it names.

The expressions run in an interpreter of CEL; their evaluation by kube-apiserver is for the tests
with a real one.
"""

import re
import shutil
from typing import Any

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.near_misses import near_miss
from tests.contract.admission import Call, refusals
from tests.contract.manifests import ROOT, one

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to render with"),
]

Json = dict[str, Any]

MEM = ALIYUN.resource


def pod(limits: Json | None = None, annotations: Json | None = None, **container: object) -> Json:
    item: Json = {"name": "main", "image": "x", **container}
    item |= {"resources": {"limits": limits}} if limits is not None else {}
    metadata = {"annotations": annotations} if annotations is not None else {}
    return {"metadata": metadata, "spec": {"containers": [item]}}


def warnings(item: Json, resource: str = "pods", operation: str = "CREATE") -> list[str]:
    return refusals("mistakes", Call(operation, {"metadata": {}, **item}, resource=resource))


@pytest.mark.parametrize(
    "name",
    ["aliyun.com/gpu-memory", "aliyun.com/gpu_mem", "aliyum.com/gpu-mem", "aliyun.com/gpu-core"],
)
def test_a_misspelt_resource_is_warned_of(name: str) -> None:
    (text,) = warnings(pod({name: "4"}))
    assert "correct its name" in text
    assert MEM in text
    assert near_miss([name], [], ALIYUN)


@pytest.mark.parametrize("name", ["gpushare.io/polcy", "gpushare.io/wholecard"])
def test_a_misspelt_annotation_is_warned_of(name: str) -> None:
    (text,) = warnings(pod({MEM: "4"}, {name: "x"}))
    assert "an annotation of gpushare.io has a name that gpushare does not know" in text
    assert near_miss([], [name], ALIYUN)


def test_a_container_that_chooses_gpus_itself_is_warned_of() -> None:
    env = [{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    (text,) = warnings(pod(env=env))
    assert "sets NVIDIA_VISIBLE_DEVICES itself" in text
    for value in ("", "none", "void"):
        assert not warnings(pod(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]))
    init: Json = {"spec": {"containers": [], "initContainers": [{"name": "i", "env": env}]}}
    assert warnings(init) == [text]


def test_a_privileged_container_with_gpu_memory_is_warned_of() -> None:
    privileged = {"securityContext": {"privileged": True}}
    (text,) = warnings(pod({MEM: "4"}, **privileged))
    assert "is privileged, so it sees all GPUs" in text
    assert not warnings(pod({"cpu": "1"}, **privileged))
    assert not warnings(pod({MEM: "4"}, securityContext={"privileged": False}))
    assert not warnings(pod({MEM: "4"}, securityContext={"runAsUser": 1}))


@pytest.mark.parametrize("resource", ["deployments", "statefulsets", "jobs"])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_templates_are_warned_of_when_they_are_applied(resource: str, operation: str) -> None:
    template = pod({"aliyun.com/gpu-memory": "4"}, {"gpushare.io/polcy": "x"})
    assert len(warnings({"spec": {"template": template}}, resource, operation)) == 2
    job = {"spec": {"jobTemplate": {"spec": {"template": template}}}}
    assert len(warnings(job, "cronjobs", operation)) == 2


@pytest.mark.parametrize(
    "item",
    [
        pod(),
        pod({}),
        pod({"cpu": "1", MEM: "4", ALIYUN.cores: "30"}, {}),
        pod({"aliyun.com/gpu-count": "1"}),  # has a sentence of its own elsewhere
        pod({"nvidia.com/gpu": "1"}, {"prometheus.io/scrape": "true"}),
        {"spec": {}},
        pod({"aliyun.com/gpu-memory": "4"})
        | {"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}},
    ],
)
def test_other_pods_pass_in_silence(item: Json) -> None:
    assert warnings(item) == []


def test_all_annotations_of_the_page_pass() -> None:
    page = (ROOT / "docs" / "annotations.md").read_text("utf-8")
    names = set(re.findall(r"`(gpushare\.io/[a-z-]+)`", page))
    names -= {
        "gpushare.io/device-list",
        "gpushare.io/scale-down-guard",
        "gpushare.io/memory-limits",
    }  # of nodes
    assert len(names) > 10
    assert warnings(pod({MEM: "4"}, dict.fromkeys(names, "x"))) == []


def test_nothing_is_refused() -> None:
    policy = one("mistakes", "ValidatingAdmissionPolicy", "gpushare")
    binding = one("mistakes", "ValidatingAdmissionPolicyBinding", "gpushare")
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Warn"],
    }
