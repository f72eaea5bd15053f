"""Values with their place: typed reading of a document, with the line of every value.

Knows types, names and quantities; no file format and no scenario. Every error is one line with
file, line and path.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpushare.errors import QuantityError, SettingsError
from gpushare.wire.quantity import to_bytes, to_milli

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_MOST_NAMES = 10


class ScenarioError(SettingsError):
    """A scenario that cannot be run; the text names file, line and error."""


@dataclass(frozen=True)
class Placed:
    """A value of a document (a scalar, a list or a dict of Placed) with its place."""

    value: object
    file: str
    line: int
    path: str = ""

    def error(self, message: str) -> ScenarioError:
        """Return the error to raise about this value."""
        prefix = f"{self.path}: " if self.path else ""
        return ScenarioError(f"{self.file}:{self.line}: {prefix}{message}")

    def unknown(
        self, kind: str, names: Collection[str], how: str = "is in this scenario"
    ) -> ScenarioError:
        """Return the error to raise about an unknown name."""
        listed_names = ", ".join(list(names)[:_MOST_NAMES]) or "none"
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return self.error(f"no {kind} {self.value!r} {how}; there are: {listed_names}{more}")

    def under(self, path: str) -> "Placed":
        """Return the same value with a path."""
        return Placed(self.value, self.file, self.line, path)

    def items(self) -> list["Placed"]:
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            raise self.error("must be a list")
        return [item.under(f"{self.path}[{index}]") for index, item in enumerate(self.value)]

    def mapping(self) -> dict[str, "Placed"]:
        """Return the entries of a mapping."""
        if not isinstance(self.value, dict):
            raise self.error("must be a mapping")
        dot = "." if self.path else ""
        return {key: item.under(f"{self.path}{dot}{key}") for key, item in self.value.items()}

    def fields(self, *keys: str) -> "Fields":
        """Return the entries of a mapping with these keys and no others."""
        entries = self.mapping()
        for key, item in entries.items():
            if key not in keys:
                raise item.error(f"unknown key; known here: {', '.join(keys)}")
        return Fields(self, entries)

    def text(self) -> str:
        """Return a non-empty text."""
        if not isinstance(self.value, str) or not self.value:
            raise self.error("must be a text (quote it if it looks like a number)")
        return self.value

    def name(self, ending: str = "") -> str:
        """Return the text plus ending, a name Kubernetes accepts for a pod or node here (a DNS
        label).
        """
        name = self.text() + ending
        if not _NAME.fullmatch(name):
            raise self.error(f"{name!r} is no name: lower case letters, digits and -, at most 63")
        return name

    def whole(self, minimum: int = 0, maximum: int = 1_000_000) -> int:
        """Return a whole number in range."""
        if type(self.value) is not int or not minimum <= self.value <= maximum:
            raise self.error(f"must be a whole number from {minimum} to {maximum}")
        return self.value

    def seconds(self) -> float:
        """Return a time in seconds, up to an hour."""
        if type(self.value) not in (int, float) or not 0 < float(str(self.value)) <= 3600:
            raise self.error("must be a number of seconds from 0 to 3600")
        return float(str(self.value))

    def flag(self) -> bool:
        """Return the value, true or false."""
        if not isinstance(self.value, bool):
            raise self.error("must be true or false")
        return self.value

    def quantity(self, *, cpu: bool = False) -> str:
        """Return a Kubernetes quantity as text, such as 500m, 2 or 8Gi."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error("must be a quantity such as 500m, 2 or 8Gi")
        try:
            (to_milli if cpu else to_bytes)(str(value))
        except QuantityError as error:
            raise self.error(str(error)) from error
        return str(value)

    def names(self) -> tuple["Placed", ...]:
        """Return one value, or a list of values, as several."""
        return tuple(self.items()) if isinstance(self.value, list) else (self,)

    def labels(self) -> dict[str, str]:
        """Return a mapping of texts, such as labels."""
        return {key: item.text() for key, item in self.mapping().items()}


@dataclass(frozen=True)
class Fields:
    """The entries of one mapping, taken out by key; `whole` is the mapping itself."""

    whole: Placed
    entries: Mapping[str, Placed]

    def get(self, key: str) -> Placed | None:
        """Return the value, or None for an absent or empty key."""
        value = self.entries.get(key)
        return None if value is None or value.value is None else value

    def need(self, key: str) -> Placed:
        """Return the value of a required key."""
        value = self.get(key)
        if value is None:
            raise self.whole.error(f"{key} is missing")
        return value

    def number(self, key: str, default: int, *, minimum: int = 0, maximum: int = 1_000_000) -> int:
        """Return a whole number, or the default for an absent key."""
        value = self.get(key)
        return default if value is None else value.whole(minimum, maximum)

    def quantity(self, key: str, default: str) -> str:
        """Return a quantity, or the default for an absent key."""
        value = self.get(key)
        return default if value is None else value.quantity(cpu=key == "cpu")

    def labels(self, key: str) -> dict[str, str]:
        """Return a mapping of texts, {} for an absent key."""
        value = self.get(key)
        return {} if value is None else value.labels()
