"""Right-sizing names the request that is enough, and never guesses where nothing was measured."""

import json

import pytest

from gpushare.cli.cost_report import main
from tests.unit.cli.prometheus_server import Samples, prometheus_server

GIB = 2**30


def _of(pod: str, size: float, container: str = "main") -> tuple[dict[str, str], float]:
    return {"pod": pod, "container": container}, size


ANSWERS: dict[str, Samples] = {
    "group by (namespace)": [({"namespace": "red"}, 1)],
    "max_over_time(gpushare_device_plugin_container_memory_given": [
        _of("web-a", 20 * GIB),
        _of("web-b", 20 * GIB),
        _of("idle", 8 * GIB),
        _of("full", 8 * GIB),
        _of("dark", 4 * GIB),
    ],
    "max_over_time(gpushare_device_plugin_container_memory_used": [
        _of("web-a", 6 * GIB),
        _of("web-b", 7.1 * GIB),
        _of("idle", 0),
        _of("full", 8 * GIB),
    ],
    "max by (pod, container, uuid)": [
        _of("web-b", 20 * GIB),
        _of("web-b", 20 * GIB),
        _of("idle", 8 * GIB),
        _of("full", 8 * GIB),
        _of("dark", 4 * GIB),
    ],
    "gpushare_pod_memory_allocated_bytes": [
        ({"pod": "web-a", "workload": "Deployment/web"}, 1),
        ({"pod": "web-b", "workload": "Deployment/web"}, 1),
        ({"pod": "far-a", "workload": "Deployment/far"}, 1),
    ],
}


def _run(capsys: pytest.CaptureFixture[str], answers: dict[str, Samples], *words: str) -> str:
    with prometheus_server(answers) as server:
        assert main(["--prometheus", server.url, "--rightsize", *words]) == 0
    return capsys.readouterr().out


def test_a_workload_could_ask_for_the_most_that_its_pods_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = _run(capsys, ANSWERS, "--margin", "10%")
    # 7.1 GiB and a tenth are 7.81 GiB, so 8 GiB do. web-b runs now, on two cards.
    assert [line.split() for line in out.splitlines()][1:] == [
        ["red", "Deployment/web", "main", "2", "20480", "7271", "8192", "24576"],
        ["red", "Pod/idle", "main", "1", "8192", "0", "1024", "7168"],
        ["red", "Pod/full", "main", "1", "8192", "8192", "9216", "-1024"],
        ["red", "Deployment/far", "-", "1", "-", "-", "-", "-"],
        ["red", "Pod/dark", "main", "1", "4096", "-", "-", "-"],
    ]


def test_a_pod_that_was_made_smaller_frees_only_of_what_it_has_now(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = {"max by (pod, container, uuid)": [_of("web-b", 10 * GIB)]}
    out = _run(capsys, ANSWERS | now, "--margin", "10%", "-o", "json")
    sizes = {entry["workload"]: entry for entry in json.loads(out)["containers"]}
    web = sizes["Deployment/web"]
    assert (web["givenMiB"], web["enoughMiB"], web["freesMiB"]) == (20480, 8192, 2048)


def test_the_unit_rounds_and_the_margin_may_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    out = _run(capsys, ANSWERS, "--margin", "0%", "--unit", "256MiB", "-o", "json")
    sizes = {entry["workload"]: entry for entry in json.loads(out)["containers"]}
    assert sizes["Deployment/web"]["enoughMiB"] == 29 * 256
    assert sizes["Pod/full"]["enoughMiB"] == 8192
    assert sizes["Pod/full"]["freesMiB"] == 0
    assert sizes["Pod/dark"] == {
        "namespace": "red",
        "workload": "Pod/dark",
        "container": "main",
        "pods": 1,
        "givenMiB": 4096,
        "mostUsedMiB": None,
        "enoughMiB": None,
        "freesMiB": None,
    }


def test_a_namespace_whose_plug_in_is_not_scraped_has_no_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dark = {"namespace": "blue", "pod": "lamp-a", "workload": "Deployment/lamp"}
    answers: dict[str, Samples] = {
        "count_over_time": (),
        "group by (namespace) (last_over_time(gpushare_pod_memory": [(dark, 1)],
        'gpushare_pod_memory_allocated_bytes{namespace="blue"}': [(dark, 1)],
        '{namespace="blue"}': (),
        **ANSWERS,
    }
    with prometheus_server(answers) as server:
        assert main(["--prometheus", server.url, "--rightsize"]) == 0
    printed = capsys.readouterr()
    (line,) = (line for line in printed.out.splitlines() if line.startswith("blue"))
    assert line.split() == ["blue", "Deployment/lamp", "-", "1", "-", "-", "-", "-"]
    assert "blue: no figures of 1 of 1 pods: have it scrape the port health" in printed.err
    assert "red: no figures of 1 of 3 pods" in printed.err
    assert "red: a row for each of 3 pods whose workloads the extender does not" in printed.err


def test_pods_that_ran_too_briefly_are_told_apart_from_those_that_nobody_measures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    far = {"pod": "far-b", "workload": "Deployment/far"}
    answers: dict[str, Samples] = {
        "count_over_time(gpushare_pod_memory_allocated_bytes": [({"pod": "far-b"}, 4)],
        **ANSWERS,
        "gpushare_pod_memory_allocated_bytes": [
            *ANSWERS["gpushare_pod_memory_allocated_bytes"],
            (far, 1),
        ],
    }
    with prometheus_server(answers) as server:
        assert main(["--prometheus", server.url, "--rightsize"]) == 0
    warnings = capsys.readouterr().err
    assert "red: no figures of 1 of 4 pods: they ran too briefly to be measured" in warnings
    assert "red: no figures of 1 of 4 pods: have it scrape the port health" in warnings


def test_without_names_of_workloads_each_pod_stands_for_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = ANSWERS | {"gpushare_pod_memory_allocated_bytes": ()}
    with prometheus_server(answers) as server:
        assert main(["--prometheus", server.url, "--rightsize", "-n", "red"]) == 0
    printed = capsys.readouterr()
    assert "Pod/web-b" in printed.out
    assert "--metrics-detail pods" in printed.err


def test_a_namespace_without_pods_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus_server(dict.fromkeys(ANSWERS, ())) as server:
        assert main(["--prometheus", server.url, "-n", "typo", "--rightsize"]) == 0
    assert "no pod of the namespace typo is known" in capsys.readouterr().err


def test_without_figures_of_containers_it_says_what_to_set_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with prometheus_server({}) as server:
        assert main(["--prometheus", server.url, "--rightsize"]) == 1
    assert "port health of the device plug-ins" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--margin", "much"], ["--margin", "1000%"], ["--unit", "GB"]])
def test_a_wrong_margin_or_unit_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["--prometheus", "http://127.0.0.1:1", "--rightsize", *words]) == 2
    assert words[0] in capsys.readouterr().err
