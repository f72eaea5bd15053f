"""The page on the demo's cluster shows the numbers of `gpushare inspect -o json`.

In a real Chromium too, where there is one; more of that in test_ui_chromium.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.shown import Shown, demo
from tests.integration.test_demo_doctor import pod
from tests.support.chromium import browser, program
from tests.support.waiting import poll

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/kube-system/configmaps"
LABELS = """[...document.querySelectorAll('#nodes [role=option]')].map((row) => ({
  name: row.querySelector('b').textContent,
  label: row.getAttribute('aria-label'),
  devices: [...row.querySelectorAll('.device span')].map((each) => each.textContent),
  titles: [...row.querySelectorAll('title')].map((each) => each.textContent),
}))"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with demo(tmp_path_factory.mktemp("shown"), "1-binpack") as found:
        closed = {"metadata": {"name": "unhealthy-gpu-gpu-2"}, "data": {"gpus": "1"}}
        found.api.create(MAPS, closed)
        for number in range(6):
            found.api.create(PODS, pod(f"late-{number}", "15"))
        poll(lambda: settled(found), "pods wait, and the page has a sentence for each", 60)
        yield found


def settled(found: Shown) -> bool:
    books = found.books()
    waits = [each["why"] and each["asked"] for each in books["pending"]]
    closed = [each["healthy"] for node in books["nodes"] for each in node["devices"]]
    return bool(waits) and all(waits) and False in closed


def alike(document: Any, other: Any) -> Any:
    """The document with the keys alone that the other has too."""
    if isinstance(document, dict):
        return {key: alike(value, other[key]) for key, value in document.items() if key in other}
    if isinstance(document, list):
        return [alike(mine, its) for mine, its in zip(document, other, strict=True)]
    return document


def test_the_page_reads_what_inspect_says(shown: Shown) -> None:
    said, read = shown.inspect(), shown.books()
    assert len(said["nodes"]) == 2
    assert sum(len(node["pods"]) for node in said["nodes"]) >= 3
    for key in ("resource", "nodes"):
        assert alike(read[key], said[key]) == alike(said[key], read[key])
    # The page has those that wait longest first.
    by_name = {each["name"]: each for each in read["pending"]}
    waits = [by_name[each["name"]] for each in said["pending"]]
    assert len(waits) == len(by_name) >= 1
    assert alike(waits, said["pending"]) == alike(said["pending"], waits)


def test_what_was_allocated_and_refused_is_counted(shown: Shown) -> None:
    said, hour = shown.inspect(), shown.books()["lastHour"]
    pods = [each for node in said["nodes"] for each in node["pods"]]
    assert hour["allocated"] == {
        "pods": len(pods),
        "units": sum(each["allocated"] for each in pods),
    }
    assert hour["refused"]["pods"] == len(said["pending"])


@pytest.mark.skipif(program() is None, reason="no Chromium on PATH")
def test_chromium_shows_what_inspect_says(shown: Shown, tmp_path: Path) -> None:
    said = shown.inspect()
    with browser(tmp_path) as tab:
        tab.size(1280, 2000)
        tab.open(shown.url)
        tab.until("document.querySelectorAll('#nodes [role=option]').length === 2")
        rows = tab.ask(LABELS)
        assert [row["name"] for row in rows] == [node["name"] for node in said["nodes"]]
        for row, node in zip(rows, said["nodes"], strict=True):
            use = f"{node['allocated']} GiB of {node['total']} in use by {len(node['pods'])} pod"
            assert row["label"].startswith(f"{node['name']}: {use}")
            assert f"{node['free']} free; device 0: " in row["label"]
            for text, device in zip(row["devices"], node["devices"], strict=True):
                closed = "" if device["healthy"] else " closed"
                assert text == f"{device['allocated']}/{device['total']}{closed}"
            for each in node["pods"]:
                (share,) = each["devices"]
                assert f"default/{each['name']}: {share['allocated']} GiB" in row["titles"]
        text = tab.ask("document.body.innerText")
        for each in said["pending"]:
            assert each["name"] in text
        assert all(each["why"] in text for each in shown.books()["pending"])
        assert tab.problems == []
