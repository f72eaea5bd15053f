"""The cards as they are now: read again and again, with the errors that the driver reports.

A card that was found once keeps its index, its ids and its size while this process lives; one that
is gone, or has a problem, is unhealthy until it has been well for a while. Pods on it stay there.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpushare.device_plugin.cards import Cards, DetectedGpu, make_cards
from gpushare.device_plugin.devices import APPLICATION_XIDS, Source
from gpushare.errors import SettingsError

log = logging.getLogger("gpushare.health")

POLL_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""After so long without an answer of the source all cards count as unhealthy."""

_XID_WAIT = 5.0


class Health:
    """The cards. recover: seconds without a further Xid error after which a card is healthy again.

    changed: called after each change, with the cards before and after, by the thread that reads.
    """

    def __init__(
        self,
        source: Source,
        unit: str,
        reserve_mib: int,
        *,
        recover: float,
        changed: Callable[[Cards, Cards], None] = lambda before, after: None,
        clock: Callable[[], float] = time.monotonic,
        poll: float = POLL_SECONDS,
    ) -> None:
        """Read the cards a first time. Raises SettingsError."""
        self._source = source
        self._unit = unit
        self._reserve_mib = reserve_mib
        self._recover = recover
        self._changed = changed
        self._clock = clock
        self._poll = poll
        self._first: tuple[DetectedGpu, ...] = tuple(source.read())
        self._cards = make_cards(self._first, unit, reserve_mib)
        self._version = 0
        self._news = threading.Condition()
        self._xids: dict[str, tuple[int, float]] = {}
        self._answered = clock()
        self._stopping = threading.Event()

    def cards(self) -> Cards:
        """Return the cards as they are now."""
        return self._cards

    def now(self) -> tuple[Cards, int]:
        """Return (the cards, the number of changes and of calls of `wake`)."""
        with self._news:
            return self._cards, self._version

    def wait(self, version: int, seconds: float) -> None:
        """Return when the version of `now` is another one, or the time is over."""
        with self._news:
            self._news.wait_for(lambda: self._version != version, seconds)

    def wake(self) -> None:
        """Wake all threads that wait."""
        with self._news:
            self._version += 1
            self._news.notify_all()

    def start(self) -> None:
        """Read in threads of their own: either may hang in the driver."""
        for name, run in (("devices", self._run), ("xids", self._follow_xids)):
            threading.Thread(target=run, name=name, daemon=True).start()
        threading.Thread(target=self._watch_silence, name="device silence", daemon=True).start()

    def stop(self) -> None:
        """End the threads that do not hang."""
        self._stopping.set()
        self.wake()

    def refresh(self) -> None:
        """Read the cards once."""
        try:
            found = tuple(self._source.read())
        except SettingsError as error:
            log.warning("devices not read, they stay as they were error=%s", error)
            return
        self._answered = self._clock()
        self._take(self._with_health(found))

    def on_xid(self, uuid: str, xid: int) -> None:
        """Record an Xid error, and read the cards again unless a program caused it."""
        if xid in APPLICATION_XIDS:
            log.info("xid of a program, the card stays as it is uuid=%s xid=%d", uuid, xid)
            return
        log.warning("xid uuid=%s xid=%d", uuid, xid)
        self._xids[uuid] = (xid, self._clock())
        self.refresh()

    def check_silence(self) -> None:
        """Mark all cards unhealthy if the source does not answer: the driver hangs."""
        if self._clock() > self._answered + SILENCE_SECONDS:
            why = f"the driver has not answered for {SILENCE_SECONDS:.0f} s"
            self._take([replace(gpu, problem=why) for gpu in self._first])

    def _run(self) -> None:
        while not self._stopping.wait(self._poll):
            self.refresh()

    def _follow_xids(self) -> None:
        while not self._stopping.is_set():
            try:
                for uuid, xid in self._source.xids(_XID_WAIT):
                    self.on_xid(uuid, xid)
            except SettingsError as error:
                log.warning("%s; health goes by polling alone", error)
                return
            self._stopping.wait(0.1)

    def _watch_silence(self) -> None:
        while not self._stopping.wait(self._poll):
            self.check_silence()

    def _with_health(self, found: Sequence[DetectedGpu]) -> list[DetectedGpu]:
        """Return the cards of the start, each with its problem of now."""
        now = self._clock()
        by_uuid = {gpu.uuid: gpu for gpu in found}
        gpus = []
        for first in self._first:
            seen = by_uuid.get(first.uuid)
            xid, at = self._xids.get(first.uuid, (0, now))
            if seen is None:
                problem = "is not there any more"
            elif seen.problem:
                problem = seen.problem
            elif xid and now < at + self._recover:
                problem = f"the driver reported Xid {xid}"
            elif seen.memory_mib < first.memory_mib:
                problem = f"has {seen.memory_mib} MiB and had {first.memory_mib}"
            else:
                problem = ""
            gpus.append(replace(first, problem=problem))
        new = by_uuid.keys() - {gpu.uuid for gpu in self._first}
        if new:
            log.warning("new GPUs count after a restart of the plug-in: %s", ", ".join(sorted(new)))
        return gpus

    def _take(self, gpus: Sequence[DetectedGpu]) -> None:
        cards = make_cards(gpus, self._unit, self._reserve_mib)
        with self._news:
            before = self._cards
            if cards == before:
                return
            self._cards = cards
            self._version += 1
            self._news.notify_all()
        for gpu in gpus:
            if gpu.problem:
                log.warning("GPU unhealthy uuid=%s index=%d: %s", gpu.uuid, gpu.index, gpu.problem)
        self._changed(before, cards)
