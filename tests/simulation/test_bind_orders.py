"""Binds, relists, deletions and lost answers in every order there is, and in long random ones."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation.bind_world import OrderWorld, explore

RIVALS = OrderWorld(pods={"a": 3, "b": 3}, nodes={"n": (4,)}, binds=[("a", "n"), ("b", "n")])
RETRIED = OrderWorld(pods={"a": 3}, nodes={"n": (4,)}, binds=[("a", "n"), ("a", "n")])


@pytest.mark.parametrize(
    ("world", "min_states"),
    [
        (replace(RIVALS, relists=1, deletes=["a"], faults=1), 5000),
        (replace(RIVALS, faults=2), 700),
        (replace(RETRIED, faults=2), 2500),
        (replace(RETRIED, relists=1, deletes=["a"]), 800),
        (replace(RETRIED, deletes=["a"], recreates=["a"]), 300),
    ],
    ids=["rivals-relist-delete-fault", "rivals-faults", "retried", "retried-delete", "recreated"],
)
def test_no_order_of_steps_over_commits_or_leaks(world: OrderWorld, min_states: int) -> None:
    assert explore(world) > min_states


NAMES = ("a", "b", "c", "d")


class Longer(RuleBasedStateMachine):
    """More pods, devices, retries and faults than every order of could be tried."""

    def __init__(self) -> None:
        super().__init__()
        self.world = OrderWorld({}, {}, [])

    @initialize(
        binds=st.lists(
            st.tuples(st.sampled_from(NAMES), st.sampled_from(["m", "n"])), min_size=3, max_size=8
        ),
        doomed=st.sets(st.sampled_from(NAMES)),
    )
    def begin(self, binds: list[tuple[str, str]], doomed: set[str]) -> None:
        self.world = OrderWorld(
            pods={"a": 3, "b": 3, "c": 2, "d": 4},
            nodes={"m": (4, 3), "n": (5,)},
            binds=binds,
            deletes=sorted(doomed),
            recreates=sorted(doomed),
            relists=3,
            faults=4,
            rounds=4,
            waits=2,
        )

    @rule(pick=st.integers(0, 1000))
    def step(self, pick: int) -> None:
        if moves := self.world.moves():
            self.world.do(moves[pick % len(moves)])

    @invariant()
    def no_device_holds_too_much(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.come_to_rest()


TestLonger = Longer.TestCase
TestLonger.settings = settings(max_examples=30, stateful_step_count=50)
