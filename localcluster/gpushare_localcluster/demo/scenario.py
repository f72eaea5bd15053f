"""Scenarios: YAML files, read strictly, or Python programs; and the shipped ones, and stages.

The only module besides the composition roots that reads YAML. Errors in a file are found here
before any part starts, and reported as one line with file and line. A pod or node in a step must
exist in the scenario, since a wait for a misspelt name would only time out.
"""

import importlib.util
import re
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import yaml

from gpushare.errors import SettingsError
from gpushare.trace.nodes_and_pods import MILLI, TraceError, read_nodes, read_pods
from gpushare.yamlfile import BoundedLoader, read_text
from gpushare_localcluster.demo.manifests import CLASS
from gpushare_localcluster.demo.plan import (
    Expect,
    NodePlan,
    PodPlan,
    Scenario,
    ScenarioError,
    Step,
    Trace,
    several,
)
from gpushare_localcluster.demo.report import natural

_LARGEST = 4 * 1024 * 1024
_SHIPPED = Path(__file__).parents[1] / "scenarios"
_STAGES = _SHIPPED / "stages"
_YAML = (".yaml", ".yml")
_MOST_NAMES = 10
_AT = re.compile(r"\.?(\w+)|\[(\d+)\]")

# A Python scenario: a function with a kubernetes.client.ApiClient as argument.
Program = Callable[[object], object]


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


def load_scenario(file: Path) -> Scenario:
    """Return the scenario in a YAML file, with every node and pod by itself.

    Raises ScenarioError.
    """
    text = _read(file)
    try:
        loader = _Loader(text)
        try:
            root = loader.get_node() if loader.check_node() else None
            if root is None:
                raise ScenarioError(f"{file}:1: the file is empty")
            _refuse_manifest(root, file)
            if loader.check_node():
                place = f"{file}:{root.end_mark.line + 1}"
                raise ScenarioError(f"{place}: a scenario is one document, and here is another")
            document = loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise ScenarioError(f"{file}:{line}: no YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioError(f"{file}: no YAML: {_first_line(error)}") from error
    reader = _Reader(file, root)
    try:
        return reader.complete(msgspec.convert(document, Scenario))
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        raise reader.error(path.strip("`."), text) from error


def load_program(file: Path) -> Program:
    """Return the function `scenario` of a Python file. Raises ScenarioError."""
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


def complaint(part: Part, error: Exception) -> str:
    """Return the exception of a program as text, with the line in its file."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == part.file.resolve()
    ]
    place = f"{part.file}:{lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {error}".removesuffix(": ")


class _Loader(BoundedLoader):
    """Refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                problem, mark = f"{key.value} is there twice", key.start_mark
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Reader:
    """Expands a scenario, and checks its names of nodes and pods in the order of the steps."""

    def __init__(self, file: Path, root: yaml.Node) -> None:
        self._file = file
        self._root = root
        self._nodes: dict[str, NodePlan] = {}
        self._pods: dict[str, PodPlan] = {}

    def error(self, path: str, text: str) -> ScenarioError:
        """Return the error to raise about the value at a path, such as `steps[0].apply`."""
        unknown = re.search(r"unknown field `(\w+)`", text)
        node, line = self._root, self._root.start_mark.line
        for step in _AT.finditer(f"{path}.{unknown[1]}" if unknown else path):
            if step[2] and isinstance(node, yaml.SequenceNode):
                node = node.value[int(step[2])]
                line = node.start_mark.line
            for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
                if key.value == step[1]:
                    node, line = value, key.start_mark.line
                    break
        return ScenarioError(f"{self._file}:{line + 1}: {f'{path}: ' if path else ''}{text}")

    def complete(self, scenario: Scenario) -> Scenario:
        """Return the scenario with every node and pod by itself. Raises ScenarioError."""
        nodes = [node for plan in scenario.nodes for node in plan.each()]
        if scenario.trace_nodes:
            nodes += _traced_nodes(self._file.parent, scenario.trace_nodes)
        self._nodes = {node.name: node for node in nodes}
        if not nodes:
            raise self.error("", "nodes is missing or empty")
        if len(self._nodes) < len(nodes):
            raise self.error("nodes", "two nodes have the same name")
        steps = [self._step(step, f"steps[{n}]") for n, step in enumerate(scenario.steps)]
        name, title = scenario.name or self._file.stem, scenario.title or self._file.stem
        return Scenario(tuple(steps), tuple(nodes), name, title)

    def _step(self, step: Step, path: str) -> Step:
        if step.apply or step.apply_trace:
            return Step(apply=tuple(self._applied(step, path)))
        for name in several(step.cordon) + several(step.uncordon):
            if name not in self._nodes:
                raise self._unknown(path, "node", name)
        waits = several(step.wait_for.pods) if step.wait_for else ()
        for pattern in several(step.delete) + waits:
            self._check_pattern(path, pattern)
        if step.expect:
            self._check_expectation(step.expect, f"{path}.expect")
        return step

    def _applied(self, step: Step, path: str) -> list[PodPlan]:
        pods = [pod for plan in several(step.apply) for pod in plan.each()]
        if step.apply_trace:
            pods += _traced_pods(self._file.parent, step.apply_trace)
        classes = {CLASS, *(node.driver for node in self._nodes.values() if node.driver)}
        for pod in pods:
            if pod.claim and pod.claim not in classes:
                raise self._unknown(path, "device class", pod.claim, sorted(classes))
            if pod.name in self._pods:
                raise self.error(path, f"a pod {pod.name} was applied before")
            self._pods[pod.name] = pod
        return pods

    def _check_expectation(self, expect: Expect, path: str) -> None:
        if expect.pod:
            self._check_pattern(path, expect.pod)
        elif expect.pods != "*":
            self._check_pattern(path, expect.pods)
        node, _, index = expect.device.partition("/")
        if (node or expect.node) not in ("", *self._nodes):
            raise self._unknown(path, "node", node or expect.node)
        if index and int(index) >= len(self._nodes[node].devices):
            raise self.error(path, f"node {node} has {len(self._nodes[node].devices)} devices")

    def _check_pattern(self, path: str, pattern: str) -> None:
        if not any(fnmatchcase(name, pattern) for name in self._pods):
            raise self._unknown(path, "pod", pattern)

    def _unknown(
        self, path: str, kind: str, name: str, names: Collection[str] | None = None
    ) -> ScenarioError:
        how = "was applied before this step" if kind == "pod" else "is in this scenario"
        known_names = list(names or (self._pods if kind == "pod" else self._nodes))
        more = len(known_names) - _MOST_NAMES
        listed = ", ".join(known_names[:_MOST_NAMES]) or "none"
        listed += f" and {more} more" if more > 0 else ""
        return self.error(path, f"no {kind} {name!r} {how}; there are: {listed}")


def _traced_nodes(folder: Path, trace: Trace) -> list[NodePlan]:
    """Return the nodes of a trace. Raises ScenarioError."""
    try:
        nodes = read_nodes(folder / trace.file)
    except TraceError as error:
        raise ScenarioError(str(error)) from error
    return [
        NodePlan(
            name=node.name,
            gpus=node.devices,
            gpu_memory=trace.units,
            cpu=f"{node.cpu}m",
            memory=f"{node.memory}Mi",
            labels={"gpu-model": node.model},
        )
        for node in nodes
    ]


def _traced_pods(folder: Path, trace: Trace) -> list[PodPlan]:
    """Return the pods of a trace, with units rounded up. Raises ScenarioError."""
    try:
        pods = read_pods(folder / trace.file)
    except TraceError as error:
        raise ScenarioError(str(error)) from error
    return [
        PodPlan(
            name=pod.name,
            gpu_mem=pod.devices * -(-pod.units * trace.units // MILLI),
            gpu_count=max(pod.devices, 1),
            cpu=f"{pod.cpu}m",
            memory=f"{pod.memory}Mi",
        )
        for pod in pods
    ]


def _read(file: Path) -> str:
    try:
        return read_text(str(file), _LARGEST)
    except SettingsError as error:
        raise ScenarioError(str(error)) from error


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


def _means(word: str, name: str) -> bool:
    """Return whether the word is the name, its number, or the part after the number."""
    return word in (name, *name.split("-", 1))
