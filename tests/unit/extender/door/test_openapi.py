"""The OpenAPI document says what is served, and what is served is what it says."""

import json
import re
from typing import Any

import pytest
from flask.testing import FlaskClient
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types

from gpushare.daemon.callers import Callers
from gpushare.errors import MessageError
from gpushare.extender.door.app import Routes, build_app
from gpushare.wire.extender import decode_bind, decode_filter
from gpushare.wire.preempt import decode_preempt
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender, bind_request, request

PREFIX = "/gpushare-scheduler"
POD = pod_json("web", 4)


@pytest.fixture
def client() -> FlaskClient:
    return build_app(ScriptedExtender().service, Routes(), 100_000, Callers()).test_client()


@pytest.fixture
def document(client: FlaskClient) -> dict[str, Any]:
    return dict(json.loads(client.get("/openapi.json").data))


def accepts(document: dict[str, Any], name: str, value: object) -> bool:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return bool(Draft202012Validator(schema).is_valid(value))


def said(document: dict[str, Any], path: str, method: str, status: int) -> dict[str, Any]:
    """The schema of an answer."""
    answer = document["paths"][path][method]["responses"][str(status)]
    return {**answer["content"]["application/json"]["schema"], "components": document["components"]}


def test_every_route_is_described_and_every_description_is_served(client: FlaskClient) -> None:
    document = json.loads(client.get("/openapi.json").data)
    served = {
        (re.sub("[<>]", lambda found: "{}"["<>".index(found[0])], rule.rule), method.lower())
        for rule in client.application.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described == served


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= document["components"]["schemas"].keys()
    assert not [name for name in document["components"]["schemas"] if name.startswith("_")]


def test_the_routes_of_the_configuration_are_described() -> None:
    routes = Routes("/a/b", "sort-out", "rank", "tie", "throw-out")
    client = build_app(ScriptedExtender().service, routes, 100_000, Callers()).test_client()
    paths = json.loads(client.get("/openapi.json").data)["paths"]
    assert {"/a/b/sort-out", "/a/b/rank", "/a/b/tie", "/a/b/throw-out"} < paths.keys()


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("filter", request(POD, ["big", "tiny", "nowhere"]), 200),
        ("filter", json.dumps({"Pod": POD, "Nodes": {"items": []}}).encode(), 200),
        ("filter", b"{", 200),
        ("filter-dryrun", request(POD, ["big", "tiny", "nowhere"]), 200),
        ("filter-dryrun", b"{", 200),
        ("prioritize", request(POD, ["big", "tiny", "nowhere"]), 200),
        ("prioritize", b"{", 400),
        ("bind", bind_request(POD, "big"), 200),
        ("bind", b"{", 200),
        ("preempt", json.dumps({"Pod": POD, "NodeNameToVictims": {"big": None}}).encode(), 200),
        ("preempt", b"[]", 400),
    ],
)
def test_answers_to_the_verbs_are_as_described(
    client: FlaskClient, document: dict[str, Any], verb: str, body: bytes, status: int
) -> None:
    path = f"{PREFIX}/{verb}"
    answer = client.post(path, data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    Draft202012Validator(said(document, path, "post", status)).validate(json.loads(answer.data))


@pytest.mark.parametrize(
    ("asked", "path", "status"),
    [
        (f"{PREFIX}/inspect", f"{PREFIX}/inspect", 200),
        (f"{PREFIX}/inspect/big", f"{PREFIX}/inspect/{{node}}", 200),
        (f"{PREFIX}/inspect/nowhere", f"{PREFIX}/inspect/{{node}}", 404),
        (f"{PREFIX}/inspect?resource=x", f"{PREFIX}/inspect", 404),
        ("/version", "/version", 200),
        ("/openapi.json", "/openapi.json", 200),
    ],
)
def test_what_can_be_read_is_as_described(
    client: FlaskClient, document: dict[str, Any], asked: str, path: str, status: int
) -> None:
    client.post(f"{PREFIX}/bind", data=bind_request(POD, "big"))
    answer = client.get(asked)
    assert answer.status_code == status
    Draft202012Validator(said(document, path, "get", status)).validate(json.loads(answer.data))


ARGS = {"Pod": POD, "NodeNames": ["a"]}
BIND = json.loads(bind_request(POD, "a"))
VICTIMS = {"Pod": POD, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}, None]}, "b": None}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ExtenderArgs", ARGS),
        ("ExtenderArgs", {**ARGS, "NodeNames": None}),
        ("ExtenderArgs", {**ARGS, "NodeNames": ["a b"]}),
        ("ExtenderArgs", {**ARGS, "Pod": None}),
        ("ExtenderArgs", {**ARGS, "Other": 1}),
        ("ExtenderArgs", {"Pod": POD, "Nodes": {"items": [{"metadata": {"name": "a"}}]}}),
        ("ExtenderArgs", {"Pod": POD, "Nodes": {"items": [{"metadata": {}}]}}),
        ("ExtenderArgs", {"Pod": POD, "Nodes": {"items": None}}),
        ("ExtenderBindingArgs", BIND),
        ("ExtenderArgs", {**ARGS, "NodeNames": ["x" * 254]}),
        ("ExtenderArgs", {**ARGS, "Pod": {"metadata": {"uid": "x" * 129}}}),
        ("ExtenderArgs", {**ARGS, "Pod": {"metadata": {"name": "", "namespace": None}}}),
        ("ExtenderArgs", {**ARGS, "Pod": {"metadata": {"namespace": "a.b"}}}),
        ("ExtenderArgs", {**ARGS, "Pod": {"status": {"nominatedNodeName": "x" * 254}}}),
        ("ExtenderBindingArgs", {**BIND, "PodUID": "x" * 129}),
        ("ExtenderBindingArgs", {**BIND, "PodNamespace": "a.b"}),
        ("ExtenderBindingArgs", {**BIND, "PodUID": ""}),
        ("ExtenderBindingArgs", {**BIND, "Node": "../x"}),
        ("ExtenderBindingArgs", {**BIND, "PodName": None}),
        ("ExtenderPreemptionArgs", VICTIMS),
        ("ExtenderPreemptionArgs", {"Pod": POD}),
        ("ExtenderPreemptionArgs", {**VICTIMS, "NodeNameToMetaVictims": {"x" * 254: None}}),
        ("ExtenderPreemptionArgs", {"Pod": 1}),
        ("ExtenderPreemptionArgs", {**VICTIMS, "NodeNameToMetaVictims": {"a": {"Pods": [{}]}}}),
        ("ExtenderPreemptionArgs", {"Pod": POD, "NodeNameToVictims": {"a": {"Pods": [POD]}}}),
        ("ExtenderPreemptionArgs", {"Pod": POD, "NodeNameToVictims": {"a": {"Pods": [{}]}}}),
    ],
)
def test_the_document_accepts_what_the_decoder_accepts(
    document: dict[str, Any], name: str, value: object
) -> None:
    decode: dict[str, Any] = {
        "ExtenderArgs": decode_filter,
        "ExtenderBindingArgs": decode_bind,
        "ExtenderPreemptionArgs": decode_preempt,
    }
    try:
        decode[name](json.dumps(value).encode())
        taken = True
    except MessageError:
        taken = False
    assert accepts(document, name, value) == taken
