"""The audit finds every mistake that books can have, and heals towards less free memory."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from gpushare.core.model import Allocation, Charge, Cover, ObservedPod, PodRef, Reason, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.states.entry import Entry
from gpushare.errors import ApiError, ApiNotFound, ApiUnavailable, InsufficientMemory
from gpushare.extender.follow.auditor import Auditor, Finding, narrowed
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.ledger import Ledger, books
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inventory import MAX_SHARERS
from gpushare.wire.nodes import node_spec
from gpushare.wire.pods import observe_pod
from tests.support.scripted_api import Call, ScriptedApi
from tests.support.waiting import poll
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import managed_resources, node_json, pod_json, read_node, read_pod
from tests.unit.extender.scripted_extender import Heard

NODE = "gpu"
PODS = "/api/v1/pods"


class Lists(ScriptedApi):
    """An API server that lists the objects of a test, two objects a page."""

    def __init__(self) -> None:
        super().__init__(forever=self._answer)
        self.nodes: dict[str, Any] = {NODE: node_json(NODE, 32, 2), "cpu": node_json("cpu", 0)}
        self.pods: dict[str, Any] = {}
        self.version = 10
        self.down = self.broken = self.cut = False
        self.reads_left = 99
        """How often a pod can be read before it is gone."""

    def _answer(self, call: Call) -> bytes:
        path, query = call.path, call.query
        if self.broken:
            raise ZeroDivisionError("a bug")
        if self.down:
            raise ApiError("away", 503)
        if query is None:
            name = path.rpartition("/")[2]
            self.reads_left -= 1
            if name not in self.pods or self.reads_left < 0:
                raise ApiNotFound(f"{path}: not found", 404)
            return json.dumps(self.pods[name]).encode()
        holding = [*(self.pods if path == PODS else self.nodes).values()]
        kind = "PodList" if path == PODS else "NodeList"
        start = int(query.get("continue", "0"))
        meta = {"resourceVersion": str(self.version)}
        if start + 2 < len(holding):
            meta["continue"] = str(start + 2)
        items = holding[start : start + 2]
        text = json.dumps({"kind": kind, "metadata": meta, "items": items}).encode()
        return text[:-1] if self.cut else text


class Office:
    """Books that follow a cluster, and their auditor."""

    def __init__(self) -> None:
        self.resources = managed_resources()
        self.ledger: Ledger = self.resources.resources[0].ledger
        self.api, self.heard, self.told = Lists(), Heard(), list[tuple[str, bool]]()
        self.shown, self.why_not, self.behind = "10", "", ""
        self.catch_up: Callable[[], object] = int
        """The work of the watches in the moment of the question for their versions."""
        notices = EventMessages(self.heard, self.resources, "GiB")

        def tell(finding: Finding, healed: bool) -> None:
            self.told.append((finding.what, healed))
            notices.books_wrong(finding, healed)

        self.auditor = Auditor(
            self.api,
            self.resources,
            "GiB",
            not_ready=lambda: self.why_not,
            watch_version=self._show,
            report=tell,
            clock=self.api.clock,
            interval=0.01,
            pause=0.0,
        )
        for body in self.api.nodes.values():
            self.ledger.node_changed(node_spec(read_node(body), ALIYUN, "GiB"))
        for number in range(5):
            self.bind(f"p{number}", 4, number % 2)
        self.watch()

    def bind(self, name: str, units: int, device: int, node: str = NODE) -> None:
        marks = {ALIYUN.idx: str(device)}
        self.api.pods[name] = pod_json(name, units, node=node, annotations=marks)

    def is_stuck(self) -> bool:
        return self.auditor.liveness() != {"audit": ""}

    def _show(self, name: str) -> str:
        self.catch_up()
        return "0" if name == self.behind else self.shown

    def watch(self) -> None:
        """Have the books show the objects."""
        self.ledger.replace_pods(
            [observe_pod(read_pod(body), ALIYUN) for body in self.api.pods.values()]
        )

    def audit(self, times: int = 1) -> None:
        for _ in range(times):
            self.auditor.audit()

    def free(self) -> list[int]:
        view = self.ledger.snapshot()
        return [int(units) for units in view.free[view.row[NODE]]]

    @property
    def found(self) -> list[str]:
        return [entry for entry, _ in self.told]


@pytest.fixture
def office() -> Office:
    return Office()


def sums(ledger: Ledger) -> NodeArrays:
    return ledger._store.arrays  # noqa: SLF001 -- what a mistake of ours would make wrong


def charge_wrongly(
    ledger: Ledger, name: str, units: int, node: str = NODE, request: int | None = None
) -> None:
    """Replace the charge of a pod, as a mistake of ours would."""
    ref = PodRef("team", name, f"uid-{name}")
    placement = ((0, units),) if node == NODE else None
    ledger._store.put(  # noqa: SLF001 -- as above
        ref.uid, Entry(ref, Request(request or units, 1), node, placement, cover=Cover(placement))
    )


def observed(name: str, units: int, node: str = NODE) -> ObservedPod:
    ref = PodRef("team", name, f"uid-{name}")
    return ObservedPod(ref, Request(units, 1), node, ((0, units),))


def test_books_that_are_right_are_found_right(office: Office) -> None:
    office.audit(3)
    assert office.told == []
    state = office.auditor.state()
    assert (state["audits_total"], state["audit_findings"]) == (3, 0)


def test_sums_that_show_too_little_are_raised(office: Office) -> None:
    right = office.free()
    sums(office.ledger).add(Charge(NODE, Request(3, 1), ((1, -3),)))
    assert office.free() != right
    office.audit()
    assert office.told == [("sums that are not those of the entries", True)]
    assert office.free() == right
    office.ledger.check()


def test_sums_that_show_too_much_stay_and_are_told(office: Office) -> None:
    sums(office.ledger).add(Charge(NODE, Request(3, 1), ((1, 3),)))
    less = office.free()
    office.audit(3)
    assert office.told == [("sums that are not those of the entries", False)]
    assert office.free() == less
    assert office.auditor.state()["audit_findings"] == 1


def test_sums_wrong_in_both_directions_become_the_lesser_of_both(office: Office) -> None:
    right = office.free()
    sums(office.ledger).add(Charge(NODE, Request(1, 1), ((0, -5), (1, 5))))
    office.audit()
    assert office.free() == [right[0], right[1] - 5]


def test_a_device_whose_capacity_was_raised_in_the_sums_is_lowered(office: Office) -> None:
    right = office.free()
    sums(office.ledger).set_node(make_node(NODE, 24, 16), ())
    office.audit()
    assert office.free() == right
    assert office.found == ["sums that are not those of the entries"]


def test_sums_are_healed_without_opening_what_an_operator_has_closed(office: Office) -> None:
    office.ledger.set_unhealthy(NODE, frozenset({0}))
    sums(office.ledger).add(Charge(NODE, Request(3, 1), ((1, -3),)))
    office.audit()
    assert office.told == [("sums that are not those of the entries", True)]
    with pytest.raises(InsufficientMemory):
        office.ledger.assume(
            PodRef("team", "late", "uid-late"), Request(1, 1), Allocation(NODE, ((0, 1),)), 0.0
        )


def test_a_node_that_is_in_the_sums_alone_is_taken_out(office: Office) -> None:
    sums(office.ledger).set_node(make_node("ghost", 16), ())
    office.audit()
    assert "ghost" not in office.ledger.snapshot().row


def test_a_bound_pod_that_is_not_charged_gets_charged(office: Office) -> None:
    right = office.free()
    office.ledger.pod_gone("uid-p0")
    office.audit()
    assert office.told == [], "it may be a delay of the watch"
    office.audit()
    assert office.told == [("not charged", True)]
    assert office.free() == right
    office.audit(2)
    assert len(office.told) == 1
    assert office.auditor.state()["audit_findings"] == 0
    ((about, reason, note),) = office.heard.events
    assert (about, reason) == ("Pod p0", "GPUShareBooksWrong")
    assert "not charged" in note


@pytest.mark.parametrize("asked", [1, 4])
def test_a_pod_charged_less_than_it_asks_is_charged_to_every_device(
    office: Office, asked: int
) -> None:
    right = office.free()
    charge_wrongly(office.ledger, "p0", 1, request=asked)
    office.audit(2)
    assert office.told == [("charged elsewhere, or less than it asks", True)]
    assert office.free() == [right[0], right[1] - 4]
    office.ledger.check()


def test_a_pod_charged_on_another_node_is_charged_where_it_is(office: Office) -> None:
    right = office.free()
    charge_wrongly(office.ledger, "p0", 4, "cpu")
    assert office.free() != right
    office.audit(2)
    assert office.told == [("charged elsewhere, or less than it asks", True)]
    assert office.free() == right


def test_a_bind_in_doubt_whose_pod_is_elsewhere_is_in_doubt_no_more(office: Office) -> None:
    right, ref = office.free(), PodRef("team", "late", "uid-late")
    office.ledger.assume(ref, Request(4, 1), Allocation(NODE, ((1, 4),)), 0.0)
    office.ledger.doubt(ref.uid, 1.0)
    office.bind("late", 4, 0, "cpu")
    office.audit(2)
    assert office.told == [("charged elsewhere, or less than it asks", True)]
    assert office.free() == right
    assert not office.ledger.overdue(2.0)
    office.ledger.check()


def test_a_charge_that_the_watch_puts_right_meanwhile_keeps_its_device(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, request = office.free(), office.api.request
    office.ledger.pod_gone("uid-p0")
    office.audit()

    def late(method: str, path: str, **more: Any) -> bytes:
        if path.endswith("/p0"):
            office.watch()
        return request(method, path, **more)

    monkeypatch.setattr(office.api, "request", late)
    office.audit()
    assert office.free() == right


def test_a_pod_charged_more_than_it_asks_keeps_it_and_is_told(office: Office) -> None:
    charge_wrongly(office.ledger, "p0", 9)
    less = office.free()
    office.audit(3)
    assert office.told == [("charged more than it asks", False)]
    assert office.free() == less


def test_a_charge_whose_pod_is_gone_stays_and_is_told_once(office: Office) -> None:
    office.ledger.pod_changed(observed("ghost", 5))
    less = office.free()
    office.audit(4)
    assert office.told == [("charged although it is gone", False)]
    assert office.free() == less
    assert office.auditor.state()["audit_findings"] == 1


def test_a_node_that_has_less_than_the_books_say_is_narrowed(office: Office) -> None:
    office.api.nodes[NODE] = node_json(NODE, 24, 2)
    office.audit(2)
    assert office.told == [("other devices than the node has", True)]
    assert office.free() == [12 - 12, 12 - 8]


SICK = json.dumps({"v": 1, "unit": "GiB", "devices": [{"mem": 16, "healthy": False}] * 2})


@pytest.mark.parametrize(
    "listed", [node_json(NODE, 33, 2), node_json(NODE, 32, 2, **{ALIYUN.inventory: SICK})]
)
def test_a_node_that_is_closed_is_closed_in_the_books(
    office: Office, listed: dict[str, Any]
) -> None:
    office.api.nodes[NODE] = listed
    office.audit(2)
    assert office.told == [("other devices than the node has", True)]
    assert office.free() == [0, 0]


def test_a_node_with_fewer_sharers_than_the_books_say_is_narrowed(office: Office) -> None:
    office.api.nodes[NODE] = node_json(NODE, 32, 2)
    office.api.nodes[NODE]["metadata"]["labels"] = {MAX_SHARERS: "1"}
    office.audit(2)
    assert office.told == [("other devices than the node has", True)]
    assert office.free() == [0, 0]


def test_a_node_that_has_more_than_the_books_say_is_told_and_stays(office: Office) -> None:
    less = office.free()
    office.api.nodes[NODE] = node_json(NODE, 64, 2)
    office.audit(3)
    assert office.found == ["other devices than the node has"]
    assert office.free() == less


@pytest.mark.parametrize("units", [(24, 32), (32,)], ids=["a watch", "a list, too late"])
def test_a_node_that_changes_to_and_fro_is_each_time_only_late(
    office: Office, units: tuple[int, ...]
) -> None:
    office.api.nodes[NODE] = node_json(NODE, 24, 2)
    for _ in range(3):
        # The listed object is gone by the next audit, and comes again.
        office.audit()
        for unit in units:
            node = read_node(node_json(NODE, unit, 2))
            office.ledger.node_changed(node_spec(node, ALIYUN, "GiB"))
    assert office.told == []
    office.audit(2)
    assert office.found == ["other devices than the node has"], "told nothing, they differ"


def test_a_node_that_the_watch_puts_right_meanwhile_is_not_narrowed(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = office.api.request
    office.api.nodes[NODE] = node_json(NODE, 24, 2)
    office.audit()

    def late(method: str, path: str, **more: Any) -> bytes:
        if path == PODS:
            node = read_node(node_json(NODE, 28, 2))
            office.ledger.node_changed(node_spec(node, ALIYUN, "GiB"))
        return request(method, path, **more)

    monkeypatch.setattr(office.api, "request", late)
    office.audit()
    assert office.found == ["other devices than the node has"]
    assert office.free() == [14 - 12, 14 - 8]


def test_cards_that_no_watch_has_shown_at_their_new_places_are_found(office: Office) -> None:
    def cards(*uuids: str) -> Any:
        body = node_json(NODE, 32, 2)
        devices = [{"uuid": uuid, "mem": 16} for uuid in uuids]
        text = json.dumps({"v": 1, "unit": "GiB", "devices": devices, "servesByIdentity": True})
        body["metadata"]["annotations"] = {ALIYUN.inventory: text}
        return body

    node_spec_result = node_spec(read_node(cards("GPU-a", "GPU-b")), ALIYUN, "GiB")
    office.ledger.node_changed(node_spec_result)
    right = office.free()
    office.api.nodes[NODE] = cards("GPU-b", "GPU-a")
    office.audit(2)
    assert office.told == [("other devices than the node has", True)]
    # These pods name no uuids, so each may be on the card that has come to its index.
    assert office.free() == [max(sum(right) - 16, 0)] * 2
    office.ledger.check()


def test_a_charge_that_is_not_on_its_cards_is_found_and_frees_nothing(office: Office) -> None:
    ledger, right = office.ledger, office.free()
    entry = ledger.entry("uid-p0")
    assert entry is not None
    astray = replace(entry, placement=((1, 4),))
    with patch.object(books, "resolved", lambda charged, _: charged):  # a mistake of ours
        ledger._store.put("uid-p0", astray)  # noqa: SLF001 -- as above
    office.audit()
    assert office.told == [("sums that are not those of the entries", False)]
    entry = ledger.entry("uid-p0")
    assert entry is not None
    assert entry.placement == ((0, 4),)
    assert all(now <= then for now, then in zip(office.free(), right, strict=True))


def test_a_node_that_goes_and_comes_is_each_time_only_late(office: Office) -> None:
    office.ledger.node_gone(NODE)
    for uid in ("first", "second", "third"):
        # Each is listed before the watch shows it, and gone when the next one is.
        office.api.nodes[NODE]["metadata"]["uid"] = uid
        office.audit()
        office.ledger.node_changed(node_spec(read_node(office.api.nodes[NODE]), ALIYUN, "GiB"))
        office.ledger.node_gone(NODE)
    assert office.told == []
    office.audit()
    assert office.told == [("other devices than the node has", False)], "the same one, twice"


def test_a_node_that_is_gone_gives_nothing_out(office: Office) -> None:
    del office.api.nodes[NODE]
    office.audit(2)
    assert office.free() == [0, 0]


def test_a_difference_counts_only_when_the_watch_has_come_to_the_list(office: Office) -> None:
    office.ledger.pod_changed(observed("ghost", 5))
    office.api.version = 20
    office.audit(5)
    assert office.told == []
    office.shown = "20"
    office.audit()
    assert office.found == ["charged although it is gone"]
    office.shown, office.api.version = "", 30
    office.audit(2)
    assert office.auditor.state()["audit_findings"] == 1, "known once, it stays open"


@pytest.mark.parametrize("shown", ["9", "", "ten", "010x"])
def test_an_old_or_odd_version_of_the_watch_proves_nothing(office: Office, shown: str) -> None:
    office.ledger.pod_changed(observed("ghost", 5))
    office.shown = shown
    office.audit(4)
    assert office.told == []


def test_what_the_watch_shows_late_is_no_finding(office: Office) -> None:
    office.bind("late", 2, 0)
    deleted = office.api.pods.pop("p1")
    office.audit()
    assert deleted["metadata"]["uid"] == "uid-p1"
    office.watch()
    office.audit(2)
    assert office.told == []


def test_what_the_watch_shows_while_an_audit_begins_is_no_finding(office: Office) -> None:
    office.bind("late", 2, 0)
    office.api.version = 20
    office.audit()
    office.shown, office.catch_up = "20", office.watch
    office.audit()
    assert office.told == []


def test_a_bind_under_way_is_no_finding(office: Office) -> None:
    ref = PodRef("team", "new", "uid-new")
    office.ledger.assume(ref, Request(2, 1), Allocation(NODE, ((1, 2),)), 0.0)
    office.audit(3)
    office.bind("new", 2, 1)
    office.audit(3)
    assert office.told == []


def test_pods_that_make_no_sense_or_ask_for_nothing_are_left_alone(office: Office) -> None:
    office.api.pods["p0"]["spec"]["containers"][0]["resources"]["limits"] = {ALIYUN.resource: "x"}
    office.api.pods["p1"]["metadata"]["labels"] = {"a": 1}
    office.api.pods["plain"] = pod_json("plain", node=NODE)
    office.audit(3)
    assert office.told == []


@pytest.mark.parametrize("behind", ["nodes", "pods"])
def test_each_collection_is_judged_by_its_own_watch(office: Office, behind: str) -> None:
    office.behind = behind
    office.ledger.pod_gone("uid-p0")
    office.api.nodes[NODE] = node_json(NODE, 24, 2)
    office.audit(3)
    assert office.found == [
        "not charged" if behind == "nodes" else "other devices than the node has"
    ]


def test_a_node_that_cannot_be_read_is_left_alone(office: Office) -> None:
    office.api.nodes[NODE]["status"]["capacity"] = 7
    office.audit(3)
    assert office.told == []


@pytest.mark.parametrize("change", [{"uid": "another"}, {"phase": "Failed"}])
def test_one_that_has_ended_or_is_another_holds_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    right, request = office.free(), office.api.request
    office.ledger.pod_gone("uid-p0")
    office.audit()
    reads: list[str] = []

    def changing(method: str, path: str, **more: Any) -> bytes:
        if path.endswith("/p0"):
            reads.append(path)
        if len(reads) == 2:
            office.api.pods["p0"] = pod_json("p0", 4, node=NODE, **change)  # type: ignore[arg-type]
        return request(method, path, **more)

    monkeypatch.setattr(office.api, "request", changing)
    office.audit()
    assert len(reads) == 2
    assert office.free()[0] == right[0] + 4


@pytest.mark.parametrize("looks", [0, 1])
def test_one_that_ends_before_or_while_it_is_charged_holds_nothing(
    office: Office, looks: int
) -> None:
    right = office.free()
    office.ledger.pod_gone("uid-p0")
    office.audit()
    office.api.reads_left = looks
    office.audit()
    assert office.free()[0] == right[0] + 4
    office.ledger.check()


def test_what_is_healed_is_told_though_the_api_server_is_away_after_it(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, request = office.free(), office.api.request
    office.ledger.pod_gone("uid-p0")
    office.ledger.pod_changed(observed("ghost", 5, "cpu"))
    office.audit()
    reads: list[str] = []

    def failing(method: str, path: str, **more: Any) -> bytes:
        reads.extend([path] if path.endswith("/p0") else [])
        if path.endswith("/p0") and len(reads) != 2:
            raise ApiError("away", 503)
        return request(method, path, **more)

    monkeypatch.setattr(office.api, "request", failing)
    with suppress(ApiError):
        office.audit()
    assert office.free()[0] == right[0] + 4, "not read, not charged"
    for _ in range(3):
        with suppress(ApiError):
            office.audit()
    assert office.free() == right
    assert sorted(office.told) == [("charged although it is gone", False), ("not charged", True)]


@pytest.mark.parametrize(
    ("failure", "charged"),
    [(ApiError("forbidden", 403), [4, 0]), (ApiUnavailable("no answer", 0), [4, 4])],
)
def test_what_waits_for_a_pod_that_may_not_be_read_is_that_pod_alone(
    failure: ApiError, charged: list[int], office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer each read would wait for its time-out."""
    right, request = office.free(), office.api.request
    for name in ("p0", "p1"):
        office.ledger.pod_gone(f"uid-{name}")
    office.audit()

    def failing(method: str, path: str, **more: Any) -> bytes:
        if path.endswith("/p0"):
            raise failure
        return request(method, path, **more)

    monkeypatch.setattr(office.api, "request", failing)
    with pytest.raises(ApiError, match=str(failure)):
        office.audit()
    assert [now - then for now, then in zip(office.free(), right, strict=True)] == charged
    assert office.auditor.state()["audits_total"] == 1


def test_who_is_not_ready_finds_nothing_and_begins_anew(office: Office) -> None:
    office.ledger.pod_changed(observed("ghost", 5))
    office.audit()
    office.why_not = "another process leads"
    office.audit()
    office.why_not = ""
    office.audit()
    assert office.told == []
    office.audit()
    assert len(office.told) == 1


def test_while_the_api_server_is_away_the_sums_are_audited_all_the_same(office: Office) -> None:
    right = office.free()
    sums(office.ledger).add(Charge(NODE, Request(3, 1), ((1, -3),)))
    office.api.down = True
    with pytest.raises(ApiError):
        office.audit()
    assert office.free() == right
    assert office.auditor.state()["audits_total"] == 0


def test_the_thread_goes_on_whatever_an_audit_meets(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    office.api.down = True
    office.auditor.start()
    try:
        poll(lambda: "audit not done" in caplog.text)
        caplog.clear()
        office.api.cut, office.api.down = True, False
        poll(lambda: "audit not done" in caplog.text)
        assert "audit failed" not in caplog.text, "an answer cut off is no bug"
        office.api.broken = True
        poll(lambda: "audit failed" in caplog.text)
        office.api.broken = office.api.cut = False
        poll(lambda: office.auditor.state()["audits_total"] > 0)
        assert not office.is_stuck()
        office.api.now += 300
        poll(lambda: not office.is_stuck())
    finally:
        office.auditor.stop()
    office.api.now += 300
    assert office.is_stuck()
    assert office.auditor.state()["audit_age_seconds"] >= 300


def test_a_thread_started_long_after_it_was_made_is_not_stuck(office: Office) -> None:
    office.api.now += 300  # gunicorn's master made the thread, and forks a worker again and again
    assert office.is_stuck()
    office.api.down = True
    office.auditor.start()
    try:
        assert not office.is_stuck()
        assert office.auditor.state()["audit_age_seconds"] == 0
    finally:
        office.auditor.stop()


def test_narrowed_lets_nothing_become_free() -> None:
    node = make_node("a", 16, 8, unhealthy=[0])
    node_result = make_node("a", 8, 16, 4)
    assert narrowed(node, node_result).capacity == (8, 8, 0)
    assert narrowed(node, node_result).healthy == (False, True, False)
    assert narrowed(node_result, node) == narrowed(node, node_result)
    shut = replace(node_result, closed=Reason.UNEVEN)
    assert narrowed(shut, node).closed == narrowed(node, shut).closed == Reason.UNEVEN
    few = replace(node_result, max_sharers=2)
    assert narrowed(few, node).max_sharers == narrowed(node, few).max_sharers == 2
