"""`gpushare report` by a real Prometheus, which has the scrapes of a day with three restarts.

No control plane is needed. `make promtool` builds the Prometheus.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.cost_report import main
from gpushare.cli.prometheus import Prometheus
from gpushare.errors import MessageError
from tests.e2e.binaries import tool
from tests.e2e.processes import Process
from tests.e2e.test_alerts import promtool
from tests.integration.process import free_port
from tests.integration.test_gpu_seconds import DEVICES, SCRAPE, History
from tests.support.waiting import poll

GIB = 2**30
DAY = 24 * 3600
USED_HOURS = 6 / 16
"""A sixteenth of a GPU for six hours; a series that is filled in has no mark of its end, and counts
for five minutes more.
"""


@pytest.fixture(scope="module")
def history() -> History:
    """The scrapes of a day that has just ended; of the last six hours also those of a device
    plug-in: a container with 20 of 80 GiB that uses 5 and for a minute 9.
    """
    history = History(int(time.time()) - DAY - 60, DAY).play()
    card = 'uuid="u"'
    container = f'namespace="red",pod="web-5f-1",container="main",{card}'
    begin = history.begin + DAY - 6 * 3600
    for number in range(6 * 3600 // SCRAPE):
        at = begin + number * SCRAPE
        used = 9 if 1000 <= number < 1000 + 60 // SCRAPE else 5
        for series, size in (
            (f"gpushare_device_plugin_device_memory_bytes{{{card}}}", 80),
            (f"gpushare_device_plugin_container_memory_given_bytes{{{container}}}", 20),
            (f"gpushare_device_plugin_container_memory_used_bytes{{{container}}}", used),
            (
                'gpushare_pod_memory_allocated_bytes{namespace="red",pod="web-5f-1",node="n",'
                'workload="Deployment/web"}',
                20,
            ),
        ):
            history.samples[series].append((at, size * GIB))
        for pod, scrapes in (("blink", 3), ("dark", 40)):  # whose device plug-in told nothing
            labels = f'namespace="red",pod="{pod}",node="n",workload="Job/{pod}"'
            if number < scrapes:
                series = f"gpushare_pod_memory_allocated_bytes{{{labels}}}"
                history.samples[series].append((at, 4 * GIB))
    return history


@pytest.fixture(scope="module")
def prometheus(history: History, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus with this history."""
    program = tool("promtool").with_name("prometheus")
    if not os.access(program, os.X_OK):
        pytest.skip("no prometheus beside promtool: `make promtool` builds both with Go")
    folder = tmp_path_factory.mktemp("prometheus")
    lines = [
        f"{series} {value} {at}\n"
        for series, samples in history.samples.items()
        for at, value in samples
    ]
    (folder / "scrapes.txt").write_text("".join(lines) + "# EOF\n")
    (folder / "prometheus.yml").write_text("{}\n")
    data = folder / "data"
    promtool("tsdb", "create-blocks-from", "openmetrics", folder / "scrapes.txt", data)
    url = f"http://127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]
    process = Process("prometheus", command, folder)
    try:
        poll(lambda: _is_ready(url, process), process.last_lines)
        yield url
    finally:
        process.kill()


def _is_ready(url: str, process: Process) -> bool:
    process.running()
    with suppress(MessageError):
        return bool(Prometheus(url).query("vector(1)"))
    return False


def _document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "-o", "json"]) == 0
    printed = capsys.readouterr()
    document: dict[str, Any] = json.loads(printed.out)
    warnings = [f"warning: {warning}" for warning in document["warnings"]]
    assert printed.err.splitlines() == warnings
    return document


def test_the_report_of_a_day_is_the_integral_of_the_books(
    prometheus: str, history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    document = _document(capsys, "--prometheus", prometheus, "--since", "25h")
    assert document["warnings"] == []
    rows = {row["namespace"]: row for row in document["rows"]}
    truth = {namespace: seconds / 3600 for namespace, seconds in history.truth.items()}
    hours = {namespace: row["promisedGPUHours"] for namespace, row in rows.items()}
    assert hours == {
        namespace: pytest.approx(amount, rel=0.003) for namespace, amount in truth.items()
    }
    assert sum(hours.values()) == pytest.approx(sum(truth.values()), rel=0.001)
    idle = sum(entry["idleGPUHours"] for entry in document["idle"])
    assert idle + sum(hours.values()) == pytest.approx(24 * DEVICES, rel=0.001)
    assert rows["red"]["usedGPUHours"] == pytest.approx(USED_HOURS, rel=0.03)
    assert rows["blue"]["usedGPUHours"] is None


def test_workloads_and_costs_are_reported(
    prometheus: str, history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--prometheus", prometheus, "--since", "25h")
    by_workload = _document(capsys, *words, "--by", "workload", "-n", "red")
    (row,) = by_workload["rows"]
    assert row["workload"] == "Deployment/web"
    assert row["promisedGPUHours"] == pytest.approx(history.truth["red"] / 3600, rel=0.003)
    assert row["usedGPUHours"] == pytest.approx(USED_HOURS, rel=0.03)
    (row,) = _document(capsys, *words, "-n", "red", "--prices", "*=2")["rows"]
    assert row["cost"] == pytest.approx(2 * row["promisedGPUHours"])


def test_a_container_could_ask_for_the_most_that_it_used(
    prometheus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--prometheus", prometheus, "--since", "25h", "--rightsize", "--margin", "10%")
    document = _document(capsys, *words)
    size, *unmeasured = document["containers"]
    assert [size["workload"] for size in unmeasured] == ["Job/blink", "Job/dark"]
    brief = "they ran too briefly to be measured, for 4 scrapes at most"
    assert f"red: no figures of 1 of 3 pods: {brief}" in document["warnings"]
    assert any("1 of 3 pods: have it scrape" in warning for warning in document["warnings"])
    assert (size["workload"], size["container"]) == ("Deployment/web", "main")
    assert (size["givenMiB"], size["mostUsedMiB"]) == (20 * 1024, 9 * 1024)
    assert size["enoughMiB"] == 10 * 1024
    assert size["freesMiB"] in (0, 10 * 1024)


def test_a_time_without_scrapes_says_what_to_set_up(
    prometheus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--prometheus", f"{prometheus}/elsewhere"]) == 1
    assert "is it the address of a Prometheus?" in capsys.readouterr().err
    assert main(["--prometheus", prometheus, "--since", "25h", "-n", "nobody"]) == 0
    assert "idle A100" in capsys.readouterr().out
