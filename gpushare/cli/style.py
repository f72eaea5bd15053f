"""How tables look on a terminal: bars and colours. Elsewhere they are plain text.

Knows escape sequences of terminals; not what is shown.

Tested in `tests/unit/cli/test_inspect_terminal.py` and `tests/unit/cli/test_inspect_parts.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

_COLOURS = {"room": "32", "little": "33", "full": "31", "closed": "2", "head": "1"}
_ESCAPES = re.compile("\x1b\\[[0-9]*m")
_BAR = 8
_LITTLE = 0.75
"""The share in use from which on little room is left."""


@dataclass(frozen=True, slots=True)
class Style:
    """bars: devices are drawn, as on a terminal. colours: by how much room there is."""

    bars: bool = False
    colours: bool = False

    def device(self, used: int, total: int, *, closed: bool) -> str:
        """Return what is in use of a device, with a bar if there are bars."""
        amount = f"{used}/{total}"
        if not self.bars:
            return amount
        if closed:
            return self.painted("closed", f"{'closed'.ljust(_BAR)} {amount}")
        share = used / total if total else 1.0
        # Only a full device has a full bar, and only an empty one an empty bar.
        filled = _BAR if share >= 1 else _partly(share) if used else 0
        colour = "full" if share >= 1 else "little" if share >= _LITTLE else "room"
        bar = self.painted(colour, "#" * filled) + "." * (_BAR - filled)
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
    return Style(bars=True, colours="NO_COLOR" not in environ and environ.get("TERM") != "dumb")


def width(text: str) -> int:
    """Return how many characters of the text a terminal shows."""
    return len(_ESCAPES.sub("", text)) if "\x1b" in text else len(text)


def _partly(share: float) -> int:
    return max(1, min(round(share * _BAR), _BAR - 1))
