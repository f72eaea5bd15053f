"""Likely mistakes, told by a real kube-apiserver with config/extender/mistakes."""

from typing import Any

import pytest

from tests.contract.apiserver.client import Api
from tests.e2e.conftest import MakePlane
from tests.e2e.objects import MEM, PODS, fresh
from tests.e2e.processes import until
from tests.e2e.world import apply

Json = dict[str, Any]

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
MISSPELT = {"resources": {"limits": {"aliyun.com/gpu-memory": "4"}}}
SOUND = {"resources": {"limits": {MEM: "4"}}}


def template(container: Json, annotations: dict[str, str] | None = None) -> Json:
    main = {"name": "main", "image": "x", **container}
    metadata = {"labels": {"app": "x"}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": [main], "restartPolicy": "Never"}}


def warning(api: Api, path: str, body: Json) -> str:
    """The warning about a new object, which is not stored; "" without one."""
    metadata = {**body.get("metadata", {}), "name": fresh("tried")}
    reply = api.call("POST", path, {**body, "metadata": metadata}, dryRun="All")
    assert reply.status == 201, reply.body
    return reply.headers.get("Warning", "")


@pytest.fixture(scope="module")
def api(make_plane: MakePlane) -> Api:
    """A control plane with the policy in force."""
    plane = make_plane("--allow-privileged=true")
    apply(plane, "extender/mistakes")
    result = plane.api()
    until(lambda: bool(warning(result, PODS, template(MISSPELT))), lambda: "the policy warns")
    return result


@pytest.mark.parametrize(
    ("container", "annotations", "words"),
    [
        (MISSPELT, {}, "nearly one of ours"),
        (SOUND, {"gpushare.io/polcy": "x"}, "a name that gpushare does not know"),
        ({**SOUND, "securityContext": {"privileged": True}}, {}, "is privileged"),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, {}, "sets NVIDIA_VISIBLE"),
        (SOUND, {"gpushare.io/policy": "x", "gpushare.io/whole-card": "true"}, ""),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}, {"name": "A"}]}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_a_pod_and_its_templates_are_warned_of(
    api: Api, container: Json, annotations: dict[str, str], words: str
) -> None:
    pod = template(container, annotations)
    job = {"schedule": "@daily", "jobTemplate": {"spec": {"template": pod}}}
    always = {**pod, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    deployment = {"selector": {"matchLabels": {"app": "x"}}, "template": always}
    bodies = [(PODS, pod), (CRON_JOBS, {"spec": job}), (DEPLOYMENTS, {"spec": deployment})]
    for path, body in bodies:
        text = warning(api, path, body)
        assert words in text
        assert bool(text) == bool(words)
