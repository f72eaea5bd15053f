"""The result of a check: one line, its level, and what to do about it.

Knows no check and no source of facts.

Tested in `tests/unit/doctor/test_parts.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["ok", "warn", "fail", "skip"]

LEVELS: tuple[Level, ...] = ("ok", "warn", "fail", "skip")
"""ok: as it should be. warn: works, or may be meant. fail: mis-wired. skip: not looked at."""

_GRAVEST: tuple[Level, ...] = ("fail", "warn", "skip", "ok")
_MAX_SHOWN = 3
_MAX_VERDICTS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    level: Level
    what: str
    """What is so, after the check's name on its line."""
    todo: str = ""
    """What to do, "" if there is nothing."""


def ok(check: str, what: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, "ok", what)


def warn(check: str, what: str, todo: str) -> Finding:
    """Return a finding that something may not be intended."""
    return Finding(check, "warn", what, todo)


def fail(check: str, what: str, todo: str) -> Finding:
    """Return a finding that something is wired wrongly."""
    return Finding(check, "fail", what, todo)


def skip(check: str, what: str, todo: str = "") -> Finding:
    """Return a finding that nothing was checked; `todo`: what would make it possible."""
    return Finding(check, "skip", what, todo)


def grouped(verdicts: Iterable[tuple[str, Finding]]) -> Iterator[Finding]:
    """Yield one finding for all names with the same verdict; it begins with these names.

    If there are very many verdicts, the last ones are only counted.
    """
    alike: dict[Finding, list[str]] = {}
    for name, verdict in verdicts:
        alike.setdefault(verdict, []).append(name)
    # The gravest first, so that only lesser ones are cut off.
    ranked = sorted(alike, key=lambda verdict: _GRAVEST.index(verdict.level))
    for verdict in ranked[:_MAX_VERDICTS]:
        yield replace(verdict, what=f"{some(alike[verdict])}: {verdict.what}")
    if rest := ranked[_MAX_VERDICTS:]:
        more = sum(len(alike[verdict]) for verdict in rest)
        todo = f"correct the first {_MAX_VERDICTS}, and run this again"
        yield replace(rest[0], what=f"{more} more, each of them for another reason", todo=todo)


def some(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    ordered: Sequence[str] = sorted(names)
    more = len(ordered) - _MAX_SHOWN
    return ", ".join(ordered[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def count(number: int, noun: str) -> str:
    """Return the number and its noun: "1 node", "2 nodes"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
