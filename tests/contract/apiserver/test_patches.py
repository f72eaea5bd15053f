"""PATCH in its three forms, on objects and on their status."""

import pytest

from tests.contract.apiserver.client import JSON_PATCH, MERGE, STRATEGIC, Api
from tests.contract.apiserver.conftest import config_map, pod


def test_a_merge_patch_sets_and_removes(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/configmaps", config_map("a", x="1", y="2"))
    patch = {"metadata": {"annotations": {"k": "v"}}, "data": {"x": None, "z": "3"}}
    reply = api.patch(f"{namespace}/configmaps/a", patch)
    assert (reply.status, reply.body["data"]) == (200, {"y": "2", "z": "3"})
    assert reply.meta["annotations"] == {"k": "v"}


def test_a_json_patch_edits_by_path(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/configmaps", config_map("a", x="1"))
    patch = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "add", "path": "/data/y", "value": "2"},
    ]
    reply = api.patch(f"{namespace}/configmaps/a", patch, JSON_PATCH)
    assert (reply.status, reply.body["data"]) == (200, {"x": "1", "y": "2"})
    failed = api.patch(
        f"{namespace}/configmaps/a", [{**patch[0], "value": "9"}, patch[1]], JSON_PATCH
    )
    assert (failed.status, failed.body["reason"]) == (422, "Invalid")


def test_a_strategic_patch_merges_lists_by_their_key(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/pods", pod())
    patch = {"spec": {"containers": [{"name": "main", "image": "registry.example/app:2"}]}}
    reply = api.patch(f"{namespace}/pods/p", patch, STRATEGIC)
    (container,) = reply.body["spec"]["containers"]
    assert container["image"] == "registry.example/app:2"
    assert container["resources"]["limits"] == {"aliyun.com/gpu-mem": "3"}


def test_a_patch_of_the_status_merges_conditions_and_leaves_the_rest(
    api: Api, namespace: str
) -> None:
    api.create(f"{namespace}/pods", pod())
    path = f"{namespace}/pods/p/status"

    def condition(kind: str, status: str) -> dict[str, object]:
        return {"type": kind, "status": status, "lastProbeTime": None}

    first = {"status": {"conditions": [condition("PodScheduled", "False")]}}
    assert api.patch(path, first, STRATEGIC).status == 200
    second = {
        "spec": {"containers": [{"name": "main", "image": "other"}]},
        "status": {
            "$setElementOrder/conditions": [{"type": "PodScheduled"}, {"type": "Ready"}],
            "conditions": [condition("Ready", "True")],
        },
    }
    reply = api.patch(path, second, STRATEGIC)
    kinds = [item["type"] for item in reply.body["status"]["conditions"]]
    assert kinds == ["PodScheduled", "Ready"]
    assert reply.body["status"]["phase"] == "Pending"
    assert reply.body["spec"]["containers"][0]["image"] == "registry.example/app:1"
    again = api.patch(path, first, STRATEGIC)
    assert again.version == reply.version


def test_a_patch_of_the_status_may_carry_labels_and_annotations(
    api: Api, namespace: str, node_name: str
) -> None:
    """Kubelets and device plug-ins write a node's so; the strategies reset spec and owners only."""
    api.create(f"{namespace}/pods", pod())
    meta = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}
    for path in (f"{namespace}/pods/p/status", f"/api/v1/nodes/{node_name}/status"):
        reply = api.patch(path, {"metadata": {**meta, "ownerReferences": [owner]}}, STRATEGIC)
        assert reply.status == 200
        assert {field: reply.meta[field] for field in meta} == meta
    assert "ownerReferences" not in api.get(f"{namespace}/pods/p").meta


def test_null_in_a_status_patch_removes(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/pods", pod())
    path = f"{namespace}/pods/p/status"
    api.patch(path, {"status": {"nominatedNodeName": "n"}}, STRATEGIC)
    reply = api.patch(path, {"status": {"nominatedNodeName": None}}, STRATEGIC)
    assert "nominatedNodeName" not in reply.body["status"]


def test_a_write_of_the_object_leaves_its_status(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/pods", pod()).body
    updated = {**created, "status": {"phase": "Failed"}}
    assert api.call("PUT", f"{namespace}/pods/p", updated).body["status"]["phase"] == "Pending"
    reply = api.call("PUT", f"{namespace}/pods/p/status", updated)
    assert reply.body["status"]["phase"] == "Failed"
    assert api.get(f"{namespace}/pods/p/status").body == reply.body


def test_a_patch_may_carry_the_version_it_is_for(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/configmaps", config_map("a"))
    path = f"{namespace}/configmaps/a"
    patch = {"metadata": {"resourceVersion": created.version}, "data": {"x": "1"}}
    assert api.patch(path, patch).status == 200
    patch = {"metadata": {"resourceVersion": created.version}, "data": {"x": "2"}}
    assert (api.patch(path, patch).status, api.get(path).body["data"]) == (409, {"x": "1"})


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/cbor"])
def test_an_unknown_form_of_patch_is_unsupported(
    api: Api, namespace: str, content_type: str
) -> None:
    api.create(f"{namespace}/configmaps", config_map("a"))
    reply = api.patch(f"{namespace}/configmaps/a", {}, content_type)
    assert (reply.status, reply.body["reason"]) == (415, "UnsupportedMediaType")


def test_a_patch_of_nothing_is_not_found(api: Api, namespace: str) -> None:
    assert api.patch(f"{namespace}/configmaps/none", {"data": {}}, MERGE).status == 404
