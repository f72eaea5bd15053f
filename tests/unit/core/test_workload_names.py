"""The workload of a pod is known by what the controllers of Kubernetes write on the pod."""

import pytest

from gpushare.core.workload_names import deployment_of, workload_name


@pytest.mark.parametrize(
    ("pod", "labels", "workload"),
    [
        ("web-7c9d8-abcde", {"pod-template-hash": "7c9d8"}, "Deployment/web"),
        ("web-7c9d8-abcde", {"pod-template-hash": "other"}, "Pod/web-7c9d8-abcde"),
        ("train-x7k2p", {"batch.kubernetes.io/job-name": "train"}, "Job/train"),
        ("train-x7k2p", {"job-name": "train"}, "Job/train"),
        ("nightly-29012345-x7k2p", {"job-name": "nightly-29012345"}, "CronJob/nightly"),
        ("train-20261129-x7k2p", {"job-name": "train-20261129"}, "Job/train-20261129"),
        (
            "db-0",
            {"statefulset.kubernetes.io/pod-name": "db-0", "controller-revision-hash": "db-5f"},
            "StatefulSet/db",
        ),
        ("db-0", {"statefulset.kubernetes.io/pod-name": "db-1"}, "Pod/db-0"),
        ("agent-x7k2p", {"controller-revision-hash": "5f"}, "DaemonSet/agent"),
        ("agent", {"controller-revision-hash": "5f"}, "Pod/agent"),
        ("notebook", {}, "Pod/notebook"),
    ],
)
def test_the_workload_is_that_of_the_controller(
    pod: str, labels: dict[str, str], workload: str
) -> None:
    assert workload_name(pod, labels) == workload


def test_a_deployment_is_told_with_its_template() -> None:
    assert deployment_of("web-7c9d8-abcde", {"pod-template-hash": "7c9d8"}) == ("web", "7c9d8")
    assert deployment_of("web-0", {}) == ("", "")
