"""The oracle knows cards: the necessary charges, whatever the current indices are."""

import pytest

from tests.simulation.oracle import Violation
from tests.simulation.scheduler import check_partition
from tests.simulation.truth import (
    ALLOCATION,
    IDX,
    UUIDS,
    Asked,
    Cards,
    Known,
    PodTruth,
    can_find,
    claim_of,
    least_charged,
    put_by,
)

NONE: frozenset[str] = frozenset()


def cards(*ids: str, tells: str = "uuids", plugin: str = "own") -> Cards:
    return Cards((4,) * len(ids), (True,) * len(ids), False, plugin, ids, tells)


def least(
    pod: PodTruth, node: Cards, loose: frozenset[str] = NONE, names: bool = True
) -> dict[int, int]:
    return least_charged(pod, node, loose, names)


def pod_on(node: Cards, **annotations: str) -> PodTruth:
    request = Asked(2, 1, (2,))
    pod = PodTruth("u", "p", request, node="n0", claim=claim_of(annotations, request))
    put_by(pod, annotations, node)
    return pod


def test_a_pod_named_by_uuid_goes_with_its_card() -> None:
    pod = pod_on(cards("a", "b"), **{IDX: "1", UUIDS: "b"})
    assert least(pod, cards("a", "b")) == {1: 2}
    assert least(pod, cards("b", "a")) == {0: 2}
    assert least(pod, cards("a")) == {}


def test_an_index_alone_counts_for_as_long_as_its_card_stays_there() -> None:
    pod = pod_on(cards("a", "b"), **{IDX: "1"})
    assert least(pod, cards("a", "b")) == {1: 2}
    assert least(pod, cards("b", "a")) == {}
    # Nobody can tell which of fewer cards it is, unless the card was known by name.
    assert least(pod, cards("a", tells="totals"), names=False) == {0: 2}
    assert least(pod, cards("a")) == {}


def test_a_pod_that_waits_for_its_plug_in_counts_on_each_card_told_at_its_index() -> None:
    pod, knowledge = pod_on(cards("a", "b"), **{IDX: "0", UUIDS: "a"}), Known()
    knowledge.show_node("n0", cards("a", "b"))
    knowledge.show_pod(pod)
    assert knowledge.at_home(pod)
    knowledge.show_node("n0", cards("b", "a"))
    knowledge.loosen(pod)
    assert not knowledge.at_home(pod)
    assert knowledge.loose["u"] == {"b"}
    assert least(pod, cards("b", "a"), knowledge.loose["u"]) == {0: 2, 1: 2}
    pod.cards = {"b": 2}
    assert least(pod, cards("b", "a"), knowledge.loose["u"]) == {0: 2}
    assert least(pod, cards("b", "a")) == {}


def test_a_pod_known_to_be_admitted_stays_on_its_card() -> None:
    pod, knowledge = pod_on(cards("a", "b"), **{IDX: "0", UUIDS: "a"}), Known(admitted={"u"})
    knowledge.show_node("n0", cards("b", "a"))
    knowledge.show_pod(pod)
    assert not knowledge.loose


def test_annotations_that_contradict_each_other_are_read_as_the_plug_in_reads_them() -> None:
    annotations = {IDX: "0", UUIDS: "b", ALLOCATION: '{"0":{"1":2}}'}
    reads_indices = pod_on(cards("a", "b"), **annotations)
    reads_uuids = pod_on(cards("a", "b", plugin="exact"), **annotations)
    assert (reads_indices.put, reads_indices.odd) == ({"a": 2}, True)
    assert (reads_uuids.put, reads_uuids.odd) == ({"b": 2}, True)


def test_one_nameless_device_holds_the_units_of_one_card() -> None:
    request, claimed = Asked(2, 2, (4,)), {IDX: "0,1"}
    pod = PodTruth("u", "p", request, node="n0", claim=claim_of(claimed, request))
    put_by(pod, claimed, cards("a", "b"))
    assert least(pod, cards("a", tells="totals"), names=False) == {0: 4}
    assert least(pod, cards("a", tells="totals"), names=True) == {0: 2}


def test_cards_are_believed_to_be_where_they_were_named_last() -> None:
    pod = pod_on(cards("a", "b"), **{IDX: "0", UUIDS: "a"})
    moved_cards = cards("b", "a", tells="devices")
    assert pod.named
    assert can_find(pod, cards("b", "a"), ("a", "b"), indexed=False)
    assert can_find(pod, moved_cards, ("b", "a"), indexed=False)
    assert not can_find(pod, moved_cards, ("a", "b"), indexed=False)


def test_who_never_knew_a_plug_in_that_reads_indices_believes_the_uuids() -> None:
    pod = pod_on(cards("a", "b"), **{IDX: "1", UUIDS: "a"})
    by_uuid = cards("a", "b", plugin="exact")
    fresh, older = Known(), Known()
    older.show_node("n0", cards("a", "b"))
    for knowledge in (older, fresh):
        knowledge.show_pod(pod)
        knowledge.show_node("n0", by_uuid)
        knowledge.loosen(pod)
    assert older.can_find(pod, by_uuid)
    assert not fresh.can_find(pod, by_uuid)


@pytest.mark.parametrize("failed", [{}, {"n0": "full", "n1": "full"}])
def test_filter_has_to_answer_each_node_once(failed: dict[str, str]) -> None:
    answer = {"NodeNames": ["n0"], "FailedNodes": failed, "FailedAndUnresolvableNodes": {}}
    with pytest.raises(Violation):
        check_partition(answer, ["n0", "n1"], best_only=False)
    whole = {**answer, "FailedNodes": {"n1": "full"}}
    check_partition(whole, ["n0", "n1"], best_only=False)
    check_partition({**answer, "FailedNodes": {}}, ["n0", "n1"], best_only=True)
