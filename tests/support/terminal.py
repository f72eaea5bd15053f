"""A command on a terminal, and its output."""

import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence


def on_terminal(words: Sequence[str], environ: Mapping[str, str], columns: int = 0) -> str:
    """The output of the command on its terminal, both streams, up to the end.

    columns: of the terminal; 0: unknown.
    """
    screen, terminal = os.openpty()
    fcntl.ioctl(
        terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40 if columns else 0, columns, 0, 0)
    )
    with subprocess.Popen(words, env=environ, stdout=terminal, stderr=terminal):
        os.close(terminal)
        collected = b""
        try:
            while more := os.read(screen, 65536):
                collected += more
        except OSError:  # so Linux says that nobody holds the other side any more
            pass
    os.close(screen)
    return collected.decode().replace("\r\n", "\n")
