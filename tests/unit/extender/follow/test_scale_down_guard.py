"""Nodes are annotated while their pods have no device elsewhere, and nobody else's word is touched.

The API server here keeps Nodes and answers merge patches; the guard's knowledge of Nodes is shown
by the watch, as events.
"""

import json
import math
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import ObservedPod
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.extender.follow.scale_down_guard import AGAIN, ScaleDownGuard
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import NODES
from gpushare.wire.scale_down import KEYS, OURS, Mark, mark_of
from tests.unit.extender.kit import (
    NO_RIGHT,
    managed_resources,
    node_json,
    pod_json,
    read_node,
    read_pod,
    refusal,
)

CA = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KARPENTER = "karpenter.sh/do-not-disrupt"
ABOUT_A1 = "team/a1 would have no device on another node"


class World:
    """Nodes of two devices of 16, a guard, and the API server between them."""

    def __init__(self, *names: str, on: bool = True) -> None:
        self.nodes = {name: node_json(name, 32, 2) for name in names}
        self.version = 0
        self.now = 0.0
        self.why_not = ""
        self.patches: list[str] = []
        self.failures: list[tuple[bool, ApiError]] = []
        self.resources = managed_resources()
        (self.managed,) = self.resources
        self.marks = Shown[Mark]()
        self.handler = NodeEventHandler(self.resources, "GiB", self.marks)
        for name in names:
            self.nodes[name]["status"]["allocatable"]["pods"] = "110"
            self.changed(name)
        self.restart(on=on)

    def restart(self, *, on: bool) -> None:
        """Another process; its watch shows all objects."""
        self.running = Shown[ObservedPod]() if on else None
        self.pods = PodEventHandler(self.resources, running=self.running)
        self.guard = ScaleDownGuard(
            self, self.resources, self.marks, self.running,
            not_ready=lambda: self.why_not, clock=lambda: self.now,
        )  # fmt: skip

    def changed(self, name: str, **annotations: str) -> None:
        """Somebody changes the node."""
        self.version += 1
        metadata = self.nodes[name]["metadata"]
        metadata["annotations"] = metadata["annotations"] | annotations
        metadata["resourceVersion"] = str(self.version)
        self.shown(name)

    def shown(self, *names: str) -> None:
        """The watch shows nodes."""
        for name in names or [*self.nodes]:
            self.handler.apply(WatchEvent("MODIFIED", object=read_node(self.nodes[name])))

    def runs(self, node: str, **pods: tuple[int, int]) -> None:
        """Pods of these units on these devices of the node."""
        for name, (units, device) in pods.items():
            notes = {ALIYUN.idx: str(device), ALIYUN.pod: str(units), ALIYUN.dev: "16"}
            pod = pod_json(name, units, node=node, annotations=notes, phase="Running")
            pod["spec"]["nodeSelector"] = {}
            self.pods.apply(WatchEvent("ADDED", object=read_pod(pod)))

    def ended(self, name: str) -> None:
        self.pods.apply(WatchEvent("DELETED", object=read_pod(pod_json(name, 1))))

    def notes(self, name: str) -> dict[str, Any]:
        """The annotations about scale-down."""
        present: dict[str, Any] = self.nodes[name]["metadata"]["annotations"]
        return {key: text for key, text in present.items() if key in KEYS | {OURS}}

    def why(self, name: str) -> str:
        """Our word, if all that we write is there."""
        notes = self.notes(name)
        assert notes.pop(CA) == notes.pop(KARPENTER) == "true"
        document = json.loads(notes.pop(OURS))
        assert document["wrote"] == sorted(KEYS)
        assert not notes
        text: str = document["why"]
        return text

    def round(self) -> bool:
        """A round, after which the watch has shown everything."""
        round_result = self.guard.round()
        self.shown()
        return round_result

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
        """The API server: merges a patch if it is of the Node's version."""
        assert (method, content_type) == ("PATCH", "application/merge-patch+json")
        assert query is None
        assert timeout < not_after
        name = path.removeprefix("/api/v1/nodes/")
        self.patches.append(name)
        landed, failure = self.failures.pop(0) if self.failures else (True, None)
        if landed:
            self._merge(name, json.loads(body or b"")["metadata"])
        if failure is not None:
            raise failure
        return b"{}"

    def _merge(self, name: str, patch: dict[str, Any]) -> None:
        if name not in self.nodes:
            raise ApiNotFound("gone", 404)
        metadata = self.nodes[name]["metadata"]
        if patch.pop("resourceVersion") != metadata["resourceVersion"]:
            raise ApiConflict("changed", 409)
        (changes,) = patch.values()
        merged = metadata["annotations"] | changes
        kept_items = {key: text for key, text in merged.items() if text is not None}
        self.version += 1
        metadata |= {"annotations": kept_items, "resourceVersion": str(self.version)}


def stuck(*, on: bool = True) -> World:
    """10 + 10 on a, 8 on b: by sums a could be emptied."""
    world = World("a", "b", on=on)
    world.runs("a", a0=(10, 0), a1=(10, 1))
    world.runs("b", b0=(8, 0))
    return world


def test_who_has_no_device_elsewhere_keeps_its_node() -> None:
    world = stuck()
    assert world.round()
    assert world.why("a") == ABOUT_A1
    assert world.why("b") == "team/b0 would have no device on another node"
    world.patches.clear()
    assert world.round()
    assert world.patches == []


def test_what_holds_no_more_is_taken_away() -> None:
    world = stuck()
    world.round()
    world.ended("a1")
    world.round()
    # b has the fewest units; its pods go to a, which therefore stays.
    assert (world.notes("b"), world.why("a")) == (
        {},
        "team/a0 would have no device on another node",
    )
    world.ended("a0")
    world.round()
    assert (world.notes("a"), world.why("b")) == (
        {},
        "team/b0 would have no device on another node",
    )


def test_of_two_that_could_be_emptied_into_each_other_the_same_one_stays_allowed() -> None:
    world = World("a", "b")
    world.runs("a", a0=(4, 0))
    world.runs("b", b0=(4, 0))
    world.round()
    assert (world.notes("a"), [*world.notes("b")] != []) == ({}, True)
    world.runs("a", a1=(2, 1))  # now b would be the smaller one
    world.patches.clear()
    world.round()
    assert world.notes("a") == {}
    assert world.why("b") == "team/b0 would have no device on another node"
    assert world.patches == []


def test_a_node_selector_of_a_pod_that_runs_counts() -> None:
    world = World("a", "b")
    pod = pod_json("web", 4, node="a", annotations={ALIYUN.idx: "0", ALIYUN.pod: "4"})
    pod["spec"]["nodeSelector"] = {"zone": "here"}
    world.runs("b", b0=(16, 0), b1=(16, 1))
    world.pods.apply(WatchEvent("ADDED", object=read_pod(pod)))
    world.runs("a", a0=(16, 1))
    world.ended("b1")
    world.round()
    assert "team/web would have no device" in world.why("a")


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("key", sorted(KEYS))
@pytest.mark.parametrize("value", ["true", "false"])
def test_what_a_person_wrote_is_never_touched(key: str, value: str, on: bool) -> None:
    world = stuck(on=on)
    world.changed("a", **{key: value})
    world.round()
    assert world.notes("a")[key] == value
    if value == "true" or not on:
        assert world.notes("a") == {key: value}
    else:
        (second,) = KEYS - {key}
        assert world.notes("a")[second] == "true"
        assert json.loads(world.notes("a")[OURS])["wrote"] == [second]
    world.ended("a0")
    world.ended("a1")
    world.ended("b0")
    world.round()
    assert world.notes("a") == {key: value}


def test_what_a_person_makes_of_our_word_is_the_persons() -> None:
    world = stuck()
    world.round()
    world.changed("a", **{CA: "false"})
    world.round()
    world.ended("a0")
    world.ended("a1")
    world.round()
    assert world.notes("a") == {CA: "false"}


def test_a_write_that_crosses_with_a_persons_is_refused_and_looked_at_again() -> None:
    world = stuck()
    mark = world.marks.all()["a"]
    world.changed("a", **{CA: "true"})
    world.marks.put("a", mark)  # the watch is behind
    assert not world.guard.round()
    assert world.notes("a") == {CA: "true"}
    world.shown()
    assert world.round()
    assert world.notes("a") == {CA: "true"}


@pytest.mark.parametrize("landed", [True, False])
def test_a_write_without_an_answer_is_repeated_until_the_watch_shows_it(landed: bool) -> None:
    world = stuck()
    world.failures = [(landed, ApiUnavailable("cut", 0))]
    assert not world.guard.round()
    assert not world.guard.round() or not landed  # not shown yet: the version has gone
    world.shown()
    assert world.round()
    assert world.why("a") == ABOUT_A1
    world.patches.clear()
    assert world.round()
    assert world.patches == []


def test_what_was_written_is_not_written_again_before_the_watch_shows_it() -> None:
    world = stuck()
    assert world.guard.round()
    assert world.guard.round()
    assert world.patches == ["a", "b"]


def test_switched_off_it_takes_away_what_an_earlier_process_has_left() -> None:
    world = stuck()
    world.round()
    world.changed("b", **{"example.com/note": "hers"})
    world.restart(on=False)
    assert world.round()
    assert world.notes("a") == world.notes("b") == {}
    assert world.nodes["b"]["metadata"]["annotations"] == {"example.com/note": "hers"}


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("crash", [1, 2, 3, 4])
def test_wherever_its_process_dies_another_goes_on(crash: int, landed: bool, on: bool) -> None:
    """Two nodes are annotated, then a process without the guard frees the nodes; one of them dies
    at a write, which lands or not. on: the process that goes on after the first one has the guard.
    """
    world = stuck()
    answered, writes = world.request, 0

    class Dies(BaseException):
        pass

    def dying(*args: Any, **more: Any) -> bytes:
        nonlocal writes
        writes += 1
        answer = b"" if writes == crash and not landed else answered(*args, **more)
        if writes == crash:
            raise Dies
        return answer

    world.request = dying  # type: ignore[method-assign]

    def rounds() -> None:
        for _ in range(3):
            try:
                world.round()
            except Dies:
                world.restart(on=on and crash <= 2)
                world.runs("a", a0=(10, 0), a1=(10, 1))
                world.runs("b", b0=(8, 0))
                world.shown()

    rounds()
    result = {name: bool(world.notes(name)) for name in "ab"}
    assert result == dict.fromkeys("ab", on or crash > 2)
    world.restart(on=False)
    rounds()
    assert world.notes("a") == world.notes("b") == {}
    assert writes >= crash


@pytest.mark.parametrize("on", [True, False])
def test_only_the_leader_with_filled_books_acts(on: bool) -> None:
    world = stuck()
    world.round()
    before = world.notes("a")
    world.restart(on=on)
    world.ended("b0")
    world.why_not = "another process leads"
    world.patches.clear()
    assert not world.round()
    assert (world.patches, world.notes("a")) == ([], before)
    world.why_not = ""
    world.round()
    assert world.patches


def test_who_loses_the_lead_in_a_round_stops_in_it() -> None:
    world = stuck()
    answered = world.request

    def losing(*args: Any, **more: Any) -> bytes:
        world.why_not = "another process leads"
        return answered(*args, **more)

    world.request = losing  # type: ignore[method-assign]
    world.guard.round()
    assert world.patches == ["a"]


def test_without_the_right_it_rests() -> None:
    world = stuck()
    world.failures = [(False, NO_RIGHT)]
    assert world.round()
    assert world.patches == ["a"]
    world.now += 599
    assert world.round()
    assert world.patches == ["a"]
    world.now += 2
    assert world.round()
    assert world.why("a") == ABOUT_A1


def test_a_node_whose_write_is_refused_rests_alone() -> None:
    world = stuck()
    world.changed("b", **{CA: "true", KARPENTER: "true"})  # a person's word is none of ours
    denied = refusal('admission webhook "nodes.example.com" denied the request: not this node')
    world.failures = [(False, denied)]
    assert not world.round()
    world.now += 9
    assert world.round()
    assert world.patches == ["a"]
    world.now += 1
    assert world.round()
    assert world.why("a") == ABOUT_A1


def test_metrics_count_nodes_that_are_kept_and_writes_that_failed() -> None:
    world = stuck()
    world.changed("b", **{CA: "true", KARPENTER: "true"})  # a person's word is none of ours
    world.failures = [(False, ApiError("refused", 500))]
    world.round()
    assert world.guard.state() == {"scale_down_kept_nodes": 0, "scale_down_failed_writes_total": 1}
    world.ended("b0")
    world.runs("b", b1=(10, 0), b2=(10, 1))
    world.round()
    assert world.guard.state() == {"scale_down_kept_nodes": 1, "scale_down_failed_writes_total": 1}
    world.restart(on=False)
    assert world.guard.state() == {}


def test_a_node_that_went_meanwhile_is_no_failure() -> None:
    world = stuck()
    del world.nodes["a"]
    assert world.guard.round()


def test_nodes_that_were_not_read_keep_their_marks() -> None:
    world = stuck()
    world.round()
    listing = {"kind": "NodeList", "metadata": {"resourceVersion": "9"}}
    broken = {"metadata": {"name": "a"}, "status": 7}
    body = json.dumps(listing | {"items": [broken, world.nodes["b"]]}).encode()
    world.handler.replace([NODES.decode_list(body)], 0.0)
    assert {name: mark.reason for name, mark in world.marks.all().items()} == {
        "a": ABOUT_A1,
        "b": "team/b0 would have no device on another node",
    }
    encode_result = json.dumps(listing | {"items": []}).encode()
    world.handler.replace([NODES.decode_list(encode_result)], 0.0)
    assert world.marks.all() == {}


@given(
    st.text(max_size=40)
    | st.sampled_from(['{"why":1,"wrote":[]}', '{"why":"","wrote":7}', "[" * 5000, "[]", "null"])
    | st.builds(lambda names: json.dumps({"why": "x", "wrote": names}), st.lists(st.text()))
)
def test_our_word_may_be_garbled(text: str) -> None:
    mark = mark_of({OURS: text, CA: "true"})
    assert mark.reason is not None
    assert mark.by_extender == frozenset()
    assert mark.by_others == {CA}


def test_the_thread_goes_on_after_a_failure_and_ends() -> None:
    world = stuck()
    waits: list[float] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None and timeout < AGAIN:
                return False  # a rest within a round, of a slow machine
            waits.append(timeout or 0.0)
            if len(waits) == 2:
                world.failures = [(False, ApiUnavailable("cut", 0))]
            if len(waits) > 4:
                broken.stop()
            return False

    def not_ready() -> str:
        if len(waits) == 1:
            raise ZeroDivisionError("a bug")
        return ""

    broken = ScaleDownGuard(
        world, world.resources, world.marks, world.running, not_ready=not_ready, event=Event
    )
    broken.loop.run()
    assert waits == [5.0, 5.0, 5.0, 60.0, 60.0]


def test_judging_takes_two_percent_of_the_time_at_most() -> None:
    world, waits, now = stuck(), list[float](), [0.0]

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            now[0] += timeout or 0.0
            return False

    def clock() -> float:
        now[0] += 0.01  # each look at the clock is a slice of judging
        return now[0]

    guard = ScaleDownGuard(
        world, world.resources, world.marks, world.running, not_ready=str, clock=clock, event=Event
    )
    guard.round()
    assert waits
    assert waits == pytest.approx([49 * 0.01] * len(waits))
