"""The records of watched objects: by name, and of unreadable objects as before."""

import json
from typing import Any

from gpushare.extender.follow.shown import ObjectHandler, Shown
from gpushare.wire.kueue import RESOURCE_FLAVORS, WORKLOADS


def watched(read: Any) -> tuple[Shown[Any], ObjectHandler[Any, Any]]:
    shown = Shown[Any]()
    return shown, ObjectHandler(read, shown.replace, shown.put)


def listed(codec: Any, *items: dict[str, Any]) -> Any:
    body = {"kind": f"{codec.kind}List", "metadata": {"resourceVersion": "1"}, "items": items}
    return codec.decode_list(json.dumps(body).encode())


def test_a_key_has_the_namespace_of_an_object_that_has_one() -> None:
    for codec, metadata, key in (
        (WORKLOADS, {"name": "a", "namespace": "b"}, "b/a"),
        (RESOURCE_FLAVORS, {"name": "a"}, "a"),
    ):
        shown, handler = watched(lambda item: "read")
        handler.replace([handler.trim(listed(codec, {"metadata": metadata}))], 0.0)
        assert shown.all() == {key: "read"}


def test_an_unreadable_object_keeps_its_record_until_it_is_gone() -> None:
    shown, handler = watched(lambda item: item.metadata.name)
    good, odd = {"metadata": {"name": "a"}}, {"metadata": {"name": "a"}, "spec": "odd"}
    handler.replace([handler.trim(listed(RESOURCE_FLAVORS, good))], 0.0)
    handler.replace([handler.trim(listed(RESOURCE_FLAVORS, odd))], 0.0)
    assert shown.all() == {"a": "a"}
    event = {"type": "DELETED", "object": {"kind": RESOURCE_FLAVORS.kind, **odd}}
    handler.apply(RESOURCE_FLAVORS.decode_event(json.dumps(event).encode()))
    assert shown.all() == {}
