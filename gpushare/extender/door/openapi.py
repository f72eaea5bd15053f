"""The OpenAPI 3.1 document of what is served: paths, what goes in, what comes out, and when.

Knows the operations and their statuses; the messages are described by gpushare.wire.schemas.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpushare import __version__
from gpushare.wire.schemas import Schema, component_schemas

_ERROR_IN_BODY = (
    "Always 200, since kube-scheduler drops the body of any other answer: whatever was wrong stands"
    " in `Error`, and then nothing else counts. An empty `Error` is success."
)
_STATUSES = {
    400: "The body is not the JSON expected, too large, compressed, or not application/json",
    403: "The client's certificate has none of the names that may call, or a browser calls",
    404: "There is no such path, node or resource",
    405: "The path is there for another method",
    411: "The request says not how long it is: no chunked bodies",
    413: "The body is larger than 16 MiB: see nodeCacheCapable",
    431: "The head is larger than 32 KiB",
    503: "Not ready: books not filled or not fresh, another process leads, or too many ask",
}
_FROM_THE_WORKER = frozenset({411, 413, 431})
"""Refused before a request is whole; these answers have no body, and end the connection."""


def openapi_document(paths: Mapping[str, str]) -> bytes:
    """Return the document as JSON. `paths`: where each operation is served."""
    resource = {"name": "resource", "in": "query", "schema": {"type": "string"}}
    node = {"name": "node", "in": "path", "required": True, "schema": {"type": "string"}}
    scores = {"type": "array", "items": _ref("HostPriority")}
    operations = (
        _verb("filter", "Which nodes can take a pod", "ExtenderArgs", _ref("ExtenderFilterResult")),
        _verb(
            "filter_dryrun",
            "Which nodes, there or not yet, could take a pod; changes nothing",
            "ExtenderArgs",
            _ref("ExtenderFilterResult"),
        ),
        _verb(
            "prioritize",
            "Scores of nodes for a pod; 0 where one is not listed",
            "ExtenderArgs",
            scores,
            400,
            503,
        ),
        _verb("bind", "Bind a pod", "ExtenderBindingArgs", _ref("ExtenderBindingResult")),
        _verb(
            "preempt",
            "Which pods must go for a pod to fit, by node",
            "ExtenderPreemptionArgs",
            _ref("ExtenderPreemptionResult"),
            *(400, 503),
        ),
        _verb(
            "rank",
            "The best node for a pod with claims; all nodes for any other pod",
            "ExtenderArgs",
            _ref("ExtenderFilterResult"),
        ),
        _read("inspect", "The books", "Inspect", resource),
        _read("inspect_node", "The books of one node", "Inspect", node, resource),
        _read("version", "The version of this process", "Version"),
        _read("openapi", "This document", ""),
    )
    named = {
        method["operationId"]: methods for methods in operations for method in methods.values()
    }
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "gpushare scheduler extender", "version": __version__},
            "paths": {path: named[operation] for operation, path in paths.items()},
            "components": {"schemas": component_schemas()},
        }
    ).encode()


def _verb(
    name: str, summary: str, request_schema: str, response_schema: Schema, *refusals: int
) -> Schema:
    """Return the path item of a verb.

    One without refusals reports in its answer's `Error` what is wrong.
    """
    description = "The answer" if refusals else _ERROR_IN_BODY
    statuses = (*refusals, 403, 404, 405, 411, 413, 431)
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "requestBody": {"required": True, "content": _json(_ref(request_schema))},
            "responses": {"200": {"description": description, "content": _json(response_schema)}}
            | _refusals(*statuses),
        }
    }


def _read(name: str, summary: str, response_schema: str, *parameters: Schema) -> Schema:
    document: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {
                "description": "The answer",
                "content": _json(_ref(response_schema) if response_schema else {"type": "object"}),
            }
        }
        | _refusals(*((404, 503) if parameters else ()), 403, 405, 411, 413, 431),
    }
    return {"get": document | ({"parameters": [*parameters]} if parameters else {})}


def _refusals(*statuses: int) -> Schema:
    return {
        str(status): {"description": _STATUSES[status]}
        | ({} if status in _FROM_THE_WORKER else {"content": _json(_ref("Refusal"))})
        for status in sorted(statuses)
    }


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
