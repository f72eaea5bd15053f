"""The demo's scheduler file: the entries that stay, and the remarks on each."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare_localcluster.demo.plan import ScenarioError
from gpushare_localcluster.demo.scheduler_file import read_file, with_extender

URL = "http://127.0.0.1:7/gpushare-scheduler"
MINE: dict[str, Any] = {
    "urlPrefix": "https://elsewhere:1/x",
    "enableHTTPS": True,
    "weight": 5,
    "bindVerb": "bind",
    "managedResources": [{"name": "aliyun.com/gpu-mem"}],
}
OTHER: dict[str, Any] = {"urlPrefix": "http://127.0.0.1:9/", "filterVerb": "filter"}


def entries(whole: dict[str, Any]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = whole["extenders"]
    return result


def test_without_a_file_the_extender_outweighs_all_others_and_nothing_is_told() -> None:
    whole, text = with_extender({}, 7)
    entry = entries(whole)[0]
    assert (entry["urlPrefix"], entry["weight"], text) == (URL, 150, [])


def test_an_entry_of_ours_stays_as_it_is_but_for_where_it_is_called() -> None:
    whole, text = with_extender({"extenders": [OTHER, MINE]}, 7)
    survivors = {key: value for key, value in MINE.items() if key != "enableHTTPS"}
    assert whole["extenders"] == [OTHER, {**survivors, "urlPrefix": URL}]
    assert text == [
        "extenders[0] of the file is called as it says",
        f"extenders[1] of the file is the demo's extender, with weight 5, called at {URL}",
    ]


def test_an_entry_that_binds_every_pod_at_our_url_is_ours_too() -> None:
    binds = {"urlPrefix": MINE["urlPrefix"], "bindVerb": "bind", "httpTimeout": "60s"}
    filters = {key: value for key, value in MINE.items() if key != "bindVerb"}
    whole, text = with_extender({"extenders": [filters, binds]}, 7)
    assert [item["urlPrefix"] for item in entries(whole)] == [URL, URL]
    assert text[1].startswith("extenders[1] of the file is the demo's extender")


def test_a_file_without_an_entry_of_ours_gets_one_and_it_is_told() -> None:
    whole, text = with_extender({"kind": "Policy", "apiVersion": "v1", "extenders": [OTHER]}, 7)
    assert [item["urlPrefix"] for item in entries(whole)] == [OTHER["urlPrefix"], URL]
    assert whole.keys() == {"kind", "apiVersion", "extenders"}
    assert text[-1].endswith("with weight 150: above all other scores together")


@pytest.mark.parametrize("result", [{"a": 1}, [1], "x"])
def test_what_is_no_list_of_objects_is_refused(result: object) -> None:
    with pytest.raises(SettingsError, match="extenders: not a list of objects"):
        with_extender({"extenders": result}, 7)


def test_another_extender_by_https_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    other = {**OTHER, "urlPrefix": "https://127.0.0.1:9/"}
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [other, MINE],
    }
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ScenarioError, match="calls extenders by http only"):
        read_file(file)
