"""Names of resources and annotations that are nearly ours."""

import re
from pathlib import Path

import pytest

from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.near_misses import near_miss

_DOCS = Path(__file__).parents[3] / "docs"
NPU = Names.for_resource("example.com/npu-mem")


@pytest.mark.parametrize(
    ("name", "probable"),
    [
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem"),
        ("aliyun.com/gpu_mem", "aliyun.com/gpu-mem"),
        ("aliyum.com/gpu-mem", "aliyun.com/gpu-mem"),
        ("aliyun.com/gpu-cores", "aliyun.com/gpu-core.percentage"),
        ("aliyun.com/gpu-core", "aliyun.com/gpu-core.percentage"),
        ("aliyun.com/gpu-core.percent", "aliyun.com/gpu-core.percentage"),
    ],
)
def test_a_misspelt_resource_is_told(name: str, probable: str) -> None:
    text = near_miss([name, "cpu"], [], ALIYUN)
    assert text == f"{name} is none of gpushare's resources: {probable} is probably meant"
    assert near_miss([name], [], ALIYUN, [name]) == ""


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "aliyun.com/gpu",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-count",
        "aliyun.com/gpu-core.percentage",
        "nvidia.com/gpumem",
        "koordinator.sh/gpu-memory",
        "nvidia.com/gpu",
        "example.com/npu-mem",
        "hugepages-2Mi",
    ],
)
def test_other_resources_are_no_near_misses(name: str) -> None:
    assert near_miss([name], [], ALIYUN) == ""


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("gpushare.io/polcy", "gpushare.io/policy is probably meant"),
        ("gpushare.com/policy", "gpushare.io/policy is probably meant"),
        ("gpu-share.io/split", "gpushare.io/split is probably meant"),
        ("gpushare.io/wholecard", "gpushare.io/whole-card is probably meant"),
        ("gpushare.io/use-model", "gpushare.io/use-models is probably meant"),
        ("aliyun.com/gpu-cuont", "aliyun.com/gpu-count is probably meant"),
        ("gpushare.io/guaranteed-share", "gpushare has none of that name"),
    ],
)
def test_a_misspelt_annotation_is_told(name: str, end: str) -> None:
    assert near_miss([], [name], ALIYUN) == f"annotation {name} has no effect: {end}"


def test_all_near_misses_are_told_at_once() -> None:
    text = near_miss(["aliyun.com/gpu-memory"], ["gpushare.io/polcy"], ALIYUN)
    assert text.count("probably meant") == 2


def test_the_annotations_of_the_page_are_known() -> None:
    page = (_DOCS / "annotations.md").read_text("utf-8")
    found = set(re.findall(r"`(gpushare\.io/[a-z-]+|ALIYUN[A-Z_]+)`", page))
    assert len(found) > 15
    others = {"gpushare.io/device-list", "gpushare.io/scale-down-guard"}  # of nodes
    assert near_miss([], found - others, ALIYUN) == ""
    foreign = ["cni.projectcalico.org/podIP", "kubernetes.io/psp", "prometheus.io/scrape", "policy"]
    assert near_miss([], foreign, ALIYUN) == ""


def test_what_we_write_of_another_resource_is_known() -> None:
    written = [NPU.uuids, NPU.given, NPU.allocation, NPU.core_allocation, NPU.idx]
    assert near_miss([], written, ALIYUN) == ""
    assert near_miss([], written, NPU) == ""
    assert "example.com/npu-mem is probably meant" in near_miss(["example.com/npumem"], [], NPU)
