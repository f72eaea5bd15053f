"""Watches: the events for a client that lists and then watches."""

from tests.contract.apiserver.client import STRATEGIC, Api
from tests.contract.apiserver.conftest import binding, config_map, newest, pod


def test_a_watch_shows_what_follows_its_version(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    api.create(path, config_map("old"))
    listing = api.get(path).version
    with api.watch(path, resourceVersion=listing) as stream:
        created = api.create(path, config_map("a"))
        api.patch(f"{path}/a", {"data": {"x": "1"}})
        api.delete(f"{path}/a")
        assert stream.next() == {"type": "ADDED", "object": created.body}
        assert stream.take(2) == [("MODIFIED", "a"), ("DELETED", "a")]


def test_a_deleted_object_is_shown_in_its_last_state_at_a_new_version(
    api: Api, namespace: str
) -> None:
    path = f"{namespace}/configmaps"
    created = api.create(path, config_map("a", x="1"))
    with api.watch(path, resourceVersion=created.version) as stream:
        api.delete(f"{path}/a")
        event = stream.next()
    assert event["object"]["data"] == {"x": "1"}
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(created.version)


def test_a_watch_without_a_version_starts_with_everything(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    api.create(path, config_map("a", {"here": "yes"}))
    for version in ({}, {"resourceVersion": "0"}):
        with api.watch(path, labelSelector="here=yes", **version) as stream:
            assert stream.take(1) == [("ADDED", "a")]


def test_a_watch_sees_one_namespace_or_all(api: Api, namespace: str) -> None:
    start = api.get("/api/v1/configmaps").version
    with (
        api.watch("/api/v1/configmaps", resourceVersion=start) as everything,
        api.watch("/api/v1/namespaces/default/configmaps", resourceVersion=start) as second,
    ):
        api.create(f"{namespace}/configmaps", config_map("here"))
        created = api.create(
            "/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "g"}}
        )
        assert everything.take(2) == [("ADDED", "here"), ("ADDED", created.meta["name"])]
        assert second.take(1) == [("ADDED", created.meta["name"])]


def test_an_object_that_leaves_the_selector_is_deleted_and_one_that_enters_is_added(
    api: Api, namespace: str
) -> None:
    path = f"{namespace}/configmaps"
    created = api.create(path, config_map("a", {"tier": "x"}))
    with api.watch(path, resourceVersion=created.version, labelSelector="tier=y") as stream:
        for tier in ("y", "y2", "y"):
            updated = api.patch(f"{path}/a", {"metadata": {"labels": {"tier": tier}}})
        events = [stream.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "DELETED", "ADDED"]
    assert events[1]["object"]["metadata"]["labels"] == {"tier": "y"}
    assert events[2]["object"] == updated.body


def test_a_pod_that_ends_leaves_the_watch_of_those_that_have_not(api: Api, namespace: str) -> None:
    path = f"{namespace}/pods"
    created = api.create(path, pod())
    selector = "status.phase!=Succeeded,status.phase!=Failed"
    with api.watch(path, resourceVersion=created.version, fieldSelector=selector) as stream:
        api.patch(f"{path}/p/status", {"status": {"phase": "Succeeded"}}, STRATEGIC)
        assert stream.take(1) == [("DELETED", "p")]


def test_a_kubelet_sees_its_pods_from_the_binding_on(
    api: Api, namespace: str, node_name: str
) -> None:
    path = f"{namespace}/pods"
    created = api.create(path, pod())
    selector = f"spec.nodeName={node_name}"
    with api.watch(path, resourceVersion=created.version, fieldSelector=selector) as stream:
        api.create(f"{path}/p/binding", binding("p", node_name))
        assert stream.take(1) == [("ADDED", "p")]


@newest
def test_initial_events_end_with_a_bookmark(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    api.create(path, config_map("a", {"here": "yes"}))
    query = {
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "labelSelector": "here=yes",
    }
    with api.watch(path, **query) as stream:
        assert stream.take(1) == [("ADDED", "a")]
        mark = stream.next()
        assert mark["type"] == "BOOKMARK"
        assert mark["object"]["kind"] == "ConfigMap"
        meta = mark["object"]["metadata"]
        assert meta["annotations"]["k8s.io/initial-events-end"] == "true"
        later = api.create(path, config_map("b", {"here": "yes"}))
        event = stream.next()
        while event["type"] == "BOOKMARK":
            event = stream.next()
        assert event["object"] == later.body
    assert int(later.version) > int(meta["resourceVersion"])


def test_initial_events_need_a_version_match(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    reply = api.get(path, watch="true", sendInitialEvents="true")
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")


def test_a_watch_ends_by_itself_at_its_time(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    version = api.get(path).version
    with api.watch(path, timeoutSeconds="1", resourceVersion=version) as stream:
        assert stream.ended()


def test_no_bookmark_comes_unasked(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    version = api.get(path).version
    with api.watch(path, timeoutSeconds="2", resourceVersion=version) as stream:
        assert stream.ended()


def test_a_watch_can_be_of_one_name(api: Api, namespace: str) -> None:
    path = f"{namespace}/configmaps"
    version = api.get(path).version
    with api.watch(path, resourceVersion=version, fieldSelector="metadata.name=b") as stream:
        for name in ("a", "b"):
            api.create(path, config_map(name))
        assert stream.take(1) == [("ADDED", "b")]


def test_a_watch_for_kubectl_carries_tables(api: Api, namespace: str) -> None:
    path = f"{namespace}/pods"
    version = api.get(path).version
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    with api.watch(path, accept=accept, resourceVersion=version) as stream:
        api.create(path, pod())
        table = stream.next()["object"]
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["rows"][0]["cells"][0] == "p"
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
