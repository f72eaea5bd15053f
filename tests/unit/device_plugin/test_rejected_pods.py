"""Pods that failed because no device plug-in was there are deleted; no other one ever is."""

import json
from typing import Any

import pytest

from gpushare.device_plugin.marker import RejectedPods
from gpushare.errors import ApiUnavailable, ApiUnreachable
from gpushare.wire.annotations import ALIYUN
from tests.support.scripted_api import ScriptedApi
from tests.unit.device_plugin.pods import Json, pod_json, read

AWAY = (
    "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy"
    " devices {}, which is unexpected"
)
KUBELET = AWAY.format(ALIYUN.resource)


def failed(**status: Any) -> Json:
    body = pod_json(4)
    body["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "controller": True}]
    text = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": KUBELET}
    return {**body, "status": text | status}


def deleted(body: Json, view: Json | None = None) -> list[Json]:
    """The bodies of the deletions, after the pod was looked at twice."""
    api = ScriptedApi(forever=json.dumps(view or body).encode())
    rejected = RejectedPods(api, ALIYUN.resource)
    for _ in range(2):
        rejected.clear([read(body)])
    return [json.loads(call.body or b"") for call in api.calls if call.method == "DELETE"]


def test_a_pod_that_no_plugin_was_there_for_is_deleted_by_its_uid() -> None:
    body = failed()
    (options,) = deleted(body)
    assert options["preconditions"] == {"uid": body["metadata"]["uid"]}


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Succeeded"},
        {"reason": "Evicted"},
        {"reason": None},
        {"message": f"rpc error: desc = gpushare: pod default/a: no {ALIYUN.resource} ..."},
        {"message": AWAY.format("example.com/nic")},
    ],
)
def test_a_pod_that_failed_otherwise_stays(status: Json) -> None:
    assert deleted(failed(**status)) == []


def test_a_pod_without_a_controller_stays() -> None:
    body = failed()
    body["metadata"]["ownerReferences"] = [{"kind": "Node"}]
    assert deleted(body) == []
    del body["metadata"]["ownerReferences"]
    assert deleted(body) == []


def test_a_pod_that_runs_is_not_even_read() -> None:
    api = ScriptedApi()
    RejectedPods(api, ALIYUN.resource).clear([read(pod_json(4))])
    assert api.calls == []


def test_another_pod_of_that_name_stays() -> None:
    assert deleted(failed(), failed()) == []


def test_what_fails_is_tried_again() -> None:
    body = failed()
    api = ScriptedApi([ApiUnavailable("away", 503)], json.dumps(body).encode())
    rejected = RejectedPods(api, ALIYUN.resource)
    rejected.clear([read(body)])
    assert [call.method for call in api.calls] == ["GET"]
    rejected.clear([read(body)])
    assert [call.method for call in api.calls] == ["GET", "GET", "DELETE"]


def test_while_the_api_server_is_away_one_pod_is_read() -> None:
    api = ScriptedApi(forever=ApiUnreachable("away", 0))
    RejectedPods(api, ALIYUN.resource).clear([read(failed()) for _ in range(3)])
    assert len(api.calls) == 1
