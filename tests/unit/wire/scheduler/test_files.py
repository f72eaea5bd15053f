"""What is printed for a release is what that release and we ourselves can start from."""

import json
from dataclasses import replace

import pytest
import yaml

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare.wire.scheduler.entry import listening_warning, our_entry
from gpushare.wire.scheduler.files import (
    ORDERS,
    STYLES,
    FileOptions,
    default_options,
    ready_made,
    render_file,
    yaml_text,
)
from gpushare.wire.scheduler.schema import NEWEST, OLDEST

RELEASES = [f"1.{minor}" for minor in range(OLDEST, NEWEST + 1)]
MOST_IN_TREE = 1400
"""Sum of kube-scheduler's own scores, with all plug-ins of 1.37; 1200 without DynamicResources."""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("release", "form"), [(release, "") for release in RELEASES] + [("1.22", "config")]
)
def test_every_file_is_read_back_without_a_warning(release: str, form: str, order: str) -> None:
    request = default_options(release, form, order)
    texts = [render_file(request, style) for style in STYLES]
    documents = [yaml.safe_load(texts[0]), json.loads(texts[1])]
    assert documents[0] == documents[1]
    config = decode_scheduler_config(documents[0])
    assert config.warnings == ()
    our_entry_result = our_entry(config, None)
    assert listening_warning(our_entry_result, None, tls=False) == ""
    verbs = (
        our_entry_result.filter_verb,
        our_entry_result.prioritize_verb,
        our_entry_result.bind_verb,
        our_entry_result.preempt_verb,
    )
    assert verbs == ("filter", "prioritize", "bind", "preempt")
    assert our_entry_result.node_cache_capable
    assert not our_entry_result.ignorable
    assert our_entry_result.http_timeout == 30
    ignored = {item.name: item.ignored_by_scheduler for item in our_entry_result.managed_resources}
    assert ignored == {
        "aliyun.com/gpu-mem": False,
        "aliyun.com/gpu-core.percentage": False,
        "aliyun.com/gpu-mem.percentage": True,
    }


@pytest.mark.parametrize("release", RELEASES)
def test_one_point_outweighs_all_other_scores_or_all_points_less_than_one_preference(
    release: str,
) -> None:
    weight = {
        order: decode_scheduler_config(
            yaml.safe_load(render_file(default_options(release, "", order), "yaml"))
        )
        .extenders[0]
        .weight
        for order in ORDERS
    }
    assert 1 * 10 * weight["ours"] > MOST_IN_TREE
    assert 10 * 10 * weight["shared"] < 2 * 100


@pytest.mark.parametrize(
    ("release", "form", "version"),
    [
        ("1.22", "", "v1"),
        ("1.22.17", "policy", "v1"),
        ("1.22", "config", "kubescheduler.config.k8s.io/v1beta2"),
        ("1.23", "", "kubescheduler.config.k8s.io/v1beta3"),
        ("v1.24.3", "", "kubescheduler.config.k8s.io/v1beta3"),
        ("1.25", "config", "kubescheduler.config.k8s.io/v1"),
        ("1.27", "", "kubescheduler.config.k8s.io/v1"),
        ("1.27.3-eks-1", "", "kubescheduler.config.k8s.io/v1"),
        ("v1.24.9+rke2r1", "", "kubescheduler.config.k8s.io/v1beta3"),
        ("1.27+", "", "kubescheduler.config.k8s.io/v1"),
        ("1.37", "", "kubescheduler.config.k8s.io/v1"),
    ],
)
def test_each_release_gets_a_version_it_reads(release: str, form: str, version: str) -> None:
    document = json.loads(render_file(default_options(release, form, "ours"), "json"))
    assert document["apiVersion"] == version
    assert ("priorities" in document) == (version == "v1")


def test_a_policy_has_the_priorities_that_1_22_can_load() -> None:
    document = json.loads(render_file(default_options("1.22", "", "shared"), "json"))
    weights = {item["name"]: item["weight"] for item in document["priorities"]}
    assert "LeastRequestedPriority" not in weights
    assert weights["NodeAffinityPriority"] == weights["InterPodAffinityPriority"] == 2
    assert sum(weights.values()) * 100 <= MOST_IN_TREE


def test_shared_on_1_22_gives_preferences_the_weight_they_have_later() -> None:
    document = json.loads(render_file(default_options("1.22", "config", "shared"), "json"))
    score = document["profiles"][0]["plugins"]["score"]
    assert {item["name"]: item["weight"] for item in score["enabled"]} == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "InterPodAffinity": 2,
    }
    assert [item["name"] for item in score["disabled"]] == [i["name"] for i in score["enabled"]]
    assert "plugins" not in render_file(default_options("1.22", "config", "ours"), "yaml")
    assert "plugins" not in render_file(default_options("1.23", "", "shared"), "yaml")


def test_address_and_resources_are_those_asked_for() -> None:
    names = ("a.io/b", "yes.no/1")
    for release in ("1.22", "1.37"):
        plain = default_options(release, "", "ours")
        request = replace(plain, url="https://127.0.0.1:1/x", resources=names)
        config = decode_scheduler_config(yaml.safe_load(render_file(request, "yaml")))
        assert config.warnings == ()
        assert config.extenders[0].url_prefix == "https://127.0.0.1:1/x"
        assert config.extenders[0].enable_https
        assert tuple(item.name for item in config.extenders[0].managed_resources) == names


@pytest.mark.parametrize(
    "release", ["1.21", "1.38", "2.27", "1", "1.27 eks", "", "1.27.", "1.\u0662\u0667"]
)
def test_a_release_we_know_nothing_of_is_refused(release: str) -> None:
    with pytest.raises(SettingsError, match=r"--kubernetes: .* is not from 1\.22 to 1\.37"):
        default_options(release, "", "ours")


def test_a_policy_is_refused_for_releases_that_read_none() -> None:
    with pytest.raises(SettingsError, match=r"reads a Policy up to 1\.22 only"):
        default_options("1.23", "policy", "ours")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (FileOptions(30, "config", "ours", url="nonsense"), "urlPrefix"),
        (FileOptions(30, "config", "ours", url=""), "urlPrefix"),
        (FileOptions(30, "config", "ours", resources=("gpu",)), "managedResources"),
        (FileOptions(30, "config", "ours", resources=("a.b/c", "a.b/c")), "named 2 times"),
        (FileOptions(30, "config", "ours", resources=()), "managedResources"),
    ],
)
def test_what_kube_scheduler_would_refuse_is_not_printed(asked: FileOptions, field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        render_file(asked, "yaml")


def test_no_comment_gets_lost_and_no_line_is_long() -> None:
    for name, text in ready_made().items():
        if name.endswith(".yaml"):
            assert text.count("# ") >= 8
            assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("word", ["no", "on", "null", "1.5", "1e3", "", "a: b", "#x", "- x", "é\n"])
def test_text_stays_text(word: str) -> None:
    assert yaml.safe_load(yaml_text({"a": word, "b": [{"c": word}]}, "x", {})) == {
        "a": word,
        "b": [{"c": word}],
    }
