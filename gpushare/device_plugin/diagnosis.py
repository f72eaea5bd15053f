"""What is wrong with a card, by all that was read and reported of it: a step machine.

Knows NVIDIA's catalogue of Xid errors and NVML's recovery actions
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html and
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html).
Only what heals by itself heals by time. The table for operators is in docs/device-plugin.md.
"""

from dataclasses import dataclass

from gpushare.device_plugin.cards import DetectedGpu, Fault, Problem

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
"""Those whose immediate action in the catalogue is RESTART_APP or IGNORE: a new program may use
the card. It rests for a while all the same, as some of them come before something worse."""

RESET_ALWAYS = frozenset({46, 54, 79, 119, 140, 143, 151, 158})
"""Those that need a reset, a reboot or hands, of which the card's recovery action does not tell;
and 79, after which the card cannot tell it. Of all others the recovery action tells, if the driver
has it (R565): they need a reset unless the card says that it needs none."""

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

    def on_read(self, seen: DetectedGpu | None, now: float) -> Problem | None:
        """Return what is wrong after a read; seen: None if NVML lists all, and it is not there."""
        if seen is None:
            self._away = True
            return Problem(Fault.GONE, "is not there any more")
        if seen.problem and seen.problem.fault in (Fault.LOST, Fault.RECOVERY):
            self._away = True
            return seen.problem
        if not seen.problem:
            self._listen(seen)
        if self._needs:
            text = _ACTIONS.get(self._needs, f"needs recovery action {self._needs}")
            return Problem(Fault.RECOVERY, f"{text}, as NVML says")
        if seen.problem:
            return seen.problem
        if self._failed:
            text = "a row of its memory could not be replaced by a spare one"
            return Problem(Fault.REMAP, text)
        return self._of_xid(seen, now)

    def _listen(self, seen: DetectedGpu) -> None:
        """Take what a card that can be read says of itself; what it does not tell is as before."""
        # Without a reset a lost card does not come back; a driver that is loaded resets it.
        back = self._away or seen.loads != self._loads
        if back or (self._needs in _RESETS and seen.recovery == 0):
            self._xid = 0
        if back and seen.recovery is None:
            self._needs = 0
        self._away, self._loads = False, seen.loads
        if seen.recovery is not None:
            self._needs = seen.recovery
        if seen.remap_failed is not None:
            self._failed = seen.remap_failed

    def _of_xid(self, seen: DetectedGpu, now: float) -> Problem | None:
        if not self._xid:
            return None
        silent = seen.recovery is None
        if self._xid in RESET_ALWAYS or (
            silent and (self._xid not in PASSING or seen.remap_pending)
        ):
            text = f"the driver reported Xid {self._xid}, and only a reset heals that"
            return Problem(Fault.XID, text)
        if now < self._at + self.recover:
            return Problem(Fault.XID, f"the driver reported Xid {self._xid}")
        self._xid = 0
        return None


def _rank(xid: int) -> int:
    """Return how bad it is: the worst of several errors counts."""
    return 2 if xid in RESET_ALWAYS else 0 if xid in PASSING else 1
