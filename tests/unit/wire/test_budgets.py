"""Which pods a PodDisruptionBudget covers; nonsense covers none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.wire.budgets import MAX_SELECTOR, read_budget

LABELS = {"app": "db", "tier": "a"}


def test_a_budget_covers_its_namespace_but_not_what_it_has_counted_out() -> None:
    spec = {"selector": {"matchLabels": {"app": "db"}}}
    budget = read_budget("ns", spec, {"disruptionsAllowed": 2, "disruptedPods": {"gone": "t"}})
    assert budget.allowed_disruptions == 2
    assert budget.covers("ns", "db-0", LABELS)
    assert not budget.covers("other", "db-0", LABELS)
    assert not budget.covers("ns", "gone", LABELS)


@pytest.mark.parametrize("count", [None, "2", True, 1.5])
def test_a_count_that_is_none_allows_nothing(count: object) -> None:
    assert read_budget("ns", {}, {"disruptionsAllowed": count}).allowed_disruptions == 0
    assert read_budget("ns", None, None).allowed_disruptions == 0


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["selector", "matchLabels", "matchExpressions", "key", "operator", "values"]
            ),
            inner,
            max_size=4,
        ),
    ),
)


@given(_JSON, _JSON)
def test_nonsense_is_no_error(spec: object, status: object) -> None:
    read_budget("ns", spec, status).covers("ns", "p", LABELS)


def test_a_selector_that_is_too_large_to_be_kept_covers_all_of_its_namespace() -> None:
    labels = {f"example.com/{at}": "x" * 60 for at in range(MAX_SELECTOR // 60)}
    budget = read_budget("tenant", {"selector": {"matchLabels": labels}}, {})
    assert budget.selector == {}
    assert budget.selects("tenant", {})
    assert not budget.selects("other", {})
