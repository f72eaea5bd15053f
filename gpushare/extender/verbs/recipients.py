"""The recipients of the decisions of the verbs: metrics, events, the page and a shadow policy.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpushare.extender.shadow.follower import Asked
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.page.last_hour import LastHour

Observe = Callable[[str, str, float], None]
"""Called for every call: verb, outcome (one word), seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipients:
    """The recipients; None for none."""

    observe: Observe | None = None
    rejected: Callable[[Mapping[str, int]], None] | None = None
    """Called with the number of nodes that filter refused, by reason."""
    event_messages: EventMessages | None = None
    """Writes events for users."""
    last_hour: LastHour | None = None
    """Counts allocated and refused pods."""
    shadow: Callable[[Asked], None] | None = None
    """Called with each answer of filter."""


NO_RECIPIENTS = Recipients()
