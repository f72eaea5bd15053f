"""A protobuf body of kubectl creates the same object as JSON."""

import base64
from typing import Any

import pytest

from tests.contract.apiserver.client import Api, Json
from tests.contract.apiserver.conftest import pod

PROTOBUF = "application/vnd.kubernetes.protobuf"
BUDGETS = "/apis/policy/v1"
CLASSES = "/apis/scheduling.k8s.io/v1"


def message(fields: dict[int, Any]) -> bytes:
    """A message: numbers, texts, bytes, messages (dicts), and lists of these, by field number."""
    return b"".join(
        field(number, value)
        for number, values in fields.items()
        for value in (values if isinstance(values, list) else [values])
    )


def field(number: int, value: Any) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % 2**64)
    data = message(value) if isinstance(value, dict) else value
    data = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    low, tail = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(tail) if tail else bytes([low])


def meta(name: str, **more: Any) -> dict[int, Any]:
    """Metadata as client-go writes them, with empty fields."""
    notes = [{1: key, 2: value} for key, value in more.items()]
    return {1: name, 2: "", 3: "", 4: "", 5: "", 6: "", 7: 0, 8: "", 11: notes, 12: notes}


def body(api_version: str, kind: str, fields: dict[int, Any]) -> bytes:
    return b"k8s\x00" + message({1: {1: api_version, 2: kind}, 2: message(fields), 3: "", 4: ""})


def send(api: Api, path: str, data: bytes, method: str = "POST") -> Any:
    accept = f"{PROTOBUF},application/json" if not api.tls else "application/json"
    return api.call(method, path, raw=data, content_type=PROTOBUF, accept=accept)


def told(result: Json) -> Json:
    """An object without the fields that differ between objects."""
    ignored = ("name", "uid", "resourceVersion", "creationTimestamp", "managedFields")
    meta = {key: value for key, value in result["metadata"].items() if key not in ignored}
    labels = {k: v for k, v in meta.get("labels", {}).items() if k != "kubernetes.io/metadata.name"}
    return {**result, "metadata": {**meta, "labels": labels}}


NOTES: Json = {"labels": {"a": "b"}, "annotations": {"a": "b"}}
BYTES = bytes(range(200, 256))
SELECTOR = {1: {1: "a", 2: "b"}, 2: {1: "c", 2: "NotIn", 3: ["d", "e"]}}
SELECTED = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d", "e"]}],
}
Kind = tuple[str, str, str]
# ((API, plural, kind), fields besides the metadata, the same in JSON)
KINDS: list[tuple[Kind, dict[int, Any], Json]] = [
    (
        ("/api/v1", "configmaps", "ConfigMap"),
        {2: [{1: "gpus", 2: "0,2"}, {1: "none", 2: ""}], 3: {1: "raw", 2: BYTES}, 4: 1},
        {
            "data": {"gpus": "0,2", "none": ""},
            "binaryData": {"raw": base64.b64encode(BYTES).decode()},
            "immutable": True,
        },
    ),
    (
        ("/api/v1", "secrets", "Secret"),
        {2: {1: "raw", 2: BYTES}, 3: "Opaque"},
        {"data": {"raw": base64.b64encode(BYTES).decode()}, "type": "Opaque"},
    ),
    (
        ("/api/v1", "serviceaccounts", "ServiceAccount"),
        {3: [{1: "x"}, {1: "y"}], 4: 0},
        {"imagePullSecrets": [{"name": "x"}, {"name": "y"}], "automountServiceAccountToken": False},
    ),
    (
        (BUDGETS, "poddisruptionbudgets", "PodDisruptionBudget"),
        {2: {1: {1: 0, 2: 2, 3: ""}, 2: SELECTOR}, 3: {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}},
        {"spec": {"minAvailable": 2, "selector": SELECTED}},
    ),
    (
        (BUDGETS, "poddisruptionbudgets", "PodDisruptionBudget"),
        {2: {2: SELECTOR, 3: {1: 1, 2: 0, 3: "50%"}}},
        {"spec": {"maxUnavailable": "50%", "selector": SELECTED}},
    ),
]


@pytest.mark.parametrize(
    ("resource", "fields", "same"), KINDS, ids=[f"{row[0][1]}-{i}" for i, row in enumerate(KINDS)]
)
def test_an_object_in_a_namespace(
    api: Api, namespace: str, resource: Kind, fields: dict[int, Any], same: Json
) -> None:
    root, plural, kind = resource
    path = f"{root}/namespaces/{namespace.rpartition('/')[2]}/{plural}"
    version = root.removeprefix("/apis/").removeprefix("/api/")
    reply = send(api, path, body(version, kind, {1: meta("x", a="b"), **fields}))
    assert reply.status == 201, reply.body
    api.create(path, {"metadata": {"name": "y", **NOTES}, **same})
    assert told(api.get(f"{path}/x").body) == told(api.get(f"{path}/y").body)


def test_a_namespace_and_a_priority_class(api: Api) -> None:
    namespaces, classes = "/api/v1/namespaces", f"{CLASSES}/priorityclasses"
    encoded = body("v1", "Namespace", {1: meta("proto-ns"), 2: {1: []}, 3: {1: ""}})
    assert send(api, namespaces, encoded).status == 201
    api.create(namespaces, {"metadata": {"name": "proto-ns-json"}})
    assert told(api.get(f"{namespaces}/proto-ns").body) == told(
        api.get(f"{namespaces}/proto-ns-json").body
    )
    fields = {1: meta("proto-high"), 2: -5, 3: 0, 4: "first", 5: "Never"}
    encoded = body("scheduling.k8s.io/v1", "PriorityClass", fields)
    assert send(api, classes, encoded).status == 201
    same = {"value": -5, "description": "first", "preemptionPolicy": "Never"}
    api.create(classes, {"metadata": {"name": "proto-high-json"}, **same})
    created, second = (told(api.get(f"{classes}/proto-high{end}").body) for end in ("", "-json"))
    assert {"globalDefault": False, **created} == {"globalDefault": False, **second}
    for end in ("", "-json"):
        api.delete(f"{classes}/proto-high{end}")


def test_what_may_be_done_is_asked(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    spec = {1: {1: "default", 2: "list", 3: "", 4: "*", 5: "pods", 6: "", 7: ""}}
    fields = {1: meta(""), 2: spec, 3: {1: 0, 2: "", 3: "", 4: 0}}
    reply = send(api, path, body("authorization.k8s.io/v1", "SelfSubjectAccessReview", fields))
    assert (reply.status, reply.body["status"]["allowed"]) == (201, True)
    request = reply.body["spec"]["resourceAttributes"]
    assert (request["verb"], request["resource"]) == ("list", "pods")


def test_a_deletion_heeds_its_options(api: Api, namespace: str) -> None:
    uid = api.create(f"{namespace}/pods", pod()).meta["uid"]
    path = f"{namespace}/pods/p"
    second = {2: {1: "00000000-0000-0000-0000-000000000000"}}
    reply = send(api, path, body("v1", "DeleteOptions", second), "DELETE")
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    reply = send(api, path, body("v1", "DeleteOptions", {1: 0, 2: {1: uid}}), "DELETE")
    assert reply.status == 200, reply.body
    assert api.get(path).status == 404


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"k8s\x00",
        b"k8s\x00\x0a\xff",
        b"k8s\x00" + b"\xff" * 20,
        body("v1", "ConfigMap", {1: 7}),
        body("v1", "ConfigMap", {1: {1: b"\xff\xfe"}, 2: 3}),
        body("v1", "Nothing", {}),
    ],
)
def test_what_cannot_be_read_is_refused(api: Api, namespace: str, raw: bytes) -> None:
    reply = send(api, f"{namespace}/configmaps", raw)
    assert reply.status in (400, 415), reply.body
    assert reply.body["kind"] == "Status"
