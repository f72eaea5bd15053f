"""Rows and columns as in kubectl's output on a real cluster."""

from datetime import UTC, datetime, timedelta

import pytest

from gpushare_localcluster.api.objects import Object, Record
from gpushare_localcluster.api.resources import EVENTS, NODES, PODS, Resource, find
from gpushare_localcluster.api.tables import human_duration, table

NOW = datetime(2026, 5, 5, 12, 0, 0, tzinfo=UTC)
BORN = (NOW - timedelta(minutes=3, seconds=7)).strftime("%Y-%m-%dT%H:%M:%SZ")


def row(resource: Resource, body: Object) -> dict[str, object]:
    body = {
        **body,
        "metadata": {"name": "x", "creationTimestamp": BORN, **body.get("metadata", {})},
    }
    cells = table(resource, [Record(body, 1)], 1, NOW)
    titles = [column["name"] for column in cells["columnDefinitions"]]
    return dict(zip(titles, cells["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize(
    ("seconds", "cells"),
    [
        (-5, "0s"),
        (119, "119s"),
        (187, "3m7s"),
        (180, "3m"),
        (3600, "60m"),
        (5 * 3600 + 120, "5h2m"),
        (30 * 3600, "30h"),
        (3 * 86400 + 7200, "3d2h"),
        (30 * 86400, "30d"),
        (3 * 365 * 86400, "3y"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_are_written_as_kubectl_writes_them(seconds: int, cells: str) -> None:
    assert human_duration(seconds) == cells


def test_a_running_pod_shows_its_containers_and_node() -> None:
    pod: Object = {
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "containerStatuses": [{"ready": True, "restartCount": 2}, {"ready": False}],
        },
    }
    cells = row(PODS, pod)
    assert (cells["Ready"], cells["Status"], cells["Restarts"]) == ("1/2", "Running", "2")
    assert (cells["Node"], cells["IP"], cells["Age"]) == ("n1", "10.0.0.1", "3m7s")
    assert cells["Nominated Node"] == "<none>"


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"metadata": {"deletionTimestamp": BORN}}, "Terminating"),
        ({"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}, None),
        ({"spec": {"schedulingGates": [{"name": "g"}]}}, "SchedulingGated"),
        (
            {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "Creating"}}}]}},
            "Creating",
        ),
        (
            {"status": {"containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}]}},
            "Completed",
        ),
    ],
)
def test_the_status_of_a_pod_is_a_reason_where_there_is_one(pod: Object, word: str | None) -> None:
    assert row(PODS, pod)["Status"] == (word or pod["status"]["reason"])


def test_a_cordoned_node_says_so() -> None:
    node: Object = {
        "metadata": {"labels": {"node-role.kubernetes.io/worker": ""}},
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
        },
    }
    cells = row(NODES, node)
    assert (cells["Status"], cells["Roles"]) == ("Ready,SchedulingDisabled", "worker")
    assert (cells["Version"], cells["Internal-IP"]) == ("v1", "10.0.0.9")


def test_events_of_both_styles_show_when_they_were_last_seen() -> None:
    reference = {"kind": "Pod", "name": "p"}
    old: Object = {"involvedObject": reference, "lastTimestamp": BORN, "count": 3}
    new: Object = {"involvedObject": reference, "eventTime": BORN, "lastTimestamp": None}
    assert row(EVENTS, old)["Last Seen"] == row(EVENTS, new)["Last Seen"] == "3m7s"
    assert row(EVENTS, old)["Object"] == "pod/p"
    assert (row(EVENTS, old)["Count"], row(EVENTS, new)["Count"]) == (3, 1)


def test_a_kind_without_columns_shows_name_and_age() -> None:
    secrets = find("", "v1", "secrets")
    assert secrets is not None
    assert row(secrets, {}) == {"Name": "x", "Age": "3m7s"}


def test_no_odd_object_breaks_a_table() -> None:
    for resource in (PODS, NODES, EVENTS):
        odd: Object = {"spec": None, "status": {"conditions": [{}], "addresses": [None]}}
        assert row(resource, {**odd, "metadata": {"creationTimestamp": "yesterday"}})
