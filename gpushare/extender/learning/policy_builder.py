"""Policies made in a process of their own, so that no request waits for their arithmetic.

Knows how to start that process and what goes in and out: names and a workload, policies by name.
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
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from gpushare.core.policy import Policy, load_policy
from gpushare.core.workload import Workload
from gpushare.errors import GpuShareError

TIMEOUT = 120.0
"""Seconds for one process; on a busy machine it waits for everybody else."""
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

_Answer = tuple[str, bytes, str]
"""Name, policy (pickled), and what is wrong with it, or ""."""
_HELLO: _Answer = ("", b"", "")
"""The first answer: what comes after it is about policies, not about the process."""


class RefitFailed(GpuShareError):
    """A policy, or all of them, could not be made; the text says why."""


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
        answers, ended = _answers(left, workload, command, timeout)
        if not answers:
            raise RefitFailed(ended)
        made |= {name: _policy(data, wrong) for name, data, wrong in answers if name in left}
        left = [name for name in left if name not in made]
        if left:
            made[left.pop(0)] = RefitFailed(ended)
    return made


def _answers(
    names: Sequence[str], workload: Workload, command: Sequence[str], timeout: float
) -> tuple[list[_Answer], str]:
    """(what a process answered before it ended, beginning with _HELLO; how it ended)."""
    started = command or (sys.executable, "-P", "-c", _LOWLY)
    told = pickle.dumps((tuple(names), workload, timeout))
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
    """Read (names, workload, seconds) from stdin, write an answer for each name to stdout."""
    # Whatever a policy or a library prints must not get between the bytes of the answer.
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    names, workload, seconds = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our own parent wrote it
    # Should nobody be left who would end this process, it ends by itself.
    signal.alarm(int(seconds) + 10)
    with open(answer, "wb") as out:  # noqa: PTH123 -- a descriptor has no path
        _write(out, _HELLO)
        for name in names:
            _write(out, _made(name, workload))


def _made(name: str, workload: Workload) -> _Answer:
    try:
        data = pickle.dumps(load_policy(name, workload), pickle.HIGHEST_PROTOCOL)
    except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
        return name, b"", str(error)
    return name, data, ""


def _write(out: BinaryIO, answer: _Answer) -> None:
    pickle.dump(answer, out, pickle.HIGHEST_PROTOCOL)
    out.flush()
