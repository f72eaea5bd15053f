"""Stories of a node's GPUs: lost, unreadable or hurt, the driver away, and all back again.

The real judgement of cards (device_plugin/health.py) reads a driver that is played, in virtual
time, by the steps of the monitor's three threads. The story knows the true state of each GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.device_plugin.cards import DetectedGpu, Fault, Problem
from gpushare.device_plugin.health import DEAD_SECONDS, POLL_SECONDS, SILENCE_SECONDS, Health
from gpushare.errors import SettingsError
from tests.simulation.chance import Chance, Weighted
from tests.simulation.oracle import Violation

RECOVER = 300.0
_PASSES, _NEEDS_RESET, _OF_PROGRAM = 94, 79, 31
_LOST = Problem(Fault.LOST, "is lost")
_UNREADABLE = Problem(Fault.UNREADABLE, "cannot be read")


@dataclass
class Gpu:
    """The true state of a GPU. gone: NVML does not list the GPU. hurt: only a reset heals it.
    rests: until when, after an error that passes.
    """

    detected: DetectedGpu
    is_gone: bool = False
    lost: bool = False
    unreadable: bool = False
    hurt: bool = False
    rests: float = 0.0

    @property
    def blur(self) -> Problem | None:
        return _UNREADABLE if self.unreadable else None

    def well(self, now: float) -> bool:
        faults = self.is_gone, self.lost, self.unreadable, self.hurt
        return not any(faults) and now >= self.rests

    def reset(self) -> None:
        """Come back as new."""
        self.is_gone = self.lost = self.unreadable = self.hurt = False
        self.rests = 0.0


@dataclass
class GpuStory:
    """A node with three GPUs, and the driver in between.

    away: since when the driver answers nothing. deaf: waiting for errors fails. errors: those that
    nobody was told of yet.
    """

    now: float = 1000.0
    away: float | None = None
    deaf: bool = False
    errors: list[tuple[str, int]] = field(default_factory=list)
    failing: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = enumerate((16384, 8192, 16384))
        self.gpus = [Gpu(DetectedGpu(f"GPU-{n}", n, size, "T4")) for n, size in sizes]
        self.health = Health(self, "GiB", 0, recover=RECOVER, clock=lambda: self.now)
        self._first = [(c.uuid, c.index, c.unit_count) for c in self.health.cards().all]

    # -- the driver -------------------------------------------------------------------------------

    @property
    def unwatched(self) -> Mapping[str, str]:
        return self.failing

    def read(self) -> Sequence[DetectedGpu]:
        if self.away is not None:
            raise SettingsError("the driver does not answer")
        return [
            replace(gpu.detected, problem=_LOST if gpu.lost else gpu.blur)
            for gpu in self.gpus
            if not gpu.is_gone
        ]

    def xids(self, seconds: float) -> Sequence[tuple[str, int]]:
        assert seconds >= 0
        if self.away is not None or self.deaf:
            raise SettingsError("errors of GPUs are not told")
        healthy_errors = [error for error in self.errors if error[0] not in self.failing]
        self.errors = [error for error in self.errors if error[0] in self.failing]
        return healthy_errors

    # -- events ---------------------------------------------------------------------------------

    def step(self, chance: Chance) -> None:
        """One step, the seconds after it, and the checks."""
        step_name = _STEPS.draw(chance)
        self.counts[step_name] = self.counts.get(step_name, 0) + 1
        getattr(self, f"_{step_name}")(chance.pick(self.gpus))
        self.pass_time(chance.pick((POLL_SECONDS, 20.0, 2 * SILENCE_SECONDS, 2 * RECOVER)))

    def pass_time(self, seconds: float) -> None:
        """Let the threads work for these seconds."""
        until = self.now + seconds
        while self.now < until:
            self.now += POLL_SECONDS
            self.health.watch()
            self.health.refresh()
            self.health.check_silence()
            self.judge()

    def mend(self) -> None:
        """The node starts anew: whatever was wrong is over."""
        self._back(self.gpus[0])
        self.deaf, self.failing = False, {}
        for gpu in self.gpus:
            self._lose(gpu)
        self.pass_time(POLL_SECONDS)
        self.errors.clear()
        for gpu in self.gpus:
            gpu.reset()
        self.pass_time(2 * POLL_SECONDS)

    def _lose(self, gpu: Gpu) -> None:
        gpu.lost = True

    def _remove(self, gpu: Gpu) -> None:
        gpu.is_gone = True

    def _blur(self, gpu: Gpu) -> None:
        gpu.unreadable = True

    def _clear(self, gpu: Gpu) -> None:
        gpu.unreadable = False

    def _return(self, gpu: Gpu) -> None:
        """A GPU that was lost or gone comes back only by a reset, which somebody has to see."""
        if (gpu.lost or gpu.is_gone) and self.away is None:
            gpu.reset()
            self.errors = [error for error in self.errors if error[0] != gpu.detected.uuid]

    def _program(self, gpu: Gpu) -> None:
        self._report(gpu, _OF_PROGRAM)

    def _rest(self, gpu: Gpu) -> None:
        if self._report(gpu, _PASSES):
            gpu.rests = self.now + POLL_SECONDS + RECOVER

    def _hurt(self, gpu: Gpu) -> None:
        gpu.hurt = self._report(gpu, _NEEDS_RESET) or gpu.hurt

    def _report(self, gpu: Gpu, xid: int) -> bool:
        """Have the driver report an error, unless nobody listens; return whether it does."""
        if self.away is not None or self.deaf or gpu.lost or gpu.is_gone:
            return False
        if gpu.detected.uuid in self.failing:
            return False
        self.errors.append((gpu.detected.uuid, xid))
        return True

    def _leave(self, gpu: Gpu) -> None:
        self.away = self.now if self.away is None else self.away

    def _back(self, gpu: Gpu) -> None:
        self.away = None

    def _deafen(self, gpu: Gpu) -> None:
        self.deaf = True

    def _hear(self, gpu: Gpu) -> None:
        self.deaf, self.failing = False, {}

    def _unwatch(self, gpu: Gpu) -> None:
        self.failing = {gpu.detected.uuid: "GPU is lost"}

    # -- the judge --------------------------------------------------------------------------------

    def judge(self) -> None:
        cards = self.health.cards().all
        if [(card.uuid, card.index, card.unit_count) for card in cards] != self._first:
            raise Violation(f"G1 the cards are others: {cards}")
        if self.away is None:
            for gpu, card in zip(self.gpus, cards, strict=True):
                if card.healthy != gpu.well(self.now):
                    raise Violation(f"G2 {gpu} is {card.problem or 'healthy'} at {self.now}")
        silent = 0.0 if self.away is None else self.now - self.away
        if silent > SILENCE_SECONDS + POLL_SECONDS and any(card.healthy for card in cards):
            raise Violation(f"G3 a card is healthy after {silent} s without an answer")
        if self.health.live() and not self._nothing_told():
            raise Violation(f"G4 it is to be started anew: {self.health.live()}")
        if silent > DEAD_SECONDS + POLL_SECONDS and not self.health.live():
            raise Violation(f"G5 it goes on after {silent} s without an answer")
        if self.deaf and not self.health.ready():
            raise Violation("G6 errors are not seen, and it is ready")

    def judge_end(self) -> None:
        """After all is mended nothing is wrong any more."""
        self.mend()
        if reason := self.health.ready() or self.health.live():
            raise Violation(f"G7 {reason}")

    def _nothing_told(self) -> bool:
        return self.away is not None or all(gpu.unreadable or gpu.is_gone for gpu in self.gpus)


_STEPS = Weighted(
    {
        "lose": 4,
        "return": 10,
        "remove": 2,
        "blur": 4,
        "clear": 8,
        "program": 2,
        "rest": 4,
        "hurt": 4,
        "leave": 3,
        "back": 8,
        "deafen": 3,
        "hear": 6,
        "unwatch": 3,
    }
)
