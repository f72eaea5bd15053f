"""The books against the world, whatever the order of events: never too much free, right at rest."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpushare.core.model import Request
from gpushare.core.pairing import Pairing
from tests.support.ledger_life import NODES, Life
from tests.unit.core.clusters import with_share

names = st.sampled_from(NODES)
numbers = st.integers(0, 99)
shapes = st.lists(st.integers(4, 8), min_size=1, max_size=3)
orders = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
gpu_requests = st.builds(
    Request,
    units=st.integers(1, 4),
    devices=st.integers(1, 2),
    cpu=st.integers(0, 3),
    percents=st.builds(
        with_share, st.sampled_from([0, 0, 25, 60, 100]), st.sampled_from([0, 0, 0, 40])
    ),
)
plain_requests = st.builds(Request, cpu=st.integers(0, 5), memory=st.integers(0, 5))


class BooksAndWorld(RuleBasedStateMachine):
    """Hypothesis chooses, and shrinks what it finds."""

    @initialize(pairing=st.sampled_from(Pairing), shape=shapes)
    def begin(self, pairing: Pairing, shape: list[int]) -> None:
        self.life = Life(pairing, shape)

    @rule(
        change=st.sampled_from(["set", "remove", "list", "unhealthy"]),
        name=names,
        shape=shapes,
        sick=st.frozensets(st.integers(0, 2), max_size=1),
    )
    def change_nodes(self, change: str, name: str, shape: list[int], sick: frozenset[int]) -> None:
        self.life.change_nodes(change, name, shape, sick)

    @rule(name=names, order=orders, identity=st.booleans())
    def change_cards(self, name: str, order: list[int], identity: bool) -> None:
        self.life.change_cards(name, order, identity)

    @rule(request=plain_requests | gpu_requests)
    def create(self, request: Request) -> None:
        self.life.create(request)

    @rule(request=gpu_requests, name=names)
    def create_and_bind(self, request: Request, name: str) -> None:
        self.life.create_and_bind(request, name)

    @rule(n=numbers, name=names, has_text=st.booleans())
    def another_binds(self, n: int, name: str, has_text: bool) -> None:
        self.life.another_binds(n, name, has_text)

    @rule(n=numbers, change=st.sampled_from(["delete", "end", "serve", "admit", "run", "resize"]))
    def change_a_pod(self, n: int, change: str) -> None:
        self.life.change_a_pod(n, change)

    @rule(n=numbers, name=names)
    def bind(self, n: int, name: str) -> None:
        self.life.bind(n, name)

    @rule(n=numbers, answer=st.sampled_from(["at once", "lost", "later"]))
    def land(self, n: int, answer: str) -> None:
        self.life.land(n, answer)

    @rule(n=numbers, lost=st.booleans())
    def answer(self, n: int, lost: bool) -> None:
        self.life.answer(n, lost)

    @rule(n=numbers)
    def send_again(self, n: int) -> None:
        self.life.send_again(n)

    @rule()
    def read_the_overdue(self) -> None:
        self.life.read_the_overdue()

    @rule(n=numbers)
    def settle(self, n: int) -> None:
        self.life.settle(n)

    @rule(seconds=st.sampled_from([1, 3, 10, 61]))
    def time_passes(self, seconds: int) -> None:
        self.life.time_passes(seconds)

    @rule()
    def show_the_next_event(self) -> None:
        self.life.show_the_next_event()

    @rule()
    def the_watch_breaks(self) -> None:
        self.life.the_watch_breaks()

    @rule()
    def the_list_arrives(self) -> None:
        self.life.the_list_arrives()

    @invariant()
    def audit(self) -> None:
        if hasattr(self, "life"):
            self.life.audit()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.rest()


TestBooksAndWorld = BooksAndWorld.TestCase
TestBooksAndWorld.settings = settings(max_examples=50, stateful_step_count=40)


@pytest.mark.parametrize("told", [True, False])
def test_anothers_binding_that_reads_as_ours_is_charged_where_either_may_be(told: bool) -> None:
    life = Life(Pairing.AUTO, [4])
    life.create_and_bind(Request(1, 1), "a")
    life.change_nodes("set", "a", [4, 4], frozenset())
    life.another_binds(0, "a", told)
    life.rest()


@pytest.mark.parametrize("seed", range(12))
def test_books_stay_right_through_a_long_life(seed: int) -> None:
    chance = Random(seed)
    life = Life(chance.choice(list(Pairing)), [8, 8])
    for _ in range(600):
        _live(life, chance)
        life.audit()
    life.rest()


def _live(life: Life, chance: Random) -> None:
    """One step; bindings, answers, events and reads are most of a life."""
    n, name = chance.randrange(100), chance.choice(NODES)
    cores = chance.choice([0, 0, 25, 60, 100])
    gpu = Request(
        chance.randint(1, 4),
        chance.choice([1, 1, 2]),
        cpu=chance.randrange(4),
        percents=with_share(cores, chance.choice([0, 0, 0, 40])),
    )
    shape = [chance.randint(4, 8) for _ in range(chance.choice([1, 2, 2, 3]))]
    order = chance.sample(range(3), chance.choice([1, 2, 3, 3]))
    sick = frozenset(chance.sample(range(3), chance.choice([0, 0, 1])))
    steps: list[tuple[int, Callable[[], None]]] = [
        (1, lambda: life.change_nodes(chance.choice(_NODE_CHANGES), name, shape, sick)),
        (1, lambda: life.change_cards(name, order, identity=chance.random() < 0.5)),
        (1, lambda: life.create(chance.choice([gpu, Request(cpu=n % 5, memory=n % 3)]))),
        (8, lambda: life.create_and_bind(gpu, name)),
        (1, lambda: life.another_binds(n, name, text=n % 2 == 0)),
        (6, lambda: life.change_a_pod(n, chance.choice(_POD_CHANGES))),
        (4, lambda: life.bind(n, name)),
        (8, lambda: life.land(n, chance.choice(["at once", "lost", "lost", "later"]))),
        (4, lambda: life.answer(n, lost=n % 2 == 0)),
        (4, lambda: life.send_again(n)),
        (6, life.read_the_overdue),
        (6, lambda: life.settle(n)),
        (4, lambda: life.time_passes(chance.choice([1, 1, 1, 3, 10, 30]))),
        (12, life.show_the_next_event),
        (2, life.the_watch_breaks),
        (4, life.the_list_arrives),
    ]
    chance.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()


_NODE_CHANGES = ["set", "remove", "list", "unhealthy"]
_POD_CHANGES = ["delete", "delete", "end", "serve", "admit", "run", "resize"]
