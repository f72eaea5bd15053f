"""Keeping autoscalers from nodes whose pods would have no device elsewhere.

They count a node's sum of memory, and would take a node away although no device of another one has
room for its pods. Once a minute the books are asked which nodes could go, all at once
(explain/autoscalers.py). The others are annotated: for cluster-autoscaler, for Karpenter, and with
our own word of why, which says too what we wrote. What somebody else wrote is never touched: each
write holds for the Node as the watch has shown it. What is annotated is known from the watch alone,
so a write whose outcome is unknown is simply looked at again, and what an earlier process has left
is taken away, also where the guard is off.

Tested in `tests/unit/extender/follow/test_scale_down_guard.py`.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping

from gpushare.core.model import ObservedPod
from gpushare.core.policy import load_policy
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiError, ApiNotFound
from gpushare.explain.autoscalers import Books, must_stay
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.write_right import WriteRight
from gpushare.extender.managed_resources import ManagedResources
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.scale_down import KEYS, OURS, TRUE, Mark, written

log = logging.getLogger("gpushare.scaledown")

EVERY = 60.0
AGAIN = 5.0
"""Seconds until the next round if this one could not do all: not ready, or a write failed."""

_TIMEOUT = 5.0
_SLICE = 0.005
"""Seconds of judging after which others have their turn."""
_REST = 49.0
"""How much longer than that they have it: judging takes 2 % of the time at most."""


class ScaleDownGuard(LoopPart):
    """Annotates nodes: `round` once, a started guard again and again.

    marks: of nodes, by name. running: pods on nodes by uid, with what they demand of nodes, since
    the books know that of those that wait alone; None switches the guard off: what is left of ours
    is taken away. claims: if they are served. not_ready: why not to act now (books not filled,
    another process leads), or "".
    """

    def __init__(
        self,
        api: Calls,
        resources: ManagedResources,
        marks: Shown[Mark],
        running: Shown[ObservedPod] | None,
        *,
        claims: ClaimsView | None = None,
        not_ready: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        event: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        self._api = api
        self._resources = resources
        self._marks = marks
        self._running = running
        self._claims = claims
        self._not_ready = not_ready
        self._clock = clock
        self._policy = load_policy(FALLBACK_POLICY)
        self._judged: tuple[object, Mapping[str, str]] = None, {}
        self._sent: dict[str, str] = {}
        self._failed_writes = 0
        self._right = WriteRight(clock)
        self._resumed = 0.0
        self.loop = Loop(
            "scale-down",
            lambda: EVERY if self.round() else AGAIN,
            AGAIN,
            log=log,
            failed="scale-down failed",
            event=event,
        )

    def state(self) -> dict[str, float]:
        """Return the values for metrics; none while the guard is off."""
        if self._running is None:
            return {}
        guarded = sum(1 for mark in self._marks.all().values() if mark.by_extender)
        return {
            "scale_down_kept_nodes": guarded,
            "scale_down_failed_writes_total": self._failed_writes,
        }

    def round(self) -> bool:
        """Write what differs from what should be; return whether nothing is left to be done."""
        if self._not_ready():
            return False
        if self._right.missing:
            return True
        marks = self._marks.all()
        why = {} if self._running is None else self._must_stay(marks, self._running)
        self._sent = {name: sent for name, sent in self._sent.items() if name in marks}
        done = True
        for name, mark in sorted(marks.items()):
            changes = _changes(mark, why.get(name))
            # What was written is there, only not shown yet.
            if not changes or self._sent.get(name) == mark.version or self._right.rests(name):
                continue
            if self._not_ready():  # judging and writing take a while
                return False
            done &= self._write(name, mark, changes, why.get(name))
            if self._right.missing:
                return True
        return done

    def _must_stay(
        self, marks: Mapping[str, Mark], running: Shown[ObservedPod]
    ) -> Mapping[str, str]:
        """Return why nodes must stay, by name; as last time if nothing has changed since."""
        staying = frozenset(name for name, mark in marks.items() if mark.by_others)
        ledgers = [managed.ledger for managed in self._resources]
        ledgers += [self._claims.books.ledger] if self._claims is not None else []
        versions = tuple(ledger.version() for ledger in ledgers)
        state = versions, self._resources.node_states.version, staying
        if self._judged[0] != state:
            pods = running.all()
            books = [
                Books.of_pods(managed.ledger.view(), managed.filters, pods)
                for managed in self._resources
            ]
            if self._claims is not None:
                view, claims = self._claims.books.ledger.view(), self._claims
                own, reserved = claims.source.filters, claims.reserved()
                books.append(Books.of_claims(view, own, pods, reserved))
            last = frozenset(name for name, mark in marks.items() if mark.by_extender)
            self._resumed = self._clock()
            reasons = must_stay(books, self._policy, staying=staying, last=last, pause=self._rest)
            self._judged = state, reasons
        return self._judged[1]

    def _rest(self) -> None:
        """Leave the interpreter to the verbs once a slice is used up."""
        spent = self._clock() - self._resumed
        if spent >= _SLICE:
            self.loop.rest(spent * _REST)
            self._resumed = self._clock()

    def _write(
        self, name: str, mark: Mark, changes: Mapping[str, str | None], why: str | None
    ) -> bool:
        """Write on the node if it is as it was shown, and return whether that went well."""
        metadata = {"resourceVersion": mark.version, "annotations": changes}
        try:
            self._api.request(
                "PATCH",
                f"/api/v1/nodes/{name}",
                body=json.dumps({"metadata": metadata}).encode(),
                content_type="application/merge-patch+json",
                timeout=_TIMEOUT,
            )
        except ApiNotFound:
            return True
        except ApiError as error:
            self._failed_writes += 1
            self._right.failed(error, name)
            log.warning(Line("scale-down not told on a node", node=name, error=str(error)))
            return False
        self._sent[name] = mark.version
        self._right.taken(name)
        text = "scale-down allowed" if why is None else "scale-down disabled"
        log.info(Line(text, node=name, why=why or "-"))
        return True


def _changes(mark: Mark, why: str | None) -> Mapping[str, str | None]:
    """Return the annotations to change, None for those to take away.

    why: the node must stay; None: it may go.
    """
    keys = frozenset[str]() if why is None else mark.by_extender | (KEYS - mark.present)
    if why is None or not keys:
        gone = dict[str, str | None].fromkeys(mark.by_extender)
        return gone if mark.reason is None else gone | {OURS: None}
    if mark.by_extender == keys and mark.reason == why:
        return {}
    return dict.fromkeys(keys, TRUE) | {OURS: written(why, keys)}
