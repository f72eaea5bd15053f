"""The wait before a refusal, on a clock of the test, and its effect on filter."""

import json
import threading

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.filter import FilterOptions
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.extender.verbs.wait_budget import WaitBudget
from gpushare.wire.annotations import ALIYUN
from tests.support.scripted_api import ScriptedApi
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import managed_resources


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def patience(clock: Clock) -> WaitBudget:
    return WaitBudget(0.1, 0.1, lambda: clock.now, clock.sleep)


def test_it_waits_until_it_is_true_and_no_longer() -> None:
    clock = Clock()
    assert patience(clock).wait_for(lambda: clock.now >= 100.02)
    assert 0.02 <= clock.slept < 0.03


def test_it_gives_up_after_its_hold() -> None:
    clock = Clock()
    assert not patience(clock).wait_for(lambda: False)
    assert 0.1 <= clock.slept < 0.11


def test_hopeless_ones_together_wait_a_tenth_of_the_time() -> None:
    clock = Clock()
    waits = patience(clock)
    for _ in range(10_000):
        clock.now += 0.01
        waits.wait_for(lambda: False)
    assert clock.slept / (clock.now - 100.0) < 0.12


def test_what_was_not_waited_is_there_for_the_next() -> None:
    clock = Clock()
    waits = patience(clock)
    assert waits.wait_for(lambda: True)
    assert not waits.wait_for(lambda: False)
    assert clock.slept >= 0.1


def test_some_whole_holds_in_a_row_are_saved_up_and_no_more() -> None:
    clock = Clock()
    waits = patience(clock)
    clock.now += 3600.0
    for _ in range(100):
        waits.wait_for(lambda: False)
    assert 1.0 <= clock.slept < 1.3


def test_filter_sees_a_deletion_that_arrives_a_moment_after_it_was_asked() -> None:
    resources = managed_resources(ALIYUN)
    ledger = resources.resources[0].ledger
    ledger.node_changed(make_node("n", 16))
    holder = PodRef("default", "holder", "uid-holder")
    ledger.pod_changed(ObservedPod(holder, Request(16, 1), "n", ((0, 16),)))
    binder = Binder(ScriptedApi(), resources, lambda: float("inf"))
    service = Service(
        resources,
        binder,
        not_ready=lambda: "",
        bind_slots=BindSlots(8),
        filter_options=FilterOptions(room_wait=WaitBudget(hold=5.0)),
    )
    limits = {"limits": {"aliyun.com/gpu-mem": "4"}}
    metadata = {"name": "p", "namespace": "default", "uid": "uid-p"}
    pod = {"metadata": metadata, "spec": {"containers": [{"resources": limits}]}}
    body = json.dumps({"Pod": pod, "NodeNames": ["n"]}).encode()
    news = threading.Timer(0.05, ledger.pod_gone, ["uid-holder"])
    news.start()
    answer = json.loads(service.filter(body))
    news.join()
    assert answer["NodeNames"] == ["n"]
