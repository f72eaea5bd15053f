"""Requirements of selectors hold as those of k8s.io/apimachinery/pkg/labels do."""

import pytest

from gpushare.core.selectors import NodeSelectorTerm, Requirement

LABELS = {"zone": "a", "size": "4", "empty": "", "low": "-3"}
MIN, MAX = str(-(1 << 63)), str((1 << 63) - 1)


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("zone", "In", ("a", "b"), True),
        ("zone", "In", ("b",), False),
        ("absent", "In", ("a",), False),
        ("absent", "In", ("",), False),
        ("empty", "In", ("",), True),
        ("zone", "NotIn", ("b",), True),
        ("zone", "NotIn", ("a", "b"), False),
        ("absent", "NotIn", ("a",), True),
        ("absent", "NotIn", ("",), True),
        ("zone", "Exists", (), True),
        ("absent", "Exists", (), False),
        ("zone", "DoesNotExist", (), False),
        ("absent", "DoesNotExist", (), True),
        ("size", "Gt", ("3",), True),
        ("size", "Gt", ("4",), False),
        ("size", "Lt", ("5",), True),
        ("size", "Lt", ("4",), False),
        ("size", "Gt", ("-5",), True),
        ("low", "Lt", ("+1",), True),
        ("size", "Lt", (MAX,), True),
        ("size", "Gt", (MIN,), True),
        ("absent", "Lt", ("5",), False),
        ("absent", "Gt", ("5",), False),
    ],
)
def test_a_requirement_holds_as_in_kubernetes(
    key: str, operator: str, values: tuple[str, ...], *, holds: bool
) -> None:
    assert Requirement(key, operator, values).holds(LABELS) is holds


@pytest.mark.parametrize(
    ("key", "operator", "values"),
    [
        ("zone", "In", ()),
        ("zone", "NotIn", ()),
        ("zone", "Exists", ("a",)),
        ("absent", "DoesNotExist", ("a",)),
        ("size", "Gt", ()),
        ("size", "Gt", ("1", "2")),
        ("size", "Lt", ("many",)),
        ("size", "Lt", ("9.5",)),
        ("size", "Lt", (str(1 << 63),)),
        ("size", "Gt", (str(-(1 << 63) - 1),)),
        ("zone", "Gt", ("1",)),
        ("zone", "Equals", ("a",)),
        ("zone", "", ()),
    ],
)
def test_an_invalid_requirement_is_never_met(
    key: str, operator: str, values: tuple[str, ...]
) -> None:
    assert not Requirement(key, operator, values).holds(LABELS)


@pytest.mark.parametrize("text", ["4_0", " 40", "40 ", "\u0664\u0660", "", "+", "0x28", "9" * 63])
def test_a_number_is_written_as_go_reads_one(text: str) -> None:
    assert not Requirement("size", "Gt", ("1",)).holds({"size": text})
    assert not Requirement("size", "Gt", (text,)).holds({"size": "50"})


def test_all_requirements_of_a_term_must_hold_and_an_empty_term_selects_nothing() -> None:
    zone, name = Requirement("zone", "In", ("a",)), Requirement("metadata.name", "In", ("n",))
    assert NodeSelectorTerm((zone,), (name,)).matches("n", LABELS)
    assert not NodeSelectorTerm((zone,), (name,)).matches("m", LABELS)
    assert not NodeSelectorTerm((zone, Requirement("zone", "NotIn", ())), ()).matches("n", LABELS)
    assert not NodeSelectorTerm().matches("n", LABELS)
