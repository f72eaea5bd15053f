"""Documents that somebody else wrote, YAML or JSON: read within bounds, what is wrong in one line.

A file that is small may stand for something huge: aliases of YAML that name aliases, lists within
lists, a pipe that never ends. The bounds are on bytes, depth, and values with each alias counted as
what it stands for.
"""

import json
import sys
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
"""Characters of what is read as a number or a time: long ones take time with their square."""


def read_yaml(path: str) -> object:
    """Return the document of a file; None where it is empty. Raises SettingsError."""
    return parse_yaml(read_text(path, MAX_YAML), path)


def read_documents(path: str) -> list[object]:
    """Return the documents of a file of JSON or YAML, of stdin for "-". Raises SettingsError."""
    text = read_text(path, MAX_BYTES)
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text)]  # much faster, if it is JSON
        except RecursionError as error:
            raise SettingsError(f"{path}: is nested too deeply") from error
        except ValueError:
            pass
    return _documents(text, path) or [None]


def read_text(path: str, most: int) -> str:
    """Return the text of a file, of stdin for "-". Raises SettingsError, for more bytes too."""
    try:
        if path == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(most + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if len(content) > most:
        raise SettingsError(f"{path}: has more than {most} bytes; give a smaller file")
    return text


def parse_yaml(text: str, where: str) -> object:
    """Return the document of a text that is found there; None where it is empty.

    Raises SettingsError.
    """
    found = _documents(text, where)
    if len(found) > 1:
        raise SettingsError(f"{where}: has {len(found)} documents, and there may be one")
    return found[0] if found else None


def _documents(text: str, where: str) -> list[object]:
    if len(text) > MAX_YAML:
        raise SettingsError(f"{where}: has more than {MAX_YAML} characters of YAML; write JSON")
    try:
        return list(yaml.load_all(text, BoundedLoader))
    except RecursionError as error:
        raise SettingsError(f"{where}: is nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{where}: {' '.join(str(error).split())}") from error


def _refused(what: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=mark)


class BoundedLoader(yaml.SafeLoader):
    """Refuses documents beyond the bounds, with a YAMLError, before they are made of their nodes.

    Nodes are composed inside out, so what an alias stands for has been counted when it comes; an
    alias to what it stands in has not, and is refused.
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
                raise _refused("an alias stands within what it stands for", mark)
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(f"nested in more than {MAX_DEPTH} levels", self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            self._values[id(node)] = self._count(node)
        return node

    def _count(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            if len(node.value) > _MAX_NUMBER and not node.tag.endswith((":str", ":binary")):
                raise _refused(f"{node.value[:20]}... is too long for a number", node.start_mark)
            return 1
        inner = node.value
        if isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
        count = 1 + sum(self._values[id(each)] for each in inner)
        if count > MAX_VALUES:
            what = f"more than {MAX_VALUES} values, with aliases as what they stand for"
            raise _refused(what, node.start_mark)
        return count
