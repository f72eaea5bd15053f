"""The result of a check: a level, a message, and a remedy.

Knows no check and no source of facts.

Tested in `tests/unit/doctor/test_parts.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["ok", "warn", "fail", "skip"]

LEVELS: tuple[Level, ...] = ("ok", "warn", "fail", "skip")
"""ok: in order. warn: works, or may be intended. fail: broken. skip: not checked."""

_GRAVEST: tuple[Level, ...] = ("fail", "warn", "skip", "ok")
_MAX_SHOWN = 3
_MAX_VERDICTS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    level: Level
    message: str
    """The text after the name of the check."""
    todo: str = ""
    """The remedy, or ""."""


class Check(str):
    """The name of a check, which makes the findings of the check."""

    __slots__ = ()

    def ok(self, message: str) -> Finding:
        """Return a finding that all is well."""
        return Finding(str(self), "ok", message)

    def warn(self, message: str, todo: str) -> Finding:
        """Return a finding that something may not be intended."""
        return Finding(str(self), "warn", message, todo)

    def fail(self, message: str, todo: str) -> Finding:
        """Return a finding that something is wired wrongly."""
        return Finding(str(self), "fail", message, todo)

    def skip(self, message: str, todo: str = "") -> Finding:
        """Return a finding that nothing was checked. todo: how to make the check possible."""
        return Finding(str(self), "skip", message, todo)


def grouped(verdicts: Iterable[tuple[str, Finding]]) -> Iterator[Finding]:
    """Yield one finding for all names with the same verdict, with these names before the message.

    Verdicts beyond a limit are only counted.
    """
    alike: dict[Finding, list[str]] = {}
    for name, verdict in verdicts:
        alike.setdefault(verdict, []).append(name)
    # The limit cuts off the least grave verdicts.
    ranked = sorted(alike, key=lambda verdict: _GRAVEST.index(verdict.level))
    for verdict in ranked[:_MAX_VERDICTS]:
        yield replace(verdict, message=f"{some(alike[verdict])}: {verdict.message}")
    if omitted := ranked[_MAX_VERDICTS:]:
        more = sum(len(alike[verdict]) for verdict in omitted)
        todo = f"correct the first {_MAX_VERDICTS}, and run this again"
        yield replace(
            omitted[0], message=f"{more} more, each of them for another reason", todo=todo
        )


def some(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    ordered: Sequence[str] = sorted(names)
    more = len(ordered) - _MAX_SHOWN
    return ", ".join(ordered[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def count(number: int, noun: str) -> str:
    """Return the number and the noun, such as "1 node" or "2 nodes"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
