"""The cost of an input to the process: CPU and memory during the answer, and memory that stays.

A refused input may still do harm by its cost. CPU is the process's own, as Linux
counts it, so a busy machine changes little. Memory is the most that the process held meanwhile,
beyond the amount before. Both are read around groups of inputs, and a group that costs more than
allowed is halved and sent again, until the expensive inputs are left.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tests.badinput.attempt import Attempt

CPU = 0.05
"""Seconds of CPU that one input may cost."""
CPU_OF_MB = 0.04
"""Seconds more for each megabyte: large bodies are read, and may be well-formed."""
MEMORY = 16.0
"""Megabytes that the process may hold more while it answers one input, or a few at once."""
MEMORY_OF_MB = 20.0
"""Megabytes more for each megabyte of an input: JSON becomes values, and values the answer."""
STAYS = 1.0
"""Megabytes that one input may leave behind."""

_TICKS = 100.0
"""Linux shows times of processes in hundredths of a second (USER_HZ)."""
_TRIES = 3

Send = Callable[[Sequence[Attempt]], object]


def cpu_of(pid: str) -> float:
    """Seconds of CPU that the process has used, its ended threads too."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: str, which: str = "VmRSS") -> float:
    """Megabytes of memory that the process holds; which: now, or at most."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def megabytes(group: Sequence[Attempt]) -> float:
    """The figures that have to be read around a group."""
    return sum(len(item.payload) for item in group) / 1e6


class Gauge(Protocol):
    """Measures the cost of sending a group once."""

    unit: str
    """The unit of the figure."""

    def begin(self) -> None:
        """Take note of the state before the group is sent."""
        ...

    def cost(self) -> float:
        """The cost of the group since `begin`."""
        ...

    def allowed(self, group: Sequence[Attempt]) -> float:
        """The cost at which the inputs of a group are looked at one by one."""
        ...


class Cpu:
    """Seconds of CPU, of a process that tells its own."""

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
    """Megabytes that a process holds at most, beyond those before."""

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
    """Finds the inputs that cost more than one may, by any of its gauges."""

    def __init__(self, gauges: Sequence[Gauge], send: Send) -> None:
        self._gauges = gauges
        self._send = send
        self._before: Sequence[Attempt] = ()

    def judge(self, group: Sequence[Attempt]) -> list[tuple[Attempt, str]]:
        """Send the group; return its inputs that cost too much, and the cost of each."""
        before, self._before = self._before, group
        dear = self._dear(group)
        # The cost of a client that does not wait may have come after its group was done.
        return [
            entry
            for gauge in dear
            for item in (before, group)
            for entry in self._blamed(gauge, item)
        ]

    def _dear(self, group: Sequence[Attempt]) -> list[Gauge]:
        """Send the group; return the gauges by which it cost too much."""
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
