"""Which plug-ins a legacy Policy stands for: 1.22's registry, and its refusals."""

from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare.wire.scheduler.policy import policy_profile
from gpushare.wire.scheduler.profiles import Profile

SHAPE = {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}


def read(**policy: Any) -> Profile:
    document = {"kind": "Policy", "apiVersion": "v1", **policy}
    (profile,) = decode_scheduler_config(document).profiles
    return profile


def names(profile: Profile, point: str) -> list[str]:
    return [name for name, _ in profile.plugins[point].enabled]


def test_what_it_does_not_say_is_1_22s_default() -> None:
    profile = read()
    assert names(profile, "filter") == [
        *("NodeUnschedulable", "NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"),
        *("VolumeRestrictions", "TaintToleration", "EBSLimits", "GCEPDLimits"),
        *("NodeVolumeLimits", "AzureDiskLimits", "VolumeBinding", "VolumeZone"),
        *("PodTopologySpread", "InterPodAffinity"),
    ]
    scores = dict(profile.plugins["score"].enabled)
    assert scores.pop("NodePreferAvoidPods") == 10000
    assert scores.pop("PodTopologySpread") == 2
    assert set(scores.values()) == {1}
    assert profile.args["PodTopologySpread"] == {"defaultingType": "System"}


def test_an_empty_list_leaves_the_two_mandatory_filters() -> None:
    profile = read(predicates=[], priorities=[])
    assert names(profile, "filter") == ["NodeUnschedulable", "TaintToleration"]
    assert names(profile, "score") == []
    assert names(profile, "bind") == ["DefaultBinder"]


def test_predicates_run_in_their_own_order_each_plug_in_once() -> None:
    listing = ("MatchInterPodAffinity", "PodFitsPorts", "GeneralPredicates", "HostName")
    profile = read(predicates=[{"name": name} for name in listing], priorities=[])
    assert names(profile, "filter") == [
        *("NodeUnschedulable", "NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"),
        *("TaintToleration", "InterPodAffinity"),
    ]


def test_priorities_give_weights_and_arguments() -> None:
    ratio = {"requestedToCapacityRatioArguments": SHAPE}
    profile = read(
        predicates=[{"name": "Mine", "argument": {"labelsPresence": {"labels": ["a"]}}}],
        priorities=[
            {"name": "EqualPriority", "weight": 9},
            {"name": "MostRequestedPriority", "weight": 3},
            {"name": "ServiceSpreadingPriority", "weight": 4},
            {"name": "Mine", "weight": 5, "argument": ratio},
        ],
        hardPodAffinitySymmetricWeight=7,
        alwaysCheckAllPredicates=True,
    )
    assert dict(profile.plugins["score"].enabled) == {
        "NodeResourcesMostAllocated": 3,
        "PodTopologySpread": 4,
        "RequestedToCapacityRatio": 5,
    }
    assert profile.args["RequestedToCapacityRatio"] == SHAPE
    assert profile.args["InterPodAffinity"] == {"hardPodAffinityWeight": 7}
    assert "NodeLabel" in names(profile, "filter")
    assert profile.check_all_filters


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        ({"predicates": [{"name": "X"}]}, r'predicates\[0\]: predicate type not found for "X"'),
        (
            {"priorities": [{"name": "X", "weight": 1}]},
            r'priorities\[0\]: priority type not found for "X"',
        ),
        (
            {"predicates": [{"name": "HostName", "argument": {}}]},
            "exactly 1 predicate argument is required, one of serviceAffinity, labelsPresence",
        ),
        ({"priorities": [{"name": "X", "weight": 0}]}, "weight: must be positive"),
        ({"hardPodAffinitySymmetricWeight": 101}, r"not in valid range \[0-100\]"),
    ],
)
def test_what_1_22_refuses_is_refused_in_its_words(policy: dict[str, Any], refusal: str) -> None:
    with pytest.raises(SettingsError, match=refusal):
        policy_profile(policy)
