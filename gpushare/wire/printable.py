"""Text from outside for readers: characters that a terminal would obey are written as escapes.

Standard library only. Tested in `tests/unit/cli/test_inspect_parts.py` and
`tests/unit/wire/test_events.py`.
"""


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
