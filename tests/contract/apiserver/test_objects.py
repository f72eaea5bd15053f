"""Objects of any kind: created, read, listed, replaced, deleted."""

import pytest

from tests.contract.apiserver.client import Api
from tests.contract.apiserver.conftest import config_map


def test_a_created_object_is_answered_whole(api: Api, namespace: str) -> None:
    reply = api.create(f"{namespace}/configmaps", config_map("a", x="1"))
    assert (reply.body["kind"], reply.body["apiVersion"]) == ("ConfigMap", "v1")
    assert reply.meta["uid"]
    assert reply.meta["creationTimestamp"].endswith("Z")
    assert int(reply.version) > 0
    assert api.get(f"{namespace}/configmaps/a").body == reply.body


def test_a_taken_name_is_a_conflict(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/configmaps", config_map("a"))
    again = api.call("POST", f"{namespace}/configmaps", config_map("a"))
    assert (again.status, again.body["reason"]) == (409, "AlreadyExists")


def test_a_missing_object_is_not_found(api: Api, namespace: str) -> None:
    for method in ("GET", "DELETE"):
        reply = api.call(method, f"{namespace}/configmaps/none")
        assert (reply.status, reply.body["kind"], reply.body["reason"]) == (
            404,
            "Status",
            "NotFound",
        )
        assert reply.body["details"]["name"] == "none"


def test_nothing_is_created_in_a_namespace_that_is_not_there(api: Api) -> None:
    reply = api.call("POST", "/api/v1/namespaces/nowhere/configmaps", config_map("a"))
    assert (reply.status, reply.body["reason"]) == (404, "NotFound")


def test_generate_name_makes_names(api: Api, namespace: str) -> None:
    body = {"metadata": {"generateName": "made-"}}
    first, second = (api.create(f"{namespace}/configmaps", body).meta["name"] for _ in range(2))
    assert first.startswith("made-")
    assert first != second


def test_a_list_has_a_version_and_items_in_order(api: Api, namespace: str) -> None:
    empty = api.get(f"{namespace}/configmaps", labelSelector="none").body
    assert (empty["kind"], empty["items"]) == ("ConfigMapList", [])
    for name in ("b", "a"):
        last = api.create(f"{namespace}/configmaps", config_map(name))
    result = api.get(f"{namespace}/configmaps", labelSelector="!none")
    names = [item["metadata"]["name"] for item in result.body["items"]]
    assert [name for name in names if name in {"a", "b"}] == ["a", "b"]
    assert int(result.version) >= int(last.version)


def test_pages_of_a_list_are_of_one_version(api: Api, namespace: str) -> None:
    for index in range(5):
        api.create(f"{namespace}/configmaps", config_map(f"page-{index}", {"page": "yes"}))
    path, names, token, versions = f"{namespace}/configmaps", [], "", set()
    while True:
        more = {"continue": token} if token else {}
        page = api.get(path, limit=2, labelSelector="page=yes", **more)
        assert len(page.body["items"]) <= 2
        names += [item["metadata"]["name"] for item in page.body["items"]]
        versions.add(page.version)
        token = page.meta.get("continue", "")
        if not token:
            break
        if len(names) == 2:
            api.delete(f"{path}/page-4")
            api.create(path, config_map("page-0a", {"page": "yes"}))
    assert names == [f"page-{index}" for index in range(5)]
    assert len(versions) == 1


def test_a_put_with_an_old_version_is_a_conflict(api: Api, namespace: str) -> None:
    old = api.create(f"{namespace}/configmaps", config_map("a", x="1")).body
    new = api.call("PUT", f"{namespace}/configmaps/a", {**old, "data": {"x": "2"}})
    assert (new.status, new.body["data"]) == (200, {"x": "2"})
    stale = api.call("PUT", f"{namespace}/configmaps/a", {**old, "data": {"x": "3"}})
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")
    assert api.get(f"{namespace}/configmaps/a").body == new.body


def test_a_put_without_a_version_wins(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/configmaps", config_map("a", x="1"))
    reply = api.call("PUT", f"{namespace}/configmaps/a", config_map("a", x="2"))
    assert (reply.status, reply.body["data"]) == (200, {"x": "2"})
    assert reply.meta["uid"] == created.meta["uid"]


def test_a_put_that_changes_nothing_is_no_new_version(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/configmaps", config_map("a", x="1"))
    assert api.call("PUT", f"{namespace}/configmaps/a", created.body).version == created.version
    assert api.patch(f"{namespace}/configmaps/a", {"data": {"x": "1"}}).version == created.version


def test_identity_cannot_be_changed(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/configmaps", config_map("a"))
    second = {**created.body, "metadata": {**created.meta, "uid": "another"}}
    assert api.call("PUT", f"{namespace}/configmaps/a", second).status == 409
    for change in ({"name": "b"}, {"name": None}, {"namespace": "elsewhere"}):
        after_move = {**created.body, "metadata": {**created.meta, **change}}
        assert api.call("PUT", f"{namespace}/configmaps/a", after_move).status == 400
    assert api.get(f"{namespace}/configmaps/a").body == created.body


@pytest.mark.parametrize(
    ("field", "status"), [("name", 400), ("namespace", 400), ("uid", 422), ("resourceVersion", 409)]
)
def test_a_patch_for_another_object_changes_nothing(
    api: Api, namespace: str, field: str, status: int
) -> None:
    """By 422 controllers (client-go) notice a new object of the same name."""
    created = api.create(f"{namespace}/configmaps", config_map("a"))
    patch = {"metadata": {field: "7"}, "data": {"x": "1"}}
    assert api.patch(f"{namespace}/configmaps/a", patch).status == status
    patch["metadata"]["resourceVersion"] = "7"
    assert api.patch(f"{namespace}/configmaps/a", patch).status == min(status, 409)
    assert api.get(f"{namespace}/configmaps/a").body == created.body


def test_a_dry_run_answers_and_does_nothing(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    created = api.create(path, config_map("a", x="1"), dryRun="All")
    assert created.meta["uid"]
    assert api.get(f"{path}/a").status == 404
    real = api.create(path, config_map("a", x="1"))
    updated = api.call("PUT", f"{path}/a", config_map("a", x="2"), dryRun="All")
    assert updated.body["data"] == {"x": "2"}
    assert api.call("DELETE", f"{path}/a", dryRun="All").status == 200
    assert api.get(f"{path}/a").body == real.body


def test_of_a_delete_with_a_body_the_body_counts_alone(api: Api, namespace: str) -> None:
    """DeleteResource of k8s.io/apiserver decodes the query only where there is no body."""
    path = f"{namespace}/configmaps/a"
    api.create(f"{namespace}/configmaps", config_map("a"))
    assert api.call("DELETE", path, {"dryRun": ["All"]}).status == 200
    assert api.get(path).status == 200
    assert api.call("DELETE", path, {"kind": "DeleteOptions"}, dryRun="All").status == 200
    assert api.get(path).status == 404


def test_a_deleted_object_is_gone_and_says_which(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/configmaps", config_map("a"))
    reply = api.delete(f"{namespace}/configmaps/a")
    assert (reply.status, reply.body["status"]) == (200, "Success")
    assert reply.body["details"]["uid"] == created.meta["uid"]
    assert api.get(f"{namespace}/configmaps/a").status == 404


def test_a_delete_keeps_to_its_preconditions(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps/a"
    created = api.create(f"{namespace}/configmaps", config_map("a"))
    for precondition in ({"uid": "another"}, {"resourceVersion": "1"}):
        reply = api.delete(path, {"preconditions": precondition})
        assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    right = {"uid": created.meta["uid"], "resourceVersion": created.version}
    assert api.delete(path, {"preconditions": right}).status == 200


def test_finalizers_hold_an_object_until_they_are_gone(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps/a"
    body = config_map("a")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    api.create(f"{namespace}/configmaps", body)
    assert api.delete(path).status == 200
    marked = api.get(path)
    assert marked.meta["deletionTimestamp"]
    assert api.delete(path).status == 200
    assert api.get(path).version == marked.version
    assert api.patch(path, {"metadata": {"finalizers": None}}).status == 200
    assert api.get(path).status == 404


def test_delete_collection_deletes_what_its_selector_selects(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    for name, tier in (("a", "x"), ("b", "x"), ("c", "y")):
        api.create(path, config_map(name, {"tier": tier}))
    assert api.call("DELETE", path, labelSelector="tier=x").status == 200
    remaining = api.get(path, labelSelector="tier").body["items"]
    assert [item["metadata"]["name"] for item in remaining] == ["c"]


def test_a_list_is_narrowed_by_fields_and_labels(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    for name in ("a", "b"):
        api.create(path, config_map(name, {"app": name}))
    for query in ({"fieldSelector": "metadata.name=a"}, {"labelSelector": "app in (a)"}):
        result = api.get(path, **query).body["items"]
        assert [item["metadata"]["name"] for item in result] == ["a"]
    assert api.get(path, fieldSelector="data.x=1").status == 400
    assert api.get(path, labelSelector="a=b=c").status == 400


def test_all_namespaces_are_listed_at_once(api: Api, namespace: str) -> None:
    created = api.create(f"{namespace}/configmaps", config_map("a"))
    items = api.get("/api/v1/configmaps").body["items"]
    assert created.meta["uid"] in {item["metadata"]["uid"] for item in items}
