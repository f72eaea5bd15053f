"""The extender's verbs, wired: bytes in, bytes out.

Each verb is a class in `verbs/`. Knows no HTTP; every method may be called from many threads at
once. Each decision is one log line.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from gpushare.errors import MessageError, NotReady
from gpushare.extender.claims.ranker import ClaimRanker
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.inspect_documents import InspectDocuments
from gpushare.extender.verbs.answer import NOT_READY, VerbAnswer
from gpushare.extender.verbs.bind.binder import Binder, BindVerb
from gpushare.extender.verbs.filter import DEFAULT_OPTIONS, FilterOptions, FilterVerb
from gpushare.extender.verbs.preempt import BudgetsOf, PreemptVerb, no_budgets
from gpushare.extender.verbs.prioritize import PrioritizeVerb
from gpushare.extender.verbs.rank import RankVerb
from gpushare.extender.verbs.recipients import NO_RECIPIENTS, Recipients
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.logline import Line
from gpushare.wire.extender import NameLists

log = logging.getLogger("gpushare.decision")

_NO_VALUES: Mapping[str, object] = {}
_DEBUG_ONLY = frozenset({("prioritize", "scored"), ("prioritize", "plain"), ("rank", "plain")})
"""Verbs and outcomes that decide nothing yet: logged for debugging alone."""

Answer = Callable[[bytes], bytes]
"""Returns the answer of a verb to a body; errors go into the field `Error`, if there is one."""


class Service:
    """The extender's verbs.

    `not_ready`: the reason not to answer now, or "". `bind_slots`: the upper bound of binds under
    way; binds wait for the API server, and a slow API server would hold every thread. `ranker`:
    orders nodes for pods with claims. `budgets_of`: returns the disruption budgets of pods.
    `inspect`: the documents of the books. `wall`: returns seconds since the epoch, for the grace
    period of deleted pods.
    """

    def __init__(
        self,
        resources: ManagedResources,
        binder: Binder,
        *,
        not_ready: Callable[[], str],
        bind_slots: BindSlots,
        filter_options: FilterOptions = DEFAULT_OPTIONS,
        recipients: Recipients = NO_RECIPIENTS,
        ranker: ClaimRanker | None = None,
        budgets_of: BudgetsOf = no_budgets,
        inspect: InspectDocuments | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._not_ready = not_ready
        self._observe, self._shadow = recipients.observe, recipients.shadow
        self._inspect = inspect or InspectDocuments(resources)
        self._tickets = Tickets(clock)
        lists = NameLists()
        filter_verb = FilterVerb(
            resources,
            self._tickets,
            filter_options,
            recipients,
            not_ready=not_ready,
            bind_slots=bind_slots,
            lists=lists,
            ranker=ranker,
            open_gate=binder.open_gate,
            clock=clock,
        )
        rank = RankVerb(resources, ranker, lists=lists)
        prioritize = PrioritizeVerb(
            resources, self._tickets, not_ready=not_ready, lists=lists, ranker=ranker, clock=clock
        )
        preempt = PreemptVerb(resources, not_ready=not_ready, budgets_of=budgets_of, wall=wall)
        bind = BindVerb(
            resources,
            self._tickets,
            binder,
            recipients,
            not_ready=not_ready,
            bind_slots=bind_slots,
            clock=clock,
        )
        self.filter: Answer = partial(self._answer, "filter", filter_verb.answer)
        self.rank: Answer = partial(self._answer, "rank", rank.answer)
        self._bind = bind.answer
        self.prioritize: Answer = partial(self._answer, "prioritize", prioritize.answer)
        """Raises MessageError or NotReady: the answer has no field for errors."""
        self.preempt: Answer = partial(self._answer, "preempt", preempt.answer)
        """Raises MessageError or NotReady, as prioritize does."""

    def bind(self, body: bytes) -> bytes:
        """Return the answer of bind to a body. For a member of a group this blocks until another
        thread ends the wait at the gate.
        """
        answer = self.begin_bind(body)
        return answer if isinstance(answer, bytes) else answer.result()

    def begin_bind(self, body: bytes) -> bytes | Future[bytes]:
        """Return the answer of bind to a body, or for a pod at the gate the future of the answer.

        The caller does not cancel the future.
        """
        start = time.perf_counter()
        future: Future[bytes] = Future()

        def answer_later(answer: VerbAnswer) -> None:
            self._note("bind", answer.outcome, answer.line, start, answer.waited)
            future.set_result(answer.body)

        try:
            answer = self._bind(body, answer_later)
        except BaseException:
            self._note("bind", "failed", _NO_VALUES, start)
            raise
        if answer is None:
            return future
        self._note("bind", answer.outcome, answer.line, start)
        return answer.body

    def inspect(self, node: str | None, resource: str | None) -> bytes:
        """Return the inspect document of one node, or of all nodes, a few seconds old at most.

        Raises UnknownNode for an unknown node or resource, NotReady before the ledger is filled, or
        if too many requests wait.
        """
        if reason := self._not_ready():
            raise NotReady(NOT_READY + reason)
        return self._inspect.document(node, resource)

    def called(self, uid: str) -> bool:
        """Return whether filter was called for the pod and no bind has succeeded since."""
        return uid in self._tickets

    def _answer(self, verb: str, work: Callable[[bytes], VerbAnswer], body: bytes) -> bytes:
        """Return the answer of the verb; count and log the outcome and the seconds."""
        start = time.perf_counter()
        outcome, line = "failed", _NO_VALUES
        try:
            answer = work(body)
            outcome, line = answer.outcome, answer.line
            if self._shadow is not None and answer.for_shadow is not None:
                self._shadow(answer.for_shadow)
            return answer.body
        except MessageError as error:
            outcome, line = "malformed", {"error": str(error)}
            raise
        except NotReady as error:
            outcome, line = "not_ready", {"error": str(error)}
            raise
        finally:
            self._note(verb, outcome, line, start)

    def _note(
        self,
        verb: str,
        outcome: str,
        line: Mapping[str, object],
        start: float,
        waited: float = 0.0,
    ) -> None:
        """Count and log a call that began at `start`. waited: seconds without work."""
        seconds = max(time.perf_counter() - start - waited, 0.0)
        if self._observe is not None:
            self._observe(verb, outcome, seconds)
        level = logging.DEBUG if (verb, outcome) in _DEBUG_ONLY else logging.INFO
        if log.isEnabledFor(level):
            times: dict[str, object] = {"ms": round(seconds * 1000, 1)}
            if waited:
                times["waited_ms"] = round(waited * 1000, 1)
            log.log(level, Line(verb, outcome=outcome, **line, **times))
