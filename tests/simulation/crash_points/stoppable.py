"""`python -m tests.simulation.crash_points.stoppable POINT SIGNAL serve FLAG...`: the real program,
and the first bind sends that signal to the whole process group at the point.

Knows where the points are and how gpushare is started; everything else is the program itself.
"""

import mmap
import os
import signal
import sys
import threading

from gpushare.cli.main import main
from tests.simulation.crash_points.points import Point, passing

_stopped = mmap.mmap(-1, 1)
"""One byte that all processes of the group share: a worker that takes another's place goes on."""


def _stop() -> None:
    if not _stopped[0]:
        _stopped[0] = 1
        os.killpg(0, signal.Signals[sys.argv[2]])
        # Another thread may be the first that the signal reaches: this one must not go on.
        threading.Event().wait(0.5)


if __name__ == "__main__":
    with passing(Point[sys.argv[1]], _stop):
        sys.exit(main(sys.argv[3:]))
