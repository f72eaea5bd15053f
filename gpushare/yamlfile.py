"""Files of YAML, or JSON, that somebody wrote by hand: what is wrong is said in one line."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from gpushare.errors import SettingsError


def read_yaml(path: str) -> object:
    """Return the document of a file; None where it is empty. Raises SettingsError."""
    return parse_yaml(_read(path), path)


def read_as_kubernetes(path: str) -> object:
    """Return the document of a file as Kubernetes' programs read their configuration; None where it
    is empty. Raises SettingsError.

    What begins with a brace is JSON, all else the first document of the YAML. No key stands twice.
    `1e2` and `1.0` are whole numbers in YAML, `1:30` and `2026-01-01` are text (tried with
    kube-scheduler 1.22, 1.30 and 1.37).
    """
    text = _read(path)
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        return next(iter(yaml.load_all(text, _KubernetesLoader)), None)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from error


def parse_yaml(text: str, where: str) -> object:
    """Return the document of a text that is found there; None where it is empty.

    Raises SettingsError.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError(f"{where}: {' '.join(str(error).split())}") from error


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


class _KubernetesLoader(yaml.CSafeLoader):
    """Reads scalars as sigs.k8s.io/yaml does, and no key twice."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 -- as PyYAML has it

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Return the object. Raises ValueError for a key that stands twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise ValueError(f"line {line}: the key {key.value[:80]!r} stands twice")
                seen.add(key.value)
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
