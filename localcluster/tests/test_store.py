"""The store: versions that rise, history that reaches back, watches that miss nothing."""

import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_localcluster.api.objects import Object, Record, metadata
from gpushare_localcluster.api.reading import Scope, Watch
from gpushare_localcluster.api.resources import PODS
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.api.store import Store

TABLE = PODS.table


def new_store(history: int = 1000) -> Store:
    uids = iter(range(1_000_000))
    return Store(
        clock=lambda: datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        new_uid=lambda: f"uid-{next(uids)}",
        history=history,
    )


def thing(name: str, **fields: object) -> Object:
    return {"metadata": {"name": name, "namespace": "ns"}, **fields}


def put(store: Store, body: Object, *, commit: bool = True) -> Record:
    return store.update(TABLE, "ns", metadata(body)["name"], lambda _: body, commit=commit)


def test_a_new_object_gets_uid_time_and_version() -> None:
    record = metadata(new_store().create(TABLE, thing("a")).body)
    assert record["uid"] == "uid-0"
    assert record["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert record["resourceVersion"].isdigit()


def test_versions_rise_over_all_resources() -> None:
    store = new_store()
    versions = [store.create(table, thing("a")).version for table in ("pods", "nodes", "leases")]
    assert versions == sorted(set(versions))


def test_the_same_calls_give_the_same_store() -> None:
    bodies = [[new_store().create(TABLE, thing("a", x=1)).body for _ in range(2)] for _ in range(2)]
    assert bodies[0] == bodies[1]


def test_a_taken_name_is_refused() -> None:
    store = new_store()
    store.create(TABLE, thing("a"))
    with pytest.raises(StatusError) as error:
        store.create(TABLE, thing("a"))
    assert (error.value.code, error.value.reason) == (409, "AlreadyExists")


def test_unchanged_content_is_no_new_version_and_no_event() -> None:
    store = new_store()
    record = store.create(TABLE, thing("a", x=1))
    assert put(store, thing("a", x=1)) is record
    assert store.since(TABLE, record.version) == ([], record.version)


def test_identity_survives_any_write() -> None:
    store = new_store()
    record = metadata(store.create(TABLE, thing("a")).body)
    survivors = metadata(put(store, thing("a", x=1)).body)
    assert (survivors["uid"], survivors["creationTimestamp"]) == (
        record["uid"],
        record["creationTimestamp"],
    )


def test_a_deleted_event_shows_the_last_state_at_a_new_version() -> None:
    store = new_store()
    record = store.create(TABLE, thing("a", x=1))
    store.delete(TABLE, "ns", "a")
    (change,), version = store.since(TABLE, record.version)
    assert change.type == "DELETED"
    assert change.record.body["x"] == 1
    assert metadata(change.record.body)["resourceVersion"] == str(version)
    with pytest.raises(StatusError):
        store.get(TABLE, "ns", "a")


def test_a_write_that_is_not_committed_changes_nothing() -> None:
    store = new_store()
    store.create(TABLE, thing("a", x=1))
    before = store.version
    store.create(TABLE, thing("b"), commit=False)
    assert put(store, thing("a", x=2), commit=False).body["x"] == 2
    assert store.version == before
    assert store.get(TABLE, "ns", "a").body["x"] == 1


def test_history_is_bounded_and_says_so() -> None:
    store = new_store(history=3)
    first = store.create(TABLE, thing("a", x=0)).version
    for x in range(1, 5):
        put(store, thing("a", x=x))
    with pytest.raises(StatusError) as error:
        store.since(TABLE, first)
    assert (error.value.code, error.value.reason) == (410, "Expired")
    assert len(store.since(TABLE, first + 1)[0]) == 3


def test_compaction_expires_every_earlier_version_but_not_the_present() -> None:
    store = new_store()
    first = store.create(TABLE, thing("a")).version
    last = store.create(TABLE, thing("b")).version
    store.compact()
    with pytest.raises(StatusError):
        store.since(TABLE, first)
    assert store.since(TABLE, last) == ([], last)


def test_a_version_of_the_future_is_expired_not_awaited() -> None:
    store = new_store()
    with pytest.raises(StatusError) as error:
        store.since(TABLE, store.version + 1)
    assert error.value.code == 410


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "delete"]), st.integers(0, 2)),
    max_size=30,
)


def take(store: Store, step: tuple[str, str, int]) -> None:
    name, verb, x = step
    present = {record.key[1] for record in store.records(TABLE)[0]}
    if verb == "put" and name in present:
        put(store, thing(name, x=x))
    elif verb == "put":
        store.create(TABLE, thing(name, x=x))
    elif name in present:
        store.delete(TABLE, "ns", name)


def contents(records: list[Record]) -> dict[str, object]:
    return {record.key[1]: record.body for record in records}


@given(STEPS)
def test_every_version_still_kept_can_be_listed_as_it_was(
    steps: list[tuple[str, str, int]],
) -> None:
    store = new_store()
    collected = {}
    for step in steps:
        take(store, step)
        records, version = store.records(TABLE)
        collected[version] = contents(records)
    for version, expected in collected.items():
        assert contents(store.records(TABLE, at=version)[0]) == expected


@given(STEPS, st.integers(0, 30))
def test_a_list_and_the_watch_after_it_lead_to_the_present_state(
    steps: list[tuple[str, str, int]], start: int
) -> None:
    """A watch with a selector shows the same objects as a list with the selector."""
    store = new_store()
    for step in steps[:start]:
        take(store, step)
    scope = Scope(PODS, "ns", lambda body: body["x"] > 0, Record.encoded)
    shown_text = {record.key[1] for record in store.records(TABLE)[0] if scope.holds(record)}
    watch = Watch(store, scope, store.version)
    for step in steps[start:]:
        take(store, step)
        for line in watch.step():
            kind = line[9 : line.index(b'"', 9)]
            name = line.partition(b'"name":"')[2][:1].decode()
            assert (kind == b"ADDED") == (name not in shown_text)
            shown_text = shown_text - {name} if kind == b"DELETED" else shown_text | {name}
        assert shown_text == {
            record.key[1] for record in store.records(TABLE)[0] if scope.holds(record)
        }


NODE_NAME = "spec.nodeName"


def at(node: str, name: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"nodeName": node}}


def test_a_change_wakes_those_at_the_places_that_it_leaves_and_comes_to() -> None:
    store = Store()
    store.create(TABLE, at("one", "a"))
    version, woken = store.version, dict[str, threading.Event]()

    def wait(node: str) -> None:
        store.wait(TABLE, version, 30, place=(NODE_NAME, node))
        woken[node].set()

    for node in ("one", "two", "three"):
        woken[node] = threading.Event()
        threading.Thread(target=wait, args=(node,), daemon=True).start()
    store.create(TABLE, at("four", "b"))
    assert not any(event.wait(0.05) for event in woken.values())
    store.update(TABLE, "", "a", lambda _: at("two", "a"))
    assert woken["one"].wait(10)
    assert woken["two"].wait(10)
    assert not woken["three"].wait(0.05)
    store.wake()
    assert woken["three"].wait(10)


def test_a_change_before_the_wait_ends_it_at_once() -> None:
    store = Store()
    version = store.version
    store.create(TABLE, at("one", "a"))
    store.wait(TABLE, version, 30, place=(NODE_NAME, "one"))
    store.wait(TABLE, version, 30)
    store.wait(TABLE, version, 0.01, place=(NODE_NAME, "two"))
    store.compact()
    # A lost change may have been at the place.
    store.wait(TABLE, version, 30, place=(NODE_NAME, "two"))


def test_wake_ends_every_wait() -> None:
    store = new_store()
    version = store.create(TABLE, thing("a")).version
    stopping = threading.Event()
    waiter = threading.Thread(
        target=store.wait, args=(TABLE, version, 30), kwargs={"until": stopping.is_set}
    )
    waiter.start()
    stopping.set()
    store.wake()
    waiter.join(10)
    assert not waiter.is_alive()
