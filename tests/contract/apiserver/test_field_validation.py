"""Fields that a kind does not have, as `fieldValidation` asks; schemas for `kubectl explain`."""

from typing import Any

import pytest

from tests.contract.apiserver.client import JSON_PATCH, MERGE, STRATEGIC, Api
from tests.contract.apiserver.conftest import SERVER, pod

UNKNOWN = 'unknown field "spec.containers[0].resources.limit"'


def misspelt() -> Any:
    body = pod()
    resources = body["spec"]["containers"][0]["resources"]
    resources["limit"] = resources["limits"]
    return body


def test_strict_refuses_an_unknown_field_and_says_where(api: Api, namespace: str) -> None:
    reply = api.call("POST", f"{namespace}/pods", misspelt(), fieldValidation="Strict")
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")
    assert reply.body["message"].endswith(
        f'Pod in version "v1" cannot be handled as a Pod: strict decoding error: {UNKNOWN}'
    )
    assert api.get(f"{namespace}/pods/p").status == 404


def test_warn_drops_it_and_warns(api: Api, namespace: str) -> None:
    reply = api.create(f"{namespace}/pods", misspelt(), fieldValidation="Warn")
    quoted = UNKNOWN.replace('"', '\\"')
    assert reply.headers["Warning"] == f'299 - "{quoted}"'
    assert "limit" not in reply.body["spec"]["containers"][0]["resources"]


def test_ignore_drops_it(api: Api, namespace: str) -> None:
    reply = api.create(f"{namespace}/pods", misspelt(), fieldValidation="Ignore")
    assert "Warning" not in reply.headers
    assert "limit" not in reply.body["spec"]["containers"][0]["resources"]


def test_what_is_right_passes(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/pods", pod(gpu_mem=3), fieldValidation="Strict")
    assert api.get(f"{namespace}/pods/p").status == 200


def test_a_put_is_checked(api: Api, namespace: str) -> None:
    made = api.create(f"{namespace}/configmaps", {"metadata": {"name": "a"}}).body
    odd = {**made, "datum": {}}
    reply = api.call("PUT", f"{namespace}/configmaps/a", odd, fieldValidation="Strict")
    assert reply.status == 400
    assert 'unknown field "datum"' in reply.body["message"]


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        (MERGE, {"spec": {"toleration": []}}),
        (STRATEGIC, {"spec": {"toleration": []}}),
        (JSON_PATCH, [{"op": "add", "path": "/spec/toleration", "value": []}]),
    ],
)
def test_a_patch_is_checked(api: Api, namespace: str, content_type: str, patch: object) -> None:
    api.create(f"{namespace}/pods", pod())
    path = f"{namespace}/pods/p"
    query: Any = {"fieldValidation": "Strict"}
    reply = api.call("PATCH", path, patch, content_type=content_type, **query)
    assert reply.status == 422
    assert 'unknown field "spec.toleration"' in reply.body["message"]


@pytest.mark.parametrize(
    "spec",
    [
        {"activeDeadlineSeconds": "5"},
        {"activeDeadlineSeconds": True},
        {"hostNetwork": "yes"},
        {"nodeSelector": []},
        {"tolerations": {}},
        {"affinity": "x"},
        {"nodeName": {}},
    ],
)
def test_a_value_of_the_wrong_type_is_a_bad_request(
    api: Api, namespace: str, spec: dict[str, object]
) -> None:
    body = pod()
    body["spec"] |= spec
    reply = api.call("POST", f"{namespace}/pods", body, fieldValidation="Strict")
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")
    (field,) = spec
    assert field in reply.body["message"]


def test_a_mode_that_there_is_not_is_refused(api: Api, namespace: str) -> None:
    reply = api.call("POST", f"{namespace}/pods", pod(), fieldValidation="Often")
    assert reply.status == 422
    assert "fieldValidation" in reply.body["message"]


@pytest.mark.parametrize(
    ("root", "kind", "path"),
    [
        ("api/v1", "Pod", ("spec", "containers", "resources", "limits")),
        ("apis/apps/v1", "Deployment", ("spec", "template", "spec", "containers", "image")),
        ("apis/batch/v1", "Job", ("spec", "backoffLimit")),
        ("apis/coordination.k8s.io/v1", "Lease", ("spec", "holderIdentity")),
    ],
)
def test_the_schemas_lead_to_every_field(
    api: Api, root: str, kind: str, path: tuple[str, ...]
) -> None:
    """As `kubectl explain` follows them."""
    schemas = api.get(f"/openapi/v3/{root}").body["components"]["schemas"]
    kinds = "x-kubernetes-group-version-kind"
    (schema,) = [each for each in schemas.values() if kind in _kinds(each.get(kinds))]
    for field in path:
        found = schema["properties"][field]
        inner = found.get("items", found)
        (link,) = [*inner.get("allOf", ()), inner][:1]
        schema = schemas.get(link.get("$ref", "").rpartition("/")[2], inner)
        assert found.get("description") or schema["description"]


def _kinds(named: Any) -> set[str]:
    """Kinds by which a schema is found; options of the verbs stand beside them."""
    return {each["kind"] for each in named or () if len(named) == 1}


@pytest.mark.skipif(SERVER != "localcluster", reason="a real server warns by itself")
def test_a_client_that_asks_for_nothing_has_its_body_stored(api: Api, namespace: str) -> None:
    reply = api.create(f"{namespace}/pods", misspelt())
    assert "limit" in reply.body["spec"]["containers"][0]["resources"]


@pytest.mark.skipif(SERVER != "localcluster", reason="a real server stores no unknown field")
def test_what_was_stored_so_is_not_held_against_a_patch(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps/a"
    api.create(f"{namespace}/configmaps", {"metadata": {"name": "a"}, "datum": {}})
    query: Any = {"fieldValidation": "Strict"}
    patch = {"metadata": {"labels": {"a": "b"}}}
    assert api.call("PATCH", path, patch, content_type=MERGE, **query).status == 200
    assert (
        api.call("PATCH", path, {"data": {}, "dat": {}}, content_type=MERGE, **query).status == 422
    )
