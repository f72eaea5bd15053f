"""A newcomer finds the tests of each module: by name, or by the docstring of the module.

A test file is found by name if it is called `test_MODULE.py` or `test_ROOM_MODULE.py`. Else the
docstring of the module has a sentence "Tested in `tests/...`"; in the local cluster, whose tests
are those of whole behaviours, that of its package may have it. Whatever is found must import the
module, itself or through what it imports; a module that is started as a process, or that setup.cfg
names, counts as imported.
"""

import ast
import configparser
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "gpushare", ROOT / "localcluster" / "gpushare_localcluster")
_COMMAND_LINE = ROOT / "gpushare/cli/commands.py"
_NO_MODULES = ("__init__", "kubelet_pb2")
# Parsing every file would take seconds.
_IMPORT = re.compile(
    r"^\s*(?:from ([\w.]+) import (\([^)]*\)|[^#\n]*)|import ([\w., ]+))", re.MULTILINE
)
_NAMED = re.compile(r"""["']((?:gpushare|gpushare_localcluster|tests)(?:\.\w+)+)["']""")


def modules() -> Iterator[Path]:
    for path in sorted(file for folder in PACKAGES for file in folder.rglob("*.py")):
        # The shipped scenarios are programs of a user.
        if path.stem not in _NO_MODULES and "scenarios" not in path.parts:
            yield path


def named_tests(docstring: str) -> list[str]:
    """The paths of the sentence "Tested in `...`", of a module's or package's docstring."""
    return [
        path
        for sentence in re.findall(r"Tested\s+in\s+((?:[^.]|\.(?=\S))*)", docstring)
        for path in re.findall(r"`((?:localcluster/)?tests/[^`]*)`", sentence)
    ]


@cache
def _tests_by_name() -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = defaultdict(list)
    for folder in (ROOT / "tests", ROOT / "localcluster" / "tests"):
        for path in folder.rglob("test_*.py"):
            files[path.stem].append(path)
    return files


def by_name(module: Path) -> list[Path]:
    names = (f"test_{module.stem}", f"test_{module.parent.name}_{module.stem}")
    return [path for name in names for path in _tests_by_name().get(name, ())]


@cache
def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def by_docstring(module: Path) -> list[Path]:
    """The tests that the module names, or else its package in the local cluster."""
    package = [module.parent / "__init__.py"] if module.is_relative_to(PACKAGES[1]) else []
    for path in (module, *package):
        if tests_named := named_tests(_docstring(path)):
            places = [ROOT / name for name in tests_named]
            assert all(place.exists() for place in places), f"{path} names tests that are not there"
            return [
                file
                for place in places
                for file in (place.rglob("*.py") if place.is_dir() else [place])
            ]
    return []


@cache
def _entry_points() -> tuple[str, ...]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    policies = config["options.entry_points"]["gpushare.policies"]
    return tuple(re.findall(r"= (gpushare[\w.]+):", policies))


def _names(source: str) -> Iterator[str]:
    """Possible module names: imports, and strings that look like a module of ours."""
    for module, parts, whole in _IMPORT.findall(source):
        yield from re.findall(r"[\w.]+", whole)
        if module:
            yield module
            yield from (f"{module}.{part}" for part in re.findall(r"\w+", parts))
    yield from _NAMED.findall(source)


@cache
def _imports(path: Path) -> frozenset[Path]:
    names = [*_names(path.read_text(encoding="utf-8"))]
    if path == ROOT / "gpushare/core/policy.py":
        names += _entry_points()
    roots = (ROOT, ROOT / "localcluster")
    places = [root.joinpath(*name.split(".")) for name in names for root in roots]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return frozenset(file for file in files if file.exists())


def reaches(tests: list[Path], module: Path) -> bool:
    area = ROOT.joinpath(*module.relative_to(ROOT).parts[:2])
    visited: set[Path] = set()
    todo = list(tests)
    while todo:
        path = todo.pop()
        if path == module:
            return True
        if path in visited:
            continue
        visited.add(path)
        # The command line imports every area, for its verb: a test of one area is none of another.
        todo += (
            file for file in _imports(path) if path != _COMMAND_LINE or file.is_relative_to(area)
        )
    return False


def test_each_module_has_tests_that_can_be_found() -> None:
    lost = [
        str(module.relative_to(ROOT))
        for module in modules()
        if not reaches(by_name(module), module) and not reaches(by_docstring(module), module)
    ]
    assert not lost, (
        'no test file has their names; say "Tested in `tests/...`." in their docstrings, and name'
        f" tests that import them: {lost}"
    )


def test_a_sentence_names_its_tests() -> None:
    text = "Rooms.\n\nTested in `tests/unit/kube`, and also in\n`tests/a.py`. See `tests/b.py`."
    assert named_tests(text) == ["tests/unit/kube", "tests/a.py"]
    assert not named_tests("Tested by nobody.")


def test_a_test_that_imports_another_module_is_none_of_this_one() -> None:
    test = [ROOT / "tests/unit/wire/test_quantity.py"]
    assert reaches(test, ROOT / "gpushare/wire/quantity.py")
    assert not reaches(test, ROOT / "gpushare/wire/pods.py")
