"""The fields of all kinds, from the models of the official client, for checks and `explain`.

Knows the shape of those models; their classes are loaded when a client first asks for a check or a
schema, since that takes a second.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.resources import RESOURCES, Resource

_MODELS = {
    ("", "Event"): "CoreV1Event",
    ("events.k8s.io", "Event"): "EventsV1Event",
    ("resource.k8s.io", "ResourceClaim"): "ResourceV1ResourceClaim",
}
"""Models that are not called after version and kind: these kinds are there twice."""

_CONTAINER = re.compile(r"(?P<form>List|Dict)\[(?:str, )?(?P<inner>.+)\]")
_VERSIONED = re.compile(r"[A-Za-z]*?V[0-9]+((alpha|beta)[0-9]+)?")
_PLAIN: dict[str, tuple[type, ...]] = {"int": (int,), "bool": (bool,), "float": (int, float)}
_WORDS = {"int": "an integer", "bool": "true or false", "float": "a number"}
_JSON_TYPES = {"int": "integer", "bool": "boolean", "float": "number", "datetime": "string"}


@dataclass(frozen=True, slots=True)
class Property:
    """One field of a kind; `type` is in the words of the models: `List[V1Container]`."""

    type: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Schema:
    """One kind, or what stands in one: its fields by their names in JSON."""

    description: str
    properties: dict[str, Property]


def model_of(resource: Resource) -> str:
    """Return the name of the model of a resource's objects."""
    version = resource.version.capitalize()
    return _MODELS.get((resource.group, resource.kind), version + resource.kind)


@functools.cache
def schema(model: str) -> Schema | None:
    """Return what a model says, None if there is no such model."""
    from kubernetes.client import models  # noqa: PLC0415 -- a second, which not everybody needs

    found: Any = getattr(models, model, None)
    if found is None:
        return None
    names: dict[str, str] = found.attribute_map
    told = {info.serialization_alias or field: info for field, info in found.model_fields.items()}
    properties = {
        name: Property(kind, told[name].is_required(), str(told[name].description or ""))
        for field, kind in found.openapi_types.items()
        for name in [names[field]]
    }
    return Schema(str(found.__doc__ or "").partition("Attributes:")[0].strip(), properties)


def inner_type(kind: str) -> tuple[str, str]:
    """Return the form of a type (`List`, `Dict`, or empty) and the type of what is in it."""
    found = _CONTAINER.fullmatch(kind)
    return (found["form"], found["inner"]) if found else ("", kind)


class Walk:
    """One pass through an object: what is unknown in it, and what is of the wrong type."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.wrong: list[str] = []

    def known(self, value: object, kind: str, where: str = "") -> object:
        """Return the value without the fields that its type does not have."""
        form, inner = inner_type(kind)
        if value is None or inner == "object":
            return value
        if form:
            return self._many(value, form, inner, where)
        fields = schema(inner) if inner[0].isupper() else None
        if fields is None:
            return self._plain(value, inner, where)
        if not isinstance(value, dict):
            return self._complain(value, where or "the body", "an object")
        self.unknown += [_below(where, name) for name in value if name not in fields.properties]
        return {
            name: self.known(part, fields.properties[name].type, _below(where, name))
            for name, part in value.items()
            if name in fields.properties
        }

    def _many(self, value: object, form: str, inner: str, where: str) -> object:
        if form == "List" and isinstance(value, list):
            return [self.known(item, inner, f"{where}[{at}]") for at, item in enumerate(value)]
        if form == "Dict" and isinstance(value, dict):
            return {key: self.known(item, inner, _below(where, key)) for key, item in value.items()}
        return self._complain(value, where, "a list" if form == "List" else "an object")

    def _plain(self, value: object, kind: str, where: str) -> object:
        types = _PLAIN.get(kind, (str, int, float))  # quantities are texts that may be numbers
        is_odd_bool = isinstance(value, bool) and kind != "bool"
        if isinstance(value, types) and not is_odd_bool:
            return value
        return self._complain(value, where, _WORDS.get(kind, "a string"))

    def _complain(self, value: object, where: str, wanted: str) -> object:
        self.wrong.append(f"{where} must be {wanted}, not {value!r}")
        return value


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


@functools.cache
def openapi(root: str) -> Object:
    """Return the schemas of an API version's kinds and of all that stands in them."""
    rows = [row for row in RESOURCES if row.root == root]
    written: Object = {}
    for model in _reached(model_of(row) for row in rows):
        known = schema(model)
        if known:
            written[_title(model)] = _written(known)
    for row in rows:
        if (title := _title(model_of(row))) in written:
            kind = {"group": row.group, "version": row.version, "kind": row.kind}
            written[title]["x-kubernetes-group-version-kind"] = [kind]
    return written


def _title(model: str) -> str:
    """Return the model's name with a dot before the name of the kind, which is what
    kubectl shows.
    """
    return _VERSIONED.sub(r"\g<0>.", model, count=1)


def _reached(models: Iterator[str]) -> list[str]:
    waiting, seen = list(models), dict[str, None]()
    while waiting:
        model = waiting.pop()
        known = None if model in seen else schema(model)
        if known:
            seen[model] = None
            types = (inner_type(field.type)[1] for field in known.properties.values())
            waiting += [inner for inner in types if inner[0].isupper()]
    return sorted(seen)


def _written(known: Schema) -> Object:
    properties = {
        name: {**_type(field.type), "description": field.description}
        for name, field in known.properties.items()
    }
    required = [name for name, field in known.properties.items() if field.required]
    told = {"type": "object", "description": known.description, "properties": properties}
    return {**told, "required": required} if required else told


def _type(kind: str) -> Object:
    form, inner = inner_type(kind)
    if form == "List":
        return {"type": "array", "items": _type(inner)}
    if form == "Dict":
        return {"type": "object", "additionalProperties": _type(inner)}
    if inner[0].isupper():
        return {"allOf": [{"$ref": f"#/components/schemas/{_title(inner)}"}]}
    return {"type": _JSON_TYPES.get(inner, "object" if inner == "object" else "string")}
