"""Pages and events of plain JSON, for tests without an interest in the kind of objects."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.kube.listwatch import Query


@dataclass(frozen=True)
class JsonPage:
    items: Sequence[Any]
    resource_version: str
    continue_token: str
    bad: Sequence[object] = ()


@dataclass(frozen=True)
class JsonEvent:
    kind: str
    name: Any
    resource_version: str
    code: int = 0
    bad: Any = None


class JsonCodec:
    def decode_list(self, body: bytes) -> JsonPage:
        document = json.loads(body)
        meta = document["metadata"]
        return JsonPage(
            document["items"],
            meta["resourceVersion"],
            meta.get("continue", ""),
            document.get("bad", ()),
        )

    def decode_event(self, line: bytes) -> JsonEvent:
        document = json.loads(line)
        thing = document["object"]
        if document["type"] == "ERROR":
            return JsonEvent("ERROR", None, "", thing["code"])
        version = thing["metadata"]["resourceVersion"]
        return JsonEvent(document["type"], thing.get("name"), version, bad=thing.get("bad"))


def page(version: str, *items: str, token: str = "", bad: Sequence[str] = ()) -> bytes:
    metadata = {"resourceVersion": version, "continue": token}
    return json.dumps({"metadata": metadata, "items": items, "bad": bad}).encode()


def event(kind: str, name: str, version: str, bad: str | None = None) -> bytes:
    thing = {"name": name, "metadata": {"resourceVersion": version}, "bad": bad}
    return json.dumps({"type": kind, "object": thing}).encode()


def error_event(code: int) -> bytes:
    return json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": code}}).encode()


def asked(query: Query, key: str) -> str | None:
    """The value of a parameter of a request."""
    return dict(query).get(key)
