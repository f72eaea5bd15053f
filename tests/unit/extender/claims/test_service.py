"""Watched objects of claims fill the books, and a bad object harms no other."""

import json
from typing import Any

from gpushare.explain.claim_books import MAX_NODE_WEIGHT, ClaimBooks
from gpushare.explain.claim_records import ClaimRecord
from gpushare.extender.claims.service import handlers_of
from tests.support.claim_values import DRIVER, GIB

Json = dict[str, Any]


def slice_json(node: str, gib: int = 40) -> Json:
    device = {
        "name": "gpu-0",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": f"{gib}Gi"}},
    }
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [device]}
    return {"metadata": {"name": f"slice-{node}"}, "spec": spec}


def claim_json(name: str, node: str = "") -> Json:
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    exactly = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "10Gi"}}}
    body: Json = {
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    if node:
        result = {"request": "r", "driver": DRIVER, "pool": node, "device": "gpu-0"}
        result |= {"shareID": "s", "consumedCapacity": {"memory": "10Gi"}}  # type: ignore[dict-item]
        body["status"] = {"allocation": {"devices": {"results": [result]}}}
    return body


class WatchedClaims:
    """Books that are filled as by watches."""

    def __init__(self) -> None:
        self.books = ClaimBooks(DRIVER, GIB)
        self.shown: list[ClaimRecord] = []
        self.lists_wanted = 0
        self.handlers = handlers_of(self.books, self.shown.append, self._want_list)

    def _want_list(self) -> None:
        self.lists_wanted += 1

    def lists(self, collection: str, *items: Json) -> None:
        codec, handler = self.handlers[collection]
        kind = f"{codec.kind}List"
        body = {"kind": kind, "metadata": {"resourceVersion": "1"}, "items": items}
        page = codec.decode_list(json.dumps(body).encode())
        handler.replace([handler.trim(page)], 0.0)

    def shows(self, collection: str, kind: str, item: Json) -> None:
        codec, handler = self.handlers[collection]
        event = {"type": kind, "object": {"kind": codec.kind, **item}}
        handler.apply(codec.decode_event(json.dumps(event).encode()))

    def used(self, node: str) -> list[int]:
        snapshot = self.books.ledger.snapshot()
        used: list[int] = snapshot.used[snapshot.row[node]].tolist()
        return used


def test_lists_and_events_fill_the_books() -> None:
    watched = WatchedClaims()
    watched.lists("resourceslices", slice_json("a"), slice_json("b"))
    watched.lists("resourceclaims", claim_json("x", "a"), claim_json("y"))
    assert watched.used("a") == [10]
    watched.shows("resourceclaims", "MODIFIED", claim_json("y", "b"))
    assert watched.used("b") == [10]
    assert [claim.ref.name for claim in watched.shown] == ["x", "y", "y"]
    watched.shows("resourceclaims", "DELETED", claim_json("x", "a"))
    assert watched.used("a") == [0]
    watched.shows("resourceslices", "DELETED", slice_json("b"))
    assert watched.books.nodes() == ("a",)
    watched.lists("resourceslices", slice_json("b", 80))
    assert watched.books.nodes() == ("b",)
    assert watched.used("b") == [10]


def test_classes_and_taint_rules_are_followed() -> None:
    watched = WatchedClaims()
    watched.lists("resourceslices", slice_json("a"))
    cls = {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}}
    watched.lists("deviceclasses", cls)
    assert "example.com/gpu" in watched.books.resources
    watched.shows("deviceclasses", "DELETED", cls)
    assert "example.com/gpu" not in watched.books.resources
    rule = {
        "metadata": {"name": "r"},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": "a"},
            "taint": {"key": "k", "effect": "NoSchedule"},
        },
    }
    watched.shows("devicetaintrules", "ADDED", rule)
    snapshot = watched.books.ledger.snapshot()
    assert not snapshot.healthy[snapshot.row["a"]].any()
    watched.lists("devicetaintrules")
    snapshot = watched.books.ledger.snapshot()
    assert snapshot.healthy[snapshot.row["a"]].any()


def test_an_object_that_cannot_be_read_is_left_out_alone() -> None:
    watched = WatchedClaims()
    bad = slice_json("b")
    bad["spec"]["devices"][0]["capacity"]["memory"]["value"] = "much"
    watched.lists("resourceslices", slice_json("a"), bad)
    assert watched.books.nodes() == ("a",)
    watched.shows("resourceslices", "MODIFIED", slice_json("b"))
    assert set(watched.books.nodes()) == {"a", "b"}
    watched.shows("resourceslices", "MODIFIED", bad)
    assert watched.books.nodes() == ("a",)
    nameless = claim_json("x", "a")
    del nameless["metadata"]["uid"]
    watched.lists("resourceclaims", nameless, claim_json("y", "a"))
    assert watched.used("a") == [10]


def test_a_slice_that_was_too_heavy_is_listed_again_once_another_goes() -> None:
    def heavy(name: str) -> Json:
        item = slice_json("a")
        item["metadata"]["name"] = name
        item["spec"]["pool"]["name"] = name
        attributes = {f"x{number}": {"int": number} for number in range(MAX_NODE_WEIGHT - 100)}
        item["spec"]["devices"][0]["attributes"] = attributes
        return item

    watched = WatchedClaims()
    watched.lists("resourceslices", slice_json("b"), heavy("first"), heavy("second"))
    assert watched.books.unmodelled_nodes() == ("a",)
    assert watched.lists_wanted == 0
    watched.shows("resourceslices", "DELETED", heavy("first"))
    assert watched.lists_wanted == 1
    watched.lists("resourceslices", slice_json("b"), heavy("second"))
    assert set(watched.books.nodes()) == {"a", "b"}
    assert watched.lists_wanted == 1
