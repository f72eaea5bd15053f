"""`python -m tests.simulation.real_processes`: the crash points with real processes and signals.

Every case of tests/simulation/crash_points by SIGKILL, or SIGSTOP for 30 s, of the real `gpushare
serve` against an API server over HTTP; several cases side by side. Ends with 1 when one fails.
"""

import argparse
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tests.simulation.crash_points.points import Point
from tests.simulation.crash_points.real_stage import RealStage
from tests.simulation.crash_points.story import CASES, PAUSE, CrashCase
from tests.support.waiting import poll

_SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP}
_FATES = ("late", "soon", "never")
_LONGEST = 240.0
_NAP = 27.0
"""Seconds of sleep for a case with a successor: after 30 the master (gunicorn's timeout) would end
the worker, and the behaviour of the worker after the sleep would not be seen.
"""


def tell(case: CrashCase, fate: str, folder: Path) -> None:
    """Run the case to the end. Raises AssertionError for a broken promise."""
    with closing(RealStage(folder, case.point, _SIGNALS[case.end], fate)) as stage:
        poll(stage.victim.ready, lambda: stage.told("the first is not ready"), _LONGEST)
        if case.fault == "failover":
            second = stage.start()
            poll(lambda: second.probe("/readyz").status > 0, "the other answers", _LONGEST)
        stage.victim.knows(stage.node)
        pod = stage.cluster.pod(10, name="web")
        stage.victim.bind_later(pod, stage.node)  # nobody waits for the answer
        stage.wait_stopped()
        begin = time.monotonic()
        stage.cluster.pod(10, name="rival")
        _happens(case, stage)
        stage.begin_to_schedule()
        if case.end == "kill" and case.fault != "failover":
            stage.start()
        if case.end == "pause" or case.fault == "failover":
            _sit_out(begin + (_NAP if case.fault == "failover" else PAUSE))
        if case.fault == "failover":
            poll(lambda: bool(stage.bound()), lambda: stage.told("nobody takes over"), _LONGEST)
        if case.end == "pause":
            stage.wake()
            poll(stage.has_acted, lambda: stage.told("the sleeper does not go on"), _LONGEST)
        elif case.fault == "failover":
            stage.start()
        _comes_right(stage)


def _happens(case: CrashCase, stage: RealStage) -> None:
    if case.fault in ("delete", "recreate"):
        stage.cluster.delete_pod({"metadata": {"name": "web"}})
    if case.fault == "recreate":
        stage.cluster.pod(12, name="web")
    if case.fault == "relist":
        stage.restart_server()


def _sit_out(end: float) -> None:
    """Let the time pass."""
    poll(lambda: time.monotonic() > end, "time passes", 2 * PAUSE)


def _comes_right(stage: RealStage) -> None:
    for _ in range(2):
        poll(lambda: bool(stage.bound()) or not stage.there(), lambda: stage.told("L3"), _LONGEST)
        poll(lambda: bool(stage.ready()), lambda: stage.told("L4"), _LONGEST)
        for extender in stage.ready():
            extender.agrees(stage.cluster)
        for name in stage.bound():
            stage.cluster.delete_pod({"metadata": {"name": name}})
    assert not stage.there(), stage.told("L3 there was room, and it was not bound")
    poll(lambda: bool(stage.ready()), lambda: stage.told("L4"), _LONGEST)
    for extender in stage.ready():
        extender.agrees(stage.cluster)
        assert b'state="in_doubt"} 0' in extender.probe("/metrics").body
    assert stage.wrong == [], stage.told(str(stage.wrong))
    assert "Traceback" not in stage.told(""), stage.told("a traceback")


def _run(case: CrashCase, fate: str) -> tuple[str, str, float]:
    """(name, error, seconds)."""
    began = time.monotonic()
    name = f"{case}-{fate}" if case.point is Point.K6 else str(case)
    with tempfile.TemporaryDirectory() as folder:
        try:
            tell(case, fate, Path(folder))
        except Exception as error:  # the other cases are run despite any error
            return name, f"{type(error).__name__}: {error}", time.monotonic() - began
    return name, "", time.monotonic() - began


def main() -> int:
    """The exit code: 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=1, help="how often each case is run")
    parser.add_argument("--cases", default="", help="only those whose name has this pattern")
    parser.add_argument("--side-by-side", type=int, default=4, help="cases at one time")
    options = parser.parse_args()
    cases = [case for case in CASES if re.search(options.cases, str(case))]
    todo = [(case, _FATES[turn % 3]) for turn in range(options.repeat) for case in cases]
    failed, began = 0, time.monotonic()
    with ThreadPoolExecutor(options.side_by_side) as pool:
        for name, error, seconds in pool.map(lambda each: _run(*each), todo):
            failed += bool(error)
            print(f"{name:24} {seconds:6.1f} s  {error or 'ok'}", flush=True)
    seconds = time.monotonic() - began
    print(f"crash points of real processes: {len(todo)} cases, {failed} failed, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
