"""A scheduler file is read as strictly as kube-scheduler reads it.

What that itself says to many changed files: tests/e2e/test_scheduler_files.py.
"""

import math
from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.schema import lenient, strict


@pytest.mark.parametrize(
    ("version", "release", "document", "said"),
    [
        ("v1", 0, {"healthzBindAddress": ""}, "healthzBindAddress: a key of v1beta1 and v1beta2"),
        ("v1", 26, {"delayCacheUntilActive": True}, "from 1.28 on, and 1.26 does not start"),
        ("v1beta1", 0, {"profiles": [{"plugins": {"multiPoint": {}}}]}, "from 1.23 on, and 1.22"),
        ("v1beta3", 0, {"nosuch": 1}, "nosuch: unknown; kube-scheduler does not start"),
        ("v1", 37, {"nosuch": 1}, "nosuch: unknown; kube-scheduler does not start"),
        ("v1", 0, {"Parallelism": 1}, "Parallelism: write parallelism"),
        ("v1", 0, {"parallelism": "8"}, "parallelism: must be a whole number"),
        ("v1", 0, {"parallelism": 1.5}, "parallelism: must be a whole number of 32 bits"),
        ("v1", 0, {"parallelism": 2**31}, "parallelism: must be a whole number of 32 bits"),
        ("v1", 0, {"parallelism": 10**400}, "parallelism: must be a whole number of 32 bits"),
        ("v1", 0, {"parallelism": math.nan}, "parallelism: must be a whole number of 32 bits"),
        ("v1", 0, {"parallelism": math.inf}, "parallelism: must be a whole number of 32 bits"),
        ("v1", 0, {"clientConnection": {"qps": 10**400}}, "qps: is too large for a number"),
        ("v1", 0, {"parallelism": float("inf")}, "parallelism: must be a whole number"),
        ("v1", 0, {"enableProfiling": "true"}, "enableProfiling: must be true or false"),
        ("v1", 0, {"clientConnection": {"qps": True}}, r"clientConnection\.qps: must be a number"),
        ("v1", 0, {"extenders": {}}, "extenders: must be a list"),
        ("v1", 0, {"extenders": [{"httpTimeout": None}]}, r"extenders\[0\]\.httpTimeout: must be"),
        ("v1", 0, {"leaderElection": {"retryPeriod": "2"}}, r"retryPeriod: '2' is not a duration"),
        ("v1", 0, {"profiles": [{"schedulerName": 5}]}, r"profiles\[0\]\.schedulerName: must be"),
    ],
)
def test_what_kube_scheduler_refuses_is_refused_by_its_place(
    version: str, release: int, document: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        strict(document, version, release)


def test_null_is_like_a_key_that_is_missing() -> None:
    document = {"parallelism": None, "profiles": None, "extenders": [None], "leaderElection": None}
    assert strict(document, "v1").fields == {
        "profiles": [],
        "extenders": [{}],
        "leaderElection": {},
    }


def test_a_key_that_a_newer_kube_scheduler_may_have_is_noted_where_the_release_is_not_known() -> (
    None
):
    strict_result = strict({"nosuch": 1, "extenders": [{"x\ny": 1}]}, "v1")
    assert strict_result.unknown == ["nosuch", r"extenders[0].'x\ny'"]
    assert strict_result.fields == {"extenders": [{}]}


def test_a_policy_takes_any_case_within_its_extenders_and_counts_nanoseconds() -> None:
    entry = {"URLPREFIX": "http://a", "httptimeout": 2_000_000_000, "other": 1}
    lenient_result = lenient({"extenders": [entry, {"httpTimeout": "3s"}, {"httpTimeout": None}]})
    assert lenient_result.fields["extenders"] == [
        {"urlPrefix": "http://a", "httpTimeout": 2.0},
        {"httpTimeout": 3.0},
        {},
    ]
    assert lenient_result.unknown == ["extenders[0].other"]
    (remark,) = lenient_result.remarks
    assert "write 3000000000" in remark
