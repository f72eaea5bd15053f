"""Mistakes about GPU memory: warnings of the local API server, which a real one does not give."""

from typing import Any

import pytest

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from tests.contract.apiserver.client import Api
from tests.contract.apiserver.conftest import pod

PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@pytest.fixture(scope="module")
def api() -> Any:
    server = ApiServer(Store())
    server.start()
    yield Api(server.url)
    server.stop()


def split(gpu_mem: str, count: str) -> dict[str, Any]:
    created = pod("split", gpu_mem=gpu_mem)
    created["metadata"]["annotations"] = {"aliyun.com/gpu-count": count}
    return created


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (pod("gi", gpu_mem="5Gi"), "the unit is GiB already (unless --unit says otherwise): write"),
        (pod("mib", gpu_mem="8192"), "the unit is GiB already: if MiB are meant, write 8"),
        (split("10", "3"), "10 cannot be split evenly over 3 devices"),
    ],
)
def test_a_pod_that_no_device_will_ever_take_is_stored_with_a_warning(
    api: Api, body: dict[str, Any], words: str
) -> None:
    assert words in api.create(PODS, body).headers["Warning"]


def test_a_misspelt_resource_is_stored_with_a_warning(api: Api) -> None:
    body = pod("misspelt")
    body["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-memory": "5"}}
    reply = api.create(PODS, body)
    assert "aliyun.com/gpu-mem is probably meant" in reply.headers["Warning"]


def test_a_template_of_pods_is_looked_at_too(api: Api) -> None:
    labels = {"app": "web"}
    template = pod("x", gpu_mem="5Gi") | {"metadata": {"labels": labels}}
    body = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    assert "write 5" in api.create(DEPLOYMENTS, body).headers["Warning"]


def test_a_sound_pod_is_stored_without_a_word(api: Api) -> None:
    assert "Warning" not in api.create(PODS, pod("sound", gpu_mem="80")).headers
    assert "Warning" not in api.create(PODS, pod("cpu-only", gpu_mem="0")).headers


def test_requests_without_limits_are_refused_with_what_to_write(api: Api) -> None:
    body = pod("requests")
    body["spec"]["containers"][0]["resources"] = {"requests": {"aliyun.com/gpu-mem": "5"}}
    reply = api.call("POST", PODS, body)
    assert reply.status == 422
    assert reply.body["message"].endswith("write aliyun.com/gpu-mem: 5 under limits")
