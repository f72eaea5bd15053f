"""The cost of an input for the process: CPU and memory during the answer, and memory that stays.

A refused input may still do harm by its cost. CPU is counted by Linux for the process alone, so a
busy machine changes little. Memory is the peak of the process above its level before. Both are read
around groups of inputs; a group above the limit is halved and sent again, until the expensive
inputs remain.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tests.badinput.attempt import Attempt

CPU = 0.05
"""Seconds of CPU that one input may cost."""
CPU_OF_MB = 0.04
"""Additional seconds per megabyte of input, as large bodies are read in full."""
MEMORY = 16.0
"""Upper bound on additional megabytes of the process during the answers of a few inputs."""
MEMORY_OF_MB = 20.0
"""Additional megabytes per megabyte of input, for decoded JSON values and the answer."""
STAYS = 1.0
"""Megabytes that one input may leave behind."""

_TICKS = 100.0
"""Linux shows times of processes in hundredths of a second (USER_HZ)."""
_TRIES = 3

Send = Callable[[Sequence[Attempt]], object]


def cpu_of(pid: str) -> float:
    """Seconds of CPU of the process, with ended threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: str, which: str = "VmRSS") -> float:
    """Megabytes of memory that the process holds; which: now, or at most."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def megabytes(group: Sequence[Attempt]) -> float:
    """The size of a group for its limits."""
    return sum(len(item.payload) for item in group) / 1e6


class Gauge(Protocol):
    """Measures the cost of one send of a group."""

    unit: str
    """The unit of the measure."""

    def begin(self) -> None:
        """Read the level before the group is sent."""
        ...

    def cost(self) -> float:
        """The cost of the group since `begin`."""
        ...

    def allowed(self, group: Sequence[Attempt]) -> float:
        """Upper bound on the cost of a group; above it the group is halved."""
        ...


class Cpu:
    """Seconds of CPU of a process."""

    unit = "s of CPU"

    def __init__(self, used: Callable[[], float]) -> None:
        self._used = used
        self._before = 0.0

    def begin(self) -> None:
        self._before = self._used()

    def cost(self) -> float:
        return self._used() - self._before

    def allowed(self, group: Sequence[Attempt]) -> float:
        return CPU + CPU_OF_MB * megabytes(group)


class Memory:
    """Peak megabytes of a process above its level before."""

    unit = "MB of memory"

    def __init__(self, pid: str) -> None:
        self._pid = pid
        self._before = 0.0

    def begin(self) -> None:
        # Linux then begins to look for the highest anew.
        Path(f"/proc/{self._pid}/clear_refs").write_text("5", encoding="ascii")
        self._before = resident(self._pid)

    def cost(self) -> float:
        return resident(self._pid, "VmHWM") - self._before

    def allowed(self, group: Sequence[Attempt]) -> float:
        return MEMORY + MEMORY_OF_MB * megabytes(group)


class Meter:
    """Finds the inputs above the limit of any gauge."""

    def __init__(self, gauges: Sequence[Gauge], send: Send) -> None:
        self._gauges = gauges
        self._send = send
        self._before: Sequence[Attempt] = ()

    def judge(self, group: Sequence[Attempt]) -> list[tuple[Attempt, str]]:
        """Send the group; return the inputs that cost too much, with their costs."""
        before, self._before = self._before, group
        dear = self._dear(group)
        # The cost of a client that does not wait may come after the end of its group.
        return [
            result
            for gauge in dear
            for item in (before, group)
            for result in self._blamed(gauge, item)
        ]

    def _dear(self, group: Sequence[Attempt]) -> list[Gauge]:
        """Send the group; return the gauges above their limits."""
        for gauge in self._gauges:
            gauge.begin()
        self._send(group)
        return [gauge for gauge in self._gauges if gauge.cost() > gauge.allowed(group)]

    def _blamed(self, gauge: Gauge, group: Sequence[Attempt]) -> list[tuple[Attempt, str]]:
        if not group or self._cost(gauge, group) <= gauge.allowed(group):
            return []
        if len(group) > 1:
            half = len(group) // 2
            return [*self._blamed(gauge, group[:half]), *self._blamed(gauge, group[half:])]
        minimum = min(self._cost(gauge, group) for _ in range(_TRIES))
        return [(group[0], f"{minimum:.2f} {gauge.unit}")] if minimum > gauge.allowed(group) else []

    def _cost(self, gauge: Gauge, group: Sequence[Attempt]) -> float:
        gauge.begin()
        self._send(group)
        return gauge.cost()
