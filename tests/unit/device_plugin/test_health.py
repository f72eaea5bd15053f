"""Cards are unhealthy during a problem, and well again after; no card is lost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpushare.device_plugin.cards import DetectedGpu, Fault, NodeCards, Problem
from gpushare.device_plugin.health import DEAD_SECONDS, SILENCE_SECONDS, Health
from gpushare.errors import SettingsError
from tests.support.waiting import poll

TWO = (DetectedGpu("GPU-a", 0, 16384, "T4"), DetectedGpu("GPU-b", 1, 8192, "P4"))
HOT = Problem(Fault.UNREADABLE, "hot")


class Gpus:
    """A source with the answers of the test."""

    def __init__(self) -> None:
        self.found: Sequence[DetectedGpu] | SettingsError = TWO
        self.errors: Sequence[tuple[str, int]] | SettingsError = ()
        self.failing: dict[str, str] = {}

    @property
    def unwatched(self) -> Mapping[str, str]:
        return self.failing

    def read(self) -> Sequence[DetectedGpu]:
        if isinstance(self.found, SettingsError):
            raise self.found
        return self.found

    def xids(self, seconds: float) -> Sequence[tuple[str, int]]:
        assert seconds >= 0
        if isinstance(self.errors, SettingsError):
            raise self.errors
        cards, self.errors = self.errors, ()
        return cards


class Watched:
    """Health without threads; `now` is the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.gpus = Gpus()
        self.changes: list[tuple[NodeCards, NodeCards]] = []
        self.health = Health(
            self.gpus,
            "GiB",
            0,
            recover=300,
            on_change=lambda before, after: self.changes.append((before, after)),
            clock=lambda: self.now,
        )

    def refresh(self, *cards: DetectedGpu) -> list[bool]:
        """Which cards are healthy after the source said this."""
        self.gpus.found = cards or self.gpus.found
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
    hot = replace(TWO[1], problem=HOT)
    assert watched.refresh(TWO[0], hot) == [True, False]
    assert watched.refresh(TWO[0], hot) == [True, False]
    assert watched.refresh(*TWO) == [True, True]
    assert len(watched.changes) == 2
    assert watched.health.now()[1] == 2


def test_a_card_that_is_gone_keeps_its_place_and_its_size(watched: Watched) -> None:
    moved_card = replace(TWO[1], index=0)
    assert watched.refresh(moved_card) == [False, True]
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


def test_an_xid_that_passes_counts_for_a_while(watched: Watched) -> None:
    watched.health.on_xid("GPU-b", 94)
    assert watched.healthy() == [True, False]
    watched.now = 299
    assert watched.refresh() == [True, False]
    watched.health.on_xid("GPU-b", 94)
    watched.now = 500
    assert watched.refresh() == [True, False]
    watched.now = 600
    assert watched.refresh() == [True, True]


def test_an_xid_that_needs_a_reset_counts_until_the_card_was_lost_and_is_back(
    watched: Watched,
) -> None:
    watched.health.on_xid("GPU-b", 79)
    watched.now = 1e6
    assert watched.refresh() == [True, False]
    lost = replace(TWO[1], memory_mib=0, problem=Problem(Fault.LOST, "is lost"))
    assert watched.refresh(TWO[0], lost) == [True, False]
    assert watched.refresh(*TWO) == [True, True]


def test_a_card_is_closed_by_an_xid_while_the_driver_does_not_answer_a_read(
    watched: Watched,
) -> None:
    watched.gpus.found = SettingsError("no answer")
    watched.health.on_xid("GPU-a", 48)
    watched.health.refresh()
    assert watched.healthy() == [False, True]


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


def test_an_xid_opens_no_card_while_the_driver_does_not_answer(watched: Watched) -> None:
    watched.now = SILENCE_SECONDS + 1
    watched.health.check_silence()
    watched.health.on_xid("GPU-b", 79)
    assert watched.healthy() == [False, False]
    assert watched.refresh() == [True, False]


def test_cards_that_make_no_sense_are_refused_at_the_start() -> None:
    gpus = Gpus()
    gpus.found = ()
    with pytest.raises(SettingsError, match="there is no GPU"):
        Health(gpus, "GiB", 0, recover=300)


# -- a card that cannot be read, or is new --------------------------------------------------------


def test_a_card_that_cannot_be_read_at_the_start_gets_its_size_by_its_first_good_read() -> None:
    gpus = Gpus()
    gpus.found = (TWO[0], DetectedGpu("GPU-b", 1, 0, problem=HOT), DetectedGpu("", 2, 0))
    gpus.found = (*gpus.found[:2], replace(gpus.found[2], problem=HOT))
    health = Health(gpus, "GiB", 0, recover=300)

    def cards() -> list[tuple[str, int, int, bool]]:
        return [
            (card.uuid, card.index, card.unit_count, card.healthy) for card in health.cards().all
        ]

    assert cards() == [("GPU-a", 0, 16, True), ("GPU-b", 1, 0, False), ("lost-2", 2, 0, False)]
    gpus.found = (*TWO, DetectedGpu("GPU-c", 2, 0, problem=HOT))
    health.refresh()
    assert cards()[1:] == [("GPU-b", 1, 8, True), ("GPU-c", 2, 0, False)]
    gpus.found = (*TWO, DetectedGpu("GPU-c", 2, 4096))
    health.refresh()
    assert cards()[1:] == [("GPU-b", 1, 8, True), ("GPU-c", 2, 4, True)]
    gpus.found = (*TWO, DetectedGpu("GPU-c", 2, 8192))
    health.refresh()
    assert cards()[2] == ("GPU-c", 2, 4, True)


def test_a_card_whose_units_the_kubelet_would_not_take_stays_closed_and_no_other() -> None:
    gpus = Gpus()
    gpus.found = (TWO[0], DetectedGpu("GPU-b", 1, 0, problem=HOT))
    health = Health(gpus, "MiB", 0, recover=300)
    gpus.found = (TWO[0], DetectedGpu("GPU-b", 1, 2**18))
    health.refresh()
    assert [(card.unit_count, card.healthy) for card in health.cards().all] == [
        (16384, True),
        (0, False),
    ]
    health.on_xid("GPU-a", 48)
    assert [card.healthy for card in health.cards().all] == [False, False]


def test_a_card_without_a_uuid_for_a_moment_is_taken_for_the_one_at_its_index(
    watched: Watched,
) -> None:
    watched.health.on_xid("GPU-b", 79)
    nameless = DetectedGpu("", 1, 0, problem=HOT)
    assert watched.refresh(TWO[0], nameless) == [True, False]
    assert watched.health.cards().uncounted == ()
    assert watched.refresh(*TWO) == [True, False]  # it was not reset
    lost = replace(nameless, problem=Problem(Fault.LOST, "is lost"))
    assert watched.refresh(TWO[0], replace(lost, index=7)) == [True, False]
    assert watched.refresh(*TWO) == [True, False]
    assert watched.refresh(TWO[0], lost) == [True, False]
    assert watched.refresh(*TWO) == [True, True]  # it was
    watched.health.on_xid("GPU-b", 79)
    # One at another index may be any that is missing.
    assert watched.refresh(TWO[0], replace(nameless, index=7)) == [True, False]
    assert watched.refresh(*TWO) == [True, False]


def test_a_card_that_is_added_is_told_once_and_counts_later(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    new = DetectedGpu("GPU-c", 2, 16384)
    for _ in range(3):
        assert watched.refresh(*TWO, new) == [True, True]
    assert watched.health.cards().uncounted == ("GPU-c",)
    assert len(watched.changes) == 1
    assert caplog.text.count("new GPUs count after a restart") == 1
    assert watched.refresh(*TWO) == [True, True]
    assert watched.health.cards().uncounted == ()


# -- probes ---------------------------------------------------------------------------------------


def test_the_process_is_started_anew_when_nothing_is_told_of_any_card_for_minutes(
    watched: Watched,
) -> None:
    unreadable = [replace(gpu, problem=HOT) for gpu in TWO]
    for cards in (SettingsError("Uninitialized"), unreadable, ()):
        watched.refresh(*TWO)
        began = watched.now
        for seconds in (0.0, DEAD_SECONDS):
            watched.now = began + seconds
            watched.gpus.found = cards
            watched.health.refresh()
            assert watched.health.live() == ""
        watched.now = began + DEAD_SECONDS + 1
        watched.health.refresh()
        assert watched.health.live().startswith("nothing is told of any GPU for 5 min: ")
    watched.refresh(*TWO)
    assert watched.health.live() == ""


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.RECOVERY, Fault.MIG])
def test_a_start_anew_is_not_asked_for_where_the_driver_says_what_is_wrong(
    watched: Watched, fault: Fault
) -> None:
    watched.now = 10 * DEAD_SECONDS
    watched.refresh(*(replace(gpu, problem=Problem(fault, "so")) for gpu in TWO))
    assert watched.health.live() == ""
    assert watched.health.ready() == ""


def test_a_read_that_fails_is_told_with_its_reason_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.gpus.found = SettingsError("Uninitialized")
    for watched.now in (1.0, SILENCE_SECONDS):
        watched.health.refresh()
        assert watched.health.ready() == ""
    watched.now += 1
    assert watched.health.ready() == "the GPUs are not read for 61 s: Uninitialized"
    assert caplog.text.count("devices not read") == 1
    watched.refresh(*TWO)
    assert watched.health.ready() == ""


def test_errors_of_one_card_that_are_not_seen_are_told_while_it_is_well(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.health.watch()
    watched.gpus.failing = {"GPU-b": "Unknown Error"}
    watched.gpus.errors = [("GPU-a", 94)]
    watched.health.watch()
    watched.health.watch()
    assert watched.healthy() == [False, True]
    assert watched.health.ready() == "errors of GPU-b are not seen: Unknown Error"
    assert watched.health.unwatched() == {"GPU-b": "Unknown Error"}
    assert caplog.text.count("not seen") == 1
    assert watched.refresh(TWO[0], replace(TWO[1], problem=HOT)) == [False, False]
    assert watched.health.ready() == ""
    watched.gpus.failing = {}
    watched.health.watch()
    assert watched.health.unwatched() == {}


def test_a_card_whose_errors_could_never_be_seen_is_told_and_is_no_reason(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.gpus.failing = {"GPU-b": "Insufficient Permissions"}
    watched.health.watch()
    watched.health.watch()
    assert watched.health.ready() == ""
    assert watched.health.unwatched() == {"GPU-b": "Insufficient Permissions"}
    assert caplog.text.count("not seen") == 1


def test_a_card_that_could_be_read_and_cannot_any_more_has_the_process_started_anew(
    watched: Watched,
) -> None:
    never = [replace(gpu, problem=HOT) for gpu in TWO]
    watched.now += DEAD_SECONDS + 1
    watched.refresh(*never)
    assert "hot" in watched.health.live()
    watched.refresh(TWO[0], never[1])
    assert watched.health.live() == ""


def test_cards_that_could_never_be_read_have_no_process_started_anew() -> None:
    gpus = Gpus()
    gpus.found = [replace(gpu, problem=HOT) for gpu in TWO]
    now = [0.0]
    health = Health(gpus, "GiB", 0, recover=300, clock=lambda: now[0])
    now[0] += DEAD_SECONDS + 1
    health.refresh()
    assert health.live() == ""


def test_a_watch_that_fails_is_tried_again_ever_more_slowly(watched: Watched) -> None:
    watched.gpus.errors = SettingsError("NVML reports no errors of GPUs: Unknown Error")
    pauses = [watched.health.watch() for _ in range(10)]
    assert pauses[0] == 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    assert watched.health.ready() == "NVML reports no errors of GPUs: Unknown Error"
    assert set(watched.health.unwatched()) == {"GPU-a", "GPU-b"}
    watched.gpus.errors = [("GPU-b", 48)]
    assert watched.health.watch() < 1.0
    assert watched.healthy() == [True, False]
    assert watched.health.ready() == ""


def test_a_wait_for_errors_that_does_not_end_is_told(watched: Watched) -> None:
    class Hanging(Gpus):
        def xids(self, seconds: float) -> Sequence[tuple[str, int]]:
            watched.now += SILENCE_SECONDS
            assert health.ready() == ""
            watched.now += 1
            health.refresh()
            text.append(health.ready())
            return ()

    text: list[str] = []
    health = Health(Hanging(), "GiB", 0, recover=300, clock=lambda: watched.now)
    health.watch()
    assert text == ["errors of GPUs are not seen: the driver does not answer"]
    assert health.ready() == ""


def test_the_threads_go_on_after_an_error_that_nobody_thought_of() -> None:
    class Odd(Gpus):
        reads = waits = 0

        def read(self) -> Sequence[DetectedGpu]:
            self.reads += 1
            if self.reads == 2:
                raise ZeroDivisionError
            return super().read()

        def xids(self, seconds: float) -> Sequence[tuple[str, int]]:
            self.waits += 1
            if self.waits == 1:
                raise UnicodeDecodeError("utf-8", b"", 0, 1, "odd")
            return super().xids(seconds)

    gpus = Odd()
    health = Health(gpus, "GiB", 0, recover=300, poll=0.01)
    health.start()
    try:
        poll(lambda: gpus.reads > 3, "no further read")
        poll(lambda: gpus.waits > 2, "no further wait")
    finally:
        health.stop()
