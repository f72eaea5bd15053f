"""Controllers create and delete the pods of workloads."""

import pytest

from tests.contract.apiserver.client import Api, Json
from tests.e2e.processes import until

pytestmark = pytest.mark.usefixtures("controller_manager")


def workload(name: str, **spec: object) -> Json:
    labels = {"app": name}
    container = {"name": "main", "image": "registry.example/app:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    body = {"selector": {"matchLabels": labels}, "template": template, **spec}
    return {"metadata": {"name": name}, "spec": body}


def pods_of(api: Api, namespace: str, name: str) -> list[str]:
    result = api.get(f"{namespace}/pods", labelSelector=f"app={name}").body["items"]
    return sorted(pod["metadata"]["name"] for pod in result)


def apps(namespace: str, kind: str) -> str:
    return f"{namespace.replace('/api/v1', '/apis/apps/v1')}/{kind}"


def test_a_deployment_gets_its_pods_and_loses_them_with_itself(api: Api, namespace: str) -> None:
    path = apps(namespace, "deployments")
    api.create(path, workload("web", replicas=3))
    until(lambda: len(pods_of(api, namespace, "web")) == 3, "it has 3 pods")
    api.patch(f"{path}/web", {"spec": {"replicas": 1}})
    until(lambda: len(pods_of(api, namespace, "web")) == 1, "it has 1 pod")
    assert api.delete(f"{path}/web", {"propagationPolicy": "Background"}).status == 200
    until(lambda: not pods_of(api, namespace, "web"), "its pods are gone")


def test_a_stateful_set_names_its_pods_by_their_number(api: Api, namespace: str) -> None:
    body = workload("db", replicas=2, podManagementPolicy="Parallel", serviceName="db")
    api.create(apps(namespace, "statefulsets"), body)
    until(lambda: pods_of(api, namespace, "db") == ["db-0", "db-1"], "it has its two pods")


def test_a_job_gets_as_many_pods_as_it_runs_at_once(api: Api, namespace: str) -> None:
    body = workload("train")
    del body["spec"]["selector"]
    body["spec"] |= {"parallelism": 2, "completions": 2}
    body["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    api.create(f"{namespace.replace('/api/v1', '/apis/batch/v1')}/jobs", body)
    until(lambda: len(pods_of(api, namespace, "train")) == 2, "it has 2 pods")
