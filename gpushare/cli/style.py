"""How tables look on a terminal: bars and colours. Elsewhere they are plain text.

Knows escape sequences of terminals; not what is shown.

Tested in `tests/unit/cli/test_inspect_terminal.py` and `tests/unit/cli/test_inspect_parts.py`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TextIO

_COLOURS = {"room": "32", "little": "33", "full": "31", "closed": "2", "head": "1"}
_ESCAPES = re.compile("\x1b\\[[0-9]*m")
_BAR = 8
_LITTLE = 0.75
"""The share in use from which on little room is left."""


@dataclass(frozen=True, slots=True)
class Style:
    """bars: devices are drawn, as on a terminal. colours: by how much room there is. columns: of
    the terminal. bar: characters of a bar. short: heads of columns are short.
    """

    bars: bool = False
    colours: bool = False
    columns: int = 80
    bar: int = _BAR
    short: bool = False

    def narrower(self) -> Iterator["Style"]:
        """Yield this style, and then those that take less and less room."""
        yield self
        if self.bars:
            yield from (replace(self, short=True, bar=bar) for bar in (_BAR, _BAR // 2, 0))

    def device(self, used: int, total: int, *, closed: bool, stranded: bool = False) -> str:
        """Return what is in use of a device, with a bar if there are bars.

        stranded: nobody can have the rest.
        """
        amount = f"{used}/{total}"
        if not self.bars:
            return amount
        if closed:
            return self.painted("closed", f"{'closed'.ljust(self.bar)} {amount}")
        share = used / total if total else 1.0
        # Only a full device has a full bar, and only an empty one an empty bar.
        filled = self.bar if share >= 1 else _partly(share, self.bar) if used else 0
        full = share >= 1 or stranded
        colour = "full" if full else "little" if share >= _LITTLE else "room"
        if not self.bar:
            return self.painted(colour, amount)
        bar = self.painted(colour, "#" * filled) + ("x" if stranded else ".") * (self.bar - filled)
        return f"{bar} {amount}"

    def painted(self, colour: str, text: str) -> str:
        """Return the text in the colour, if there are colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colours and text else text


PLAIN = Style()


def style_of(out: TextIO, environ: Mapping[str, str]) -> Style:
    """Return the style for what is written there.

    The variable NO_COLOR, whatever it says, leaves colours out (https://no-color.org).
    """
    if not out.isatty():
        return PLAIN
    colours = "NO_COLOR" not in environ and environ.get("TERM") != "dumb"
    try:
        columns = os.get_terminal_size(out.fileno()).columns
    except (OSError, ValueError):  # a terminal of a test
        columns = 0
    return Style(bars=True, colours=colours, columns=columns or 100)


def width(text: str) -> int:
    """Return how many characters of the text a terminal shows."""
    return len(_ESCAPES.sub("", text)) if "\x1b" in text else len(text)


def _partly(share: float, bar: int) -> int:
    return max(1, min(round(share * bar), bar - 1))
