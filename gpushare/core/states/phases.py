"""The table of phases: the next phase of a pod in the books after each event.

Pure, and without a clock. An event changes nothing where the table has no phase for it.
"""

from collections.abc import Mapping
from enum import StrEnum

from gpushare.core.states.entry import Phase


class Event(StrEnum):
    """An event of a pod. The value is its text in the table."""

    ASSUMED = "a bind charges it, and sends the Binding next"
    ASSUMED_AT_GATE = "a bind charges it, and it waits at the gate for its group"
    LET_THROUGH = "its group is whole: the Binding is sent next"
    SENT_AGAIN = "a bind sends the same Binding once more"
    ACCEPTED = "the API server took the Binding"
    NO_ANSWER = "no answer to the Binding"
    REFUSED = "the Binding was refused, or never sent"
    READ_BOUND = "a read shows it on a node"
    READ_UNBOUND = "a read shows it without a node"
    READ_UNBOUND_LATE = "the same, 65 s or more after the Binding"
    READ_GONE = "a read shows it gone or ended"
    SHOWN_WAITING = "the watch or a list shows it without a node"
    SHOWN_BOUND = "the watch or a list shows it on a node"
    SHOWN_CPU_ONLY = "the same, and it asks for no device"
    SHOWN_UNREADABLE = "the watch or a list shows it, and it cannot be decoded"
    LISTED_UNBOUND = "a whole list shows it without a node"
    NOT_LISTED = "a whole list is without it"
    LISTED = "a whole list has come, whatever it shows"
    CORRECTED = "an audit reads it elsewhere, or larger"
    GONE = "it is gone or has ended"


SENT = (Phase.IN_FLIGHT, Phase.IN_DOUBT, Phase.RESENT, Phase.LANDED)
"""The phases of a charged pod whose Binding is sent, and that no watch has shown bound."""
ASSUMED = (Phase.AT_GATE, *SENT)
"""The phases of a pod that is charged and that no watch has shown bound."""
CHARGED = (Phase.BOUND, *ASSUMED)
"""The phases of a pod that holds devices."""
RECORDED = (Phase.UNCHARGED, *ASSUMED, Phase.BOUND, Phase.CPU_ONLY)
"""The phases that a record can be in: all but the last."""

_AT_GATE, _IN_FLIGHT, _IN_DOUBT, _RESENT, _LANDED = ASSUMED
_UNCHARGED, _BOUND, _CPU_ONLY, _GONE = Phase.UNCHARGED, Phase.BOUND, Phase.CPU_ONLY, Phase.GONE
_STAY = dict(zip(ASSUMED, ASSUMED, strict=True))

TABLE: Mapping[Event, Mapping[Phase, Phase]] = {
    Event.ASSUMED: {_UNCHARGED: _IN_FLIGHT},
    Event.ASSUMED_AT_GATE: {_UNCHARGED: _AT_GATE},
    Event.LET_THROUGH: {_AT_GATE: _IN_FLIGHT},
    Event.SENT_AGAIN: {_IN_DOUBT: _RESENT},
    Event.ACCEPTED: dict.fromkeys(SENT, _LANDED),
    # Somebody has read that it landed: that is not unknown any more.
    Event.NO_ANSWER: {**dict.fromkeys(SENT, _IN_DOUBT), _LANDED: _LANDED},
    Event.REFUSED: dict.fromkeys((_AT_GATE, _IN_FLIGHT, _IN_DOUBT, _RESENT), _UNCHARGED),
    # While a Binding is on its way no read tells its end.
    Event.READ_BOUND: {_IN_DOUBT: _LANDED, _LANDED: _LANDED},
    Event.READ_UNBOUND: {_IN_DOUBT: _IN_DOUBT, _LANDED: _LANDED},
    Event.READ_UNBOUND_LATE: {_IN_DOUBT: _UNCHARGED, _LANDED: _UNCHARGED},
    Event.READ_GONE: {_IN_DOUBT: _UNCHARGED, _LANDED: _UNCHARGED},
    # No pod loses its node: an object without the node is older than the binding.
    Event.SHOWN_WAITING: {_UNCHARGED: _UNCHARGED, **_STAY},
    Event.SHOWN_BOUND: dict.fromkeys(RECORDED, _BOUND),
    Event.SHOWN_CPU_ONLY: {
        **dict.fromkeys(RECORDED, _BOUND),
        _UNCHARGED: _CPU_ONLY,
        _CPU_ONLY: _CPU_ONLY,
    },
    Event.SHOWN_UNREADABLE: {_UNCHARGED: _UNCHARGED},
    # Unless etcd was set back to an older state.
    Event.LISTED_UNBOUND: {_BOUND: _IN_DOUBT},
    # A list may be older than a binding of ours.
    Event.NOT_LISTED: {_UNCHARGED: _GONE, **_STAY, _BOUND: _GONE, _CPU_ONLY: _GONE},
    Event.LISTED: _STAY,
    Event.CORRECTED: {_BOUND: _BOUND},
    Event.GONE: dict.fromkeys(RECORDED, _GONE),
}
"""By event and phase, the phase that follows. Where there is none the event changes nothing."""


def as_text() -> str:
    """Return the table in Markdown: a line for each event, a column for each phase."""
    lines = [["", *(phase.value for phase in RECORDED)], ["---"] * (len(RECORDED) + 1)]
    for event, after in TABLE.items():
        lines.append(
            [
                event.value,
                *(after[phase].value if phase in after else "" for phase in RECORDED),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
