"""The museum: bugs of peers, each as a patch of our production code that can be switched on.

A mutant replaces one function or method, and must be found by the simulation within its seeds: that
is how we know that a story without a violation says something. Numbers (A1, B3, ...) are those of
docs/reliability.md.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SEEDS = 5000
"""Seeds within which every mutant has to be found."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug. fault: its number; where: who has it, or had it."""

    fault: str
    name: str
    where: str
    home: Any
    attribute: str
    change: Callable[[Any], Any]

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """Have production code behave so."""
        held = vars(self.home)[self.attribute]
        setattr(self.home, self.attribute, self.change(held))
        try:
            yield
        finally:
            setattr(self.home, self.attribute, held)


MUSEUM: list[Mutant] = []


def mutant(
    fault: str, where: str, home: Any, attribute: str
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Put a mutant on show: the function decorated gets the original, and gives the bug."""

    def show(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        MUSEUM.append(Mutant(fault, change.__name__, where, home, attribute, change))
        return change

    return show
