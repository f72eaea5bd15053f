"""The museum: bugs of peers, each as a patch of our production code that can be switched on.

A mutant replaces one function or method, and must be found by the simulation within the seeds: so
a story without a violation has a meaning. A mutant that no story can find names the test
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
    """One bug. fault: number of the fault; where: who has or had the bug. patches: replacements.

    test: the test that finds the bug if no story can, as pytest names it; "" for a story.
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
                original = vars(home)[attribute]
                stack.callback(setattr, home, attribute, original)
                setattr(home, attribute, change(original))
            yield


Change = Callable[[Any], Any]
"""Gets the original, and gives the bug."""

Patch = tuple[Any, str, Change]
"""(class or module, name of the replaced attribute, replacement)."""

MUSEUM: list[Mutant] = []


def mutant(
    fault: str,
    attribute_path: str,
    home: Any,
    attribute: str,
    also: Sequence[Patch] = (),
    *,
    test: str = "",
) -> Callable[[Change], Change]:
    """Register a mutant under the name of the function that is the first patch."""

    def show(change: Change) -> Change:
        patches = ((home, attribute, change), *also)
        MUSEUM.append(Mutant(fault, change.__name__, attribute_path, patches, test))
        return change

    return show
