"""Preempt over real books: the watched pods and budgets decide which pods are victims."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any

import pytest

from gpushare.core.decide import filter_nodes
from gpushare.core.model import Reason
from gpushare.core.pairing import Pairing
from gpushare.core.preemption.preemptor import Preemptor, Victims
from gpushare.core.preemption.selection import Budget
from gpushare.extender.follow.disruption_budgets import DisruptionBudgets
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.verbs.preempt import no_budgets, trim_candidates
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.budgets import DisruptionBudget
from gpushare.wire.objects import BUDGETS, PODS
from gpushare.wire.pods import may_preempt, observe_pod, priority_of
from tests.unit.core.clusters import node
from tests.unit.core.preempting import filled, pod
from tests.unit.extender.kit import managed_resources, pod_json, read_pod

Json = dict[str, Any]
OLD = "2026-01-01T00:00:00Z"


def placed(name: str, units: int, device: int, **more: Any) -> Json:
    """A pod on a device of node big; spec, metadata and status may be added to."""
    notes = {ALIYUN.idx: str(device), ALIYUN.pod: str(units)}
    document = pod_json(name, units, node="big", annotations=notes)
    for part, fields in more.items():
        document[part] |= fields
    return document


def budget(name: str, allowed_disruptions: int, **labels: str) -> Json:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed_disruptions},
    }


def event(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def listed(*items: Json) -> bytes:
    meta = {"resourceVersion": "1"}
    kind = "PodDisruptionBudgetList"
    return json.dumps({"kind": kind, "metadata": meta, "items": items}).encode()


def trimmed(
    ledger: Ledger, names: Mapping[str, Sequence[str]], priority: int = 5
) -> dict[str, tuple[str, ...]]:
    preemptor = Preemptor(read_request(14), priority)
    victims = {name: Victims(tuple(uids)) for name, uids in names.items()}
    remaining = trim_candidates(ledger, preemptor, victims, no_budgets)
    return {name: those.uids for name, those in remaining.items()}


def read_request(units: int) -> Any:
    return observe_pod(read_pod(pod_json("p", units)), ALIYUN).request


def test_what_preemption_asks_of_a_pod_is_read() -> None:
    entry = observe_pod(
        read_pod(
            placed(
                "web",
                4,
                0,
                metadata={"deletionTimestamp": OLD, "labels": {"b": "2", "a": "1"}},
                spec={"priority": 7},
                status={"startTime": "1970-01-01T00:01:00Z"},
            )
        ),
        ALIYUN,
    )
    assert (entry.priority, entry.started, entry.terminating) == (7, 60.0, True)
    assert entry.ends_by == datetime.fromisoformat(OLD).timestamp()
    assert entry.labels == (("a", "1"), ("b", "2"))
    plain = observe_pod(read_pod(pod_json("plain")), ALIYUN)
    assert (plain.priority, plain.started, plain.terminating, plain.labels) == (0, 0.0, False, ())


def test_only_the_policy_never_forbids_preemption() -> None:
    assert may_preempt(read_pod({"metadata": {}}))
    assert may_preempt(read_pod({"spec": {"preemptionPolicy": "PreemptLowerPriority"}}))
    assert not may_preempt(read_pod({"spec": {"preemptionPolicy": "Never"}}))
    assert priority_of(read_pod({"spec": {"priority": None}})) == 0


def test_the_books_follow_a_pod_that_starts_and_ends_without_counting_it_anew() -> None:
    resources = managed_resources()
    ledger = resources.resources[0].ledger
    ledger.node_changed(node("big", 16, 16))
    sink = PodEventHandler(resources)
    sink.apply(PODS.decode_event(event("ADDED", placed("web", 4, 0))))
    before = ledger.snapshot().generation
    starts = placed("web", 4, 0, status={"startTime": OLD})
    sink.apply(PODS.decode_event(event("MODIFIED", starts)))
    ends = placed("web", 4, 0, status={"startTime": OLD}, metadata={"deletionTimestamp": OLD})
    sink.apply(PODS.decode_event(event("MODIFIED", ends)))
    entry = ledger.dump("big")[0].entries[0]
    assert (entry.started > 0, entry.terminating) == (True, True)
    assert ledger.snapshot().generation == before
    ledger.check()


def test_nodes_the_books_do_not_have_or_that_share_nothing_are_no_candidates() -> None:
    ledger = filled(node("n1", 16), [pod("a", 10, 0)])
    ledger.node_changed(node("plain"))
    assert trimmed(ledger, {"n1": ["a"], "unknown": ["x"], "plain": ["y"]}) == {"n1": ("a",)}


def test_a_victim_charged_to_another_node_takes_the_node_out() -> None:
    ledger = filled(node("n1", 16), [pod("a", 10, 0)])
    ledger.node_changed(node("n2", 16))
    assert trimmed(ledger, {"n2": ["a"]}) == {}
    assert trimmed(ledger, {"n2": []}) == {"n2": ()}


def test_each_node_is_judged_by_itself() -> None:
    ledger = filled(node("n1", 16), [pod("a", 10, 0)])
    ledger.node_changed(node("n2", 16))
    ledger.pod_changed(pod("b", 10, 0, node="n2", priority=9))
    assert trimmed(ledger, {"n1": [], "n2": []}) == {"n1": ("a",)}
    assert trimmed(ledger, {"n1": [], "n2": []}, priority=10) == {"n1": ("a",), "n2": ("b",)}


def test_nobody_goes_where_the_pod_only_waits_until_an_equal_one_is_served() -> None:
    waits = pod("waits", 14, 0, assigned=False)
    ledger = filled(node("n1", 16, 16), [waits], Pairing.ON)
    answer = filter_nodes(ledger.snapshot(), ["n1"], read_request(14)).failed
    assert answer == {"n1": Reason.WAITS_FOR_PLUGIN}
    assert trimmed(ledger, {"n1": []}) == {"n1": ()}
    assert trimmed(ledger, {"n1": ["plain"]}) == {"n1": ("plain",)}


def test_who_has_to_go_is_not_who_waits_to_be_served() -> None:
    waits = pod("waits", 14, 0, assigned=False, priority=9)
    ledger = filled(node("n1", 16, 16), [waits, pod("low", 10, 1)], Pairing.ON)
    assert trimmed(ledger, {"n1": []}) == {"n1": ("low",)}


def test_with_no_steps_left_each_node_is_still_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    # The victim on n1 is found by search: a reprieve one by one leaves the two other pods.
    pods = [pod("a", 7, 0), pod("b", 7, 0), pod("c", 14, 0, started=9.0)]
    ledger = filled(node("n1", 28), pods)
    ledger.node_changed(node("n2", 16))
    ledger.pod_changed(pod("d", 10, 0, node="n2"))
    names: dict[str, list[str]] = {"n1": [], "n2": []}
    assert trimmed(ledger, names) == {"n1": ("c",), "n2": ("d",)}
    monkeypatch.setattr("gpushare.extender.verbs.preempt.STEPS", 0)
    assert trimmed(ledger, names) == {"n1": ("a", "b"), "n2": ("d",)}


@pytest.fixture
def budgets() -> DisruptionBudgets:
    tracker = DisruptionBudgets()
    tracker.replace([tracker.trim(BUDGETS.decode_list(listed(budget("db", 1, app="db"))))], 0.0)
    return tracker


DB = pod("a", 1, 0, labels=(("app", "db"),))


def covering(budgets: DisruptionBudgets, *pods: Any) -> tuple[Budget, ...]:
    in_team = [
        pod(p.ref.uid, 1, 0, labels=p.labels, ref=type(p.ref)("team", p.ref.name, p.ref.uid))
        for p in pods
    ]
    return budgets.budgets_of(filled(node("n1", 16), in_team).dump("n1")[0].entries)


def test_budgets_cover_the_pods_with_their_labels(budgets: DisruptionBudgets) -> None:
    web = pod("b", 1, 0, labels=(("app", "web"),))
    assert covering(budgets, DB, web) == (Budget(1, frozenset("a")),)
    assert covering(budgets, web) == ()
    assert DisruptionBudgets().budgets_of(()) == ()


def test_budgets_follow_their_events(budgets: DisruptionBudgets) -> None:
    budgets.apply(BUDGETS.decode_event(event("MODIFIED", budget("db", 0, app="db"))))
    assert covering(budgets, DB) == (Budget(0, frozenset("a")),)
    budgets.apply(BUDGETS.decode_event(event("ADDED", budget("all", 3))))
    assert set(covering(budgets, DB)) == {Budget(0, frozenset("a")), Budget(3, frozenset("a"))}
    budgets.apply(BUDGETS.decode_event(event("DELETED", budget("db", 0, app="db"))))
    assert covering(budgets, DB) == (Budget(3, frozenset("a")),)
    budgets.replace([budgets.trim(BUDGETS.decode_list(listed()))], 0.0)
    assert covering(budgets, DB) == ()


def test_a_budget_that_cannot_be_read_stays_as_it_was_until_it_is_gone(
    budgets: DisruptionBudgets,
) -> None:
    odd = {**budget("db", 1), "spec": "odd"}
    budgets.apply(BUDGETS.decode_event(event("MODIFIED", odd)))
    budgets.replace([budgets.trim(BUDGETS.decode_list(listed(odd)))], 0.0)
    assert covering(budgets, DB) == (Budget(1, frozenset("a")),)
    budgets.apply(BUDGETS.decode_event(event("DELETED", odd)))
    assert covering(budgets, DB) == ()


def test_a_pod_is_held_against_the_budgets_of_its_namespace_alone(
    budgets: DisruptionBudgets,
) -> None:
    foreign_pods = [budget(f"db-{index}", 1, app="db") for index in range(100)]
    for index, foreign_pod in enumerate(foreign_pods):
        foreign_pod["metadata"]["namespace"] = f"team-{index}"
    budgets.replace(
        [budgets.trim(BUDGETS.decode_list(listed(budget("db", 1, app="db"), *foreign_pods)))], 0.0
    )
    entries = filled(node("n1", 16), [DB, pod("b", 1, 0)]).dump("n1")[0].entries
    looked = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal looked
        looked += event == "call" and frame.f_code is DisruptionBudget.selects.__code__

    sys.setprofile(count)
    budgets.budgets_of(entries)
    sys.setprofile(None)
    assert looked <= len(entries)
