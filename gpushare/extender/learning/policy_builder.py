"""Policies made, and tried, in a process of their own, so that no request waits for arithmetic.

Knows how to start that process and what goes in and out: names and a workload, policies by name;
for a trial the nodes too, and what it measured.
Policies may be code of anybody. One that raises, ends the process or never comes to an end is known
by being the first without an answer: the others are made without it, in another process.

A thread of ours would hold the interpreter lock for the 40 to 90 ms that a policy's prices take;
a process that was *forked* from one with threads may hang on a lock nobody is left to release, so
it is a new one (`python -P -c`, with `_LOWLY`). Without -P it would import what lies in the working
directory before what is installed. It ends when its work is done: there are minutes between two of
them, and what it would save by staying is half a second of starting.
"""

import io
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

from gpushare.core.policy import Policy, load_policy
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial import Trial, run_trial
from gpushare.core.workload import Workload
from gpushare.errors import GpuShareError

TIMEOUT = 120.0
"""Seconds for one process; on a busy machine it waits for everybody else."""
TRIAL_TIMEOUT = 600.0
"""The same for a trial, which computes for up to half a minute."""
_LOWLY = """
import contextlib, os
os.nice(10)
with contextlib.suppress(OSError):
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0))
from gpushare.extender.learning.policy_builder import main
main()
"""
"""What the process runs: requests come first, before numpy is loaded too. The service keeps to one
CPU, which this process inherits: it goes to the others if there are any and no sandbox forbids it.
"""

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}

_Call = tuple[Callable[..., object], tuple[object, ...]]
"""A function of a module, and what it is called with."""
_Answer = tuple[str, bytes, str]
"""Name of a call, what it returned (pickled), and what is wrong, or ""."""
_HELLO: _Answer = ("", b"", "")
"""The first answer: what comes after it is about the calls, not about the process."""
_TRIAL = "trial"


class RefitFailed(GpuShareError):
    """A policy, or all of them, could not be made or tried; the text says why."""


def make_policies(
    names: Sequence[str],
    workload: Workload,
    command: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> dict[str, Policy | RefitFailed]:
    """The policies of these names, made for the workload in a process, or why not; waits for it.

    command: what to start instead of our own. timeout: seconds for each process; there is one, and
    one more for each policy that ends it. Raises RefitFailed where none can be made.
    """
    made: dict[str, Policy | RefitFailed] = {}
    left = list(names)
    while left:
        calls = {name: (load_policy, (name, workload)) for name in left}
        answers, ended = _answers(calls, command, timeout)
        if not answers:
            raise RefitFailed(ended)
        made |= {name: _policy(data, wrong) for name, data, wrong in answers if name in left}
        left = [name for name in left if name not in made]
        if left:
            made[left.pop(0)] = RefitFailed(ended)
    return made


def try_policies(
    names: Sequence[str], workload: Workload, snapshot: Snapshot, seed: int
) -> Trial | None:
    """Return what a trial in a process measured (see core/trial.py); waits for it.

    Raises RefitFailed.
    """
    call = (run_trial, (snapshot, workload, tuple(names), seed))
    answers, ended = _answers({_TRIAL: call}, timeout=TRIAL_TIMEOUT)
    for name, data, wrong in answers:
        if name == _TRIAL and not wrong:
            trial: Trial | None = pickle.loads(data)  # noqa: S301 -- our own child wrote it
            return trial
        ended = wrong or ended
    raise RefitFailed(ended)


def _answers(
    calls: Mapping[str, _Call], command: Sequence[str] = (), timeout: float = TIMEOUT
) -> tuple[list[_Answer], str]:
    """(what a process answered before it ended, beginning with _HELLO; how it ended)."""
    started = command or (sys.executable, "-P", "-c", _LOWLY)
    told = pickle.dumps((calls, timeout))
    try:
        with subprocess.Popen(  # noqa: S603 -- the command is our own
            started,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | _ONE_THREAD,
        ) as process:
            try:
                answered, said = process.communicate(told, timeout)
            except subprocess.TimeoutExpired as error:
                process.kill()
                # Not read to its end: a process that a policy has started may keep it open.
                answered, ended = error.output or b"", f"not made after {timeout:g} s"
            else:
                lines = said.decode(errors="replace").strip().splitlines()
                ended = f"status {process.returncode}: {lines[-1] if lines else 'no word'}"
    except OSError as error:
        return [], str(error)
    found = list(_read(answered))
    if found[:1] != [_HELLO]:
        return [], f"{ended}; what it answered cannot be read"
    return found, ended


def _read(answered: bytes) -> Iterator[_Answer]:
    """The answers that are whole."""
    stream = io.BytesIO(answered)
    try:
        while True:
            yield pickle.load(stream)  # noqa: S301 -- our own child wrote it
    except (pickle.UnpicklingError, EOFError):
        return


def _policy(data: bytes, wrong: str) -> Policy | RefitFailed:
    if wrong:
        return RefitFailed(wrong)
    try:
        policy: Policy = pickle.loads(data)  # noqa: S301 -- our own child wrote it
    except (Exception, SystemExit) as error:  # it may run code of the policy's
        return RefitFailed(f"what was made cannot be read: {type(error).__name__}: {error}")
    return policy


def main() -> None:
    """Read (calls by name, seconds) from stdin, write an answer for each to stdout."""
    # Whatever a policy or a library prints must not get between the bytes of the answer.
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    calls, seconds = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our own parent wrote it
    # Should nobody be left who would end this process, it ends by itself.
    signal.alarm(int(seconds) + 10)
    with open(answer, "wb") as out:  # noqa: PTH123 -- a descriptor has no path
        _write(out, _HELLO)
        for name, call in calls.items():
            _write(out, _answer(name, call))


def _answer(name: str, call: _Call) -> _Answer:
    function, arguments = call
    try:
        data = pickle.dumps(function(*arguments), pickle.HIGHEST_PROTOCOL)
    except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
        return name, b"", str(error) or type(error).__name__
    return name, data, ""


def _write(out: BinaryIO, answer: _Answer) -> None:
    pickle.dump(answer, out, pickle.HIGHEST_PROTOCOL)
    out.flush()
