"""YAML of a JSON document: mappings, lists, texts, whole numbers, true, false, null.

Knows the grammar that YAML 1.1 and 1.2 share, since readers of either may get it. Texts that any of
them could take for something else are quoted.

Tested in `tests/unit/cli/test_inspect_parts.py`.
"""

import json
import re
from collections.abc import Iterator

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"])


def to_yaml(document: object) -> str:
    """Return the document in block style, mappings in their own order."""
    return "\n".join(_lines(document)) + "\n"


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _under(f"{_scalar(key)}:", item, "" if isinstance(item, list) else "  ")
    elif isinstance(value, list) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _under(key: str, item: object, indent: str) -> Iterator[str]:
    if isinstance(item, dict | list) and item:
        yield key
        yield from (indent + line for line in _lines(item))
    else:
        yield f"{key} {_scalar(item)}"


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(map(_quoted, value)) + '"'


def _quoted(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
