"""What the users of claims are told by events: which devices were given, and why none.

Called once a second. It explains a few pods each time, those that nobody has explained first: the
explanations of very many pods that wait would take the time of the verbs.

Tested in `tests/unit/extender/tell/events/test_claim_events.py`.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.core.explain import TOGETHER
from gpushare.explain.pod import Outstanding
from gpushare.extender.claims.view import ClaimsView, Wait
from gpushare.extender.tell.events.messages import EventMessages

GRACE = 2.0
"""Seconds that a pod waits before it is told why: most wait for less."""
_AGAIN = 60.0
"""Seconds until a pod that still waits is looked at again."""
_AT_ONCE = 4
_TURN = 0.05
"""Seconds of CPU after which the others have to wait for the next turn."""
_REST = 9.0
"""A rest is this many times as long as the CPU time of the explanations before it."""


@dataclass(slots=True)
class _Notice:
    """Until when a pod, which waits for this reason, is left alone."""

    why: str
    due: float


class ClaimEvents:
    """Events about the pods that have claims."""

    def __init__(
        self,
        messages: EventMessages,
        view: ClaimsView,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._messages = messages
        self._view = view
        self._clock = clock
        self._notices: dict[str, _Notice] = {}
        self._rested_at = -math.inf

    def tick(self, ready: bool) -> None:
        """Record what was given since the last call, and why some that wait get nothing.

        ready False: another process leads and records it.
        """
        given = self._view.journal.take_given()
        if not ready:
            self._notices.clear()
            return
        for allocation in given:
            self._messages.claim_given(allocation, self._view.books.unit)
        waiting, now = self._view.journal.waiting(), self._clock()
        self._notices = {uid: notice for uid, notice in self._notices.items() if uid in waiting}
        held_back = self._view.why_held_back()
        for uid, wait in waiting.items():
            why = wait.why if wait.refused else held_back or wait.why
            notice = self._notices.get(uid)
            if notice is None or notice.why != why:
                self._notices[uid] = _Notice(why, now + GRACE)
        due = [uid for uid, notice in self._notices.items() if notice.due <= now]
        if now < self._rested_at:
            return
        begin = time.thread_time()
        for uid in sorted(due, key=lambda uid: self._notices[uid].due)[:_AT_ONCE]:
            # What is refused stays so.
            self._notices[uid].due = math.inf if waiting[uid].refused else now + _AGAIN
            self._tell(waiting[uid], held_back)
            cost = time.thread_time() - begin
            self._rested_at = now + cost * _REST
            if cost > _TURN:
                return

    def _tell(self, wait: Wait, held_back: str) -> None:
        if wait.refused:
            self._messages.claim_refused(wait.pod, wait.why)
            return
        if held_back or wait.lack is None:
            self._messages.claim_waits(wait.pod, held_back or wait.why)
            return
        explanation = self._view.nodes.explanation(wait.lack, time.time())
        if explanation.fit:
            return  # it is about to be given devices
        reasons = {why.value: count for why, count in explanation.reasons.items()}
        for text, count in explanation.kept_out.items():
            reasons[text] = reasons.get(text, 0) + count
        if explanation.apart:
            reasons[TOGETHER] = explanation.apart
        if not reasons:  # what it shares with others is on no node of the driver's
            self._messages.claim_waits(wait.pod, wait.why)
            return
        self._messages.no_fit(
            wait.pod, reasons, lambda: (explanation, Outstanding()), claim=wait.claim
        )
