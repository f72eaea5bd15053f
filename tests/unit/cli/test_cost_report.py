"""The report adds up what Prometheus answers, prices it, and says what is missing."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from gpushare.cli.cost_report import main, price_of, prices_of
from gpushare.errors import SettingsError
from tests.unit.cli.prometheus_server import Samples, prometheus_server, queries

Run = Callable[..., tuple[int, str, str]]

MODELS: Samples = (
    ({"model": "A100", "state": "promised"}, 3 * 3600),
    ({"model": "A100", "state": "idle"}, 7 * 3600),
    ({"model": "T4", "state": "idle"}, 5 * 3600),
)
NAMESPACES: Samples = (
    ({"namespace": "red", "model": "A100"}, 1 * 3600),
    ({"namespace": "blue", "model": "A100"}, 2 * 3600),
    ({"namespace": "blue", "model": "T4"}, 1.5 * 3600),
)
ANSWERS: Mapping[str, Samples] = {
    "increase(gpushare_gpu_seconds_total": MODELS,
    "increase(gpushare_namespace_gpu_seconds_total": NAMESPACES,
    'used_bytes{namespace="red"}': [({"namespace": "red"}, 1800)],
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(answers: Mapping[str, Samples], *words: str) -> tuple[int, str, str]:
        with prometheus_server(answers) as server:
            code = main(["--prometheus", server.url, *words])
            run.queries = queries(server)  # type: ignore[attr-defined]
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_line_for_each_namespace_and_for_what_was_idle(run: Run) -> None:
    code, out, err = run(ANSWERS, "--since", "2d")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["NAMESPACE", "GPU-HOURS", "USED", "USE"],
        ["blue", "3.5", "-", "-"],
        ["red", "1.0", "0.5", "50%"],
        ["idle", "A100", "7.0", "-", "-"],
        ["idle", "T4", "5.0", "-", "-"],
    ]
    assert all("[172800s" in query for query in run.queries)  # type: ignore[attr-defined]


def test_prices_are_of_models_and_a_model_without_one_is_told(run: Run) -> None:
    code, out, err = run(ANSWERS, "--prices", "A*=2")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0][-1] == "COST"
    assert [line[-1] for line in lines[1:]] == ["4.00", "2.00", "14.00", "0.00"]
    assert err == "warning: model T4 has no price\n"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_document_has_all_of_it(run: Run, form: str) -> None:
    code, out, _ = run(ANSWERS, "--prices", "A100=2", "-o", form)
    document = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert code == 0
    assert document["kind"] == "GPUShareCostReport"
    assert (document["seconds"], document["by"]) == (604_800, "namespace")
    assert document["rows"] == [
        {
            "namespace": "blue",
            "promisedGPUHours": 3.5,
            "promisedGPUHoursByModel": {"A100": 2.0, "T4": 1.5},
            "computeGPUHours": 0.0,
            "usedGPUHours": None,
            "cost": 4.0,
        },
        {
            "namespace": "red",
            "promisedGPUHours": 1.0,
            "promisedGPUHoursByModel": {"A100": 1.0},
            "computeGPUHours": 0.0,
            "usedGPUHours": 0.5,
            "cost": 2.0,
        },
    ]
    assert document["idle"][0] == {"model": "A100", "idleGPUHours": 7.0, "cost": 14.0}
    assert document["warnings"] == ["model T4 has no price"]


def test_a_line_for_each_workload_with_what_its_pods_used(run: Run) -> None:
    web = {"namespace": "red", "workload": "Deployment/web", "model": "A100"}
    answers: dict[str, Samples] = {
        "increase(gpushare_gpu_seconds_total": MODELS,
        "increase(gpushare_workload_gpu_seconds_total": [
            (web, 3600),
            ({"namespace": "_others", "workload": "_others", "model": "A100"}, 360),
        ],
        "increase(gpushare_workload_gpu_compute_seconds_total": [(web, 1800)],
        "gpushare_pod_memory_allocated_bytes": [
            ({"pod": "web-5f-a", "workload": "Deployment/web"}, 1),
            ({"pod": "web-5f-b", "workload": "Deployment/web"}, 1),
        ],
        "used_bytes": [
            ({"namespace": "red", "pod": "web-5f-a"}, 360),
            ({"namespace": "red", "pod": "web-5f-b"}, 360),
            ({"namespace": "red", "pod": "another"}, 360),
        ],
    }
    code, out, err = run(answers, "--by", "workload")
    assert code == 0
    # The use of a pod without a name cannot be told of its workload, so the report says so.
    assert err.startswith("warning: red: USED lacks 0.1 GPU-hours of 1 pods whose workloads")
    assert [line.split() for line in out.splitlines()][:3] == [
        ["NAMESPACE", "WORKLOAD", "GPU-HOURS", "COMPUTE", "USED", "USE"],
        ["red", "Deployment/web", "1.0", "0.5", "0.2", "20%"],
        ["_others", "_others", "0.1", "0.0", "-", "-"],
    ]


def test_one_namespace_is_asked_for_alone(run: Run) -> None:
    code, _, _ = run(ANSWERS, "-n", "red")
    assert code == 0
    asked = [query for query in run.queries if "gpushare_namespace_" in query]  # type: ignore[attr-defined]
    assert all('{namespace="red"}' in query for query in asked)
    code, out, _ = run({"gpushare_gpu_seconds": MODELS}, "-n", "empty")
    assert (code, len(out.splitlines())) == (0, 3)


@pytest.mark.parametrize("words", [["--by", "workload"], ["--rightsize"]])
def test_every_series_has_the_labels_that_were_named(run: Run, words: list[str]) -> None:
    pods = [({"pod": "a", "workload": "Job/a", "namespace": "red"}, 1)]
    answers: dict[str, Samples] = {
        "increase(gpushare_gpu_seconds": MODELS,
        "increase(gpushare_workload_gpu_seconds": [({"namespace": "red", "workload": "Job/a"}, 1)],
        "gpushare_pod_memory": pods,
        "_bytes": pods,
    }
    code, _, _ = run(answers, "--match", 'cluster=a"b', "--match", "x=\U0001f680", *words)
    assert code == 0
    assert run.queries  # type: ignore[attr-defined]
    for query in run.queries:  # type: ignore[attr-defined]
        metrics = re.findall(r"gpushare_\w+", query)
        assert query.count('{cluster="a\\"b",x="\U0001f680"') == len(metrics)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, "scrape the port health of the extender"),
        ({"gpushare_gpu_seconds": MODELS}, "--metrics-detail namespaces"),
    ],
)
def test_without_the_metrics_it_says_what_to_set_up(
    run: Run, answers: Mapping[str, Samples], told: str
) -> None:
    code, out, err = run(answers)
    assert (code, out) == (1, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_names_from_prometheus_cannot_write_to_the_terminal(run: Run) -> None:
    answers = {
        "increase(gpushare_gpu_seconds": MODELS,
        "increase(gpushare_namespace_gpu_s": [({"namespace": "\x1b[2J", "model": "A"}, 1)],
    }
    code, out, _ = run(answers)
    assert code == 0
    assert "\x1b" not in out
    assert not any("\x1b" in query for query in run.queries)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--since", "soon"], "--since"),
        (["-n", 'a"} or x{b="'], "--namespace"),
        (["--match", "cluster"], "--match"),
        (["--match", "a b=c"], "--match"),
        (["--match", "a="], "--match"),
        (["--match", "a=\udcff"], "--match"),
        (["--match", "namespace=red"], "for a namespace is -n"),
        (["--prices", "A=dear"], "--prices"),
        (["--prices", "=1"], "--prices"),
        (["--prices", "A=-1"], "--prices"),
        (["--prices", "A=nan"], "--prices"),
        (["--prices", "/nowhere"], "/nowhere"),
        (["--token-file", "/nowhere"], "/nowhere"),
        (["--rightsize", "--by", "workload"], "--rightsize"),
        (["--rightsize", "--prices", "A=1"], "--rightsize"),
    ],
)
def test_a_wrong_command_line_is_told_before_anybody_is_asked(
    run: Run, words: list[str], told: str
) -> None:
    code, out, err = run(ANSWERS, *words)
    assert (code, out) == (2, "")
    assert told in err
    assert not run.queries  # type: ignore[attr-defined]


def test_a_file_of_prices_is_read(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("NVIDIA-A100: 2.5\n'*T4*': 1\n")
    prices = prices_of([str(file), "NVIDIA-A100=3"])
    assert price_of("NVIDIA-A100", prices) == 3
    assert price_of("Tesla-T4-16GB", prices) == 1
    assert price_of("H100", prices) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "A100: true", "A100: [1]", "A100: .inf"])
def test_another_file_of_prices_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match="--prices"):
        prices_of([str(file)])


def test_a_token_is_read_from_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a.b-c\n")
    assert run(ANSWERS, "--token-file", str(file))[0] == 0
    file.write_text("a\r\nX-Header: b")
    code, _, err = run(ANSWERS, "--token-file", str(file))
    assert (code, "is no token" in err) == (2, True)
