"""What a verb answers, and the name of the pod in its log line.

Tested in `tests/unit/extender/test_service.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.extender.shadow.follower import Asked
from gpushare.wire.objects import Pod


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


def pod_name(pod: Pod) -> str:
    """Return the pod as "namespace/name", or "?" for a pod without name or uid."""
    metadata = pod.metadata
    if metadata is None or not (metadata.namespace and metadata.name and metadata.uid):
        return "?"
    return f"{metadata.namespace}/{metadata.name}"
