"""Leases for leader election, and Events in two API versions."""

import pytest

from tests.contract.apiserver.client import STRATEGIC, Api, Json
from tests.contract.apiserver.conftest import config_map

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
TIME = "2026-11-21T01:39:09.378127Z"


def lease(holder: str) -> Json:
    return {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "leader"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": TIME},
    }


def short(namespace: str) -> str:
    return namespace.rpartition("/")[2]


def test_only_one_of_two_candidates_takes_a_lease(api: Api, namespace: str) -> None:
    path = LEASES.format(short(namespace))
    assert api.get(f"{path}/leader").status == 404
    assert api.call("POST", path, lease("a")).status == 201
    assert api.call("POST", path, lease("b")).status == 409
    collected = api.get(f"{path}/leader").body
    renewed = {**collected, "spec": {**collected["spec"], "leaseTransitions": 1}}
    assert api.call("PUT", f"{path}/leader", renewed).status == 200
    stolen = api.call("PUT", f"{path}/leader", {**collected, "spec": lease("b")["spec"]})
    assert (stolen.status, stolen.body["reason"]) == (409, "Conflict")
    assert api.get(f"{path}/leader").body["spec"]["holderIdentity"] == "a"


def test_a_lease_cannot_be_overwritten_blindly(api: Api, namespace: str) -> None:
    path = LEASES.format(short(namespace))
    api.create(path, lease("a"))
    reply = api.call("PUT", f"{path}/leader", lease("b"))
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")


def test_a_put_makes_a_lease_that_is_gone_but_not_for_a_holder_who_names_its_uid(
    api: Api, namespace: str
) -> None:
    """AllowCreateOnUpdate of kube-apiserver: a holder that drops the uid would lead again."""
    path = LEASES.format(short(namespace))
    values = api.create(path, lease("a")).body
    api.delete(f"{path}/leader")
    reply = api.call("PUT", f"{path}/leader", values)
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert api.get(f"{path}/leader").status == 404
    del values["metadata"]["uid"]
    created = api.call("PUT", f"{path}/leader", values)
    assert (created.status, created.body["spec"]["holderIdentity"]) == (201, "a")
    assert int(created.version) > int(values["metadata"]["resourceVersion"])
    assert api.call("PUT", f"{namespace}/configmaps/leader", config_map("leader")).status == 404


def test_microseconds_are_kept(api: Api, namespace: str) -> None:
    created = api.create(LEASES.format(short(namespace)), lease("a"))
    assert created.body["spec"]["renewTime"] == TIME


def core_event(namespace: str) -> Json:
    name = short(namespace)
    return {
        "metadata": {"name": "p.17", "namespace": name},
        "involvedObject": {"kind": "Pod", "namespace": name, "name": "p", "uid": "u-1"},
        "reason": "Scheduled",
        "message": "it fits",
        "source": {"component": "me"},
        "firstTimestamp": "2026-11-21T01:39:09Z",
        "lastTimestamp": "2026-11-21T01:39:09Z",
        "count": 1,
        "type": "Normal",
        "eventTime": None,
        "reportingComponent": "me",
        "reportingInstance": "",
    }


def test_a_repeated_event_is_counted_by_patch(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/events", core_event(namespace))
    patch = {"count": 2, "lastTimestamp": "2026-11-21T01:40:00Z", "message": "again"}
    reply = api.patch(f"{namespace}/events/p.17", patch, STRATEGIC)
    assert (reply.status, reply.body["count"], reply.body["message"]) == (200, 2, "again")


def test_events_are_found_by_what_they_are_about(api: Api, namespace: str) -> None:
    api.create(f"{namespace}/events", core_event(namespace))
    for selector, count in (
        ("involvedObject.name=p,involvedObject.uid=u-1", 1),
        ("involvedObject.name=q", 0),
        ("reason=Scheduled,type=Normal", 1),
    ):
        result = api.get(f"{namespace}/events", fieldSelector=selector)
        assert len(result.body["items"]) == count


def new_event(namespace: str, **changes: object) -> Json:
    event = {
        "kind": "Event",
        "apiVersion": "events.k8s.io/v1",
        "metadata": {"name": "p.18"},
        "eventTime": TIME,
        "reportingController": "default-scheduler",
        "reportingInstance": "default-scheduler-host",
        "action": "Binding",
        "reason": "Scheduled",
        "regarding": {"kind": "Pod", "namespace": short(namespace), "name": "p", "uid": "u-1"},
        "note": "it fits",
        "type": "Normal",
        "deprecatedSource": {},
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
    }
    return {**event, **changes}


@pytest.mark.parametrize(
    "change",
    [
        {"eventTime": None},
        {"action": None},
        {"reason": ""},
        {"reportingController": None},
        {"reportingInstance": None},
        {"type": "Odd"},
        {"note": "é" * 513},
        {"action": "a" * 129},
        {"regarding": {"kind": "Node", "name": "n"}},
        {"deprecatedCount": 1},
    ],
)
def test_an_event_says_what_when_and_who_in_so_many_bytes(
    api: Api, namespace: str, change: Json
) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{short(namespace)}/events"
    reply = api.call("POST", path, new_event(namespace, **change))
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")


@pytest.mark.parametrize(
    "change", [{"series": {"count": 1, "lastObservedTime": TIME}}, {"note": "another"}]
)
def test_of_an_event_only_its_series_changes(api: Api, namespace: str, change: Json) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{short(namespace)}/events"
    api.create(path, new_event(namespace))
    assert api.patch(f"{path}/p.18", change).status == 422


def test_a_core_event_lies_in_the_namespace_of_what_it_is_about(api: Api, namespace: str) -> None:
    event = {**core_event(namespace), "involvedObject": {"kind": "Pod", "namespace": "default"}}
    assert api.call("POST", f"{namespace}/events", event).status == 422


def test_an_event_of_either_style_is_seen_in_both(api: Api, namespace: str) -> None:
    name = short(namespace)
    path = f"/apis/events.k8s.io/v1/namespaces/{name}/events"
    created = api.create(path, new_event(namespace)).body
    assert (created["apiVersion"], created["note"]) == ("events.k8s.io/v1", "it fits")
    core = api.get(f"{namespace}/events/p.18").body
    assert (core["apiVersion"], core["message"]) == ("v1", "it fits")
    assert core["involvedObject"] == created["regarding"]
    assert core["reportingComponent"] == "default-scheduler"
    result = api.get(path, fieldSelector="regarding.name=p,reportingController=default-scheduler")
    assert [item["note"] for item in result.body["items"]] == ["it fits"]
    api.create(f"{namespace}/events", core_event(namespace))
    assert api.get(f"{path}/p.17").body["deprecatedCount"] == 1
    series = {"series": {"count": 2, "lastObservedTime": TIME}}
    assert api.patch(f"{path}/p.18", series, STRATEGIC).body["series"]["count"] == 2
