"""Cards are unhealthy while something is wrong with them, and well again after; none is lost."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from gpushare.device_plugin.cards import Cards, DetectedGpu
from gpushare.device_plugin.health import SILENCE_SECONDS, Health
from gpushare.errors import SettingsError

TWO = (DetectedGpu("GPU-a", 0, 16384, "T4"), DetectedGpu("GPU-b", 1, 8192, "P4"))


class Gpus:
    """A source that says what the test says."""

    def __init__(self) -> None:
        self.found: Sequence[DetectedGpu] | SettingsError = TWO

    def read(self) -> Sequence[DetectedGpu]:
        if isinstance(self.found, SettingsError):
            raise self.found
        return self.found

    def xids(self, seconds: float) -> Iterator[tuple[str, int]]:
        raise AssertionError(f"asked for {seconds} s")


class Watched:
    """Health without its threads; `now` is its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gpus = Gpus()
        self.changes: list[tuple[Cards, Cards]] = []
        self.health = Health(
            self.gpus,
            "GiB",
            0,
            recover=300,
            changed=lambda before, after: self.changes.append((before, after)),
            clock=lambda: self.now,
        )

    def refresh(self, *found: DetectedGpu) -> list[bool]:
        """Which cards are healthy after the source said this."""
        self.gpus.found = found or self.gpus.found
        self.health.refresh()
        return self.healthy()

    def healthy(self) -> list[bool]:
        return [card.healthy for card in self.health.cards().all]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_change_is_told_once(watched: Watched) -> None:
    assert watched.refresh() == [True, True]
    assert watched.changes == []
    hot = replace(TWO[1], problem="hot")
    assert watched.refresh(TWO[0], hot) == [True, False]
    assert watched.refresh(TWO[0], hot) == [True, False]
    assert watched.refresh(*TWO) == [True, True]
    assert len(watched.changes) == 2
    assert watched.health.now()[1] == 2


def test_a_card_that_is_gone_keeps_its_place_and_its_size(watched: Watched) -> None:
    moved = replace(TWO[1], index=0)
    assert watched.refresh(moved) == [False, True]
    cards = watched.health.cards().all
    assert [(card.uuid, card.index, card.unit_count) for card in cards] == [
        ("GPU-a", 0, 16),
        ("GPU-b", 1, 8),
    ]


def test_a_card_that_has_become_smaller_is_unhealthy_and_one_that_grew_gives_no_more(
    watched: Watched,
) -> None:
    assert watched.refresh(replace(TWO[0], memory_mib=8192), TWO[1]) == [False, True]
    assert watched.refresh(replace(TWO[0], memory_mib=32768), TWO[1]) == [True, True]
    assert watched.health.cards().all[0].unit_count == 16


def test_a_source_that_fails_changes_nothing(watched: Watched) -> None:
    watched.gpus.found = SettingsError("no answer")
    watched.health.refresh()
    assert watched.healthy() == [True, True]


def test_an_xid_counts_for_a_while(watched: Watched) -> None:
    watched.health.on_xid("GPU-b", 79)
    assert watched.healthy() == [True, False]
    watched.now = 299
    assert watched.refresh() == [True, False]
    watched.health.on_xid("GPU-b", 79)
    watched.now = 500
    assert watched.refresh() == [True, False]
    watched.now = 600
    assert watched.refresh() == [True, True]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_xid_that_a_program_caused_does_not(watched: Watched, xid: int) -> None:
    watched.health.on_xid("GPU-b", xid)
    assert watched.healthy() == [True, True]


def test_an_xid_of_another_card_closes_none(watched: Watched) -> None:
    watched.health.on_xid("GPU-other", 79)
    assert watched.healthy() == [True, True]


def test_all_cards_are_closed_while_the_driver_does_not_answer(watched: Watched) -> None:
    watched.now = SILENCE_SECONDS
    watched.health.check_silence()
    assert watched.healthy() == [True, True]
    watched.now = SILENCE_SECONDS + 1
    watched.health.check_silence()
    assert watched.healthy() == [False, False]
    assert watched.refresh() == [True, True]


def test_cards_that_make_no_sense_are_refused_at_the_start() -> None:
    gpus = Gpus()
    gpus.found = ()
    with pytest.raises(SettingsError, match="there is no GPU"):
        Health(gpus, "GiB", 0, recover=300)
