"""Selectors: selected objects, and refused texts."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.selectors import both, field_selector, label_selector
from gpushare_localcluster.api.status import StatusError

FIELDS = ("metadata.name", "status.phase", "spec.nodeName", "spec.unschedulable")


def labelled(**labels: str) -> Object:
    return {"metadata": {"labels": labels}}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("app=web", True),
        ("app==web", True),
        ("app = web , tier=front", True),
        ("app!=web", False),
        ("other!=x", True),
        ("app in (web, api)", True),
        ("app notin (web,api)", False),
        ("other notin (x)", True),
        ("other in (x)", False),
        ("app", True),
        ("other", False),
        ("!app", False),
        ("!other", True),
        ("size>4", True),
        ("size>5", False),
        ("size<6", True),
        ("app>1", False),
        ("app in (web),size", True),
        ("example.com/x=", False),
    ],
)
def test_label_selectors_select_as_documented(text: str, *, selected: bool) -> None:
    test = label_selector(text)
    assert test is not None
    assert test(labelled(app="web", tier="front", size="5")) is selected


@pytest.mark.parametrize("text", ["=", "a=b=c", "a in b", "a in (b", "-a", "a=b c", "a,,b", "a>x"])
def test_a_malformed_label_selector_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as error:
        label_selector(text)
    assert error.value.code == 400


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("metadata.name=p", True),
        ("metadata.name==p,status.phase!=Failed", True),
        ("status.phase!=Running", False),
        ("status.phase!=Succeeded,status.phase!=Failed", True),
        ("spec.nodeName=", True),
        ("spec.nodeName=n", False),
        ("spec.unschedulable=false", True),
        (r"metadata.name=a\,b", False),
    ],
)
def test_field_selectors_select_as_documented(text: str, *, selected: bool) -> None:
    pod: Object = {"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Running"}}
    test = field_selector(text, FIELDS)
    assert test is not None
    assert test(pod) is selected


def test_escaped_characters_belong_to_the_value() -> None:
    test = field_selector(r"metadata.name=a\,b\=c\\", FIELDS)
    assert test is not None
    assert test({"metadata": {"name": "a,b=c\\"}})


@pytest.mark.parametrize("text", ["spec.other=x", "metadata.name", "=x"])
def test_a_field_that_is_not_supported_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as error:
        field_selector(text, FIELDS)
    assert error.value.code == 400


def test_nothing_asked_for_selects_everything() -> None:
    assert both(label_selector(""), field_selector("", FIELDS)) is None


WORDS = st.text("ab1", min_size=1, max_size=3)


@given(WORDS, st.lists(WORDS, min_size=1), st.dictionaries(WORDS, WORDS))
def test_in_and_notin_divide_everything(
    key: str, values: list[str], labels: dict[str, str]
) -> None:
    inside = label_selector(f"{key} in ({','.join(values)})")
    outside = label_selector(f"{key} notin ({','.join(values)})")
    assert inside is not None
    assert outside is not None
    assert inside(labelled(**labels)) != outside(labelled(**labels))


@given(st.text(max_size=20))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    for parse in (label_selector, lambda found: field_selector(found, FIELDS)):
        with suppress(StatusError):
            test = parse(text)
            assert test is None or test(labelled()) in {True, False}
