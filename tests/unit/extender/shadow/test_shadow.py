"""The queue and its thread: bounded, off after a failure, and never in an answer."""

import itertools
import json
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from gpushare.core.model import Request
from gpushare.core.policy import Policy
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.errors import SettingsError
from gpushare.extender.factory import make_shadow
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.shadow import shadow as shadow_module
from gpushare.extender.shadow.shadow import MOST, MOST_SEEN, SHARE, Shadow
from gpushare.extender.tell.metrics import Metrics
from gpushare.settings import Settings
from gpushare.wire.objects import PODS
from tests.support.waiting import poll
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender, bind_request, request
from tests.unit.extender.shadow.traffic import Traffic

SMALL = Request(1, 1)


class Breaks:
    """A policy that raises, or ends the program."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        raise self._error


def _traffic(**more: Policy) -> Traffic:
    return Traffic([make_node("a", 90, 90), make_node("b", 90, 90)], "binpack", "spread", **more)


def test_answers_beyond_the_first_are_not_compared_but_their_pods_are_followed() -> None:
    traffic = _traffic()
    more = 10
    for number in range(MOST_SEEN + more):
        allocation = traffic.ask(f"p{number}", SMALL)
        assert allocation is not None
        traffic.bind(f"p{number}", SMALL, allocation)
    traffic.shadow.work()
    assert traffic.shadow.dropped == {"choice": more, "event": 0}
    assert sum(traffic.counts.choices.values()) == MOST_SEEN
    assert traffic.counts.pods["both"] == MOST_SEEN + more
    assert traffic.counts.rebases == 0
    assert traffic.come("later", SMALL)
    assert sum(traffic.counts.choices.values()) == MOST_SEEN + 1


def test_a_full_queue_is_counted_and_followed_by_a_new_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shadow_module, "MOST", 6)
    traffic = _traffic()
    assert traffic.come("before", SMALL)
    for number in range(5):
        allocation = traffic.ask(f"p{number}", SMALL)
        assert allocation is not None
        traffic.bind(f"p{number}", SMALL, allocation)
    traffic.shadow.work()
    assert traffic.shadow.dropped == {"choice": 0, "event": 4}
    assert traffic.counts.rebases == 1
    assert traffic.used() == traffic.really_used() == {"a": [6, 0], "b": [0, 0]}
    assert sum(traffic.counts.choices.values()) == 4, "three were there"
    traffic.go("p0")
    assert traffic.come("after", SMALL)
    assert traffic.used() == {"a": [5, 0], "b": [1, 0]}
    assert traffic.counts.inexact == {"node_changed": 0, "not_asked": 0, "unplaced": 0}


def test_after_a_new_beginning_half_of_the_queue_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "MOST", 10)
    traffic = _traffic()
    for number in range(12):
        traffic.ask(f"p{number}", SMALL)
    traffic.shadow.work()
    assert traffic.shadow.dropped == {"choice": 0, "event": 2 + 5}
    assert sum(traffic.counts.choices.values()) == 5
    for number in range(MOST_SEEN + 1):
        traffic.ask(f"q{number}", SMALL)
        traffic.shadow.work()
    assert traffic.shadow.dropped == {"choice": 0, "event": 2 + 5}


def test_a_call_about_the_nominated_node_alone_tells_it_nothing() -> None:
    extender = ScriptedExtender(shadow="spread")
    assert extender.shadow is not None
    pod = pod_json("p", 3)
    extender.filter(pod | {"status": {"nominatedNodeName": "big"}}, ["big"])
    extender.shadow.work()
    (counts, _) = extender.shadow.counts.values()
    assert sum(counts.choices.values()) == 0
    extender.filter(pod)
    extender.shadow.work()
    assert sum(counts.choices.values()) == 1


def test_what_waits_is_bounded() -> None:
    traffic = _traffic()
    for number in range(MOST + 100):
        traffic.go(f"p{number}")
    assert traffic.shadow.dropped["event"] == 0, "pods that were nowhere leave nothing"
    allocation = traffic.ask("p", SMALL)
    assert allocation is not None
    for _ in range(MOST):
        traffic.bind("p", SMALL, allocation)
        traffic.go("p")
    assert traffic.shadow.dropped["event"] == MOST + 1


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_a_policy_that_raises_switches_it_off_with_one_line(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gpushare.shadow")
    traffic = Traffic([make_node("a", 8)], "binpack", "breaks", breaks=Breaks(error))
    for number in range(3):
        assert traffic.come(f"p{number}", SMALL)
        traffic.shadow.work()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "shadow policy failed and is off" in caplog.text
    assert type(error).__name__ in traffic.shadow.off
    metrics = Metrics(traffic.resources, 2**30, dict, shadow=traffic.shadow).text().decode()
    assert 'gpushare_shadow_on{policy="breaks"} 0.0' in metrics


def test_a_failing_shadow_ends_its_thread() -> None:
    traffic = Traffic([make_node("a", 8)], "binpack", "breaks", breaks=Breaks(ValueError("no")))
    allocation = traffic.ask("p", SMALL)
    assert allocation is not None
    traffic.shadow.start()
    poll(lambda: traffic.shadow.off != "")
    poll(lambda: "shadow" not in [thread.name for thread in threading.enumerate()])


def test_nodes_are_looked_at_and_books_counted_though_events_wait() -> None:
    traffic = _traffic()
    result: list[tuple[int, int]] = []

    def rest(seconds: float) -> None:
        assert seconds > 0
        traffic.now += 1.0
        result.append((len(traffic.used()), traffic.counts.shadow.pods))

    ticks = itertools.count()
    busy = Shadow(
        traffic.resources,
        "spread",
        clock=lambda: traffic.now,
        cpu=lambda: next(ticks) * 0.5,
        pause=rest,
    )
    busy.work()
    traffic.shadow = busy
    for number in range(20):
        allocation = traffic.ask(f"p{number}", SMALL)
        assert allocation is not None
        traffic.bind(f"p{number}", SMALL, allocation)
    traffic.ledger.node_changed(make_node("c", 90))
    result.clear()
    busy.work()
    assert result[5][0] == 3
    assert 0 < result[20][1] < 20


def test_it_rests_nine_times_as_long_as_it_works() -> None:
    traffic = _traffic()
    ticks = itertools.count()
    paced = Shadow(
        traffic.resources, "spread", cpu=lambda: next(ticks) * 0.5, pause=traffic.pauses.append
    )
    paced.work()
    assert traffic.pauses
    assert set(traffic.pauses) == {0.5 * (1 / SHARE - 1)}


def test_a_policy_that_there_is_not_is_a_wrong_setting() -> None:
    resources = _traffic().resources
    with pytest.raises(SettingsError, match="shadow: 'nosuch' is no policy; there are: auto, "):
        make_shadow(Settings(shadow="nosuch"), resources)
    assert make_shadow(Settings(), resources) is None
    shadow = make_shadow(Settings(shadow="spread"), resources)
    assert shadow is not None
    assert shadow.policy == "spread"


def test_its_thread_follows_and_ends() -> None:
    traffic = _traffic()
    traffic.shadow.start()
    for number in range(5):
        allocation = traffic.ask(f"p{number}", SMALL)
        assert allocation is not None
        traffic.bind(f"p{number}", SMALL, allocation)
    poll(lambda: traffic.counts.pods["both"] == 5)
    traffic.shadow.stop()
    assert "shadow" not in [thread.name for thread in threading.enumerate()]


def test_metrics_say_what_it_found() -> None:
    traffic = _traffic()
    for number in range(2):
        traffic.come(f"p{number}", SMALL)
    traffic.now += 10.0
    traffic.shadow.work()
    text = Metrics(traffic.resources, 2**30, dict, shadow=traffic.shadow).text().decode()
    resource = traffic.managed.names.resource
    for line in (
        'gpushare_shadow_on{policy="spread"} 1.0',
        f'gpushare_shadow_choices_total{{resource="{resource}",choice="node"}} 1.0',
        f'gpushare_shadow_choices_total{{resource="{resource}",choice="same"}} 1.0',
        f'gpushare_shadow_pods_total{{resource="{resource}",taken="both"}} 2.0',
        f'gpushare_shadow_inexact_total{{resource="{resource}",why="not_asked"}} 0.0',
        f'gpushare_shadow_rebases_total{{resource="{resource}"}} 0.0',
        f'gpushare_shadow_running_pods{{resource="{resource}",books="shadow"}} 2.0',
        f'gpushare_shadow_allocated_bytes{{resource="{resource}",books="real"}} {2.0 * 2**30}',
        f'gpushare_shadow_stranded_bytes{{resource="{resource}",books="shadow"}} 0.0',
        'gpushare_shadow_dropped_total{what="choice"} 0.0',
    ):
        assert line in text, line


class _Answers:
    """All that kube-scheduler is answered for a day of pods, as bytes."""

    def __init__(self, shadow: str, *, best_only: bool) -> None:
        self.extender = ScriptedExtender(best_only=best_only, shadow=shadow)
        moves = self.extender.shadow.moved if self.extender.shadow is not None else lambda *_: None
        self._watch = PodEventHandler(self.extender.resources, moved=moves)
        self.bytes: list[bytes] = []
        names = ["big", "small", "tiny", "unknown"]
        sizes: Sequence[int] = (3, 8, 2, 16, 1, 7, 30, 2, 2, 9, 5, 1, 4, 16, 16)
        for number, units in enumerate(sizes):
            pod = pod_json(f"p{number}", units)
            body = request(pod, names)
            self.bytes += [
                self.extender.service.filter(body),
                self.extender.service.prioritize(body),
            ]
            if self.extender.shadow is not None:
                self.extender.shadow.work()
            self.bytes.append(self.extender.service.bind(bind_request(pod, names[number % 3])))
            self._show(pod, names[number % 3])
        self.bytes.append(self.extender.service.filter(b"{"))

    def _show(self, pod: dict[str, Any], node: str) -> None:
        """Have the watch show the pod, if it was bound; some end soon."""
        if self.extender.ledger.entry(pod["metadata"]["uid"]) is None:
            return
        writes = self.extender.api.calls[-1].document["metadata"]["annotations"]
        metadata = pod["metadata"] | {"annotations": writes}
        bound_pod = pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": node}}
        kinds = ("MODIFIED", "DELETED") if len(self.bytes) % 4 else ("MODIFIED",)
        for kind in kinds:
            line = json.dumps({"type": kind, "object": bound_pod}).encode()
            self._watch.apply(PODS.decode_event(line))


@pytest.mark.parametrize("best_only", [False, True])
def test_answers_are_byte_for_byte_the_same_with_it_and_without(best_only: bool) -> None:
    without = _Answers("", best_only=best_only)
    followed = _Answers("spread", best_only=best_only)
    assert followed.bytes == without.bytes
    assert followed.extender.told == without.extender.told
    assert followed.extender.shadow is not None
    counts = followed.extender.shadow.counts[
        followed.extender.resources.resources[0].names.resource
    ]
    assert sum(counts.choices.values()) > 5
    assert counts.pods["both"] > 5
    assert not followed.extender.shadow.off
