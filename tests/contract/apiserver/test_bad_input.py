"""The answer to every malformed request is a Status with the reason."""

import json

import pytest

from tests.contract.apiserver.client import JSON_PATCH, MERGE, STRATEGIC, Api, ApiReply
from tests.contract.apiserver.conftest import config_map, newest, pod


def is_refusal(reply: ApiReply, *codes: int) -> bool:
    body = reply.body
    return reply.status in codes and body["kind"] == "Status" and body["code"] == reply.status


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b"{} {}", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000],
)
def test_a_body_that_is_no_json_object_is_a_bad_request(
    api: Api, namespace: str, raw: bytes
) -> None:
    reply = api.call("POST", f"{namespace}/configmaps", raw=raw)
    assert is_refusal(reply, 400)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Node"},
        {"apiVersion": "v2"},
        {"kind": 7},
        {"metadata": "x"},
        {"metadata": {"name": 7}},
        {"metadata": {"name": "a", "labels": []}},
        {"metadata": {"name": "a", "labels": {"x": 1}}},
        {"metadata": {"name": "a", "finalizers": "x"}},
        {"metadata": {"name": "a", "namespace": "elsewhere"}},
        {"metadata": {"name": "a", "resourceVersion": "5"}},
    ],
)
def test_an_object_of_the_wrong_type_is_a_bad_request(
    api: Api, namespace: str, change: dict[str, object]
) -> None:
    reply = api.call("POST", f"{namespace}/configmaps", {**config_map("a"), **change})
    assert is_refusal(reply, 400, 500)


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {},
        {"name": "Upper"},
        {"name": "a_b"},
        {"name": "-a"},
        {"name": "a" * 254},
        {"name": "a/b"},
        {"name": "a", "labels": {"x y": "1"}},
        {"name": "a", "labels": {"x": "not a value"}},
        {"name": "a", "labels": {"Not.A.Domain/x": "1"}},
        {"name": "a", "annotations": {"": "1"}},
        {"name": "a", "annotations": {"x": "1" * 300_000}},
    ],
)
def test_names_labels_and_annotations_keep_to_the_rules(
    api: Api, namespace: str, meta: dict[str, object] | None
) -> None:
    raw = b"null" if meta is None else json.dumps({"metadata": meta}).encode()
    reply = api.call("POST", f"{namespace}/configmaps", raw=raw)
    assert is_refusal(reply, 422)


@pytest.mark.parametrize(
    "spec",
    [
        "x",
        {"containers": "x"},
        {"containers": ["x"]},
        {"containers": [{"name": "a", "image": "x", "resources": "x"}]},
        {"containers": [{"name": "a", "image": "x", "resources": {"limits": []}}]},
        {"containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": "x"}}}]},
        {"containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": []}}}]},
        {"containers": [{"name": "a", "image": "x"}], "tolerations": {}},
        {"containers": [{"name": "a", "image": "x"}], "schedulingGates": ["x"]},
    ],
)
def test_a_pod_of_the_wrong_shape_is_a_bad_request(api: Api, namespace: str, spec: object) -> None:
    assert is_refusal(api.call("POST", f"{namespace}/pods", {**pod(), "spec": spec}), 400)


@pytest.mark.parametrize("content_type", ["application/vnd.kubernetes.protobuf", "text/plain"])
def test_a_body_in_another_format_is_unsupported(
    api: Api, namespace: str, content_type: str
) -> None:
    reply = api.call("POST", f"{namespace}/pods", raw=b"k8s\x00...", content_type=content_type)
    assert is_refusal(reply, 400, 415)


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        (MERGE, []),
        (MERGE, "x"),
        (STRATEGIC, []),
        (JSON_PATCH, {}),
        (JSON_PATCH, [7]),
        (JSON_PATCH, [{"op": "add"}]),
        (MERGE, {"metadata": {"labels": {"x": 1}}}),
        (MERGE, {"kind": "Pod"}),
        (JSON_PATCH, [{"op": "replace", "path": "/metadata", "value": 7}]),
        (JSON_PATCH, [{"op": "replace", "path": "", "value": 7}]),
    ],
)
def test_a_patch_that_makes_no_sense_changes_nothing(
    api: Api, namespace: str, content_type: str, patch: object
) -> None:
    path = f"{namespace}/configmaps/a"
    created = api.create(f"{namespace}/configmaps", config_map("a", x="1"))
    reply = api.patch(path, patch, content_type)
    assert reply.status < 500
    assert api.get(path).body == created.body


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "x"},
        {"continue": "x"},
        {"continue": "WzFd"},
        {"continue": "W1tb" * 3000},
        pytest.param({"resourceVersion": "x"}, marks=newest),
        pytest.param({"resourceVersion": "9" * 30}, marks=newest),
        {"watch": "1", "timeoutSeconds": "x"},
        {"labelSelector": "=="},
        {"fieldSelector": "x=y"},
    ],
)
def test_a_query_that_makes_no_sense_is_a_bad_request(
    api: Api, namespace: str, query: dict[str, object]
) -> None:
    assert is_refusal(api.get(f"{namespace}/configmaps", **query), 400)


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
        {"resourceVersionMatch": "Newest", "resourceVersion": "1"},
        {"sendInitialEvents": "true"},
        {"watch": "1", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"},
        {"watch": "1", "resourceVersionMatch": "Exact", "sendInitialEvents": "true"},
    ],
)
def test_a_query_that_asks_for_what_there_cannot_be_is_invalid(
    api: Api, namespace: str, query: dict[str, object]
) -> None:
    assert is_refusal(api.get(f"{namespace}/configmaps", timeoutSeconds=1, **query), 422)


def test_the_pages_after_the_first_name_no_version(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    for name in ("a", "b"):
        api.create(path, config_map(name))
    first = api.get(path, limit=1)
    query = {"continue": first.meta["continue"], "resourceVersion": first.version}
    assert is_refusal(api.get(path, limit=1, **query), 400)


def test_a_verb_that_a_resource_does_not_have_is_not_allowed(api: Api, namespace: str) -> None:
    for method, path in (
        ("PUT", f"{namespace}/configmaps"),
        ("POST", "/api/v1/configmaps"),
        ("DELETE", "/api/v1/namespaces"),
        ("GET", f"{namespace}/pods/p/binding"),
    ):
        assert is_refusal(api.call(method, path, {}), 404, 405)


@pytest.mark.parametrize(
    "path",
    ["/", "/api/v1/pods/p/status", "/api/v1/namespaces/default/nodes", "/api/v1/nodes/a/b/c"],
)
def test_a_path_to_nothing_is_not_found(api: Api, path: str) -> None:
    assert api.get(path).status in {200, 403, 404} if path == "/" else 404


def test_a_subresource_that_there_is_not_is_told_with_details(api: Api, namespace: str) -> None:
    """Some of kubectl's commands end with a panic where a 404 has none."""
    api.create(f"{namespace}/pods", pod())
    reply = api.get(f"{namespace}/pods/p/nothing")
    assert is_refusal(reply, 404)
    assert reply.body["details"] == {}


@newest
@pytest.mark.parametrize(
    "body",
    [
        {"gracePeriodSeconds": "x"},
        {"preconditions": "x"},
        {"kind": "Pod"},
    ],
)
def test_delete_options_that_make_no_sense_delete_nothing(
    api: Api, namespace: str, body: dict[str, object]
) -> None:
    api.create(f"{namespace}/configmaps", config_map("a"))
    assert is_refusal(api.delete(f"{namespace}/configmaps/a", body), 400)
    assert api.get(f"{namespace}/configmaps/a").status == 200


@pytest.mark.parametrize(
    "change",
    [{"target": "x"}, {"target": {"name": 7}}, {"metadata": {"annotations": {"x": 1}}}],
)
def test_a_binding_of_the_wrong_shape_is_a_bad_request(
    api: Api, namespace: str, change: dict[str, object]
) -> None:
    api.create(f"{namespace}/pods", pod())
    body = {"metadata": {"name": "p"}, "target": {"name": "n"}, **change}
    assert is_refusal(api.call("POST", f"{namespace}/pods/p/binding", body), 400)


def test_a_body_over_the_limit_is_refused(api: Api, namespace: str) -> None:
    body = config_map("a", x="1" * (3 * 1024 * 1024))
    assert is_refusal(api.call("POST", f"{namespace}/configmaps", body), 413)
