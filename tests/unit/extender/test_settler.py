"""A part of a process does nothing by itself, and the settler calls `tick` of each part."""

import pytest

from gpushare.daemon.part import Part
from gpushare.extender.settler import Settler


class Ticking(Part):
    """A part that notes its ticks, and raises at each if told so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.ticks: list[bool] = []
        self._error = error

    def tick(self, is_ready: bool, /) -> None:
        self.ticks.append(is_ready)
        if self._error is not None:
            raise self._error


def test_a_part_needs_none_of_the_methods() -> None:
    part = Part()
    part.start()
    part.tick(True)
    part.stop()
    assert (part.state(), part.liveness()) == ({}, {})


def test_a_part_whose_tick_raises_keeps_no_other_part_from_its_tick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reasons = ["", "the books are not filled"]
    broken, healthy = Ticking(ZeroDivisionError("a bug")), Ticking()

    class Last(Part):
        def tick(self, is_ready: bool, /) -> None:
            if not is_ready:
                settler.stop()

    def not_ready() -> str:
        return reasons[len(healthy.ticks) == 1]

    settler = Settler([broken, healthy, Last()], not_ready)
    settler.loop.run()
    assert broken.ticks == [True]
    assert healthy.ticks == [True]
    assert [record.getMessage() for record in caplog.records] == ["settling failed part=Ticking"]
    assert settler.liveness() == {"settling": ""}
