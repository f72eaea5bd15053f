"""Bugs in leading: two that lead, and one that begins before the other has ended."""

import math
from typing import Any

from gpushare.extender.follow.readiness import Readiness
from gpushare.kube.election import Elector, Lease, SchedulerLease, Term
from tests.simulation.mutants.museum import mutant


def _leads_for_ever(original: Any) -> Any:
    del original

    def leads_until(self: Any) -> float:
        return math.inf

    return leads_until


@mutant(
    "D7",
    "HAMi's /readyz is always 200, and its bind asks nobody who leads",
    Readiness,
    "_leadership_problem",
    also=[(Readiness, "leads_until", _leads_for_ever)],
)
def answers_without_leading(original: Any) -> Any:
    del original

    def leadership(self: Any, now: float) -> str:
        return ""

    return leadership


@mutant("D7", "HAMi takes the lease of a name that begins like its own", Elector, "_is_ours")
def owns_by_prefix(original: Any) -> Any:
    del original

    def ours(self: Any, lease: Any) -> bool:
        return bool(lease.holder) and lease.holder[:5] == self.identity[:5]

    return ours


@mutant("D8", "nobody lists anew after winning", Readiness, "_relist_wanted")
def does_not_list_anew(original: Any) -> Any:
    del original

    def relist_wanted(self: Any, *_: Any) -> bool:
        return False

    return relist_wanted


@mutant("D8", "begins to lead as soon as its scheduler does", SchedulerLease, "_observe_own")
def follows_without_a_fence(original: Any) -> Any:
    def see_ours(self: Any, *args: Any) -> None:
        original(self, *args)
        self._fence = -math.inf

    return see_ours


@mutant("D9", "the Python client's election goes on when a renewal hangs", Term, "until")
def leads_until_it_is_told(original: Any) -> Any:
    def until(self: Any, now: float) -> float:
        led = original(self, now) > -math.inf
        return now + 3600 if led else -math.inf

    return until


@mutant("D5", "a Lease is given away while binds are in doubt", Readiness, "stop")
def always_gives_the_lease_away(original: Any) -> Any:
    def stop(self: Any) -> None:
        self.is_settled = lambda: True
        original(self)

    return stop


@mutant("D9", "a term counts from the answer to a renewal", Elector, "on_written")
def leads_from_the_answer_on(original: Any) -> Any:
    def on_written(self: Any, body: bytes, now: float) -> None:
        sent_at, self._sent_at = self._sent_at, now
        original(self, body, now)
        self._sent_at = sent_at

    return on_written


@mutant("D7", "takes an expired Lease before it has expired", Elector, "_acquire_or_renew")
def takes_a_lease_early(original: Any) -> Any:
    def attempt(self: Any, now: float, wall: float, jitter: float) -> Any:
        self._changed_at -= 13.0
        return original(self, now, wall, jitter)

    return attempt


@mutant("D7", "a Lease in its name is its own, whoever wrote that", Elector, "_is_ours")
def owns_by_name(original: Any) -> Any:
    del original

    def ours(self: Any, lease: Any) -> bool:
        claimed = self._fence > -math.inf
        return bool(claimed and lease.holder == self.identity)

    return ours


@mutant("D7", "a Lease without a holder is taken for given away", Lease, "released")
def takes_what_nobody_gave(original: Any) -> Any:
    del original
    return property(lambda self: not self.holder)
