"""Events as the API server's own validation wants them."""

import json
import re
from typing import Any

import pytest

from gpushare.wire.events import (
    ObjectReference,
    encode_event,
    encode_series,
    event_name,
    events_path,
)

POD = ObjectReference("Pod", "team", "web", "uid-web")
NODE = ObjectReference("Node", "", "gpu-1", "gpu-1")
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
STAMP = 1_795_267_000_000_123_999
"""2026-11-21T13:16:40.000123999Z."""


def encoded(
    about: ObjectReference = POD, note: str = "a note", instance: str = "host"
) -> dict[str, Any]:
    body = encode_event(
        "name",
        about,
        reason="GPUShareAllocated",
        action="Binding",
        note=note,
        warning=False,
        stamp=STAMP,
        instance=instance,
    )
    document: dict[str, Any] = json.loads(body)
    return document


def test_an_event_has_every_field_the_api_server_demands() -> None:
    assert encoded() == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "name", "namespace": "team"},
        "eventTime": "2026-11-21T13:16:40.000123Z",
        "reportingController": "gpushare-extender",
        "reportingInstance": "host",
        "action": "Binding",
        "reason": "GPUShareAllocated",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "team",
            "name": "web",
            "uid": "uid-web",
        },
        "note": "a note",
        "type": "Normal",
    }


def test_an_event_about_a_node_lies_in_the_default_namespace() -> None:
    document = encoded(NODE)
    assert document["metadata"]["namespace"] == "default"
    assert "namespace" not in document["regarding"]
    assert events_path(NODE) == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert events_path(POD, "x") == "/apis/events.k8s.io/v1/namespaces/team/events/x"


@pytest.mark.parametrize("note", ["x" * 5000, "ä" * 600, "€" * 400, "\ud800" * 2000])
def test_a_note_has_at_most_1024_bytes_and_shows_that_it_was_cut(note: str) -> None:
    cut = encoded(note=note)["note"]
    assert 1000 < len(cut.encode()) <= 1024
    assert cut.endswith("...")


def test_an_instance_is_there_and_short() -> None:
    assert encoded(instance="")["reportingInstance"] == "gpushare-extender"
    assert len(encoded(instance="h" * 300)["reportingInstance"]) == 128


@pytest.mark.parametrize("name", ["web", "w" * 253, "w" * 236 + "." + "w" * 16])
def test_names_are_valid_and_differ_by_their_time(name: str) -> None:
    about = ObjectReference("Pod", "team", name, "uid")
    names = {event_name(about, STAMP + more) for more in range(3)}
    assert len(names) == 3
    for item in names:
        assert len(item) <= 253
        assert all(LABEL.fullmatch(part) for part in item.split("."))


def test_a_series_says_how_often_and_when_last() -> None:
    assert json.loads(encode_series(3, STAMP)) == {
        "series": {"count": 3, "lastObservedTime": "2026-11-21T13:16:40.000123Z"}
    }


@pytest.mark.parametrize(
    "about",
    [
        ObjectReference("Pod", "..", "web", "uid"),
        ObjectReference("Pod", "team/pods", "web", "uid"),
        ObjectReference("Pod", "team", "web?x=1", "uid"),
        ObjectReference("Pod", "team", "", "uid"),
        ObjectReference("Pod", "team", "web\n", "uid"),
        ObjectReference("Pod", "team", "w" * 254, "uid"),
        ObjectReference("Pod", "team", "web", "u" * 129),
    ],
)
def test_what_no_object_is_called_is_not_sound(about: ObjectReference) -> None:
    assert not about.is_sound
    assert POD.is_sound
    assert NODE.is_sound


def test_a_note_moves_no_terminal() -> None:
    note = "device gpu\x1b[2J\u202e0\nis lost, by node \N{LATIN SMALL LETTER U WITH DIAERESIS}"
    assert encoded(note=note)["note"] == (
        r"device gpu\x1b[2J\u202e0\nis lost, by node " + "\N{LATIN SMALL LETTER U WITH DIAERESIS}"
    )
    assert encoded(note="\ud800")["note"] == r"\ud800"
    assert len(encoded(note="\x1b" * 2000)["note"].encode()) <= 1024
