"""The lead of a policy in words."""

import pytest

from gpushare.core.trial_lead import lead_text


@pytest.mark.parametrize(
    ("lead", "error", "says"),
    [
        (2.06, 0.44, "it allocated 2.1 points (error 0.4) more than fgd"),
        (-0.3, 0.4, "it allocated 0.3 points (error 0.4) less than fgd"),
        (0.06, 0.0, "it allocated 0.1 points (error 0.0) more than fgd"),
        (0.0, 0.0, "there was no difference from fgd"),
        (0.04, 1.2, "there was no difference from fgd"),
        (-0.04, 0.3, "there was no difference from fgd"),
    ],
)
def test_a_lead_that_rounds_to_nothing_is_no_difference(
    lead: float, error: float, says: str
) -> None:
    assert lead_text(lead, error, "fgd") == says
