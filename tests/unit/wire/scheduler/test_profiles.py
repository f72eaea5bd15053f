"""Profiles of a configuration file: what is read of plug-ins, and what is refused."""

import re
from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import SchedulerConfig, decode_scheduler_config
from gpushare.wire.scheduler.profiles import PluginSet, Profile


def read(*profiles: dict[str, Any], version: str = "v1", **fields: Any) -> SchedulerConfig:
    head = {"apiVersion": f"kubescheduler.config.k8s.io/{version}"}
    kind = {"kind": "KubeSchedulerConfiguration"}
    return decode_scheduler_config(head | kind | {"profiles": list(profiles)} | fields)


def test_plug_ins_weights_and_arguments_are_read() -> None:
    args = {"scoringStrategy": {"type": "MostAllocated"}}
    result = read(
        {
            "schedulerName": "packing",
            "percentageOfNodesToScore": 70,
            "plugins": {
                "multiPoint": {"disabled": [{"name": "*"}]},
                "score": {"enabled": [{"name": "NodeResourcesFit", "weight": 5}, {"name": "Mine"}]},
            },
            "pluginConfig": [{"name": "NodeResourcesFit", "args": args}],
        },
        percentageOfNodesToScore=50,
    )
    assert result.profiles == (
        Profile(
            "packing",
            70,
            {
                "multiPoint": PluginSet(disabled=("*",)),
                "score": PluginSet(enabled=(("NodeResourcesFit", 5), ("Mine", 0))),
            },
            {"NodeResourcesFit": args},
        ),
    )
    assert not result.warnings


def test_without_profiles_there_is_one_with_the_defaults_of_the_version() -> None:
    assert read(version="v1beta2").profiles == (Profile(defaults="v1beta2"),)


def test_each_profile_has_its_own_percentage_or_the_files() -> None:
    result = read({"schedulerName": "a"}, {"schedulerName": "b", "percentageOfNodesToScore": 10})
    assert [profile.percentage for profile in result.profiles] == [0, 10]


@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ({"plugins": {"score": {"enabled": "Fit"}}}, "profiles[0].plugins.score.enabled: must be"),
        ({"plugins": {"multipoint": {}}}, "profiles[0].plugins.multipoint: write multiPoint"),
        (
            {"plugins": {"score": {"enabled": [{"name": "A"}, {"name": "A"}]}}},
            "profiles[0].plugins.score.enabled: a plugin is named twice",
        ),
        (
            {"pluginConfig": [{"name": "A"}, {"name": "A"}]},
            "profiles[0].pluginConfig[1]: a second entry for plugin 'A'",
        ),
        ({"pluginConfig": [{"name": "A", "args": []}]}, "pluginConfig[0].args: must be an object"),
        ({"percentageOfNodesToScore": 101}, "profiles[0].percentageOfNodesToScore: must be from 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(profile: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(sentence)):
        read(profile)
