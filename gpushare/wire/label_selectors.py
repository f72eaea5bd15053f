"""Label selectors (meta/v1 LabelSelector) and requirements of selectors, read from plain dicts.

The rules of the operators are in core/selectors.py. An unreadable selector selects nothing.

Tested in `tests/unit/wire/test_label_selectors.py`.
"""

from collections.abc import Mapping

from gpushare.core.selectors import Requirement

_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
"""Of a LabelSelector; nodes are selected by two more."""


def requirement_of(item: object) -> Requirement:
    """Return a requirement of a selector; an unreadable one is never met."""
    expression = item if isinstance(item, Mapping) else {}
    values = expression.get("values")
    return Requirement(
        str(expression.get("key")),
        str(expression.get("operator")),
        tuple(map(str, values)) if isinstance(values, list) else (),
    )


def selects(selector: object, labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector object selects these labels: None selects nothing, {}
    everything.
    """
    if not isinstance(selector, Mapping):
        return False
    match_labels, expressions = selector.get("matchLabels"), selector.get("matchExpressions")
    pairs = match_labels.items() if isinstance(match_labels, Mapping) else ()
    if not all(labels.get(key) == value for key, value in pairs):
        return False
    requirements = map(requirement_of, expressions if isinstance(expressions, list) else ())
    return all(
        requirement.operator in _OPERATORS and requirement.holds(labels)
        for requirement in requirements
    )
