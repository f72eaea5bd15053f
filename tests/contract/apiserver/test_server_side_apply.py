"""Server-side apply: fields have owners, who are asked before others change them."""

import json

import pytest

from tests.contract.apiserver.client import MERGE, Api, Json, Reply
from tests.contract.apiserver.conftest import SERVER, pod

APPLY = "application/apply-patch+yaml"


def apply(api: Api, path: str, body: Json, manager: str = "first", *, force: bool = False) -> Reply:
    query = f"fieldManager={manager}&force={str(force).lower()}"
    return api.call("PATCH", f"{path}?{query}", body, content_type=APPLY)


def settings(**data: str) -> Json:
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    return {**body, "data": data} if data else body


@pytest.fixture
def path(namespace: str) -> str:
    return f"{namespace}/configmaps/a"


def test_what_is_not_there_is_made_and_what_is_right_stays(api: Api, path: str) -> None:
    made = apply(api, path, settings(x="1"))
    assert made.status == 201
    again = apply(api, path, settings(x="1"))
    assert (again.status, again.version) == (200, made.version)
    (entry,) = again.meta["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("first", "Apply")
    assert (entry["apiVersion"], entry["fieldsType"]) == ("v1", "FieldsV1")
    assert entry["fieldsV1"]["f:data"].keys() - {"."} == {"f:x"}


def test_what_is_said_no_more_goes(api: Api, path: str) -> None:
    apply(api, path, settings(x="1", y="1"))
    assert apply(api, path, settings(x="2")).body["data"] == {"x": "2"}


def test_what_nobody_applied_stays(api: Api, path: str) -> None:
    apply(api, path, settings(x="1"))
    api.patch(path, {"data": {"z": "1"}}, MERGE)
    assert apply(api, path, settings(x="2")).body["data"] == {"x": "2", "z": "1"}


def test_two_who_say_different_things_get_along(api: Api, path: str) -> None:
    apply(api, path, settings(x="1"))
    assert apply(api, path, settings(y="1"), "second").body["data"] == {"x": "1", "y": "1"}
    assert apply(api, path, settings()).body["data"] == {"y": "1"}


def test_what_two_say_goes_when_neither_says_it(api: Api, path: str) -> None:
    apply(api, path, settings(x="1"))
    assert apply(api, path, settings(x="1"), "second").status == 200
    assert apply(api, path, settings()).body["data"] == {"x": "1"}
    assert "data" not in apply(api, path, settings(), "second").body


def test_another_owner_is_named_and_nothing_changes(api: Api, path: str) -> None:
    made = apply(api, path, settings(x="1"))
    refused = apply(api, path, settings(x="2"), "second")
    assert (refused.status, refused.body["reason"]) == (409, "Conflict")
    told = 'Apply failed with 1 conflict: conflict with "first": .data.x'
    assert refused.body["message"] == told
    (cause,) = refused.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.x")
    assert api.get(path).version == made.version


def test_who_forces_becomes_the_owner(api: Api, path: str) -> None:
    apply(api, path, settings(x="1"))
    taken = apply(api, path, settings(x="2"), "second", force=True)
    assert taken.body["data"] == {"x": "2"}
    assert [entry["manager"] for entry in taken.meta["managedFields"]] == ["second"]
    assert apply(api, path, settings(x="3")).status == 409


def test_items_of_a_list_are_owned_by_their_key(api: Api, namespace: str) -> None:
    path = f"{namespace}/pods/p"

    def with_env(**values: str) -> Json:
        body = pod()
        env = [{"name": name, "value": value} for name, value in values.items()]
        body["spec"]["containers"][0]["env"] = env
        return body

    apply(api, path, pod())
    body = with_env(A="1")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    body["metadata"]["labels"] = {"a": "b"}
    del body["spec"]
    second = apply(api, path, body, "second")
    assert second.meta["finalizers"] == ["example.com/hold"]
    third = apply(api, path, {**body, "metadata": {"name": "p"}}, "second")
    assert "finalizers" not in third.meta
    assert "labels" not in third.meta
    image = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "y:2"}]}}
    typed = {"apiVersion": "v1", "kind": "Pod", **image}
    refused = apply(api, path, typed, "second")
    assert refused.status == 409
    assert '.spec.containers[name="main"].image' in refused.body["message"]
    forced = apply(api, path, typed, "second", force=True)
    assert forced.body["spec"]["containers"][0]["image"] == "y:2"
    assert forced.body["spec"]["containers"][0]["resources"]["limits"]


def test_other_writes_leave_the_owners_alone(api: Api, path: str) -> None:
    apply(api, path, settings(x="1"))
    stored = api.get(path).body
    del stored["metadata"]["managedFields"]
    assert api.call("PUT", path, stored).status == 200
    assert apply(api, path, settings(x="2"), "second").status == 409


def test_a_dry_run_does_nothing(api: Api, path: str) -> None:
    reply = api.call(
        "PATCH",
        f"{path}?fieldManager=first&dryRun=All",
        settings(x="1"),
        content_type=APPLY,
    )
    assert reply.status == 201
    assert api.get(path).status == 404


def test_who_does_not_say_who_he_is_is_refused(api: Api, path: str) -> None:
    reply = api.call("PATCH", path, settings(x="1"), content_type=APPLY)
    assert reply.status in (400, 422)
    assert "fieldManager" in reply.body["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "b"}},
        {"metadata": {"managedFields": [{"manager": "x"}]}},
        {"kind": "Pod"},
    ],
)
def test_what_makes_no_sense_is_refused(api: Api, path: str, change: Json) -> None:
    body = {**settings(x="1"), **change}
    assert apply(api, path, body).status in (400, 409, 422)
    assert api.get(path).status == 404


@pytest.mark.parametrize("raw", [b"[]", b"7", b"\xff{"])
def test_what_is_no_object_is_a_bad_request(api: Api, path: str, raw: bytes) -> None:
    url = f"{path}?fieldManager=first"
    assert api.call("PATCH", url, raw=raw, content_type=APPLY).status == 400


def test_unknown_fields_are_refused_where_that_is_asked_for(api: Api, path: str) -> None:
    url = f"{path}?fieldManager=first&fieldValidation=Strict"
    body = {**settings(x="1"), "datum": {}}
    reply = api.call("PATCH", url, body, content_type=APPLY)
    # Where there are schemas for merging, the merge refuses it first, with 500.
    assert reply.status in (400, 500)
    assert "datum" in json.dumps(reply.body)
    assert api.get(path).status == 404


@pytest.mark.skipif(SERVER != "localcluster", reason="there, all who write own what they wrote")
def test_who_updates_owns_nothing(api: Api, path: str) -> None:
    apply(api, path, settings(x="1"))
    api.patch(path, {"data": {"x": "9"}}, MERGE)
    assert apply(api, path, settings(x="2")).body["data"] == {"x": "2"}
