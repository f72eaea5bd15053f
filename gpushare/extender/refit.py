"""Policies made in a process of their own, so that no request waits for their arithmetic.

Knows how to start that process and what goes in and out: names and a workload, policies by name.
A thread of ours would hold the interpreter lock for the 40 to 90 ms that a policy's prices take;
a process that was *forked* from one with threads may hang on a lock nobody is left to release, so
it is a new one (`python -P -c`, with `_LOWLY`). Without -P it would import what lies in the working
directory before what is installed. It ends when its work is done: there are minutes between two of
them, and what it would save by staying is half a second of starting.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from gpushare.core.policy import Policy, load_policy
from gpushare.core.workload import Workload
from gpushare.errors import GpuShareError

_TIMEOUT = 120.0
"""Seconds; on a busy machine it waits for everybody else."""
_LOWLY = """
import contextlib, os
os.nice(10)
with contextlib.suppress(OSError):
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0))
from gpushare.extender.refit import main
main()
"""
"""What the process runs: requests come first, before numpy is loaded too. The service keeps to one
CPU, which this process inherits: it goes to the others if there are any and no sandbox forbids it.
"""

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}


class RefitFailed(GpuShareError):
    """The process did not deliver; the text says why, with the last line it wrote."""


def make_policies(
    names: Sequence[str], workload: Workload, command: Sequence[str] = ()
) -> dict[str, Policy]:
    """The policies of these names, made for the workload in a process; waits for it.

    command: what to start instead of our own. Raises RefitFailed.
    """
    started = command or (sys.executable, "-P", "-c", _LOWLY)
    try:
        ended = subprocess.run(  # noqa: S603 -- the command is our own
            started,
            input=pickle.dumps((tuple(names), workload)),
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
            env=os.environ | _ONE_THREAD,
        )
        if ended.returncode:
            said = ended.stderr.decode(errors="replace").strip().splitlines()
            raise RefitFailed(f"status {ended.returncode}: {said[-1] if said else 'no word'}")
        made: dict[str, Policy] = pickle.loads(ended.stdout)  # noqa: S301 -- our own child wrote it
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefitFailed(str(error)) from error
    except (pickle.UnpicklingError, EOFError, ImportError, AttributeError) as error:
        raise RefitFailed(f"what it answered cannot be read: {error}") from error
    return made


def main() -> None:
    """Read (names, workload) from stdin, write the policies to stdout."""
    # Whatever a policy or a library prints must not get between the bytes of the answer.
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    names, workload = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our own parent wrote it
    made = {name: load_policy(name, workload) for name in names}
    with open(answer, "wb") as out:  # noqa: PTH123 -- a descriptor has no path
        pickle.dump(made, out, pickle.HIGHEST_PROTOCOL)
