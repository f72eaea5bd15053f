"""Which scenarios are meant: shipped ones by name or number, and files; and where a program failed.

Reads files; starts nothing.
"""

import traceback
from dataclasses import dataclass
from pathlib import Path

from gpushare.localcluster.demo.placed import ScenarioError
from gpushare.localcluster.demo.plan import Scenario
from gpushare.localcluster.demo.report import natural
from gpushare.localcluster.demo.scenario import Program, load_program, load_scenario

_SHIPPED = Path(__file__).parents[1] / "scenarios"
_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Part:
    """A scenario, or a program that is one, and its file."""

    file: Path
    title: str
    content: Scenario | Program


def shipped() -> list[Path]:
    """Return the scenarios that come with the package, in order."""
    files = (file for file in _SHIPPED.iterdir() if file.suffix in (".yaml", ".py"))
    return sorted(files, key=lambda file: natural(file.name))


def find(word: str) -> Path:
    """Return the file of a shipped scenario (`1`, `binpack`, `1-binpack`), or the path as a file.

    Raises ScenarioError for a word that is neither.
    """
    for file in shipped():
        if word in (file.stem, *file.stem.split("-", 1)):
            return file
    if Path(word).suffix not in (*_YAML, ".py"):
        there_are = ", ".join(file.stem for file in shipped())
        raise ScenarioError(
            f"no scenario is called {word!r}; there are: {there_are}; a file of your own ends with"
            " .yaml or .py"
        )
    return Path(word)


def load(file: Path) -> Part:
    """Return the scenario of a file. Raises ScenarioError."""
    if file.suffix in _YAML:
        scenario = load_scenario(file)
        return Part(file, scenario.title, scenario)
    program = load_program(file)
    title = ((program.__doc__ or "").strip().splitlines() or [file.stem])[0]
    return Part(file, title.rstrip("."), program)


def complaint(part: Part, error: Exception) -> str:
    """Return what a program ended with, and the line of its file that led there."""
    own = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == part.file.resolve()
    ]
    where = f"{part.file}:{own[-1]}: " if own else ""
    return f"{where}{type(error).__name__}: {error}".removesuffix(": ")
