"""The page on the demo's cluster shows the numbers of `gpushare inspect -o json`.

In a real Chromium too, where there is one; more of that in test_ui_chromium.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.wire.dra.objects import CLASS
from tests.integration.shown import Shown, demo
from tests.integration.test_demo_doctor import pod
from tests.support.chromium import browser, program
from tests.support.waiting import poll

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/kube-system/configmaps"
CLAIMS = """
nodes: [{name: a, gpuMemory: [40], driver: gpu.example.com}]
steps:
  - apply: {name: first, gpuMem: 30, claim: gpushare.io}
  - waitFor: {pods: first, is: bound}
  - apply: {name: late, gpuMem: 20, claim: gpushare.io}
  - expect: {pod: late, pending: cannot allocate all claims}
"""
LABELS = """[...document.querySelectorAll('#nodes [role=option]')].map((row) => ({
  name: row.querySelector('b').textContent,
  label: row.querySelector('.unseen').textContent,
  devices: [...row.querySelectorAll('.device span')].map((each) => each.textContent),
  titles: [...row.querySelectorAll('title')].map((each) => each.textContent),
}))"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with demo(tmp_path_factory.mktemp("shown"), "1-binpack") as demo_result:
        config_map = {"metadata": {"name": "unhealthy-gpu-gpu-2"}, "data": {"gpus": "1"}}
        demo_result.api.create(MAPS, config_map)
        for number in range(6):
            demo_result.api.create(PODS, pod(f"late-{number}", "15"))
        poll(lambda: settled(demo_result), "pods wait, and the page has a sentence for each", 60)
        yield demo_result


def settled(found: Shown) -> bool:
    books = found.books()
    waits = [item["why"] and item["asked"] for item in books["pending"]]
    device_states = [device["healthy"] for node in books["nodes"] for device in node["devices"]]
    # A pod that was offered the device before it was unhealthy is refused later.
    is_refused = books["lastHour"]["refused"]["pods"] == len(waits)
    return bool(waits) and all(waits) and is_refused and False in device_states


def alike(document: Any, second: Any) -> Any:
    """The document with the keys alone that the other has too."""
    if isinstance(document, dict):
        return {key: alike(value, second[key]) for key, value in document.items() if key in second}
    if isinstance(document, list):
        return [alike(mine, its) for mine, its in zip(document, second, strict=True)]
    return document


def test_the_page_reads_what_inspect_says(shown: Shown) -> None:
    inspect_result, books = shown.inspect(), shown.books()
    assert len(inspect_result["nodes"]) == 2
    assert sum(len(node["pods"]) for node in inspect_result["nodes"]) >= 3
    for key in ("resource", "nodes"):
        assert alike(books[key], inspect_result[key]) == alike(inspect_result[key], books[key])
    # The page has those that wait longest first.
    by_name = {item["name"]: item for item in books["pending"]}
    waits = [by_name[item["name"]] for item in inspect_result["pending"]]
    assert len(waits) == len(by_name) >= 1
    assert alike(waits, inspect_result["pending"]) == alike(inspect_result["pending"], waits)


def test_what_was_allocated_and_refused_is_counted(shown: Shown) -> None:
    inspect_result, hour = shown.inspect(), shown.books()["lastHour"]
    pods = [item for node in inspect_result["nodes"] for item in node["pods"]]
    assert hour["allocated"] == {
        "pods": len(pods),
        "units": sum(item["allocated"] for item in pods),
    }
    assert hour["refused"]["pods"] == len(inspect_result["pending"])


def test_the_page_says_which_claims_keep_a_pod_waiting(tmp_path: Path) -> None:
    scenario = tmp_path / "claims.yaml"
    scenario.write_text(CLAIMS)
    with demo(tmp_path, str(scenario)) as found:
        poll(lambda: [pod["why"] for pod in found.books(CLASS)["pending"]] not in ([], [None]))
        (waiting,) = found.books(CLASS)["pending"]
    assert waiting["name"] == "late"
    assert "it would fit on a once claim default/" in waiting["why"]
    assert "(of first) ends" in waiting["why"]
    assert "cannot allocate all claims" in waiting["scheduler"]


@pytest.mark.skipif(program() is None, reason="no Chromium on PATH")
def test_chromium_shows_what_inspect_says(shown: Shown, tmp_path: Path) -> None:
    inspect_result = shown.inspect()
    with browser(tmp_path) as tab:
        tab.size(1280, 2000)
        tab.open(shown.url)
        tab.until("document.querySelectorAll('#nodes [role=option]').length === 2")
        rows = tab.ask(LABELS)
        assert [row["name"] for row in rows] == [node["name"] for node in inspect_result["nodes"]]
        for row, node in zip(rows, inspect_result["nodes"], strict=True):
            use = f"{node['allocated']} GiB of {node['total']} in use by {len(node['pods'])} pod"
            assert row["label"].startswith(f"{node['name']}: {use}")
            assert f"{node['free']} free; device 0: " in row["label"]
            for text, device in zip(row["devices"], node["devices"], strict=True):
                suffix = "" if device["healthy"] else " closed"
                assert text == f"{device['allocated']}/{device['total']}{suffix}"
            for entry in node["pods"]:
                (share,) = entry["devices"]
                assert f"default/{entry['name']}: {share['allocated']} GiB" in row["titles"]
        text = tab.ask("document.body.innerText")
        for item in inspect_result["pending"]:
            assert item["name"] in text
        assert all(item["why"] in text for item in shown.books()["pending"])
        assert tab.problems == []
