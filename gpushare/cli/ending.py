"""The end of a command that was interrupted or has no reader: silent, with the shell's codes."""

import os
import sys
from collections.abc import Callable

_INTERRUPTED = 130
_BROKEN_PIPE = 141


def ended(run: Callable[[], int]) -> int:
    """Return the exit code of `run`; 130 after Ctrl-C, 141 where nobody reads its output."""
    try:
        code = run()
        print(end="", flush=True)  # where stdout is closed, sys.stdout is None
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code
