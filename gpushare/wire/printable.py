"""Text for readers: characters that a terminal would obey are written as escapes, and long lines of
facts are broken at blanks.

Standard library only. Tested in `tests/unit/cli/test_inspect_parts.py`,
`tests/unit/wire/test_printable.py` and `tests/unit/wire/test_events.py`.
"""

import re
from textwrap import fill

_LABEL = re.compile(r"(?:[A-Z][A-Za-z ]{0,12}:)? +")
_LEAST = 20
"""The columns that the rest of a line needs: otherwise the line is not broken."""


def printable(text: str) -> str:
    r"""Return the text with control characters, and other characters without a glyph, as \x1b,
    \u200e and so on.

    Lone surrogates, which JSON may carry and no output encoding takes, are among them.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def wrapped(text: str, columns: int) -> str:
    """Return the text with long lines of facts broken at blanks; the rest of a fact is indented.

    A fact begins with a label and a colon, or with blanks. Other lines, such as rows of tables,
    stay. columns: 0 for no limit.
    """
    return "".join(
        folded(line, columns, label.end()) if (label := _LABEL.match(line)) else line
        for line in text.splitlines(keepends=True)
    )


def folded(line: str, columns: int, indent: int) -> str:
    """Return the line broken at blanks, all parts but the first one indented.

    columns: 0 for no limit.
    """
    if len(line.rstrip("\n")) <= columns or columns - indent < _LEAST:
        return line
    body = fill(
        line[indent:],
        columns - indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return line[:indent] + body.replace("\n", "\n" + " " * indent) + "\n" * line.endswith("\n")
