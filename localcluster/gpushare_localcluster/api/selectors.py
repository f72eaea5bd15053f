"""Label and field selectors: from text to a test of objects, and from a selector object to text.

Knows the grammar of `labelSelector` and `fieldSelector`. The resource table names the fields that a
kind supports, since a real server refuses other fields.
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from gpushare.core.selectors import Requirement
from gpushare_localcluster.api.objects import Object, elements, metadata, section
from gpushare_localcluster.api.status import bad_request

_SIGNS = {"In": "in", "NotIn": "notin"}
_OPERATORS = {"in": "In", "notin": "NotIn", "<": "Lt", ">": "Gt"}

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


def _requirement(term: str) -> Requirement:
    """Return one comma-separated term of a label selector. Raises StatusError."""
    if match := _SET.fullmatch(term):
        values = tuple({value.strip(): None for value in match["values"].split(",")})
        if all(re.fullmatch(_VALUE, value) for value in values):
            return Requirement(match["key"], _OPERATORS[match["op"]], values)
    elif match := _EQUALS.fullmatch(term):
        operator = "NotIn" if match["op"] == "!=" else "In"
        return Requirement(match["key"], operator, (match["value"],))
    elif match := _ORDER.fullmatch(term):
        return Requirement(match["key"], _OPERATORS[match["op"]], (match["value"],))
    elif match := _EXISTS.fullmatch(term):
        return Requirement(match["key"], "DoesNotExist" if match["no"] else "Exists")
    raise bad_request(f"unable to parse requirement {term!r} of the label selector")


def label_selector(text: str) -> Test | None:
    """Return the test of a label selector, None for one that selects everything.

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
    """Return a function that reads a field as text for field selectors: "" for an absent field."""
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
    r"""Return the terms of a field selector: path, whether the value must be equal, value.

    Commas, equal signs and backslashes in values are escaped with a backslash.

    Raises StatusError: 400 if the text is no field selector.
    """
    terms: list[tuple[str, bool, str]] = []
    for term in filter(None, _FIELD_COMMA.split(text)):
        match = _FIELD.fullmatch(term)
        if not match:
            raise bad_request(f"invalid field selector {term!r}")
        value = re.sub(r"\\([\\,=])", r"\1", match["value"])
        terms.append((match["field"], match["op"] != "!=", value))
    return terms


def field_selector(
    text: str, supported: Iterable[str], rename: Callable[[str], str] = str
) -> Test | None:
    """Return the test of a field selector, None for one that selects everything.

    rename: from a field of the API version to the stored path.

    Raises StatusError: 400 for a malformed selector or a field that the kind does not support.
    """
    terms = field_terms(text)
    for field, _, _ in terms:
        if field not in supported:
            raise bad_request(f"field label not supported: {field}")
    selected: Test | None = None
    for field, is_equal, value in terms:
        selected = both(selected, _compared(field_value(rename(field)), is_equal, value))
    return selected


def _compared(text_of: Callable[[Object], str], is_equal: bool, value: str) -> Test:
    """Return the test that the text equals the value, or differs unless `is_equal`."""
    return lambda body: (text_of(body) == value) == is_equal


def both(first: Test | None, second: Test | None) -> Test | None:
    """Return the conjunction of two tests, None for none."""
    if first is None or second is None:
        return first or second
    one_test, two = first, second
    return lambda body: one_test(body) and two(body)


def selector_text(selector: Object) -> str:
    """Return a label selector as the text of a list call."""
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
