"""The extender recognises the API server by the shape of its answers.

Each is read by the production code, which takes anything else for no answer at all.
"""

import json

import pytest

from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.kube.election import read_lease
from gpushare.kube.responses import response_error
from gpushare.wire.binding import check_bound
from gpushare.wire.codec import check_kind
from gpushare.wire.objects import BUDGETS, CONFIG_MAPS, NODES, PODS
from tests.contract.apiserver.client import Api, ApiReply, Json
from tests.contract.apiserver.conftest import binding, pod


def encoded(reply: ApiReply) -> bytes:
    return json.dumps(reply.body).encode()


def short(namespace: str) -> str:
    return namespace.rpartition("/")[2]


def test_a_binding_taken_is_a_status_of_success(api: Api, namespace: str, node_name: str) -> None:
    uid = api.create(f"{namespace}/pods", pod()).meta["uid"]
    reply = api.call("POST", f"{namespace}/pods/p/binding", binding("p", node_name, uid=uid))
    assert reply.status == 201
    check_bound(encoded(reply))


def test_a_uid_is_a_uuid_whatever_its_user_writes(api: Api, namespace: str) -> None:
    body = pod()
    body["metadata"]["uid"] = "x" * 1000
    reply = api.call("POST", f"{namespace}/pods", body)
    assert reply.status == 201
    assert len(reply.meta["uid"]) == 36


def test_a_pod_that_is_read_says_what_it_is(api: Api, namespace: str) -> None:
    uid = api.create(f"{namespace}/pods", pod()).meta["uid"]
    result = PODS.decode_answer(encoded(api.get(f"{namespace}/pods/p")), short(namespace), "p")
    assert result.metadata is not None
    assert result.metadata.uid == uid


def test_every_list_says_of_what_it_is_with_items_though_it_is_empty(
    api: Api, namespace: str
) -> None:
    none = {"fieldSelector": "metadata.name=none"}
    assert PODS.decode_list(encoded(api.get(f"{namespace}/pods"))).items == ()
    assert NODES.decode_list(encoded(api.get("/api/v1/nodes", **none))).items == ()
    assert CONFIG_MAPS.decode_list(encoded(api.get(f"{namespace}/configmaps", **none))).items == ()
    budgets = f"/apis/policy/v1/namespaces/{short(namespace)}/poddisruptionbudgets"
    assert BUDGETS.decode_list(encoded(api.get(budgets))).items == ()


def test_a_lease_written_is_answered_as_it_was_written(api: Api, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{short(namespace)}/leases"
    created = read_lease(encoded(api.create(path, _lease("2026-01-01T00:00:00.000001Z"))))
    renewed = json.loads(created.document) | {"spec": _lease("2026-01-01T00:00:02.120000Z")["spec"]}
    text = read_lease(encoded(api.call("PUT", f"{path}/x", renewed)))
    assert text.renewed == "2026-01-01T00:00:02.120000Z"
    assert text.version != created.version


def test_an_event_written_is_answered_as_an_event(api: Api, namespace: str) -> None:
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "x.1", "namespace": short(namespace)},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/test",
        "reportingInstance": "me",
        "action": "Binding",
        "reason": "Told",
        "type": "Normal",
        "note": "n",
        "regarding": {"kind": "Pod", "namespace": short(namespace), "name": "p"},
    }
    path = f"/apis/events.k8s.io/v1/namespaces/{short(namespace)}/events"
    check_kind(encoded(api.create(path, body)), "Event")


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("GET", "pods/none", None, ApiNotFound),
        ("POST", "pods/none/binding", binding("none", "n"), ApiNotFound),
        ("POST", "pods", {"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}, ApiError),
    ],
)
def test_a_refusal_is_a_status(
    api: Api, namespace: str, method: str, path: str, *, body: Json | None, kind: type[ApiError]
) -> None:
    reply = api.call(method, f"{namespace}/{path}", body)
    assert type(response_error("it", reply.status, encoded(reply))) is kind


def test_a_conflict_is_a_status(api: Api, namespace: str, node_name: str) -> None:
    api.create(f"{namespace}/pods", pod())
    path = f"{namespace}/pods/p/binding"
    api.create(path, binding("p", node_name))
    again = api.call("POST", path, binding("p", node_name))
    assert type(response_error("it", again.status, encoded(again))) is ApiConflict


def _lease(renewed: str) -> Json:
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": renewed}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "x"},
        "spec": spec,
    }
