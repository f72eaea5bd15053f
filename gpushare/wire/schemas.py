"""JSON schemas of the verbs' messages, for the OpenAPI document.

Derived from the structs that decode and encode them, so a field cannot be in one and not in the
other; if a decoder asks for more than its struct says (what must be there, what a name may look
like), that is added here by hand. The inspect document, which has no struct, is written out.

Tested in `tests/unit/extender/door/test_openapi.py`.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gpushare.wire import extender, preempt
from gpushare.wire.fields import LABEL_PATTERN, MAX_NAME_LENGTH, NAME_PATTERN, UID_PATTERN

Schema = dict[str, Any]

_STRUCTS: Mapping[str, type[msgspec.Struct]] = {**extender.MESSAGES, **preempt.MESSAGES}
_WORD: Schema = {"type": "string", "pattern": r"^\S+$", "maxLength": MAX_NAME_LENGTH}
_UID: Schema = {"type": "string", "pattern": f"^{UID_PATTERN}$"}
_NAMESPACE: Schema = {"type": "string", "pattern": f"^{LABEL_PATTERN}$"}
_OBJECT_NAME: Schema = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def component_schemas() -> dict[str, Schema]:
    """Return the schemas by name, those of kube-scheduler's own types under their Go names.

    They refer to each other as `#/components/schemas/NAME` (OpenAPI 3.1, JSON Schema 2020-12).
    """
    _, derived = msgspec.json.schema_components(
        _STRUCTS.values(), ref_template="#/components/schemas/{name}"
    )
    text = json.dumps(derived)
    for name, struct in _STRUCTS.items():
        text = text.replace(f'"{struct.__name__}"', f'"{name}"')
        text = text.replace(f'/{struct.__name__}"', f'/{name}"')
    schemas: dict[str, Schema] = json.loads(text)
    for schema in schemas.values():
        # It is there to find other spellings of the keys by; unknown keys are ignored.
        schema.pop("additionalProperties", None)
        schema.pop("title", None)
    _add_constraints(schemas)
    return schemas | _DOCUMENTS | {"Refusal": _closed({"error": {"type": "string"}})}


def _add_constraints(schemas: dict[str, Schema]) -> None:
    """Add what the decoders want besides the types."""
    args = schemas["ExtenderArgs"]
    args["required"] = ["Pod"]
    args["properties"]["Pod"] = _ref("Pod")
    args["properties"]["NodeNames"] = _nullable({"type": "array", "items": _WORD})
    named = {"required": ["NodeNames"], "properties": {"NodeNames": {"type": "array"}}}
    whole = {"required": ["Nodes"], "properties": {"Nodes": {"type": "object"}}}
    args["anyOf"] = [named, whole]
    answered = schemas["ExtenderFilterResult"]["properties"]
    answered["NodeNames"] = _nullable({"type": "array", "items": {"type": "string"}})
    node = {"title": "Node", **_some({"metadata": _some({"name": _WORD}, "name")}, "metadata")}
    schemas["NodeList"]["properties"]["items"] = _nullable({"type": "array", "items": node})
    bind = schemas["ExtenderBindingArgs"]
    bind["required"] = [*bind["properties"]]
    bind["properties"] = dict.fromkeys(bind["properties"], _OBJECT_NAME) | {
        "PodUID": _UID,
        "PodNamespace": _NAMESPACE,
    }
    # What is missing may be empty too.
    patterns = {"name": NAME_PATTERN, "namespace": LABEL_PATTERN, "uid": UID_PATTERN}
    for part, pattern in patterns.items():
        text = {"type": "string", "pattern": f"^({pattern})?$"}
        schemas["Metadata"]["properties"][part] = _nullable(text)
    for of, part in (("PodSpec", "nodeName"), ("PodStatus", "nominatedNodeName")):
        schemas[of]["properties"][part] = _nullable(
            {"type": "string", "maxLength": MAX_NAME_LENGTH}
        )
    preempt_args = schemas["ExtenderPreemptionArgs"]
    preempt_args["required"] = ["Pod"]
    preempt_args["properties"]["Pod"] = _ref("Pod")
    for form, of in (("NodeNameToVictims", "Victims"), ("NodeNameToMetaVictims", "MetaVictims")):
        by_node = {
            "type": "object",
            "propertyNames": {"maxLength": MAX_NAME_LENGTH},
            "additionalProperties": _nullable(_ref(of)),
        }
        preempt_args["properties"][form] = _nullable(by_node)
    victims = schemas["Victims"]
    whole_pod = _some({"metadata": _some({"uid": _UID}, "uid")}, "metadata")
    meta_pod = _some({"UID": _UID}, "UID")
    schemas["MetaVictims"] = {**victims, "properties": {**victims["properties"]}}
    for of, pod in (("Victims", whole_pod), ("MetaVictims", meta_pod)):
        schemas[of]["properties"]["Pods"] = _nullable({"type": "array", "items": _nullable(pod)})
    score = schemas["HostPriority"]["properties"]["Score"]
    score.update(minimum=0, maximum=10)
    for answer in ("ExtenderFilterResult", "HostPriority", "ExtenderBindingResult"):
        schemas[answer]["additionalProperties"] = False


def _some(properties: Schema, *required: str) -> Schema:
    """Return an object with these properties, and perhaps others."""
    return {"type": "object", "properties": properties, "required": [*required]}


def _closed(properties: Schema) -> Schema:
    """Return an object with these properties and no others."""
    return _some(properties, *properties) | {"additionalProperties": False}


def _list(of: str) -> Schema:
    return {"type": "array", "items": _ref(of)}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_TOTALS: Schema = {
    "name": _TEXT,
    "totalGPU": _COUNT,
    "usedGPU": _COUNT,
    "devs": _list("InspectDevice"),
}
_DOCUMENTS: dict[str, Schema] = {
    "InspectPod": _closed({"name": _TEXT, "namespace": _TEXT, "usedGPU": _COUNT}),
    "InspectDevice": _closed(
        {"id": _COUNT, "totalGPU": _COUNT, "usedGPU": _COUNT, "pods": _list("InspectPod")}
    ),
    "InspectNode": _closed(_TOTALS)
    | {"properties": {**_TOTALS, "unplaced": _list("InspectPod"), "keptFromScaleDown": _TEXT}},
    "Inspect": _closed({"nodes": _list("InspectNode")}),
    "Version": _closed({"version": _TEXT}),
}
"""The inspect document, see inspect.py, and the version."""
