"""Exit codes of all commands, and replacements for characters that the output cannot encode.

An interrupted command, and one without a reader, ends with the shell's codes and no traceback.

Tested in `tests/unit/test_cli.py`.
"""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gpushare.commandline import USAGE
from gpushare.errors import ApiError, GpuShareError, SettingsError

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a write without a reader, or without room."""
_FAILING = ("strict", "surrogateescape")
"""Python's error handlers that raise an exception for a character outside the encoding."""
_PLAIN = {"\u2713": "ok", "\u2717": "NOT", "\u00b1": "+-", "\u2588": "#"}
"""Replacements for a tick, a cross, plus-minus and a full block."""


def ended(run: Callable[[], int]) -> int:
    """Return the exit code of `run`: 130 after Ctrl-C, 141 without a reader of the output, 1 if the
    output fails.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell
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
        # The interpreter flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return _BROKEN_PIPE
        print(f"gpushare: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return code


def ended_as_kubectl(run: Callable[[], int | None], error_code: int = 1) -> int:
    """Return the exit code of a command that prints errors in kubectl's manner, in one line.

    The code is that of `run` (None: 0), 2 after an error of the command line, the error code after
    another error, or the code of `ended`.
    """

    def code() -> int:
        try:
            return run() or 0
        except GpuShareError as error:
            from gpushare.wire.printable import printable

            text = printable(str(error))
            # kubectl's own message needs no prefix.
            print(text if isinstance(error, ApiError) else f"error: {text}", file=sys.stderr)
            return USAGE if isinstance(error, SettingsError) else error_code

    return ended(code)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return (replacement, end position) for characters that logs and old terminals lack."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in signs), error.end
