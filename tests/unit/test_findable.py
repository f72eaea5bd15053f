"""Each module has tests that a newcomer finds: by its name, or by what its room says.

A test file is found by name where it is called `test_MODULE.py` or `test_ROOM_MODULE.py`. Else the
docstring of the module, or of its package, has a sentence "Tested in `tests/...`". Whatever is
found by name or by the package must import the module, itself or through what it imports; what the
module itself names may start it as a process.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NO_MODULES = ("__init__", "kubelet_pb2")


def modules() -> Iterator[Path]:
    for path in sorted((ROOT / "gpushare").rglob("*.py")):
        # The shipped scenarios are programs of a user.
        if path.stem not in _NO_MODULES and "scenarios" not in path.parts:
            yield path.relative_to(ROOT)


def named_tests(docstring: str) -> list[str]:
    """The paths of the sentence "Tested in `...`", of a module's or package's docstring."""
    return [
        path
        for sentence in re.findall(r"Tested\s+in\s+((?:[^.]|\.(?=\S))*)", docstring)
        for path in re.findall(r"`(tests/[^`]*)`", sentence)
    ]


def by_name(module: Path) -> list[Path]:
    names = (f"test_{module.stem}.py", f"test_{module.parent.name}_{module.stem}.py")
    return [path for name in names for path in (ROOT / "tests").rglob(name)]


def by_docstring(module: Path) -> list[Path]:
    """What the module names, else its package."""
    for path in (module, module.parent / "__init__.py"):
        docstring = ast.get_docstring(_tree(ROOT / path)) or ""
        if found := named_tests(docstring):
            missing = [name for name in found if not (ROOT / name).exists()]
            assert not missing, f"{path} names tests that are not there: {missing}"
            return [
                file
                for name in found
                for file in (
                    (ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else [ROOT / name]
                )
            ]
    return []


def names_its_own(module: Path) -> bool:
    """Whether the module itself, and not its package, names tests; they are there."""
    docstring = ast.get_docstring(_tree(ROOT / module)) or ""
    return bool(named_tests(docstring) and by_docstring(module))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(path: Path) -> frozenset[Path]:
    """The files of ours that a file imports: `import a.b`, `from a import b`."""
    found: set[Path] = set()
    for node in ast.walk(_tree(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            place = ROOT.joinpath(*name.split("."))
            found.update(
                file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()
            )
    return frozenset(found)


def reaches(tests: list[Path], module: Path) -> bool:
    seen: set[Path] = set()
    todo = list(tests)
    while todo:
        path = todo.pop()
        if path == ROOT / module:
            return True
        # The command line imports every area, for its verb.
        if path not in seen and path != ROOT / "gpushare/cli/main.py":
            seen.add(path)
            todo += _imports(path)
    return False


def test_each_module_has_tests_that_can_be_found() -> None:
    lost = [
        str(module)
        for module in modules()
        if not (
            names_its_own(module)
            or reaches(by_name(module), module)
            or reaches(by_docstring(module), module)
        )
    ]
    assert not lost, (
        'no test file has their names; say "Tested in `tests/...`." in the docstring of the module'
        f" or of its package, and name tests that import it: {lost}"
    )


def test_a_sentence_names_its_tests() -> None:
    text = (
        "Rooms.\n\nTested in `tests/unit/kube`, and with faults in\n`tests/a.py`. See `tests/b.py`."
    )
    assert named_tests(text) == ["tests/unit/kube", "tests/a.py"]
    assert not named_tests("Tested by nobody.")


def test_a_test_that_imports_another_module_is_none_of_this_one() -> None:
    assert reaches([ROOT / "tests/unit/wire/test_quantity.py"], Path("gpushare/wire/quantity.py"))
    assert not reaches([ROOT / "tests/unit/wire/test_quantity.py"], Path("gpushare/wire/pods.py"))
