"""What the page says of the shadow policy.

Tested in `tests/unit/extender/tell/page/test_document.py`.
"""

from typing import Any

from gpushare.extender.shadow.shadow import Shadow


def shadow_document(shadow: Shadow | None, resource: str) -> dict[str, Any] | None:
    """Return what the shadow has found with a managed resource; None if there is none."""
    if shadow is None:
        return None
    counts = shadow.counts[resource]
    return {
        "policy": shadow.policy,
        "off": shadow.off or None,
        "choices": dict(counts.choices),
        "pods": dict(counts.pods),
        "inexact": sum(counts.inexact.values()),
        "rebases": counts.rebases,
        "dropped": sum(shadow.dropped.values()),
        "real": counts.real._asdict(),
        "books": counts.shadow._asdict(),
    }
