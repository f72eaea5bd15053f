"""What a verb answers, and the name of the pod in its log line.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.errors import MessageError
from gpushare.wire.extender import FilterArgs
from gpushare.wire.pods import pod_ref
from gpushare.wire.preempt import PreemptArgs


@dataclass(frozen=True, slots=True)
class VerbAnswer:
    """The body of an answer, one word for metrics, and more values for the log line."""

    body: bytes
    outcome: str
    line: Mapping[str, object] = field(default_factory=dict)


def pod_name(args: FilterArgs | PreemptArgs) -> str:
    """Return the pod as "namespace/name", or "?" for a pod without name or uid."""
    try:
        return str(pod_ref(args.pod))
    except MessageError:
        return "?"
