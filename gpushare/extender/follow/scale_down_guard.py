"""Keeps autoscalers from a node if the pods of the node would fit on no other device.

Autoscalers count the sum of the memory of a node, and would remove a node although no device of
another node has room. Once a minute the guard computes from the books the nodes that could go
(explain/autoscalers.py). The guard annotates the others for cluster-autoscaler and for Karpenter; a
third annotation has the reason and the keys that the guard wrote. The guard never changes foreign
annotations: each write has the resourceVersion that the watch has shown. The guard knows the
annotations from the watch alone, so a write with unknown outcome needs no care, and the guard also
removes the annotations of an earlier process, even if the guard is off.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from gpushare.core.model import ObservedPod
from gpushare.core.policy import load_policy
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiError, ApiNotFound
from gpushare.explain.autoscalers import Books, must_stay
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.write_right import WriteRight
from gpushare.extender.managed_resources import ManagedResources
from gpushare.kube.api import Calls, merge_patch
from gpushare.logline import Line
from gpushare.wire.scale_down import KEYS, OURS, TRUE, Mark, written

log = logging.getLogger("gpushare.scaledown")

EVERY = 60.0
AGAIN = 5.0
"""Seconds until the next round if this one could not do all: not ready, or a write failed."""

_TIMEOUT = 5.0
_SLICE = 0.005
"""Seconds of judging until the guard rests."""
_REST = 49.0
"""A rest is this many times as long as the judging before it: judging takes 2 % of the time."""


@dataclass(eq=False)
class ScaleDownGuard(LoopPart):
    """Annotates nodes: `round` once, a started guard again and again.

    marks: of nodes, by name. running: pods on nodes by uid, with their demands on nodes, since the
    books have the demands of pending pods only; None switches the guard off: then the guard removes
    its annotations. not_ready: why not to act (books not filled, another process leads), or "".
    """

    api: Calls
    resources: ManagedResources
    marks: Shown[Mark]
    running: Shown[ObservedPod] | None
    _: KW_ONLY
    not_ready: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    event: Callable[[], threading.Event] = threading.Event

    def __post_init__(self) -> None:
        self._policy = load_policy(FALLBACK_POLICY)
        self._judged: tuple[object, Mapping[str, str]] = None, {}
        self._sent: dict[str, str] = {}
        self._failed_writes = 0
        self._right = WriteRight(self.clock)
        self._resumed = 0.0
        self.loop = Loop(
            "scale-down",
            lambda: EVERY if self.round() else AGAIN,
            AGAIN,
            log=log,
            failed="scale-down failed",
            event=self.event,
        )

    def state(self) -> dict[str, float]:
        """Return the values for metrics; none while the guard is off."""
        if self.running is None:
            return {}
        guarded = sum(1 for mark in self.marks.all().values() if mark.by_extender)
        return {
            "scale_down_kept_nodes": guarded,
            "scale_down_failed_writes_total": self._failed_writes,
        }

    def round(self) -> bool:
        """Write the annotations that differ; return whether all writes are done."""
        if self.not_ready():
            return False
        if self._right.missing:
            return True
        marks = self.marks.all()
        reasons = {} if self.running is None else self._must_stay(marks, self.running)
        self._sent = {name: sent for name, sent in self._sent.items() if name in marks}
        is_complete = True
        for name, mark in sorted(marks.items()):
            changes = _changes(mark, reasons.get(name))
            # The last write succeeded, and the watch has not shown it yet.
            if not changes or self._sent.get(name) == mark.version or self._right.rests(name):
                continue
            if self.not_ready():  # judging and writing take a while
                return False
            is_complete &= self._write(name, mark, changes, reasons.get(name))
            if self._right.missing:
                return True
        return is_complete

    def _must_stay(
        self, marks: Mapping[str, Mark], running: Shown[ObservedPod]
    ) -> Mapping[str, str]:
        """Return why nodes must stay, by name; as last time if nothing has changed since."""
        staying = frozenset(name for name, mark in marks.items() if mark.by_others)
        versions = tuple(resource.ledger.version() for resource in self.resources)
        state = versions, self.resources.node_states.version, staying
        if self._judged[0] != state:
            pods = running.all()
            books = [
                Books.of_pods(resource.ledger.view(), resource.filters, pods)
                for resource in self.resources
            ]
            last = frozenset(name for name, mark in marks.items() if mark.by_extender)
            self._resumed = self.clock()
            reasons = must_stay(books, self._policy, staying=staying, last=last, pause=self._rest)
            self._judged = state, reasons
        return self._judged[1]

    def _rest(self) -> None:
        """Leave the interpreter to the verbs once a slice is used up."""
        spent = self.clock() - self._resumed
        if spent >= _SLICE:
            self.loop.rest(spent * _REST)
            self._resumed = self.clock()

    def _write(
        self, name: str, mark: Mark, changes: Mapping[str, str | None], reason: str | None
    ) -> bool:
        """Annotate the node at its watched resourceVersion; return whether that worked."""
        metadata = {"resourceVersion": mark.version, "annotations": changes}
        body = json.dumps({"metadata": metadata}).encode()
        try:
            merge_patch(self.api, f"/api/v1/nodes/{name}", body, _TIMEOUT)
        except ApiNotFound:
            return True
        except ApiError as error:
            self._failed_writes += 1
            self._right.failed(error, name)
            log.warning(Line("scale-down not told on a node", node=name, error=str(error)))
            return False
        self._sent[name] = mark.version
        self._right.taken(name)
        text = "scale-down allowed" if reason is None else "scale-down disabled"
        log.info(Line(text, node=name, why=reason or "-"))
        return True


def _changes(mark: Mark, reason: str | None) -> Mapping[str, str | None]:
    """Return the annotations to change, with None as the value of an annotation to remove.

    reason: why the node must stay; None: the node may go.
    """
    keys = frozenset[str]() if reason is None else mark.by_extender | (KEYS - mark.present)
    if reason is None or not keys:
        removals = dict[str, str | None].fromkeys(mark.by_extender)
        return removals if mark.reason is None else removals | {OURS: None}
    if mark.by_extender == keys and mark.reason == reason:
        return {}
    return dict.fromkeys(keys, TRUE) | {OURS: written(reason, keys)}
