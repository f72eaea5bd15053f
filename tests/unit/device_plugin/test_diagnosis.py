"""Time heals passing errors only; the card's recovery action goes before the table of Xids."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.device_plugin.cards import DetectedGpu, Fault, Problem
from gpushare.device_plugin.health import NOTICE, OF_PROGRAMS, PASSING, RESET_ALWAYS, Diagnosis

RECOVER = 300.0
SILENT = DetectedGpu("GPU-a", 0, 16384)
"""A card that is well, with a driver that tells no recovery action (before R565)."""
WELL = replace(SILENT, recovery=0)
LOST = replace(SILENT, problem=Problem(Fault.LOST, "is lost"))
UNREADABLE = replace(SILENT, problem=Problem(Fault.UNREADABLE, "Unknown Error"))
LONG = 1e6


def after(*events: int | DetectedGpu | None, recover: float = RECOVER) -> Fault | None:
    """The problem after these Xid errors and reads, with a long time between."""
    diagnosis, now, fault = Diagnosis(recover), 0.0, None
    for event in events:
        now += LONG
        if isinstance(event, int):
            diagnosis.on_xid(event, now)
        else:
            problem = diagnosis.on_read(event, now)
            fault = problem.fault if problem else None
    return fault


def test_the_classes_of_xids_have_none_in_common() -> None:
    for one, second in itertools.combinations((OF_PROGRAMS, PASSING, RESET_ALWAYS), 2):
        assert not one & second


def test_the_table_for_operators_is_the_one_in_the_code() -> None:
    page = Path(__file__).parents[3] / "docs" / "device-plugin.md"
    table = page.read_text(encoding="utf-8").partition("| Xid | catalogue |")[2].splitlines()
    rows = []
    for line in itertools.takewhile(lambda line: line.startswith("|"), table[2:]):
        spans = re.findall(r"(\d+)(?:-(\d+))?", line.split("|")[1])
        rows.append({xid for a, b in spans for xid in range(int(a), int(b or a) + 1)})
    programs, passing, always, unless_told, notice = rows
    messages = [set(OF_PROGRAMS), set(PASSING), set(RESET_ALWAYS), {NOTICE}]
    assert [programs, passing, always, notice] == messages
    assert not unless_told & (programs | passing | always | notice)


@pytest.mark.parametrize("xid", sorted(OF_PROGRAMS | {NOTICE}))
def test_an_error_of_a_program_closes_no_card(xid: int) -> None:
    diagnosis = Diagnosis(RECOVER)
    diagnosis.on_xid(xid, 10.0)
    assert diagnosis.on_read(SILENT, 10.0) is None


@pytest.mark.parametrize("gpu", [SILENT, WELL])
@pytest.mark.parametrize("xid", sorted(PASSING))
def test_an_error_that_passes_closes_a_card_for_a_while(xid: int, gpu: DetectedGpu) -> None:
    diagnosis = Diagnosis(RECOVER)
    diagnosis.on_xid(xid, 10.0)
    assert str(diagnosis.on_read(gpu, 309.0)) == f"the driver reported Xid {xid}"
    diagnosis.on_xid(xid, 309.0)
    assert diagnosis.on_read(gpu, 600.0)
    assert diagnosis.on_read(gpu, 609.0) is None


NEEDS_RESET = [48, 61, 62, 64, 74, 95, 110, 120, 136, 155, 156, 4711]


@pytest.mark.parametrize("xid", NEEDS_RESET)
def test_an_error_that_needs_a_reset_does_not_heal_by_time(xid: int) -> None:
    assert after(xid, SILENT, SILENT) is Fault.XID


@pytest.mark.parametrize("xid", NEEDS_RESET)
def test_it_does_where_the_card_says_that_it_needs_nothing(xid: int) -> None:
    diagnosis = Diagnosis(RECOVER)
    diagnosis.on_xid(xid, 10.0)
    assert diagnosis.on_read(WELL, 309.0)
    assert diagnosis.on_read(WELL, 310.0) is None


@pytest.mark.parametrize("xid", sorted(RESET_ALWAYS))
@pytest.mark.parametrize("gpu", [SILENT, WELL])
def test_an_error_that_no_recovery_action_tells_of_waits_for_a_reset(
    xid: int, gpu: DetectedGpu
) -> None:
    assert after(xid, gpu, gpu, 63, gpu) is Fault.XID
    assert after(63, xid, gpu, gpu) is Fault.XID
    assert after(xid, gpu, LOST, gpu) is None
    assert after(xid, gpu, None, gpu) is None


@pytest.mark.parametrize("need", [1, 2, 4, 6, 7])
def test_a_need_of_a_reset_that_ends_shows_a_reset(need: int) -> None:
    needy = replace(SILENT, recovery=need)
    assert after(119, needy) is Fault.RECOVERY
    assert after(119, needy, WELL) is None


@pytest.mark.parametrize("need", [3, 5])
def test_a_need_of_something_else_that_ends_does_not(need: int) -> None:
    needy = replace(SILENT, recovery=need)
    assert after(119, needy) is Fault.RECOVERY
    assert after(119, needy, WELL) is Fault.XID


@pytest.mark.parametrize("need", range(1, 9))
def test_a_card_that_says_that_it_needs_something_is_closed_until_it_says_otherwise(
    need: int,
) -> None:
    needy = replace(SILENT, recovery=need)
    assert after(needy) is Fault.RECOVERY
    assert after(needy, SILENT) is Fault.RECOVERY
    assert after(needy, UNREADABLE, SILENT) is Fault.RECOVERY
    assert after(needy, WELL) is None
    assert after(needy, LOST, SILENT) is None


def test_a_card_that_could_not_be_read_for_a_moment_was_not_reset() -> None:
    assert after(79, SILENT, UNREADABLE, SILENT) is Fault.XID
    assert after(UNREADABLE) is Fault.UNREADABLE
    assert after(UNREADABLE, SILENT) is None


def test_a_driver_that_was_loaded_anew_has_reset_the_card() -> None:
    anew = replace(SILENT, loads=1)
    assert after(79, SILENT, anew, replace(anew, problem=None)) is None
    assert after(anew, 79, anew) is Fault.XID
    assert after(replace(SILENT, recovery=1), anew) is None
    assert after(79, replace(anew, recovery=1)) is Fault.RECOVERY


def test_pending_remaps_keep_a_card_closed_after_an_error_unless_it_says_it_needs_nothing() -> None:
    pending = replace(SILENT, remap_pending=True)
    assert after(pending) is None
    assert after(63, pending, pending) is Fault.XID
    assert after(63, pending, replace(pending, remap_pending=False)) is None
    assert after(63, replace(pending, recovery=0)) is None


def test_a_row_that_could_not_be_replaced_closes_the_card() -> None:
    failed = replace(WELL, remap_failed=True)
    assert after(failed) is Fault.REMAP
    assert after(failed, WELL) is Fault.REMAP  # it does not tell any more
    assert after(failed, replace(WELL, remap_failed=False)) is None


READS = st.sampled_from([SILENT, UNREADABLE, replace(SILENT, remap_pending=True)])
XIDS = st.integers(1, 200)


@given(st.lists(READS | XIDS | st.just(WELL), max_size=12), st.sampled_from(sorted(RESET_ALWAYS)))
def test_no_time_and_no_other_error_heals_a_card_that_needs_a_reset(
    events: list[DetectedGpu | int], xid: int
) -> None:
    assert after(xid, *events, SILENT) is Fault.XID


@given(st.lists(READS | XIDS | st.sampled_from([WELL, LOST, None]), max_size=12))
def test_a_card_that_was_lost_and_is_back_is_well(events: list[DetectedGpu | int | None]) -> None:
    assert after(*events, LOST, WELL, WELL) is None


@given(st.lists(XIDS, max_size=4))
def test_each_text_is_short_enough_for_the_inventory(xids: list[int]) -> None:
    diagnosis = Diagnosis(RECOVER)
    for xid in xids:
        diagnosis.on_xid(10**9 + xid, 0.0)
    for gpu in (SILENT, replace(SILENT, recovery=2**31), replace(SILENT, remap_failed=True), None):
        problem = diagnosis.on_read(gpu, 1.0)
        assert len(str(problem or "")) <= 120
