"""What an input costs the process: CPU time while it is answered, and memory that stays.

An input that is refused may still do harm by what it costs. CPU is the process's own, as Linux
counts it, so a busy machine changes little; it is read around groups of inputs, and a group that
costs more than one input may is halved and sent again, until the inputs that cost so much are left.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.badinput.attempt import Attempt

CPU = 0.05
"""Seconds of CPU that one input may cost."""
CPU_OF_MB = 0.04
"""Seconds more for each megabyte of it: large bodies are read, and may be what they say."""
STAYS = 1.0
"""Megabytes that one input may leave behind."""

_TICKS = 100.0
"""Linux shows times of processes in hundredths of a second (USER_HZ)."""
_TRIES = 3

Send = Callable[[Sequence[Attempt]], object]


def cpu_of(pid: str) -> float:
    """Seconds of CPU that the process has used, its ended threads with it."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: str) -> float:
    """Megabytes of memory that the process holds."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def allowed(group: Sequence[Attempt]) -> float:
    """Seconds of CPU that a group may cost before its inputs are looked at one by one."""
    return CPU + CPU_OF_MB * sum(len(each.payload) for each in group) / 1e6


class Meter:
    """Finds the inputs that cost more CPU than one may."""

    def __init__(self, cpu: Callable[[], float], send: Send) -> None:
        self._cpu = cpu
        self._send = send
        self._before: Sequence[Attempt] = ()

    def judge(self, group: Sequence[Attempt]) -> list[tuple[Attempt, float]]:
        """Send the group; those of its inputs that cost too much, and how many seconds each."""
        before, self._before = self._before, group
        if self._cost(group) <= allowed(group):
            return []
        # Of a client that does not wait, the cost may have come after its group was done.
        return [*self._blamed(before), *self._blamed(group)]

    def _blamed(self, group: Sequence[Attempt]) -> list[tuple[Attempt, float]]:
        if not group or self._cost(group) <= allowed(group):
            return []
        if len(group) > 1:
            half = len(group) // 2
            return [*self._blamed(group[:half]), *self._blamed(group[half:])]
        least = min(self._cost(group) for _ in range(_TRIES))
        return [(group[0], least)] if least > allowed(group) else []

    def _cost(self, group: Sequence[Attempt]) -> float:
        begin = self._cpu()
        self._send(group)
        return self._cpu() - begin
