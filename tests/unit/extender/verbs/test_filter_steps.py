"""The step of filter after each look, without a wait, a clock or an answer."""

from dataclasses import replace

import numpy as np

from gpushare.core.decide import FITS, Judgement, judge_all, place
from gpushare.core.model import Reason, Request
from gpushare.core.node_names import NodeNames
from gpushare.extender.verbs.filter import (
    FilterLook,
    FilterTransaction,
    FilterWait,
    KeepNode,
    Offer,
    Refuse,
)
from gpushare.extender.verbs.holds import FLOOR
from gpushare.wire.pods import Claimant, claimant
from tests.unit.core.clusters import node
from tests.unit.extender.kit import managed_resources, pod_json, read_pod

REQUEST = Request(10, 1)
NAMES = NodeNames(("n0", "n1"))


def pod_of(name: str, priority: int = 0) -> Claimant:
    return replace(claimant(read_pod(pod_json(name, 10)), REQUEST), priority=priority)


class Call:
    """One call of filter about the pod `asks`, at second 100."""

    def __init__(self, *, is_nominated_only: bool = False) -> None:
        self.resources = managed_resources()
        (self.resource,) = self.resources
        self.resource.ledger.replace_nodes([node(name, 16) for name in NAMES])
        self.pod = pod_of("asks")
        self.transaction = FilterTransaction(
            resource=self.resource,
            request=REQUEST,
            uid=self.pod.ref.uid,
            is_ours=True,
            pod=self.pod,
            names=NAMES,
            is_nominated_only=is_nominated_only,
        )

    def look(self, judgement: Judgement, version: int | None = None) -> FilterLook:
        version = self.resource.holds.version if version is None else version
        return FilterLook(self.resource.ledger.snapshot(), judgement, version)

    def next(self, judgement: Judgement, now: float = 100.0, version: int | None = None) -> object:
        return self.transaction.next(self.look(judgement, version), now)

    def charge(self, name: str) -> None:
        scorer, ledger = self.resource.scorer(REQUEST), self.resource.ledger
        ledger.assume(self.pod.ref, REQUEST, place(ledger.snapshot(), name, REQUEST, scorer), 1.0)


FITTING = Judgement(np.array([FITS, FITS]), np.array([True, True]))
BUSY = judge_all(NAMES, Reason.INSUFFICIENT_MEMORY)
PROMISED = judge_all(NAMES, Reason.PROMISED)
TOO_LARGE = judge_all(NAMES, Reason.TOO_LARGE)


def test_nodes_that_fit_are_offered_and_the_best_one_is_held() -> None:
    assert Call().next(FITTING) == Offer(changes_hold=True)


def test_a_pod_that_is_charged_keeps_its_node_without_a_wait() -> None:
    for judgement in (FITTING, BUSY, PROMISED):
        call = Call()
        call.charge("n1")
        assert call.next(judgement) == KeepNode(1)


def test_a_pod_charged_on_another_node_is_offered_nodes_and_holds_none() -> None:
    call = Call()
    call.charge("n1")
    call.transaction.names = NodeNames(("n0",))
    assert call.next(FITTING) == Offer(changes_hold=False)
    assert call.next(TOO_LARGE) == Refuse(changes_hold=False)


def test_a_busy_cluster_is_waited_for_once() -> None:
    call = Call()
    assert call.next(BUSY) is FilterWait.FOR_ROOM
    assert call.next(BUSY) == Refuse(changes_hold=True)


def test_room_that_comes_during_a_wait_is_offered() -> None:
    call = Call()
    assert call.next(BUSY) is FilterWait.FOR_ROOM
    assert call.next(FITTING) == Offer(changes_hold=True)


def test_nodes_that_can_never_fit_are_not_waited_for() -> None:
    assert Call().next(TOO_LARGE) == Refuse(changes_hold=True)


def test_the_nominated_node_alone_costs_the_pod_no_hold() -> None:
    assert Call(is_nominated_only=True).next(TOO_LARGE) == Refuse(changes_hold=False)


def test_a_young_hold_is_waited_for_once_and_then_the_pod_is_woken() -> None:
    call = Call()
    call.resource.holds.offered(pod_of("first"), "n0", 100.0)
    version = call.resource.holds.version
    assert call.next(PROMISED, 100.0 + FLOOR / 2) is FilterWait.FOR_HOLDS
    refusal = Refuse(changes_hold=True, only_holds=True, wake_since=version)
    assert call.next(PROMISED, 100.0 + FLOOR / 2) == refusal


def test_a_hold_of_some_age_is_not_waited_for() -> None:
    call = Call()
    call.resource.holds.offered(pod_of("first"), "n0", 100.0)
    version = call.resource.holds.version
    refusal = Refuse(changes_hold=True, only_holds=True, wake_since=version)
    assert call.next(PROMISED, 101.0) == refusal


def test_a_hold_that_ended_since_the_look_wakes_the_pod() -> None:
    call = Call()
    call.resource.holds.offered(pod_of("first"), "n0", 100.0)
    version = call.resource.holds.version
    call.resource.holds.gone("uid-first")
    refusal = Refuse(changes_hold=True, only_holds=False, wake_since=version)
    assert call.next(PROMISED, 101.0, version) == refusal


def test_a_pod_that_memory_keeps_out_is_not_woken_by_holds() -> None:
    call = Call()
    call.resource.holds.offered(pod_of("first"), "n0", 100.0)
    assert call.next(BUSY) is FilterWait.FOR_ROOM
    assert call.next(BUSY) == Refuse(changes_hold=True)


def test_a_group_that_is_too_large_is_woken_by_holds_of_other_pods() -> None:
    call = Call()
    call.resource.holds.offered(pod_of("first"), "n0", 100.0)
    version = call.resource.holds.version
    group = judge_all(NAMES, Reason.GROUP_TOO_LARGE)
    assert call.next(group, 101.0) == Refuse(changes_hold=True, wake_since=version)


def test_a_hold_of_lower_priority_keeps_nobody_out() -> None:
    call = Call()
    call.resource.holds.offered(pod_of("first", priority=-1), "n0", 100.0)
    assert call.next(PROMISED) == Refuse(changes_hold=True)


def test_no_step_changes_the_holds() -> None:
    call = Call()
    call.resource.holds.offered(pod_of("first"), "n0", 100.0)
    version = call.resource.holds.version
    for judgement in (PROMISED, BUSY, PROMISED, FITTING):
        call.next(judgement)
    assert call.resource.holds.version == version
