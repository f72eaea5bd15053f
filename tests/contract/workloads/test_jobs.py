"""Jobs through kubectl: pods that end, well or not."""

import json
from typing import Any

import pytest

from gpushare_localcluster.kubelet import RUN_SECONDS
from tests.contract.apiserver.client import Json
from tests.contract.kubectl import Kubectl, Server
from tests.contract.workloads.conftest import Pods
from tests.contract.workloads.manifests import changed, workload
from tests.e2e.processes import until

pytestmark = pytest.mark.kubectl


def job(seconds: float | None = 0, **spec: Any) -> str:
    """A job with pods that succeed after so many seconds, or never."""
    notes = {RUN_SECONDS: "never" if seconds is None else str(seconds)}
    manifest = workload("Job", "train", **spec)
    return changed(manifest, {"spec": {"template": {"metadata": {"annotations": notes}}}})


def status(server: Server) -> Json:
    path = f"/apis/batch/v1/namespaces/{server.namespace}/jobs/train"
    items: Json = server.api.get(path).body["status"]
    return items


def waits(kubectl: Kubectl, condition: str) -> None:
    kubectl("wait", "job/train", f"--for=condition={condition}", "--timeout=50s")


def fail(server: Server, pods: Pods) -> None:
    """Fail the only pod once it runs, as a kubelet reports."""
    pods.become(lambda items: [pod["status"]["phase"] for pod in items] == ["Running"], "it runs")
    path = f"{pods.path}/{pods.names()[0]}/status"
    assert server.api.patch(path, {"status": {"phase": "Failed"}}).status == 200


def test_it_is_complete_when_its_pods_have_ended_well(kubectl: Kubectl, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=job(completions=3, parallelism=2))
    waits(kubectl, "complete")
    header, row = kubectl("get", "jobs").splitlines()
    assert header.split() == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert row.split()[:3] == ["train", "Complete", "3/3"]
    text = status(server)
    assert text["succeeded"] == 3
    assert text["completionTime"] >= text["startTime"]
    assert len(kubectl("get", "pods", "--no-headers").splitlines()) == 3
    output = kubectl("describe", "job", "train")
    assert "0 Active" in output
    assert "3 Succeeded" in output
    assert "Job completed" in output


def test_one_that_says_nothing_of_its_time_ends_as_well(kubectl: Kubectl) -> None:
    kubectl("create", "job", "train", "--image=app:1")
    waits(kubectl, "complete")


def test_no_more_run_at_once_than_it_says(kubectl: Kubectl, pods: Pods, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=job(None, completions=5, parallelism=2))
    pods.become(lambda items: len(items) == 2, "two run")
    until(lambda: status(server).get("active") == 2, "it says so")
    assert len(pods.names()) == 2


def test_too_many_failures_end_it(kubectl: Kubectl, pods: Pods, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=job(None, backoffLimit=0))
    fail(server, pods)
    waits(kubectl, "failed")
    text = status(server)
    assert text["failed"] == 1
    assert "BackoffLimitExceeded" in {item["reason"] for item in text["conditions"]}
    assert kubectl("get", "job", "train", "--no-headers").split()[1] == "Failed"


def test_a_pod_that_failed_is_made_again(kubectl: Kubectl, pods: Pods, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=job(None, backoffLimit=3))
    fail(server, pods)
    pods.become(lambda items: len(items) == 2, "another runs")
    until(lambda: status(server).get("failed") == 1, "the failure is counted")


def test_a_deadline_ends_it(kubectl: Kubectl, pods: Pods, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=job(None, activeDeadlineSeconds=1))
    waits(kubectl, "failed")
    assert "DeadlineExceeded" in {item["reason"] for item in status(server)["conditions"]}
    pods.gone()


def test_each_index_has_its_pod(kubectl: Kubectl, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=job(completions=3, parallelism=3, completionMode="Indexed"))
    waits(kubectl, "complete")
    path = f"/api/v1/namespaces/{server.namespace}/pods"
    note = "batch.kubernetes.io/job-completion-index"
    items = server.api.get(path).body["items"]
    assert sorted(item["metadata"]["annotations"][note] for item in items) == ["0", "1", "2"]
    assert status(server)["completedIndexes"] in ("0-2", "0,1,2")


def test_a_suspended_one_waits(kubectl: Kubectl, server: Server) -> None:
    kubectl("apply", "-f", "-", stdin=job(suspend=True))
    waits(kubectl, "suspended")
    assert kubectl("get", "job", "train", "--no-headers").split()[1] == "Suspended"
    assert "No resources" in kubectl("get", "pods")
    kubectl("patch", "job", "train", "-p", '{"spec":{"suspend":false}}')
    waits(kubectl, "complete")


def test_deleting_takes_its_pods_along(kubectl: Kubectl, pods: Pods) -> None:
    kubectl("apply", "-f", "-", stdin=job(None))
    pods.become(lambda items: len(items) == 1, "it runs")
    kubectl("delete", "job", "train")
    pods.gone()


def test_generators_make_it(kubectl: Kubectl, pods: Pods) -> None:
    """The newest kubectl sends protobuf here."""
    kubectl("create", "job", "train", "--image=app:1", "--", "python", "train.py")
    pods.become(lambda items: len(items) == 1, "it runs")
    assert pods.all()[0]["spec"]["containers"][0]["command"] == ["python", "train.py"]


@pytest.mark.parametrize("policy", ["Always", None])
def test_its_pods_may_not_be_restarted_for_ever(kubectl: Kubectl, policy: str | None) -> None:
    change = {"spec": {"template": {"spec": {"restartPolicy": policy}}}}
    output = kubectl("create", "-f", "-", stdin=changed(job(), change), code=1)
    assert "spec.template.spec.restartPolicy" in output
    assert (
        'valid values: "OnFailure", "Never"' in output or 'supported values: "OnFailure"' in output
    )


def test_its_template_cannot_be_changed(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=job(None))
    output = kubectl("set", "image", "job/train", "main=app:2", code=1)
    assert "field is immutable" in output
    manifest = json.loads(job(None))
    manifest["spec"]["parallelism"] = 2
    assert "configured" in kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
