"""The present state of the cards: polls the source, with the errors that the driver reports.

A card keeps index, ids and size while this process lives; an unreadable card gets ids and size by
the first good read. A missing card, or one with a problem, is unhealthy until the card is well.
Pods on an unhealthy card stay there.

A step machine diagnoses a card from all reads and reports. It knows NVIDIA's catalogue of Xid
errors and NVML's recovery actions
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html and
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html).
Time alone heals passing errors only. The table for operators is in docs/device-plugin.md.

Tested in `tests/unit/device_plugin/test_health.py` and
`tests/unit/device_plugin/test_diagnosis.py`.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from gpushare.daemon.loop import Loop
from gpushare.device_plugin.cards import DetectedGpu, Fault, NodeCards, Problem, make_cards
from gpushare.device_plugin.devices import GpuSource
from gpushare.errors import SettingsError
from gpushare.logline import Line

log = logging.getLogger("gpushare.health")

POLL_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""After so long without an answer of the source all cards count as unhealthy."""

DEAD_SECONDS = 300.0
"""After these seconds without a usable answer about any card, `/livez` fails. The restarted
container gets the device files and the driver library that are on the node then."""

_XID_WAIT = 2.0
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0

OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that a program causes and that leave the card well; also those that NVIDIA's device
plug-in ignores. 109 needs a reset at times: from R570 on the card's recovery action says when.
"""

NOTICE = 154
"""The card's recovery action has changed: no error of its own."""

PASSING = frozenset(
    {8, 11, 25, 32, 37, 38, 39, 40, 41, 44, 60, 63, 66, 67, 69, 70, 71, 72, 75, 76, 77, 80}
    | {82, 83, 84, 85, 86, 88, 89, 92, 93, 94, *range(96, 109), 121, *range(126, 136), 137, 139}
    | {141, 152, 153, 157, 160, 161}
)
"""Xid errors with the immediate action RESTART_APP or IGNORE in the catalogue: a new program may
use the card. The card rests for a while all the same, as some of these come before worse errors."""

RESET_ALWAYS = frozenset({46, 54, 79, 119, 140, 143, 151, 158})
"""Xid errors that need a reset, a reboot or hands without a recovery action of the card; and 79,
after which the card cannot answer. For all others the recovery action decides, if the driver has
one (R565); else they need a reset."""

_ACTIONS = {
    1: "needs a reset",
    2: "needs a reboot of the node",
    3: "needs its programs on other GPUs' memory (P2P) to end",
    4: "needs to be drained and reset",
    5: "needs its IMEX domain to be recovered",
    6: "needs a reset of its PCIe bus",
    7: "needs a reboot of the system",
}
_RESETS = frozenset({1, 2, 4, 6, 7})


@dataclass(slots=True, eq=False)
class Diagnosis:
    """One card."""

    recover: float
    """Seconds without a further Xid error after which a passing one is over."""
    _xid: int = 0
    _at: float = 0.0
    _away: bool = False
    _needs: int = 0
    _failed: bool = False
    _loads: int = 0

    def on_xid(self, xid: int, now: float) -> None:
        """Take note of an error that the driver has reported."""
        if xid in OF_PROGRAMS or xid == NOTICE:
            return
        if not self._xid or _rank(xid) >= _rank(self._xid):
            self._xid = xid
        self._at = now

    def on_read(self, gpu: DetectedGpu | None, now: float) -> Problem | None:
        """Return the problem after a read. gpu: None if the GPU is missing from NVML's list."""
        if gpu is None:
            self._away = True
            return Problem(Fault.GONE, "is not there any more")
        if gpu.problem and gpu.problem.fault in (Fault.LOST, Fault.RECOVERY):
            self._away = True
            return gpu.problem
        if not gpu.problem:
            self._listen(gpu)
        if self._needs:
            text = _ACTIONS.get(self._needs, f"needs recovery action {self._needs}")
            return Problem(Fault.RECOVERY, f"{text}, as NVML says")
        if gpu.problem:
            return gpu.problem
        if self._failed:
            text = "a row of its memory could not be replaced by a spare one"
            return Problem(Fault.REMAP, text)
        return self._of_xid(gpu, now)

    def _listen(self, gpu: DetectedGpu) -> None:
        """Take the state of a readable card; values that the card does not tell stay as before."""
        # Without a reset a lost card does not come back; loading the driver resets the card.
        back = self._away or gpu.loads != self._loads
        if back or (self._needs in _RESETS and gpu.recovery == 0):
            self._xid = 0
        if back and gpu.recovery is None:
            self._needs = 0
        self._away, self._loads = False, gpu.loads
        if gpu.recovery is not None:
            self._needs = gpu.recovery
        if gpu.remap_failed is not None:
            self._failed = gpu.remap_failed

    def _of_xid(self, gpu: DetectedGpu, now: float) -> Problem | None:
        if not self._xid:
            return None
        silent = gpu.recovery is None
        if self._xid in RESET_ALWAYS or (
            silent and (self._xid not in PASSING or gpu.remap_pending)
        ):
            text = f"the driver reported Xid {self._xid}, and only a reset heals that"
            return Problem(Fault.XID, text)
        if now < self._at + self.recover:
            return Problem(Fault.XID, f"the driver reported Xid {self._xid}")
        self._xid = 0
        return None


def _rank(xid: int) -> int:
    """Return the severity: the worst of several errors counts."""
    return 2 if xid in RESET_ALWAYS else 0 if xid in PASSING else 1


@dataclass(eq=False)
class Health:
    """The cards. recover: seconds without a further Xid error after which a card is healthy again,
    if that error passes by itself.

    on_change: called after each change, with the cards before and after.
    """

    source: GpuSource
    unit: str
    reserve_mib: int | None
    _: KW_ONLY
    recover: float
    on_change: Callable[[NodeCards, NodeCards], None] = lambda before, after: None
    clock: Callable[[], float] = time.monotonic
    poll: float = POLL_SECONDS

    def __post_init__(self) -> None:
        """Read the cards a first time. Raises SettingsError."""
        self._last: Sequence[DetectedGpu] = tuple(self.source.read())
        self._first = [replace(gpu, problem=None) for gpu in self._last]
        self._diagnoses = [Diagnosis(self.recover) for _ in self._first]
        self._cards = self._judged()
        self._version = 0
        self._news = threading.Condition()
        self._judging = threading.Lock()
        self._read_at = self._answered_at = self.clock()
        self._read_before = {gpu.uuid for gpu in self._last if not _is_unreadable(gpu)}
        """Uuids of the cards that this process could read."""
        self._watched_before: set[str] = set()
        """Uuids of the cards with errors that this process could wait for."""
        self._failure = ""
        self._watch_failure = ""
        self._watch_failures = 0
        self._waits_since = math.inf
        self._unwatched: Mapping[str, str] = {}
        failed = "devices not looked at; tried again"
        self._reads = Loop("devices", self.refresh, self.poll, log=log, failed=failed)
        # Each in another thread: the first two may hang in the driver.
        self._loops = (
            self._reads,
            Loop("xids", self.watch, _FIRST_PAUSE, log=log, failed=failed, at_once=True),
            Loop("device silence", self.check_silence, self.poll, log=log, failed=failed),
        )
        self._report(None, self._cards)

    def cards(self) -> NodeCards:
        """Return the present cards."""
        return self._cards

    def now(self) -> tuple[NodeCards, int]:
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
        """Read from now on."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """End the threads that do not hang."""
        for loop in self._loops:
            loop.stop()
        self.wake()

    def live(self) -> str:
        """Return why this process is to be started anew, or "".

        A new process can help if the driver does not answer, or if no card that this process could
        read can be read any more. A new process does not help if NVML has never told a card's
        memory.
        """
        silent = self.clock() - self._answered_at
        if silent <= DEAD_SECONDS:
            return ""
        return f"nothing is told of any GPU for {silent / 60:.0f} min: {self._why()}"

    def ready(self) -> str:
        """Return why facts of the cards are missing, or "".

        A card without errors to wait for since the start, as in a vGPU guest, is no reason.
        """
        silent = self.clock() - self._read_at
        if silent > SILENCE_SECONDS:
            return f"the GPUs are not read for {silent:.0f} s: {self._why()}"
        if self.clock() > self._waits_since + SILENCE_SECONDS:
            return "errors of GPUs are not seen: the driver does not answer"
        if self._watch_failure:
            return self._watch_failure
        unwatched = self.unwatched()
        return "; ".join(
            f"errors of {card.uuid} are not seen: {unwatched[card.uuid]}"
            for card in self._cards.all
            if card.healthy and card.uuid in unwatched and card.uuid in self._watched_before
        )

    def unwatched(self) -> Mapping[str, str]:
        """Return why errors of cards are not seen, by uuid; cards with errors seen are left out."""
        if self._watch_failure:
            return dict.fromkeys((card.uuid for card in self._cards.all), self._watch_failure)
        return self._unwatched

    def refresh(self) -> None:
        """Read the cards once; called by one thread."""
        try:
            gpus = tuple(self.source.read())
        except SettingsError as error:
            if str(error) != self._failure:
                log.warning(Line("devices not read", error=error))
            self._failure = str(error)
            return
        self._failure = ""
        self._read_at = self.clock()
        unreadable = [gpu for gpu in gpus if _is_unreadable(gpu)]
        self._read_before |= {gpu.uuid for gpu in gpus if not _is_unreadable(gpu)}
        never_read = [gpu for gpu in unreadable if gpu.uuid and gpu.uuid not in self._read_before]
        if len(unreadable) < len(gpus) or never_read:
            self._answered_at = self._read_at
        with self._judging:
            self._last = gpus
            self._take(self._judged())

    def on_xid(self, uuid: str, xid: int) -> None:
        """Record an Xid error, and have the cards read again unless a program caused the error."""
        if xid in OF_PROGRAMS:
            log.info(Line("xid of a program, the card stays as it is", uuid=uuid, xid=xid))
            return
        log.warning(Line("xid", uuid=uuid, xid=xid))
        with self._judging:
            for first, diagnosis in zip(self._first, self._diagnoses, strict=True):
                if uuid in (first.uuid, first.parent):
                    diagnosis.on_xid(xid, self.clock())
            if not self._is_silent():  # else the last read says nothing of the other cards
                self._take(self._judged())
        self._reads.wake()

    def watch(self, seconds: float = _XID_WAIT) -> float:
        """Wait for errors of the cards for these seconds; return the seconds to pause."""
        self._waits_since = self.clock()
        try:
            errors = self.source.xids(seconds)
        except SettingsError as error:
            if str(error) != self._watch_failure:
                log.warning(Line("errors of GPUs are not seen; tried again", error=error))
            self._watch_failure = str(error)
            self._watch_failures += 1
            return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._watch_failures, 16))
        finally:
            self._waits_since = math.inf
        if self._watch_failure:
            log.info("errors of GPUs are seen again")
        self._watch_failure, self._watch_failures = "", 0
        failing = dict(self.source.unwatched)
        for first in self._first:  # the errors of a MIG instance are those of its GPU
            if first.parent in failing:
                failing[first.uuid] = failing[first.parent]
        before, self._unwatched = self._unwatched, failing
        for uuid, reason in self._unwatched.items():
            if uuid not in before:
                log.warning(
                    Line("errors of a GPU are not seen; tried again", uuid=uuid, why=reason)
                )
        self._watched_before |= {card.uuid for card in self._cards.all} - self._unwatched.keys()
        for uuid in before.keys() - self._unwatched.keys():
            log.info(Line("errors of a GPU are seen again", uuid=uuid))
        for uuid, xid in errors:
            self.on_xid(uuid, xid)
        return 0.1

    def check_silence(self) -> None:
        """Mark all cards unhealthy if the source does not answer: the driver hangs, or is away."""
        with self._judging:
            if self._is_silent():
                text = f"the driver has not answered for {SILENCE_SECONDS:.0f} s"
                problem = Problem(Fault.NO_ANSWER, text)
                cards = tuple(replace(card, problem=problem) for card in self._cards.all)
                self._take(replace(self._cards, all=cards))

    def _is_silent(self) -> bool:
        return self.clock() > self._read_at + SILENCE_SECONDS

    def _why(self) -> str:
        problems = {str(gpu.problem) for gpu in self._last if gpu.problem}
        return self._failure or "; ".join(sorted(problems)) or "the driver does not answer"

    def _judged(self) -> NodeCards:
        """Return the cards by the last read. Raises SettingsError at the first read alone."""
        now = self.clock()
        by_uuid = {gpu.uuid: gpu for gpu in self._last if gpu.uuid}
        nameless = {gpu.index: gpu for gpu in self._last if not gpu.uuid}
        problems = []
        for place, diagnosis in enumerate(self._diagnoses):
            grown = self._completed(place, by_uuid)
            first = self._first[place]
            current = by_uuid.get(first.uuid) or nameless.get(first.index)
            if current is None and nameless:
                text = "NVML does not tell the uuid of a GPU, which may be this one"
                current = replace(first, problem=Problem(Fault.UNREADABLE, text))
            problem = diagnosis.on_read(current, now)
            if current is None and any(gpu.parent == first.uuid for gpu in self._last):
                problem = Problem(Fault.MIG, "is in MIG mode since the plug-in has started")
            if current and not problem and current.memory_mib < first.memory_mib:
                text = f"has {current.memory_mib} MiB and had {first.memory_mib}"
                problem = Problem(Fault.SIZE, text)
            if not (problem or grown):
                text = "with its units the list of devices would be too long for the kubelet"
                problem = Problem(Fault.SIZE, text)
            problems.append(problem)
        uncounted = sorted(by_uuid.keys() - {first.uuid for first in self._first})
        gpus = [
            replace(gpu, problem=problem)
            for gpu, problem in zip(_named(self._first), problems, strict=True)
        ]
        return make_cards(gpus, self.unit, self.reserve_mib, uncounted)

    def _completed(self, place: int, by_uuid: Mapping[str, DetectedGpu]) -> bool:
        """Fill in the uuid and the size of a card that could not be read before.

        Return whether the kubelet takes a list with the new units.
        """
        first = self._first[place]
        if first.uuid and first.memory_mib:
            return True
        current = by_uuid.get(first.uuid)
        if not first.uuid:
            known_uuids = {gpu.uuid for gpu in self._first}
            new = (gpu for gpu in by_uuid.values() if gpu.uuid not in known_uuids)
            current = next((gpu for gpu in new if gpu.index == first.index), None)
        if current:
            grown = [*self._first]
            grown[place] = replace(current, index=first.index, problem=None)
            try:
                make_cards(_named(grown), self.unit, self.reserve_mib)
            except SettingsError:
                return False
            self._first = grown
        return True

    def _take(self, cards: NodeCards) -> None:
        with self._news:
            before = self._cards
            if cards == before:
                return
            self._cards = cards
            self._version += 1
            self._news.notify_all()
        self._report(before, cards)
        self.on_change(before, cards)

    def _report(self, before: NodeCards | None, after: NodeCards) -> None:
        """Log what has changed."""
        problems_before = {card.uuid: card.problem for card in before.all} if before else {}
        for card in after.all:
            if card.problem != problems_before.get(card.uuid):
                if card.problem:
                    problem = card.problem
                    log.warning(
                        Line("GPU unhealthy", uuid=card.uuid, index=card.index, problem=problem)
                    )
                else:
                    log.info(Line("GPU healthy", uuid=card.uuid, index=card.index))
        new = set(after.uncounted) - set(before.uncounted if before else ())
        if new:
            uuids = ", ".join(sorted(new))
            log.warning(Line("new GPUs count after a restart of the plug-in", uuids=uuids))


def _is_unreadable(gpu: DetectedGpu) -> bool:
    return gpu.problem is not None and gpu.problem.fault is Fault.UNREADABLE


def _named(gpus: Sequence[DetectedGpu]) -> Sequence[DetectedGpu]:
    """Return the GPUs; one without a uuid gets a name by index."""
    return [replace(gpu, uuid=gpu.uuid or f"lost-{gpu.index}") for gpu in gpus]
