"""Wherever a bind is stopped, killed or put to sleep: no device twice, nothing lost, no doubt left.

Ten points x two ends x five faults, each in all courses (see story.py). Mistakes that were made
elsewhere, made here on purpose, show that the cases would notice.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import gpushare.core.states.records
import tests.simulation.replica
from gpushare.core.model import ObservedPod
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.ledger import Changes, Ledger
from tests.simulation.crash_points.story import CASES, CrashCase, CrashStory, turns


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_lost_and_nothing_given_out_twice(case: CrashCase) -> None:
    for turn in turns(case):
        try:
            CrashStory(case, turn).tell()
        except AssertionError as error:
            raise AssertionError(f"{case} {turn}: {error}") from error


def _forget(self: Ledger, uid: str, now: float, stamp: str) -> None:
    del now
    self.forget(uid, stamp)


def _send_whenever(write: Callable[..., Any]) -> Callable[..., Any]:
    def late(self: Binder, step: object, timeout: float, deadline: float) -> Any:
        return write(self, step, timeout, deadline + 1e9)

    return late


def _list_drops(replace: Callable[..., Any]) -> Callable[..., Any]:
    def drop(
        self: Ledger, pods: Iterable[ObservedPod], keep: Iterable[str], started: float
    ) -> Changes:
        listed_pods = list(pods)
        changes: Changes = replace(self, listed_pods, keep, started)
        bound_uids = {pod.ref.uid for pod in listed_pods if pod.node}
        for entry in self.entries_and_specs()[0].values():
            if entry.ref.uid not in bound_uids:
                self.pod_gone(entry.ref.uid)
        return changes

    return drop


def _noticed(name: str) -> bool:
    """Whether the case of that name fails in one of the courses."""
    case = next(case for case in CASES if str(case) == name)
    for turn in turns(case):
        try:
            CrashStory(case, turn).tell()
        except AssertionError:
            return True
    return False


def test_a_doubt_that_frees_the_charge_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "doubt", _forget)
    assert _noticed("K6-pause-nothing")


def test_a_doubt_that_is_settled_by_the_first_read_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpushare.core.states.records, "BINDING_LIFETIME", 0.0)
    assert _noticed("K6-pause-nothing")


def test_a_list_that_drops_what_is_under_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "replace_pods", _list_drops(Ledger.replace_pods))
    assert _noticed("K6-pause-relist")


def test_a_sleeper_that_sends_its_binding_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_write"
    monkeypatch.setattr(Binder, name, _send_whenever(getattr(Binder, name)))
    assert _noticed("K5-pause-failover")


def test_a_successor_that_does_not_wait_for_what_is_on_its_way_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tests.simulation.replica, "BUDGET", 0.0)
    assert _noticed("K6-kill-nothing")
