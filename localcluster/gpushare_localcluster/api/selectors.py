"""Label and field selectors: their text to a test of an object, and a selector object to text.

Knows the grammar of `labelSelector` and `fieldSelector`. Which fields a kind supports is told by
the resource table, since a real server refuses the others.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from gpushare_localcluster.api.objects import Object, elements, metadata, section
from gpushare_localcluster.api.status import bad_request

_SIGNS = {"In": "in", "NotIn": "notin"}

Test: TypeAlias = Callable[[Object], bool]

_KEY = r"[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_EXISTS = re.compile(rf"(?P<no>!?)\s*(?P<key>{_KEY})")
_EQUALS = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>==|!=|=)\s*(?P<value>{_VALUE})")
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_ORDER = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>[<>])\s*(?P<value>-?[0-9]{{1,18}})")
_TERM_COMMA = re.compile(r",(?![^(]*\))")
_FIELD_COMMA = re.compile(r"(?<!\\),")
_FIELD = re.compile(r"(?P<field>[A-Za-z0-9.\[\]'/_-]+)(?P<op>==|!=|=)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Requirement:
    """One comma-separated term of a label selector."""

    key: str
    operator: str
    values: frozenset[str]

    def holds(self, labels: Object) -> bool:
        value = labels.get(self.key)
        if self.operator in {"in", "exists"}:
            return value is not None and (self.operator == "exists" or value in self.values)
        if self.operator in {"notin", "absent"}:
            # Kubernetes counts an object without the label as "not equal".
            return value is None or (self.operator == "notin" and value not in self.values)
        return _ordered(value, self.operator, int(next(iter(self.values))))


def _ordered(value: object, operator: str, bound: int) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"-?[0-9]{1,18}", value):
        return False
    return int(value) > bound if operator == ">" else int(value) < bound


def _requirement(term: str) -> _Requirement:
    if found := _SET.fullmatch(term):
        values = frozenset(value.strip() for value in found["values"].split(","))
        if all(re.fullmatch(_VALUE, value) for value in values):
            return _Requirement(found["key"], found["op"], values)
    elif found := _EQUALS.fullmatch(term):
        operator = "notin" if found["op"] == "!=" else "in"
        return _Requirement(found["key"], operator, frozenset({found["value"]}))
    elif found := _ORDER.fullmatch(term):
        return _Requirement(found["key"], found["op"], frozenset({found["value"]}))
    elif found := _EXISTS.fullmatch(term):
        return _Requirement(found["key"], "absent" if found["no"] else "exists", frozenset())
    raise bad_request(f"unable to parse requirement {term!r} of the label selector")


def label_selector(text: str) -> Test | None:
    """Return the test of a label selector, None if it selects everything.

    Raises StatusError: 400 if the text is no label selector.
    """
    if not text.strip():
        return None
    terms = [_requirement(term.strip()) for term in _TERM_COMMA.split(text)]

    def matches(body: Object) -> bool:
        labels = metadata(body).get("labels") or {}
        return all(term.holds(labels) for term in terms)

    return matches


def field_value(path: str) -> Callable[[Object], str]:
    """Return what reads the text of a field for field selectors: empty for an absent one."""
    *parents, last = path.split(".")
    # kubectl uncordon removes spec.unschedulable, and selectors still ask for "false".
    absent = "false" if path == "spec.unschedulable" else ""

    def read(body: Object) -> str:
        holder: object = body
        for part in parents:
            if not isinstance(holder, dict):
                return absent
            holder = holder.get(part)
        value = holder.get(last) if isinstance(holder, dict) else None
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        return absent if value is None else str(value)

    return read


def field_terms(text: str) -> list[tuple[str, bool, str]]:
    r"""Return the terms of a field selector: path, whether equal is wanted, value.

    Commas, equal signs and backslashes in values are escaped with a backslash.

    Raises StatusError: 400 if the text is no field selector.
    """
    terms: list[tuple[str, bool, str]] = []
    for term in filter(None, _FIELD_COMMA.split(text)):
        found = _FIELD.fullmatch(term)
        if not found:
            raise bad_request(f"invalid field selector {term!r}")
        value = re.sub(r"\\([\\,=])", r"\1", found["value"])
        terms.append((found["field"], found["op"] != "!=", value))
    return terms


def field_selector(
    text: str, supported: Iterable[str], rename: Callable[[str], str] = str
) -> Test | None:
    """Return the test of a field selector, None if it selects everything.

    `rename` turns a field of a view into the path under which it is stored.

    Raises StatusError: 400 for a malformed selector or a field that the kind does not support.
    """
    terms = field_terms(text)
    for field, _, _ in terms:
        if field not in supported:
            raise bad_request(f"field label not supported: {field}")
    selected: Test | None = None
    for field, wanted, value in terms:
        selected = both(selected, _compared(field_value(rename(field)), wanted, value))
    return selected


def _compared(read: Callable[[Object], str], wanted: bool, value: str) -> Test:
    """Return the test whether the text equals the value, or, if that is not wanted, differs."""
    return lambda body: (read(body) == value) == wanted


def both(first: Test | None, second: Test | None) -> Test | None:
    """Return the test that both pass, None if there is none at all."""
    if first is None or second is None:
        return first or second
    one, other = first, second
    return lambda body: one(body) and other(body)


def selector_text(selector: Object) -> str:
    """Return a label selector as text, as list calls take it."""
    expressions = elements(selector, "matchExpressions")
    plain = not {"matchLabels", "matchExpressions"} & selector.keys()
    labels = selector if plain else section(selector, "matchLabels")
    terms = [f"{key}={value}" for key, value in sorted(labels.items())]
    for item in expressions:
        key, operator = item.get("key"), str(item.get("operator"))
        if operator in _SIGNS:
            terms.append(f"{key} {_SIGNS[operator]} ({','.join(item.get('values') or ())})")
        else:
            terms.append(f"!{key}" if operator == "DoesNotExist" else str(key))
    return ",".join(terms)
