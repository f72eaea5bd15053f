"""Why pods wait, at a bounded cost."""

from gpushare.core.dealing import Asked
from gpushare.core.model import Request
from gpushare.core.selectors import NO_DEMANDS
from gpushare.explain.pod import explanation_of
from gpushare.explain.text import sentence
from gpushare.extender.tell.page.explanation_cache import ExplanationCache
from tests.unit.core.clusters import node
from tests.unit.extender.tell.page.world import World


class Clock:
    """A clock that goes on by so much each time it is read."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.now = 100.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_the_sentence_is_that_of_explain() -> None:
    world = World()
    world.fill(3)
    request = Request(90, 1)
    asked = Asked(request), NO_DEMANDS
    said = ExplanationCache("GiB").about([asked, asked], world.managed, (1, 0))
    assert said == {asked: sentence(explanation_of(world.managed, request), "GiB")}
    assert said[asked].startswith("it can never fit")


def test_a_pod_that_fits_is_said_to_fit() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    asked = Asked(Request(4, 1)), NO_DEMANDS
    said = ExplanationCache("GiB").about([asked], world.managed, (1, 0))
    assert said[asked] == "it fits now on 1 node"


def test_slow_explanations_take_a_tenth_of_the_time_and_each_has_its_turn() -> None:
    world = World()
    world.fill(2)
    clock = Clock(1.0)
    sentences = ExplanationCache("GiB", clock)
    wanted = [(Asked(Request(units, 1)), NO_DEMANDS) for units in (81, 82, 83)]
    turns = []
    for _ in range(60):
        turns.append(len(sentences.about(wanted, world.managed, (7, 0))))
        if sentences.complete:
            break
    # A turn takes a second of this clock, and each look at it another one.
    assert turns == [1] * 9 + [2] * 9 + [3]
    assert len(sentences.about(wanted[:1], world.managed, (7, 0))) == 1


def test_what_was_said_of_older_books_stays_until_it_is_said_anew() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    sentences = ExplanationCache("GiB", Clock(1.0))
    asked = Asked(Request(20, 1)), NO_DEMANDS
    before = sentences.about([asked], world.managed, (1, 0))
    world.ledger.node_changed(node("b", 32))
    assert sentences.about([asked], world.managed, (2, 0)) == before
    assert not sentences.complete
    for _ in range(10):
        after = sentences.about([asked], world.managed, (2, 0))
    assert sentences.complete
    assert after != before
