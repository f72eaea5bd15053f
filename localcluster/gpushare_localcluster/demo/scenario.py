"""Scenarios: YAML files, read strictly, or Python programs.

The only module besides the composition roots that reads YAML. Errors in a file are found here
before any part starts, and reported as one line with file and line.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import yaml

from gpushare.yamlfile import BoundedLoader
from gpushare_localcluster.demo.placed import Placed, ScenarioError
from gpushare_localcluster.demo.plan import Scenario
from gpushare_localcluster.demo.scenario_parts import read_scenario

_DEEPEST = 20
_LARGEST = 4 * 1024 * 1024

# A Python scenario: a function with a kubernetes.client.ApiClient as argument.
Program = Callable[[object], object]


def load_scenario(file: Path) -> Scenario:
    """Return the scenario in a YAML file. Raises ScenarioError."""
    text = _read(file)
    try:
        loader = BoundedLoader(text)
        try:
            root = loader.get_node() if loader.check_node() else None
            if root is None:
                raise ScenarioError(f"{file}:1: the file is empty")
            _refuse_manifest(root, file)
            if loader.check_node():
                place = f"{file}:{root.end_mark.line + 1}"
                raise ScenarioError(f"{place}: a scenario is one document, and here is another")
            document = _placed(loader, root, str(file), 0)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise ScenarioError(f"{file}:{line}: no YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioError(f"{file}: no YAML: {_first_line(error)}") from error
    return read_scenario(document, file)


def load_program(file: Path) -> Program:
    """Return the function `scenario` of a Python file.

    Raises ScenarioError, also for an error in the program.
    """
    _read(file)
    spec = importlib.util.spec_from_file_location(f"scenario_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ScenarioError(f"{file}: no Python program")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ScenarioError(f"{file}:{error.lineno}: no Python: {error.msg}") from error
    except Exception as error:
        text = f"{type(error).__name__}: {_first_line(error)}"
        raise ScenarioError(f"{file}: the program cannot be loaded: {text}") from error
    program = getattr(module, "scenario", None)
    if not callable(program):
        raise ScenarioError(f"{file}: defines no function scenario(client)")
    result: Program = program
    return result


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _LARGEST:
            raise ScenarioError(f"{file}: larger than {_LARGEST} bytes")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{file}: is no text in UTF-8") from error


def _placed(loader: yaml.SafeLoader, node: yaml.Node, file: str, depth: int) -> Placed:
    """Return the value of a YAML node with its line."""
    line = node.start_mark.line + 1
    if depth > _DEEPEST:
        raise ScenarioError(f"{file}:{line}: nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return Placed([_placed(loader, item, file, depth + 1) for item in node.value], file, line)
    if not isinstance(node, yaml.MappingNode):
        return Placed(loader.construct_object(node), file, line)
    entries: dict[str, Placed] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        key_line = key_node.start_mark.line + 1
        if key in entries:
            raise ScenarioError(f"{file}:{key_line}: {key} is there twice")
        entries[key] = _placed(loader, value_node, file, depth + 1)
    return Placed(entries, file, line)


def _refuse_manifest(root: yaml.Node, file: Path) -> None:
    """Refuse a Kubernetes manifest, with advice on its use."""
    entries = root.value if isinstance(root, yaml.MappingNode) else ()
    head = {str(key.value): str(value.value) for key, value in entries}
    if {"apiVersion", "kind"} <= head.keys():
        raise ScenarioError(
            f"{file}:{root.start_mark.line + 1}: a manifest ({head['kind']}) is no scenario:"
            " start a cluster with"
            f" `gpushare demo --keep`, and in another terminal `kubectl apply -f {file}`;"
            " docs/scenarios.md tells how a scenario is written"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
