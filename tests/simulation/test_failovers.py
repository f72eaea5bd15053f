"""Leaders that die, sleep or are cut off, even within a bind: no device is given twice."""

from collections.abc import Callable
from typing import Any

import pytest

from gpushare.extender.verbs.bind.binder import Binder
from tests.simulation.failovers import WIRINGS, Failovers


@pytest.mark.parametrize("wiring", WIRINGS)
def test_whoever_follows_gives_nothing_out_twice(wiring: str) -> None:
    history = Failovers(wiring, seed=0)
    history.run(5)
    assert history.binds > 10


def _whenever(write: Callable[..., Any]) -> Callable[..., Any]:
    def late(self: Binder, step: object, timeout: float, deadline: float) -> Any:
        return write(self, step, timeout, deadline + 1e9)

    return late


def test_a_sleeper_that_sends_its_binding_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_write"
    monkeypatch.setattr(Binder, name, _whenever(getattr(Binder, name)))
    with pytest.raises(AssertionError, match="S1"):
        _run_again_and_again()


def _run_again_and_again() -> None:
    for seed in range(2, 12):
        Failovers("lease", seed).run(8)
