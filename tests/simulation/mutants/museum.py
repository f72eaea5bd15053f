"""The museum: bugs of peers, each as a patch of our production code that can be switched on.

A mutant replaces one function or method, and must be found by the simulation within its seeds: that
is how we know that a story without a violation says something. What no story can see names the test
that must find it. Numbers (A1, B3, ...) are those of
docs/research/proof-figures.md.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

SEEDS = 5000
"""Seeds within which every mutant has to be found."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug. fault: its number; where: who has it, or had it. patches: what it replaces.

    test: what finds it where no story can, as pytest names it; "" for a story.
    """

    fault: str
    name: str
    where: str
    patches: tuple["Patch", ...]
    test: str = ""

    @contextmanager
    def at_large(self) -> Iterator[None]:
        """Have production code behave so."""
        with ExitStack() as stack:
            for home, attribute, change in self.patches:
                holding = vars(home)[attribute]
                stack.callback(setattr, home, attribute, holding)
                setattr(home, attribute, change(holding))
            yield


Change = Callable[[Any], Any]
"""Gets the original, and gives the bug."""

Patch = tuple[Any, str, Change]
"""The class or module, the name of what is replaced there, and by what."""

MUSEUM: list[Mutant] = []


def mutant(
    fault: str,
    place: str,
    home: Any,
    attribute: str,
    also: Sequence[Patch] = (),
    *,
    test: str = "",
) -> Callable[[Change], Change]:
    """Put a mutant on show, under the name of the function that is its first patch."""

    def show(change: Change) -> Change:
        patches = ((home, attribute, change), *also)
        MUSEUM.append(Mutant(fault, change.__name__, place, patches, test))
        return change

    return show
