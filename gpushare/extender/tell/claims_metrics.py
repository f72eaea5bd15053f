"""The metrics of claims: how many have devices, who waits, and how allocations end.

Tested in `tests/unit/extender/tell/test_claims_metrics.py`.
"""

from collections import Counter
from itertools import accumulate

from gpushare.extender.claims.view import BUCKETS, ClaimsView, Journal
from gpushare.extender.tell.memory_metrics import family

_DURATION = "gpushare_claim_allocation_duration_seconds"


def claims_metrics(view: ClaimsView | None) -> bytes:
    """Return all that is told of claims but their devices; nothing if they are not followed."""
    if view is None:
        return b""
    waits = Counter(no_room=0, refused=0)
    waits.update(
        "refused" if wait.refused else "no_room" for wait in view.journal.waiting().values()
    )
    outcomes, _, _ = view.journal.outcomes()
    states = {"allocated": len(view.books.allocated()), "in_doubt": len(view.books.in_flight())}
    families = (
        family(
            "gpushare_claims",
            "Claims that have devices of the driver; in_doubt: an allocation is being written, or"
            " got no answer",
            {
                (("driver", view.driver), ("state", state)): float(number)
                for state, number in states.items()
            },
        ),
        family(
            "gpushare_claims_waiting_pods",
            "Pods whose claims got no devices when that was last tried; refused: they ask for what"
            " cannot be given, their events say what",
            {(("why", why),): float(number) for why, number in waits.items()},
        ),
        family(
            "gpushare_claims_held_back",
            "1 while nothing is given out to claims, by why; the log and gpushare explain say more",
            {(("reason", kind),): float(bool(why)) for kind, why in view.problems().items()},
        ),
        family(
            "gpushare_claims_alone",
            "1 if nothing but claims is served (--claims-alone), so that no filter call comes",
            {(("driver", view.driver),): float(view.alone)},
        ),
        family(
            "gpushare_claim_allocations_total",
            "Allocations written, by outcome; in_doubt: no answer, allocated too once it landed",
            {(("outcome", outcome),): float(number) for outcome, number in outcomes.items()},
        ),
        _durations(view.journal),
    )
    return "".join(families).encode()


def _durations(journal: Journal) -> str:
    _, counts, seconds = journal.outcomes()
    sums = list(accumulate(counts))
    bounds = [*map(str, BUCKETS), "+Inf"]
    return "\n".join(
        [
            f"# HELP {_DURATION} Time to write an allocation, until the API server answers",
            f"# TYPE {_DURATION} histogram",
            *(
                f'{_DURATION}_bucket{{le="{bound}"}} {float(number)}'
                for bound, number in zip(bounds, sums, strict=True)
            ),
            f"{_DURATION}_count {float(sums[-1])}",
            f"{_DURATION}_sum {seconds}",
            "",
        ]
    )
