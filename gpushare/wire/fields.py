"""Fields of a parsed configuration document: typed, or an error that names the path.

Knows dicts as YAML and JSON readers make them; no source and no meaning of a field.
Missing and null are the same: the default. A Go duration is a field's text too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from gpushare.errors import SettingsError

_T = TypeVar("_T")
Fields = Mapping[str, object]

NAME_PATTERN = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
"""DNS-1123 subdomains, as the API server wants the names of pods, nodes and namespaces."""

NAME = re.compile(NAME_PATTERN)
LABEL_PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""DNS-1123 labels, as the API server wants the names of namespaces."""

UID_PATTERN = r"[!-~]{1,128}"
"""The API server gives each object a UUID, of 36 characters, also if the user wrote one (see
test_answers.py). The rest is room for servers that do otherwise; an event takes no longer one.
"""

MAX_NAME_LENGTH = 253
"""Characters of the longest name there can be."""

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_DURATION = re.compile(f"(?:{_PART.pattern})+")


def fields_of(value: object, path: str) -> Fields:
    """Return the object at `path`; an empty one if there is none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise SettingsError(f"{path}: must be an object")
    return value


def items(fields: Fields, key: str, path: str = "") -> Sequence[object]:
    """Return the list under a key."""
    return _field(fields, key, list, "a list", path) or []


def text(fields: Fields, key: str, path: str = "", default: str = "") -> str:
    """Return the text under a key."""
    value = _field(fields, key, str, "text", path)
    return default if value is None else value


def flag(fields: Fields, key: str, path: str = "") -> bool:
    """Return the truth value under a key, false by default."""
    return _field(fields, key, bool, "true or false", path) or False


def number(fields: Fields, key: str, path: str = "", default: int = 0) -> int:
    """Return the whole number under a key (True and False are none, whatever Python says)."""
    value = _field(fields, key, int, "a whole number", path)
    return default if value is None else value


def parse_duration(duration: str) -> float:
    """Return the seconds of a Go duration such as "5s", "1m30s", "250ms". Raises SettingsError."""
    if duration in ("0", "+0", "-0"):
        return 0.0
    body = duration.removeprefix("-").removeprefix("+")
    too_odd = len(duration) > 64 or len(duration) - len(body) > 1
    if too_odd or _DURATION.fullmatch(body) is None:
        raise SettingsError(f"{duration[:40]!r} is not a duration such as 5s or 500ms")
    seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(body))
    return -seconds if duration.startswith("-") else seconds


def _field(fields: Fields, key: str, kind: type[_T], type_name: str, path: str) -> _T | None:
    value = fields.get(key)
    if value is None:
        return None
    # True and False are whole numbers to Python alone.
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        full_path = f"{path}.{key}" if path else key
        raise SettingsError(f"{full_path}: must be {type_name}")
    return value
