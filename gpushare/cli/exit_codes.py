"""The exit code of every command, and characters that its output cannot encode.

A command that was interrupted or has no reader ends with the shell's codes, without a traceback.

Tested in `tests/unit/test_cli.py`.
"""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gpushare.errors import ApiError, GpuShareError

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a write fails with when there is no reader, or no room."""
_FAILING = ("strict", "surrogateescape")
"""How Python treats characters that an encoding lacks: an exception ends the command."""
_PLAIN = {"\u2713": "ok", "\u2717": "NOT", "\u00b1": "+-", "\u2588": "#"}
"""What is written for a tick, a cross, plus-minus and a full block if they cannot be."""


def ended(run: Callable[[], int]) -> int:
    """Return the exit code of `run`; 130 after Ctrl-C, 141 if nobody reads its output, 1 if it
    cannot be written.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: it takes whatever is written
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 -- for good
    codecs.register_error("plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in _FAILING:
        sys.stdout.reconfigure(errors="plain")
    try:
        code = run()
        print(end="", flush=True)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.errno not in _UNWRITTEN or error.filename is not None:
            raise
        # The interpreter flushes stdout once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return _BROKEN_PIPE
        print(f"gpushare: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return code


def ended_as_kubectl(run: Callable[[], None]) -> int:
    """Return the exit code of a command in kubectl's manner: 1 after one line of what was wrong,
    else as of `ended`.
    """

    def code() -> int:
        try:
            run()
        except GpuShareError as error:
            from gpushare.wire.printable import printable

            text = printable(str(error))
            # What kubectl says of the API server is passed on as it says it.
            print(text if isinstance(error, ApiError) else f"error: {text}", file=sys.stderr)
            return 1
        return 0

    return ended(code)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return what to write for characters that logs and old terminals cannot encode, and where to
    go on.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in signs), error.end
