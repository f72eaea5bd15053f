"""Makes and tries policies in a child process, so that no request waits for arithmetic.

Knows how to start the child process, its input (names of policies, a workload, for a trial the
nodes) and its output (policies by name, the figures of the trial).
Policies may be anybody's code. One that raises, ends the process or never returns is the first
without an answer: the others are made without it, in another process.

A thread would hold the interpreter lock for the 40 to 90 ms that a policy's prices take. A process
*forked* from one with threads may hang on a lock that nobody can release, so a new one is started
(`python -P -c`, with `_CHILD_PROGRAM`). Without -P it would import from the working directory
first. It ends when its work is done: there are minutes between two of them, and staying would save
half a second of starting.
"""

import io
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpushare.core.model import ANY_NEIGHBOURS
from gpushare.core.policy import Policy, load_policy
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial import Trial, run_trial
from gpushare.core.workload import Workload
from gpushare.errors import GpuShareError

TIMEOUT = 120.0
"""Seconds for one process; on a busy machine the process has the lowest priority."""
CANDIDATE_TIMEOUT = 240.0
"""Seconds for one candidate in a trial; usual is up to half a minute of computing."""
_TRIAL_CPU = 60.0
"""Seconds of CPU after which a trial runs no further stream."""
_CHILD_PROGRAM = """
import contextlib, os
os.nice(10)
with contextlib.suppress(OSError):
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0))
from gpushare.extender.learning.policy_builder import main
main()
"""
"""The program of the child process. The process gives way to requests, even while numpy loads. The
service keeps to one CPU, and a child inherits this: the program allows all CPUs again, unless a
sandbox forbids that.
"""

_ALARMED = f"status -{signal.SIGALRM.value}:"
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}

_Answer = tuple[str, bytes, str]
"""(name of a call, pickled result, error or "")."""
_Send = Callable[[_Answer], None]
_Call = tuple[Callable[..., object], tuple[object, ...]]
"""(function of a module, arguments after a _Send)."""
_STARTED: _Answer = ("", b"", "")
"""The first answer: the process has started; the others are about the calls."""
_TRIAL, _CANDIDATE_STARTED = "trial", "turn of "
"""Name of the call that is a trial; prefix of an answer before the code of a candidate runs."""


class RefitFailed(GpuShareError):
    """One policy or all policies could not be made or tried; the text has the reason."""


def make_policies(
    names: Sequence[str], workload: Workload, command: Sequence[str] = (), timeout: float = TIMEOUT
) -> dict[str, Policy | RefitFailed]:
    """Make the named policies for the workload in a process; return each policy or its error.

    command: the program to start instead of _CHILD_PROGRAM. timeout: seconds for each process;
    there is one, and one more for each policy that ends its process. Raises RefitFailed if all
    policies fail.
    """
    policies: dict[str, Policy | RefitFailed] = {}
    untried = list(names)
    while untried:
        calls = {name: (_make, (name, workload)) for name in untried}
        answers, ended = _answers(calls, command, timeout)
        if not answers:
            raise RefitFailed(ended)
        policies |= {name: _policy(data, wrong) for name, data, wrong in answers if name in untried}
        untried = [name for name in untried if name not in policies]
        if untried:
            policies[untried.pop(0)] = RefitFailed(ended)
    return policies


def try_policies(
    names: Sequence[str],
    workload: Workload,
    snapshot: Snapshot,
    seed: int,
    limit: float = CANDIDATE_TIMEOUT,
    *,
    neighbours: int = ANY_NEIGHBOURS,
) -> Trial | None:
    """Run a trial in a process (see core/trial.py); return its figures.

    limit: seconds for each candidate. A candidate that takes longer, raises or ends the process is
    left out, and another process tries the remaining ones. neighbours: the limit of neighbours.
    Raises RefitFailed if something other than a candidate fails.
    """
    failed: dict[str, str] = {}
    candidates = list(names)
    while candidates:
        call = (_try, (limit, neighbours, (snapshot, workload, tuple(candidates), seed)))
        answers, ended = _answers({_TRIAL: call}, timeout=limit * len(candidates) + TIMEOUT)
        last, data, wrong = answers[-1] if answers else _STARTED
        if last == _TRIAL and not wrong:
            trial: Trial | None = pickle.loads(data)  # noqa: S301 -- our own child wrote it
            return trial and replace(trial, failed=failed)
        ended = wrong or ended
        turns = [
            name.removeprefix(_CANDIDATE_STARTED)
            for name, *_ in answers
            if name.startswith(_CANDIDATE_STARTED)
        ]
        if not turns:
            raise RefitFailed(ended)
        candidates.remove(turns[-1])
        failed[turns[-1]] = f"no end after {limit:g} s" if ended.startswith(_ALARMED) else ended
    return Trial({}, {}, failed)


def _answers(
    calls: Mapping[str, _Call], command: Sequence[str] = (), timeout: float = TIMEOUT
) -> tuple[list[_Answer], str]:
    """Return (answers of a process, beginning with _STARTED; text about the end of the process)."""
    started = command or (sys.executable, "-P", "-c", _CHILD_PROGRAM)
    message = pickle.dumps((calls, timeout))
    try:
        with subprocess.Popen(  # noqa: S603 -- the command is our own
            started,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | _ONE_THREAD,
        ) as process:
            try:
                answered, errors = process.communicate(message, timeout)
            except subprocess.TimeoutExpired as error:
                process.kill()
                # Not read to its end: a process that a policy has started may keep it open.
                answered, ended = error.output or b"", f"not made after {timeout:g} s"
            else:
                lines = errors.decode(errors="replace").strip().splitlines()
                ended = f"status {process.returncode}: {lines[-1] if lines else 'no word'}"
    except OSError as error:
        return [], str(error)
    answers = list(_read(answered))
    if answers[:1] != [_STARTED]:
        return [], f"{ended}; what it answered cannot be read"
    return answers, ended


def _read(answered: bytes) -> Iterator[_Answer]:
    """Yield the answers that are whole."""
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
    # Text that a policy or a library prints must not get between the bytes of the answer.
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    calls, seconds = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our own parent wrote it
    # If the parent is gone and cannot end this process, it ends by itself.
    signal.alarm(int(seconds) + 10)
    with open(answer, "wb") as out:  # noqa: PTH123 -- a descriptor has no path

        def send(answer: _Answer) -> None:
            pickle.dump(answer, out, pickle.HIGHEST_PROTOCOL)
            out.flush()

        send(_STARTED)
        for name, (function, arguments) in calls.items():
            try:
                data = pickle.dumps(function(send, *arguments), pickle.HIGHEST_PROTOCOL)
            except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
                send((name, b"", str(error) or type(error).__name__))
            else:
                send((name, data, ""))


def _make(_: _Send, name: str, workload: Workload) -> Policy:
    return load_policy(name, workload)


def _try(
    send: _Send,
    limit: float,
    neighbours: int,
    arguments: tuple[Snapshot, Workload, Sequence[str], int],
) -> Trial | None:
    """Return the trial; SIGALRM ends this process when the seconds of a candidate are over."""
    seconds_left = defaultdict[str, float](lambda: limit)

    @contextmanager
    def turn(name: str) -> Iterator[None]:
        send((f"{_CANDIDATE_STARTED}{name}", b"", ""))
        begin = time.monotonic()
        # No handler: it would wait for the end of a call into a library, and could be caught.
        signal.setitimer(signal.ITIMER_REAL, max(seconds_left[name], 0.001))
        try:
            yield
        finally:
            seconds_left[name] -= time.monotonic() - begin
            signal.alarm(int(TIMEOUT))

    return run_trial(
        *arguments,
        neighbours=neighbours,
        timer=turn,
        go_on=lambda: time.process_time() < _TRIAL_CPU,
    )
