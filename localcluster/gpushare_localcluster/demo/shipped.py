"""Shipped scenarios and stages, by name, number or file; and errors of programs.

Reads files; starts nothing.
"""

import traceback
from dataclasses import dataclass
from pathlib import Path

from gpushare_localcluster.demo.placed import ScenarioError
from gpushare_localcluster.demo.plan import Scenario
from gpushare_localcluster.demo.report import natural
from gpushare_localcluster.demo.scenario import Program, load_program, load_scenario

_SHIPPED = Path(__file__).parents[1] / "scenarios"
_STAGES = _SHIPPED / "stages"
_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Part:
    """A scenario or a program, with its file."""

    file: Path
    title: str
    content: Scenario | Program

    @property
    def autoscaler(self) -> bool:
        """Whether the program requires an autoscaler."""
        return bool(getattr(self.content, "autoscaler", False))


@dataclass(frozen=True)
class Stage:
    """A step of docs/scheduler-tour.md: a scenario, and the scheduler's file for its cluster."""

    name: str
    scenario: Path
    scheduler: Path


def shipped() -> list[Path]:
    """Return the files of the shipped scenarios, in order."""
    files = (file for file in _SHIPPED.iterdir() if file.suffix in (".yaml", ".py"))
    return sorted(files, key=lambda file: natural(file.name))


def find(word: str) -> Path:
    """Return the file of a shipped scenario (`1`, `binpack`, `1-binpack`), or the path itself.

    Raises ScenarioError for any other word.
    """
    for file in shipped():
        if _means(word, file.stem):
            return file
    if Path(word).suffix not in (*_YAML, ".py"):
        there_are = ", ".join(file.stem for file in shipped())
        raise ScenarioError(
            f"no scenario is called {word!r}; there are: {there_are}; a file of your own ends with"
            " .yaml or .py"
        )
    return Path(word)


def stages() -> list[Stage]:
    """Return the stages of the tour, in order."""
    folders = sorted(_STAGES.iterdir(), key=lambda folder: natural(folder.name))
    return [
        Stage(folder.name, folder / "scenario.yaml", folder / "scheduler.yaml")
        for folder in folders
    ]


def find_stage(word: str) -> Stage:
    """Return the stage of that number or name. Raises ScenarioError."""
    for stage in stages():
        if _means(word, stage.name):
            return stage
    there_are = ", ".join(stage.name for stage in stages())
    raise ScenarioError(f"no stage is called {word!r}; there are: {there_are}")


def load(file: Path) -> Part:
    """Return the scenario of a file. Raises ScenarioError."""
    if file.suffix in _YAML:
        scenario = load_scenario(file)
        return Part(file, scenario.title, scenario)
    program = load_program(file)
    title = ((program.__doc__ or "").strip().splitlines() or [file.stem])[0]
    return Part(file, title.rstrip("."), program)


def complaint(part: Part, error: Exception) -> str:
    """Return the exception of a program as text, with the line in its file."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == part.file.resolve()
    ]
    place = f"{part.file}:{lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {error}".removesuffix(": ")


def _means(word: str, name: str) -> bool:
    """Return whether the word is the name, its number, or the part after the number."""
    return word in (name, *name.split("-", 1))
