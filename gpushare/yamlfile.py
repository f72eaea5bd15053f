"""Reading of untrusted YAML or JSON documents within bounds; an error is one line.

A small file may expand to a huge document: aliases of aliases, lists within lists, an endless pipe.
The bounds are on bytes, depth, and values, where an alias counts as many values as its anchor.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from gpushare.errors import SettingsError

MAX_BYTES = 256 * 1024 * 1024
"""Bytes of JSON: the report of 5,000 nodes with all their pods is less."""

MAX_YAML = 8 * 1024 * 1024
"""Bytes of YAML, which takes some thirty times as long to read as JSON."""

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
_MAX_NUMBER = 256
"""Upper bound of the characters of a number or a time: the time to parse grows with the square."""


def yaml_of(document: object) -> str:
    """Return a JSON document as YAML; mappings keep their order."""
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def read_yaml(path: str) -> object:
    """Return the document of a file; None for an empty file. Raises SettingsError."""
    return parse_yaml(read_text(path, MAX_YAML), path)


def read_as_kubernetes(path: str) -> object:
    """Return the document of a file, read like the configuration of Kubernetes' own programs.

    None for an empty file. Raises SettingsError, also for a duplicate key. A text that begins with
    a brace is JSON; otherwise the first document of the YAML is read.
    `1e2` and `1.0` are whole numbers in YAML, `1:30` and `2026-01-01` are text (tried with
    kube-scheduler 1.22, 1.30 and 1.37).
    """
    text = read_text(path, MAX_YAML)
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        return next(iter(yaml.load_all(text, _KubernetesLoader)), None)
    except RecursionError as error:
        raise SettingsError(f"{path}: is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from error


def read_documents(path: str) -> list[object]:
    """Return the documents of a file of JSON or YAML, of stdin for "-". Raises SettingsError."""
    text = read_text(path, MAX_BYTES)
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text)]  # for JSON much faster than YAML
        except RecursionError as error:
            raise SettingsError(f"{path}: is nested too deeply") from error
        except ValueError:
            pass
    return _documents(text, path) or [None]


def read_text(path: str, max_bytes: int) -> str:
    """Return the text of a file, of stdin for "-". Raises SettingsError, for more bytes too."""
    try:
        if path == "-":
            content = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(max_bytes + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if len(content) > max_bytes:
        raise SettingsError(f"{path}: has more than {max_bytes} bytes; give a smaller file")
    return text


def parse_yaml(text: str, place: str) -> object:
    """Return the document of a YAML text; None for an empty text. Raises SettingsError.

    place: origin of the text, for messages.
    """
    documents = _documents(text, place)
    if len(documents) > 1:
        raise SettingsError(f"{place}: has {len(documents)} documents, and there may be one")
    return documents[0] if documents else None


def _documents(text: str, place: str) -> list[object]:
    if len(text) > MAX_YAML:
        raise SettingsError(f"{place}: has more than {MAX_YAML} characters of YAML; write JSON")
    try:
        return list(yaml.load_all(text, BoundedLoader))
    except RecursionError as error:
        raise SettingsError(f"{place}: is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{place}: {' '.join(str(error).split())}") from error


class BoundedLoader(yaml.SafeLoader):
    """Refuses documents beyond the bounds, with a YAMLError, before objects are constructed.

    Nodes are composed inside out, so the anchor of an alias has been counted before the alias; only
    the anchor of a recursive alias has not, and such an alias is refused.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, counted."""
        if self.check_event(yaml.AliasEvent):
            mark, node = self.get_mark(), super().compose_node(parent, index)
            if id(node) not in self._values:
                raise yaml.MarkedYAMLError(
                    problem="an alias stands within what it stands for", problem_mark=mark
                )
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH:
            problem = f"nested in more than {MAX_DEPTH} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode):
            if len(node.value) > _MAX_NUMBER and not node.tag.endswith((":str", ":binary")):
                problem = f"{node.value[:20]}... is too long for a number"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            self._values[id(node)] = 1
        elif node is not None:
            inner = node.value
            if isinstance(node, yaml.MappingNode):
                inner = [child for pair in node.value for child in pair]
            count = 1 + sum(self._values[id(child)] for child in inner)
            if count > MAX_VALUES:
                problem = f"more than {MAX_VALUES} values, with aliases as what they stand for"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            self._values[id(node)] = count
        return node


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return document


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


class _KubernetesLoader(BoundedLoader):
    """Reads scalars as sigs.k8s.io/yaml does, and no key twice."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 -- as PyYAML has it

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Return the object. Raises ValueError for a key that stands twice."""
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in keys:
                    line = key.start_mark.line + 1
                    raise ValueError(f"line {line}: the key {key.value[:80]!r} stands twice")
                keys.add(key.value)
        return super().construct_mapping(node, deep)

    def whole(self, node: yaml.ScalarNode) -> int:
        """Return a whole number."""
        text = node.value.replace("_", "")
        return int(re.sub("^([-+]?)0([0-7]+)$", r"\g<1>0o\2", text), 0)

    def real(self, node: yaml.ScalarNode) -> float:
        """Return a number, as int if Go would write it without point and exponent."""
        number = float(self.construct_yaml_float(node))
        return int(number) if abs(number) < 1e21 and number.is_integer() else number


_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
for _name, _pattern, _first in (
    ("null", "~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", "y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE", [*"yYnNtTfF"]),
    ("bool", "on|On|ON|off|Off|OFF", [*"oO"]),
    ("int", "[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", [*"-+."]),
    ("merge", "<<", ["<"]),
):
    _KubernetesLoader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})$"), _first)
_KubernetesLoader.add_constructor(_TAG + "int", _KubernetesLoader.whole)
_KubernetesLoader.add_constructor(_TAG + "float", _KubernetesLoader.real)
_KubernetesLoader.add_constructor(
    _TAG + "bool", lambda _, node: node.value.lower() in ("y", "yes", "true", "on")
)
