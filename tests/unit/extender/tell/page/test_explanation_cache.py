"""Why pods wait, at a bounded cost."""

import json
from collections.abc import Callable

from gpushare.core.model import Request
from gpushare.explain.pod import explanation_of
from gpushare.explain.text import sentence
from gpushare.extender.tell.page.document import ExplanationCache
from tests.unit.core.clusters import node
from tests.unit.extender.tell.page.world import World, pod


class Clock:
    """A clock that goes on by so much each time it is read."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.now = 100.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def explained(world: World) -> Callable[[Request], str]:
    return lambda request: sentence(explanation_of(world.managed, request), "GiB")


def test_the_sentence_is_that_of_explain() -> None:
    world = World()
    world.fill(3)
    request = Request(90, 1)
    about_result = ExplanationCache().about([request, request], explained(world), (1, 0))
    assert about_result == {request: sentence(explanation_of(world.managed, request), "GiB")}
    assert about_result[request].startswith("it can never fit")


def test_slow_explanations_take_a_tenth_of_the_time_and_each_has_its_turn() -> None:
    world = World()
    world.fill(2)
    clock = Clock(1.0)
    sentences = ExplanationCache(clock)
    expected = [Request(units, 1) for units in (81, 82, 83)]
    turns = []
    for _ in range(60):
        turns.append(len(sentences.about(expected, explained(world), (7, 0))))
        if sentences.complete:
            break
    # A turn takes a second of this clock, and each look at it another one.
    assert turns == [1] * 9 + [2] * 9 + [3]
    assert len(sentences.about(expected[:1], explained(world), (7, 0))) == 1


def test_what_was_said_of_older_books_stays_until_it_is_said_anew() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    sentences = ExplanationCache(Clock(1.0))
    request = Request(20, 1)
    before = sentences.about([request], explained(world), (1, 0))
    world.ledger.node_changed(node("b", 32))
    assert sentences.about([request], explained(world), (2, 0)) == before
    assert not sentences.complete
    for _ in range(10):
        after = sentences.about([request], explained(world), (2, 0))
    assert sentences.complete
    assert after != before


def test_no_namespace_waits_for_all_sentences_of_another() -> None:
    world = World()
    world.fill(2)
    for space, units in (("a", 81), ("a", 82), ("a", 83), ("b", 84)):
        world.ledger.pod_changed(pod(str(units), units, space=space))
    (part,) = world.documents._parts  # noqa: SLF001 -- with a clock of its own
    part.explanations = ExplanationCache(Clock(1.0))
    explained_units: list[int] = []
    while len(explained_units) < 2:
        (resource,) = json.loads(world.documents.body())["resources"]
        explained_units = [item["requested"] for item in resource["pending"] if item["why"]]
    assert explained_units == [81, 84]
