"""A command on a terminal, and what it writes there."""

import os
import subprocess
from collections.abc import Mapping, Sequence


def on_terminal(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """What the command writes to its terminal, both streams, until it ends."""
    screen, terminal = os.openpty()
    with subprocess.Popen(words, env=environ, stdout=terminal, stderr=terminal):
        os.close(terminal)
        seen = b""
        try:
            while more := os.read(screen, 65536):
                seen += more
        except OSError:  # so Linux says that nobody holds the other side any more
            pass
    os.close(screen)
    return seen.decode().replace("\r\n", "\n")
