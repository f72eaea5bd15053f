"""The shadow policy on live traffic: verbs and watches fill a queue, and a thread empties it.

Nobody waits for the shadow: a full queue drops events and counts them. After a dropped change of
books the shadow copies the real books. The thread works for a tenth of the time at most. If the
policy fails, the shadow is off until the process starts again.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpushare.core.model import ObservedPod
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.shadow.follower import Asked, Counts, Follower
from gpushare.ledger import Changes
from gpushare.logline import Line

log = logging.getLogger("gpushare.shadow")

MOST = 5000
"""Events that may wait."""
MOST_SEEN = 32
"""Of these, answers of filter with a snapshot: up to 1 MB each on 5,000 nodes."""
SHARE = 0.1
"""The share of one CPU that the thread uses at most."""
_LOOK_EVERY = 0.1
_TICK_EVERY = 1.0
"""Seconds after which nodes are looked at though events wait."""
_SHORTEST_PAUSE = 0.001

_Moved = tuple[str, str, ObservedPod | None]
"""(resource, uid, pod that has come or None for a pod that has gone)."""


class Shadow(LoopPart):
    """The shadow of one process. Any thread may call `asked`, `moved` and `counts`.

    policy: the name. pause: sleeps so many seconds. cpu: returns the seconds of CPU that this
    thread has used.
    """

    def __init__(
        self,
        resources: ManagedResources,
        policy: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.policy = policy
        self.dropped = Counter(choice=0, event=0)
        self.followers = {
            resource.names.resource: Follower(resource, policy) for resource in resources
        }
        self._clock = clock
        self._cpu = cpu
        self.loop = Loop("shadow", self.work, _LOOK_EVERY, log=log, failed="shadow failed")
        self._pause = self.loop.rest if pause is None else pause
        self._filling = threading.Lock()
        self._queue: deque[Asked | _Moved] = deque()
        self._seen = 0
        self._rebase = True
        self.off = ""
        """The failure that switched the shadow off, "" while the shadow is on."""
        self._owed = 0.0
        self._ticked = float("-inf")

    @property
    def follows(self) -> bool:
        """Whether the shadow is on and has copied the books."""
        return not self.off and all(
            follower.books is not None for follower in self.followers.values()
        )

    @property
    def counts(self) -> Mapping[str, Counts]:
        """The results by resource."""
        return {name: follower.counts for name, follower in self.followers.items()}

    def asked(self, filter_answer: Asked) -> None:
        """Queue an answer of filter."""
        with self._filling:
            if filter_answer.seen is not None:
                if self._seen >= MOST_SEEN:
                    self.dropped["choice"] += 1
                    filter_answer = replace(filter_answer, seen=None)
                else:
                    self._seen += 1
            self._put(filter_answer)

    def moved(
        self, resource: ManagedResource, pod: ObservedPod | None, uid: str, changes: Changes
    ) -> None:
        """Queue a change of a pod that the watch has shown; uid "" for a whole list."""
        if not (changes.came or changes.went):
            return
        with self._filling:
            if not uid:
                self._rebase = True
            elif changes.went:
                self._put((resource.names.resource, uid, None))
            elif pod is not None and pod.request.devices:
                self._put((resource.names.resource, uid, pod))

    def _put(self, event: Asked | _Moved) -> None:
        if self.off:
            return
        if len(self._queue) >= MOST:
            self.dropped["event"] += 1
            self._rebase = True
            self._seen -= isinstance(event, Asked) and event.seen is not None
            return
        self._queue.append(event)

    def work(self) -> None:
        """Handle all queued events; a failure switches the shadow off."""
        if self.off:
            return
        try:
            more = True
            while more and not self.loop.is_stopping:
                more = self._paced(self._step)
                if not more or self._clock() >= self._ticked + _TICK_EVERY:
                    self._paced(self._tick)
        except (Exception, SystemExit) as error:  # policies are anybody's code
            with self._filling:
                self.off = f"{type(error).__name__}: {error}"
                self._queue.clear()
                self._seen = 0
            self.loop.stop()
            text = "shadow policy failed and is off; answers are not affected"
            log.warning(Line(text, policy=self.policy, error=self.off))

    def _paced(self, step: Callable[[], bool]) -> bool:
        """Do a step, and rest so that the CPU of the step is at most SHARE of the time."""
        begin = self._cpu()
        more = step()
        self._owed += (self._cpu() - begin) * (1 / SHARE - 1)
        if self._owed >= _SHORTEST_PAUSE:
            self._pause(self._owed)
            self._owed = 0.0
        return more

    def _step(self) -> bool:
        """Handle one event, or copy the books; return False if the queue is empty."""
        with self._filling:
            rebase, self._rebase = self._rebase, False
            if rebase:
                # The copy of the books contains all earlier changes of pods. A change during the
                # copy comes once more, and then changes nothing.
                filter_answers = [event for event in self._queue if isinstance(event, Asked)]
                # Half of the queue stays free.
                latest = filter_answers[-(MOST // 2) :]
                self.dropped["event"] += len(filter_answers) - len(latest)
                self._queue = deque(latest)
                self._seen = sum(event.seen is not None for event in latest)
                event = None
            else:
                event = self._queue.popleft() if self._queue else None
            if isinstance(event, Asked) and event.seen is not None:
                self._seen -= 1
        if rebase:
            for follower in self.followers.values():
                follower.rebase(self._clock())
        elif isinstance(event, Asked):
            self.followers[event.resource].asked(event, self._clock())
        elif event is not None:
            resource, uid, pod = event
            if pod is None:
                self.followers[resource].went(uid)
            else:
                self.followers[resource].came(pod)
        return rebase or event is not None

    def _tick(self) -> bool:
        self._ticked = self._clock()
        for follower in self.followers.values():
            follower.tick(self._ticked)
        return False
