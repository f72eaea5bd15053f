"""The extender's metrics as commands read them."""

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.metrics import check_health_url, ranking_policies, read_samples, total

METRICS = """\
# HELP gpushare_requests_total Calls answered
# TYPE gpushare_requests_total counter
gpushare_requests_total{verb="filter",outcome="fit"} 3.0
gpushare_requests_total{outcome="none",verb="filter"} 2.0
gpushare_requests_total{outcome="fit",verb="bind"} 9.0
gpushare_ready 1.0
gpushare_odd one
"""

RANKING = """\
gpushare_ranking_policy{resource="r",policy="fgd"} 1
gpushare_ranking_policy{resource="plain",policy="binpack"} 1
gpushare_ranking_policy_chosen_timestamp_seconds{resource="r",policy="fgd"} 1764288000
gpushare_trial_allocated_percent{resource="r",policy="fgd"} 91.5
gpushare_trial_refused_percent{resource="r",policy="fgd"} 2.5
"""
LEAD = """\
gpushare_trial_lead_percent{resource="r",policy="fgd",second="binpack"} 2.14
gpushare_trial_lead_error_percent{resource="r",policy="fgd"} 0.4
"""
SHADOW = """\
gpushare_shadow_on{policy="spread"} %d
gpushare_shadow_choices_total{resource="r",choice="same"} 7
gpushare_shadow_choices_total{resource="r",choice="other"} 3
gpushare_shadow_pods_total{resource="r",taken="real"} 2
"""


def test_samples_are_summed_by_labels() -> None:
    decoded = read_samples(METRICS)
    assert total(decoded, "gpushare_requests_total", verb="filter") == 5.0
    assert total(decoded, "gpushare_ready") == 1.0
    assert total(decoded, "gpushare_odd") is None
    assert total(decoded, "gpushare_requests") is None


def test_the_policy_that_ranks_is_told_with_its_trial() -> None:
    policies = ranking_policies(read_samples(RANKING))
    assert str(policies["plain"]) == "binpack"
    assert str(policies["r"]) == "fgd, chosen by auto, since 2025-11-28T00:00:00Z"
    assert policies["r"].allocated_percent == {"fgd": 91.5}
    assert policies["r"].refused_percent == {"fgd": 2.5}
    text = str(ranking_policies(read_samples(RANKING + LEAD))["r"])
    assert text.endswith("it allocated 2.1 points (error 0.4) more than binpack")


@pytest.mark.parametrize(("is_on", "end"), [(1, "had room for 0"), (0, "it failed and is off")])
def test_the_shadow_policy_is_told_by_its_counts(is_on: int, end: str) -> None:
    shadow = ranking_policies(read_samples(RANKING + SHADOW % is_on))["r"].shadow
    assert shadow.startswith("spread, another choice for 3 of 10 requests")
    assert shadow.endswith(end)


@pytest.mark.parametrize(
    "url", ["", "host:1", "ftp://host:1", "http://", "http://host:0", "http://["]
)
def test_an_address_of_no_health_listener_is_refused(url: str) -> None:
    check_health_url("https://host:32767")
    with pytest.raises(SettingsError, match="is not http://HOST:PORT"):
        check_health_url(url)
