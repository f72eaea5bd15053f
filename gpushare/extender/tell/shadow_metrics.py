"""The metrics of the shadow policy: where it differs, and what both books hold.

Tested in `tests/unit/extender/shadow/test_shadow.py`.
"""

from collections.abc import Callable, Mapping

from gpushare.extender.shadow.follower import Counts
from gpushare.extender.shadow.shadow import Shadow
from gpushare.extender.tell.memory_metrics import Samples, family


def shadow_metrics(shadow: Shadow | None, unit_bytes: int) -> bytes:
    """Return all that is told of the shadow. unit_bytes: bytes of a memory unit."""
    if shadow is None:
        return b""
    counts = {(("resource", name),): tally for name, tally in shadow.counts.items()}
    sums = {
        (*of, ("books", books)): figures
        for of, tally in counts.items()
        for books, figures in (("real", tally.real), ("shadow", tally.shadow))
    }

    def by(label: str, counted: Callable[[Counts], Mapping[str, int]]) -> Samples:
        return {
            (*of, (label, value)): number
            for of, tally in counts.items()
            for value, number in counted(tally).items()
        }

    families = (
        family(
            "gpushare_shadow_on",
            "1 while the shadow policy follows; 0 for long: it failed, the log says how",
            {(("policy", shadow.policy),): float(shadow.follows)},
        ),
        family(
            "gpushare_shadow_choices_total",
            "Pods that filter answered for, by whether the shadow policy, on the real books, would"
            " choose the same place or another node or device",
            by("choice", lambda tally: tally.choices),
        ),
        family(
            "gpushare_shadow_pods_total",
            "Pods by which books took them: both, the real ones alone, or the shadow's alone",
            by("taken", lambda tally: tally.pods),
        ),
        family(
            "gpushare_shadow_inexact_total",
            "Pods that the shadow's books could not follow exactly, by why",
            by("why", lambda tally: tally.inexact),
        ),
        family(
            "gpushare_shadow_rebases_total",
            "How often the shadow's books began anew with the real ones",
            {of: tally.rebases for of, tally in counts.items()},
        ),
        family(
            "gpushare_shadow_dropped_total",
            "What the shadow had no time for: choices not compared; events, after which its books"
            " begin anew",
            {(("what", what),): number for what, number in shadow.dropped.items()},
        ),
        family(
            "gpushare_shadow_running_pods",
            "Pods in the real books and in the shadow's",
            {of: figures.pods for of, figures in sums.items()},
        ),
        family(
            "gpushare_shadow_allocated_bytes",
            "Memory given to pods in the real books and in the shadow's",
            {of: figures.allocated * unit_bytes for of, figures in sums.items()},
        ),
        family(
            "gpushare_shadow_stranded_bytes",
            "Free memory of devices where the commonest request has no room, in both books",
            {of: figures.stranded * unit_bytes for of, figures in sums.items()},
        ),
    )
    return "".join(families).encode()
