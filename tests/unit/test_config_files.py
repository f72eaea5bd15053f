"""The files that the README tells users to apply can be read by the code that reads them."""

import json
from pathlib import Path

import pytest
import yaml

from gpushare.settings import read_settings
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS
from gpushare.wire.pods import request_of
from gpushare.wire.scheduler.config import decode_scheduler_config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "config" / "scheduler").iterdir())
SAMPLES = sorted((ROOT / "config" / "samples").iterdir())


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_kube_scheduler_would_take_the_file_without_a_warning(file: Path) -> None:
    config = decode_scheduler_config(yaml.safe_load(file.read_text()))
    assert config.warnings == ()
    (extender,) = config.extenders
    assert extender.url_prefix == "http://127.0.0.1:32766/gpushare-scheduler"
    verbs = (extender.filter_verb, extender.prioritize_verb, extender.bind_verb)
    assert verbs == ("filter", "prioritize", "bind")
    ignored_by_name = {
        resource.name: resource.ignored_by_scheduler for resource in extender.managed_resources
    }
    assert ignored_by_name == {ALIYUN.resource: False, ALIYUN.cores: False, ALIYUN.share: True}


def test_a_policy_names_priorities_without_which_1_22_does_not_start() -> None:
    policies = [file for file in CONFIGS if file.suffix == ".json"]
    assert policies
    for file in policies:
        assert "priorities" in yaml.safe_load(file.read_text()), file.name


@pytest.mark.parametrize(
    ("name", "units", "devices", "policy"),
    [
        ("one-device.yaml", 4, 1, ""),
        ("two-devices.yaml", 8, 2, ""),
        ("spread-policy.yaml", 4, 1, "spread"),
    ],
)
def test_the_sample_pod_asks_for_what_its_comment_says(
    name: str, units: int, devices: int, policy: str
) -> None:
    document = yaml.safe_load((ROOT / "config" / "samples" / name).read_text())
    request = request_of(PODS.decode(json.dumps(document).encode()), ALIYUN)
    assert (request.units, request.devices, request.policy) == (units, devices, policy)


def test_every_sample_is_tried_here() -> None:
    names = {"one-device.yaml", "two-devices.yaml", "spread-policy.yaml"}
    assert {file.name for file in SAMPLES} == names


def test_the_pod_in_the_readme_is_the_sample() -> None:
    blocks = (ROOT / "README.md").read_text().split("```yaml\n")[1:]
    documents = [yaml.safe_load(block.split("```")[0]) for block in blocks]
    (readme_pod,) = (document for document in documents if document["kind"] == "Pod")
    sample = yaml.safe_load((ROOT / "config" / "samples" / "one-device.yaml").read_text())
    assert readme_pod["spec"] == sample["spec"]


def test_the_serve_of_the_readme_leads_where_its_scheduler_does() -> None:
    _, _, words = (ROOT / "README.md").read_text().partition("gpushare serve --")
    flags = f"--{words.split('```')[0]}".replace("\\\n", "").split()
    assert read_settings(flags, {}, lambda _path: {}).leadership == "scheduler"
