"""The answer of a verb, with its log line.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.extender.shadow.follower import Asked

NOT_READY = "gpushare is not ready: "
"""The begin of the error of each answer while this process must not answer; the reason follows."""


@dataclass(frozen=True, slots=True)
class VerbAnswer:
    """The answer of a verb."""

    body: bytes
    outcome: str
    """One word for metrics."""
    line: Mapping[str, object] = field(default_factory=dict)
    """More values for the log line."""
    for_shadow: Asked | None = None
    """The pod and the answer for a shadow policy, if there is one."""
    waited: float = 0.0
    """Seconds that the call has waited for other pods; they are no work."""
