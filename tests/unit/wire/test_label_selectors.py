"""Label selectors choose labels as Kubernetes' do; nonsense chooses none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.wire.label_selectors import requirement_of, selects

LABELS = {"app": "db", "tier": "a", "size": "4"}


def expression(operator: str, *values: str, key: str = "app") -> dict[str, object]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "db"}}, True),
        ({"matchLabels": {"app": "db", "tier": "b"}}, False),
        (expression("In", "web", "db"), True),
        (expression("In", "web"), False),
        (expression("NotIn", "web"), True),
        (expression("NotIn", "db"), False),
        (expression("NotIn", "x", key="absent"), True),
        (expression("Exists"), True),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="absent"), True),
        (expression("Nonsense"), False),
        (expression("Gt", "3", key="size"), False),
        ({"matchLabels": {"app": "db"}, **expression("In", "web")}, False),
    ],
)
def test_selectors_choose_as_kubernetes_does(selector: object, chosen: bool) -> None:
    assert selects(selector, LABELS) is chosen


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["matchLabels", "matchExpressions", "key", "operator", "values"]),
            inner,
            max_size=4,
        ),
    ),
)


@given(_JSON)
def test_nonsense_is_no_error(document: object) -> None:
    selects(document, LABELS)
    requirement_of(document).holds(LABELS)
