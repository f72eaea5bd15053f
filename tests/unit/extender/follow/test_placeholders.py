"""Placeholders come for pods that need a node, once each, and none is left behind.

The API server here keeps Pods. What the extender knows of them it is shown by the watch: after each
round, or not before the test says so.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.extender.follow.placeholders import (
    AFTER_JOIN,
    MOST,
    WAITING,
    Placeholders,
)
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.placeholders import FOR, SCHEDULER, Placeholder
from tests.unit.extender.kit import make_library, node_json, pod_json, read_node, read_pod

OURS = "/api/v1/namespaces/asks/pods"
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
CUT = ApiUnavailable("cut", 0)


class World:
    """A node of two devices of 16 with 10 on each, and the API server."""

    def __init__(self, namespace: str = "asks") -> None:
        self.now = 10_000.0
        self.pods: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.faults: list[tuple[str, bool, ApiError]] = []
        self.why_not = ""
        self.library = make_library()
        self.uids = 0
        self.start(namespace)
        self.node("a")
        for device in (0, 1):
            self.runs(f"ten-{device}", 10, "a", device)
        self.round()
        self.now += AFTER_JOIN

    def start(self, namespace: str) -> None:
        """Another process, which the watch shows what there is."""
        self.known = Shown[Placeholder]()
        self.handler = PodEventHandler(self.library, placeholders=self.known)
        self.under_test = Placeholders(
            self,
            self.library,
            self.known,
            namespace,
            not_ready=lambda: self.why_not,
            clock=lambda: self.now,
            wall=lambda: 1_800_000_000.0 + self.now,
        )
        self.shown()

    def node(self, name: str) -> None:
        found = node_json(name, 32, 2)
        found["status"]["allocatable"]["pods"] = "110"
        found["metadata"]["labels"] = {"kubernetes.io/hostname": name}
        NodeEventHandler(self.library, "GiB").apply(WatchEvent("ADDED", object=read_node(found)))

    def runs(self, name: str, units: int, node: str, device: int) -> None:
        notes = {ALIYUN.idx: str(device), ALIYUN.pod: str(units)}
        self.put(pod_json(name, units, node=node, annotations=notes, phase="Running"))

    def waits(self, name: str, units: int, group: str = "", **status: Any) -> None:
        pod = pod_json(name, units)
        pod["metadata"]["labels"] = {}
        if group:
            pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
        pod["metadata"]["creationTimestamp"] = "2027-01-15T10:46:40Z"  # 1_800_010_000
        pod["status"] |= {"conditions": [REFUSED]} | status
        self.put(pod)

    def put(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        self.pods[f"{metadata['namespace']}/{metadata['name']}"] = pod
        self.handler.apply(WatchEvent("MODIFIED", object=read_pod(pod)))

    def gone(self, key: str) -> None:
        self.handler.apply(WatchEvent("DELETED", object=read_pod(self.pods.pop(key))))

    def shown(self) -> None:
        """The watch shows all pods."""
        pods = {str(pod["metadata"]["uid"]): pod for pod in self.pods.values()}
        for pod in pods.values():
            self.handler.apply(WatchEvent("MODIFIED", object=read_pod(pod)))
        for uid in self.known.all().keys() - pods.keys():  # as a DELETED would
            self.known.put(uid, None)

    def round(self) -> bool:
        done = self.under_test.round()
        self.shown()
        return done

    def later(self, seconds: float = WAITING) -> bool:
        self.now += seconds
        return self.round()

    @property
    def asking(self) -> list[str]:
        """The pods for which there is a placeholder that an autoscaler counts."""
        found = []
        for pod in self.pods.values():
            if pod["metadata"]["namespace"] == "asks":
                assert pod["spec"]["schedulerName"] == SCHEDULER
                conditions = pod["status"].get("conditions") or [{}]
                counted = conditions[0].get("reason") == "Unschedulable"
                found.append(pod["metadata"]["labels"][FOR] + ("" if counted else " untold"))
        return sorted(found)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        assert query is None
        assert timeout < not_after
        self.calls.append((method, path))
        lands, failure = True, None
        if self.faults and self.faults[0][0] == method:
            _, lands, failure = self.faults.pop(0)
        answer = self._answer(method, path, json.loads(body or b"{}")) if lands else b""
        if failure is not None:
            raise failure
        return answer

    def _answer(self, method: str, path: str, document: dict[str, Any]) -> bytes:
        _, _, _, _, namespace, _, *rest = path.split("/")
        if method == "POST":
            key = f"{namespace}/{document['metadata']['name']}"
            if key in self.pods:
                raise ApiConflict("exists", 409)
            self.uids += 1
            document["metadata"]["uid"] = f"own-{self.uids}"
            self.pods[key] = document | {"status": {"phase": "Pending"}}
            return b"{}"
        key = f"{namespace}/{rest[0]}"
        if key not in self.pods:
            raise ApiNotFound("gone", 404)
        if method == "GET":
            return json.dumps(self.pods[key]).encode()
        if method == "DELETE":
            assert document == {"gracePeriodSeconds": 0}
            del self.pods[key]
            return b"{}"
        assert (method, rest[1:]) == ("PATCH", ["status"])
        self.pods[key]["status"] |= document["status"]
        return b"{}"


def asked() -> World:
    """One pod that fits by the sum alone has its placeholder."""
    world = World()
    world.waits("web", 8)
    assert world.later()
    assert world.asking == ["uid-web"]
    return world


def test_a_pod_that_waits_long_enough_has_one_placeholder() -> None:
    world = World()
    world.waits("web", 8)
    world.now = 10_000.0 + AFTER_JOIN
    world.later(0.0)
    assert world.asking == ["uid-web"]
    world.calls.clear()
    assert world.later()
    assert world.calls == []


def test_one_that_has_just_come_waits() -> None:
    world = World()
    world.waits("web", 8)
    world.pods["team/web"]["metadata"]["creationTimestamp"] = "2027-01-15T10:49:35Z"
    world.shown()
    world.later(20.0)
    assert world.asking == []
    world.later(10.0)
    assert world.asking == ["uid-web"]


@pytest.mark.parametrize(
    "change",
    [
        {"nominatedNodeName": "a"},
        {"conditions": []},
        {"conditions": [{**REFUSED, "reason": "SchedulerError"}]},
    ],
)
def test_who_is_not_found_unschedulable_has_none(change: dict[str, Any]) -> None:
    world = World()
    world.waits("web", 8, **change)
    assert world.later()
    assert world.asking == []


def test_it_ends_when_its_pod_is_bound_gone_or_has_room() -> None:
    bound = asked()
    bound.node("b")
    bound.runs("web", 8, "b", 0)
    bound.later(0.0)
    assert bound.asking == []
    gone = asked()
    gone.gone("team/web")
    gone.later(0.0)
    assert gone.asking == []
    fits = asked()
    fits.gone("team/ten-0")
    fits.later(0.0)
    assert fits.asking == []


def test_a_node_that_came_has_time_to_start() -> None:
    world = asked()
    world.node("b")
    world.runs("most", 9, "b", 0)
    world.runs("more", 9, "b", 1)
    world.waits("late", 8)
    world.later(0.0)
    world.later(0.0)
    # It did not leave out b, where sums would let it in: so it was made again, and that is no new
    # one.
    assert world.asking == ["uid-web"]
    assert next(iter(world.known.all().values())).nodes == {"a", "b"}
    world.later(AFTER_JOIN - 1)
    assert world.asking == ["uid-web"]
    world.later(1.0)
    assert world.asking == ["uid-late", "uid-web"]


def test_a_process_that_begins_to_lead_does_not_know_when_nodes_came() -> None:
    world = World()
    world.waits("web", 8)
    world.start("asks")
    world.later()
    assert world.asking == []
    world.later(AFTER_JOIN)
    assert world.asking == ["uid-web"]


def test_there_are_never_more_than_ten() -> None:
    world = World()
    for number in range(MOST + 3):
        world.waits(f"web-{number:02}", 7)
    world.later()
    assert len(world.asking) == MOST
    world.later()
    assert len(world.asking) == MOST


@pytest.mark.parametrize("members", [4, 5])
def test_a_group_has_all_or_none(members: int) -> None:
    world = World()
    for number in range(6):
        world.waits(f"alone-{number}", 8)
    world.later()
    assert len(world.asking) == 6
    for number in range(members):
        world.waits(f"gang-{number}", 8, group="g")
    world.later()
    gang = [uid for uid in world.asking if "gang" in uid]
    assert len(gang) == (members if members <= MOST - 6 else 0)
    assert len(world.asking) == 6 + len(gang)


def test_a_group_of_which_one_was_not_tried_has_none() -> None:
    world = World()
    world.waits("gang-0", 8, group="g")
    world.waits("gang-1", 8, group="g", conditions=[])
    world.later()
    assert world.asking == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_create_without_an_answer_makes_no_second_one(landed: bool) -> None:
    world = World()
    world.waits("web", 8)
    world.faults = [("POST", landed, CUT)]
    world.now += WAITING
    assert not world.under_test.round()
    assert world.asking == (["uid-web untold"] if landed else [])
    world.under_test.round()  # the watch is behind
    world.shown()
    assert world.later(0.0)
    assert world.asking == ["uid-web"]


def test_who_dies_between_create_and_status_leaves_it_to_the_next() -> None:
    world = World()
    world.waits("web", 8)
    world.faults = [("PATCH", False, CUT)]
    assert not world.later()
    assert world.asking == ["uid-web untold"]
    world.start("asks")
    assert world.later(0.0)
    assert world.asking == ["uid-web"]


def test_who_dies_after_its_pod_was_bound_leaves_it_to_the_next() -> None:
    world = asked()
    world.gone("team/web")
    world.start("asks")
    world.later(0.0)
    assert world.asking == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_delete_without_an_answer_is_repeated(landed: bool) -> None:
    world = asked()
    world.gone("team/web")
    world.faults = [("DELETE", landed, CUT)]
    assert not world.under_test.round()
    assert world.under_test.round()
    assert world.asking == []


def test_switched_off_it_takes_away_all_that_are_left() -> None:
    world = asked()
    world.start("")
    world.calls.clear()
    assert world.later(0.0)
    assert world.asking == []
    assert world.calls == [("DELETE", f"{OURS}/for-uid-web")]
    world.calls.clear()
    world.later()
    assert world.calls == []


def test_only_the_leader_acts() -> None:
    world = World()
    world.waits("web", 8)
    world.why_not = "another process leads"
    world.calls.clear()
    assert not world.later()
    assert world.calls == []


def test_who_loses_the_lead_in_a_round_stops_in_it() -> None:
    world = World()
    world.waits("web-0", 8)
    world.waits("web-1", 8)
    answered = world.request

    def losing(method: str, *args: Any, **more: Any) -> bytes:
        if method == "POST":
            world.why_not = "another process leads"
        return answered(method, *args, **more)

    world.request = losing  # type: ignore[method-assign]
    world.later()
    assert world.asking == ["uid-web-0"]


def test_without_the_right_it_rests() -> None:
    world = World()
    world.waits("web", 8)
    world.faults = [("POST", False, ApiError("forbidden", 403))]
    assert not world.later()
    world.calls.clear()
    assert world.later(599.0)
    assert world.calls == []
    world.later(2.0)
    assert world.asking == ["uid-web"]


def test_metrics_count_what_is_there_and_what_was_done() -> None:
    world = World()
    world.waits("web", 8)
    refused = ApiError("refused", 500)
    counts = []
    for method in ("POST", "PATCH", ""):
        world.faults = [(method, False, refused)]
        world.later()
        counts.append([*world.under_test.state().values()])
    world.gone("team/web")
    for method in ("DELETE", ""):
        world.faults = [(method, False, refused)]
        world.later()
        counts.append([*world.under_test.state().values()])
    assert [*world.under_test.state()] == [
        "placeholders",
        "placeholders_created_total",
        "placeholders_deleted_total",
        "placeholders_failed_writes_total",
    ]
    assert counts == [[0, 0, 0, 1], [1, 1, 0, 2], [1, 1, 0, 2], [1, 1, 0, 3], [0, 1, 1, 3]]


def test_metrics_tell_nothing_while_it_is_off() -> None:
    world = asked()
    world.start("")
    assert world.under_test.state() == {}


def test_pods_of_others_are_left_alone() -> None:
    world = asked()
    theirs = json.loads(json.dumps(world.pods["asks/for-uid-web"]))
    theirs["metadata"] |= {"namespace": "team", "name": "hers", "uid": "hers"}
    world.put(theirs)
    plain = pod_json("plain", 0)
    plain["metadata"] |= {"namespace": "asks", "labels": {FOR: "x"}}
    plain["spec"]["schedulerName"] = "default-scheduler"
    world.handler.apply(WatchEvent("ADDED", object=read_pod(plain)))
    world.gone("team/web")
    world.calls.clear()
    world.later(0.0)
    assert world.calls == [("DELETE", f"{OURS}/for-uid-web")]


def test_a_placeholder_asks_nothing_of_the_books() -> None:
    world = asked()
    (managed,) = world.library
    assert [pod.ref.name for pod in managed.ledger.waiting()] == ["web"]
    managed.ledger.check()
