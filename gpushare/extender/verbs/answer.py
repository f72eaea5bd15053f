"""What a verb answers.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.extender.shadow.follower import Asked


@dataclass(frozen=True, slots=True)
class VerbAnswer:
    """What a verb answers."""

    body: bytes
    outcome: str
    """One word for metrics."""
    line: Mapping[str, object] = field(default_factory=dict)
    """More values for the log line."""
    asked: Asked | None = None
    """What a shadow policy is told, if there is one."""
    waited: float = 0.0
    """Seconds that the call has waited for others, which are no work."""
