"""The table of phases: what may end a charge, and that the page shows it as it is."""

import pytest

from gpushare.core.states.entry import Phase
from gpushare.core.states.phases import ASSUMED, CHARGED, RECORDED, TABLE, Event, as_text
from tests.support.figures import ROOT, renew, shown

PAGE = ROOT / "docs" / "architecture.md"
OF = "the phases"

PROOFS = {Event.REFUSED, Event.READ_UNBOUND_LATE, Event.READ_GONE, Event.GONE}
"""What says that a pod of ours holds nothing and never will."""


def test_the_page_shows_the_table_as_it_is(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--regenerate-scenarios"):
        renew(PAGE, OF, as_text())
    assert shown(PAGE, OF) == as_text(), "run this test with --regenerate-scenarios"


def test_every_event_is_in_the_table_and_every_phase_can_be_come_to() -> None:
    assert TABLE.keys() == set(Event)
    assert all(after.keys() <= set(RECORDED) for after in TABLE.values())
    assert {phase for after in TABLE.values() for phase in after.values()} == set(Phase)


@pytest.mark.parametrize("phase", ASSUMED)
def test_what_is_assumed_ends_by_proof_alone(phase: Phase) -> None:
    ends = {event for event, after in TABLE.items() if after.get(phase, phase) not in CHARGED}
    assert ends <= PROOFS


@pytest.mark.parametrize("phase", [Phase.AT_GATE, Phase.IN_FLIGHT, Phase.RESENT])
def test_no_read_ends_what_is_on_its_way(phase: Phase) -> None:
    reads = (event for event in Event if event.name.startswith("READ_"))
    assert not any(phase in TABLE[event] for event in reads)


def test_a_pod_at_the_gate_is_never_in_doubt_nor_landed_before_it_is_let_through() -> None:
    after = {
        event: phases[Phase.AT_GATE] for event, phases in TABLE.items() if Phase.AT_GATE in phases
    }
    moves = {event: phase for event, phase in after.items() if phase is not Phase.AT_GATE}
    assert moves.pop(Event.LET_THROUGH) is Phase.IN_FLIGHT
    assert moves.pop(Event.REFUSED) is Phase.UNCHARGED
    assert set(moves.values()) == {Phase.BOUND, Phase.GONE}


def test_bound_comes_from_the_watch_alone_and_ends_when_the_pod_is_gone() -> None:
    come = {
        event
        for event, after in TABLE.items()
        for before, phase in after.items()
        if phase is Phase.BOUND is not before
    }
    assert come == {Event.SHOWN_BOUND, Event.SHOWN_CPU_ONLY}
    ends = {event for event, after in TABLE.items() if after.get(Phase.BOUND) is Phase.GONE}
    assert ends == {Event.GONE, Event.NOT_LISTED}
    assert Phase.UNCHARGED not in {after.get(Phase.BOUND) for after in TABLE.values()}


@pytest.mark.parametrize("phase", [phase for phase in RECORDED if phase is not Phase.UNCHARGED])
def test_no_pod_is_charged_by_two_binds(phase: Phase) -> None:
    assert phase not in TABLE[Event.ASSUMED]
    assert phase not in TABLE[Event.ASSUMED_AT_GATE]
