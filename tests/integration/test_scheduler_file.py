"""`gpushare serve` reads kube-scheduler's own file."""

import http.client
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.cli.main import main
from gpushare_localcluster.client import HttpClient
from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.integration.process import free_port
from tests.support.waiting import poll

CONFIGS = Path(__file__).parents[1] / "data" / "scheduler_configs"


def test_without_listen_serve_listens_where_the_file_calls(
    cluster: Cluster, tmp_path: Path
) -> None:
    port = free_port()
    document = json.loads((CONFIGS / "policy-full.json").read_text(encoding="utf-8"))
    document["extenders"][0]["urlPrefix"] = f"http://localhost:{port}/share"
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    command = [
        *(sys.executable, "-P", "-m", "gpushare.cli.main", "serve", "--leadership", "off"),
        *("--health-listen", f"127.0.0.1:{free_port()}", "--scheduler-config", str(file)),
        *("--kubeconfig", cluster.kubeconfig(tmp_path)),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUSHARE_")}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    client = HttpClient(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return client.call("GET", "/share/inspect", timeout=5.0).status == 200
        except (OSError, http.client.HTTPException):
            return False

    try:
        poll(answers, log.read_text)
    finally:
        process.terminate()
        process.wait(20)
        client.close()
    assert f"listen=127.0.0.1:{port} " in log.read_text()
    assert "gpushare serve: " not in log.read_text()


def scheduler_electing(folder: Path, **election: object) -> str:
    """A file with this leader election of kube-scheduler."""
    file = folder / "scheduler.yaml"
    document = yaml.safe_load((CONFIGS / "everything-known-v1.yaml").read_text(encoding="utf-8"))
    file.write_text(json.dumps({**document, "leaderElection": election}), encoding="utf-8")
    return str(file)


def test_the_lease_that_is_followed_is_the_one_the_file_names(
    cluster: Cluster, start_extender: StartExtender, tmp_path: Path
) -> None:
    file = scheduler_electing(tmp_path, resourceName="ours", resourceNamespace="gpus")
    start_extender("--scheduler-config", file, leadership="scheduler").wait_answering()
    path = "/apis/coordination.k8s.io/v1/namespaces/gpus/leases/ours"
    poll(lambda: ("GET", path) in list(cluster.server.requests), "it reads that Lease")
    assert not [path for _, path in list(cluster.server.requests) if "/kube-scheduler" in path]


def test_a_scheduler_that_elects_no_leader_cannot_be_followed(
    start_extender: StartExtender, tmp_path: Path
) -> None:
    file = scheduler_electing(tmp_path, leaderElect=False)
    extender = start_extender("--scheduler-config", file, leadership="scheduler")
    poll(extender.ended, "it does not start")
    output = extender.log.splitlines()[-1]
    assert output.startswith(f"gpushare serve: leadership: {file} says leaderElection.leaderElect")


def candidates(document: Any) -> None:
    first = document["extenders"][0]
    document["extenders"] = [
        first | {"urlPrefix": f"http://127.0.0.1:{port}/x", "bindVerb": "", "managedResources": []}
        for port in (1, 2)
    ]


def broken(document: Any) -> None:
    document["extenders"][0]["weight"] = 0


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (candidates, "extenders[0] (http://127.0.0.1:1/x), extenders[1] (http://127.0.0.1:2/x)"),
        (broken, "extenders[0].weight: must be positive"),
    ],
)
def test_a_file_that_leaves_a_doubt_ends_serve_with_2_and_one_line(
    change: Callable[[Any], None],
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = json.loads((CONFIGS / "policy-full.json").read_text(encoding="utf-8"))
    change(document)
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert main(["serve", "--scheduler-config", str(file)]) == 2
    output = capsys.readouterr()
    assert part in output.err
    assert output.err.startswith(f"gpushare serve: {file}: ")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("pair", [("x/npu-mem", "x/npu.mem"), ("x/gpu-mem", "x/gpu")])
def test_resources_that_share_names_in_objects_are_refused_at_the_start(
    pair: tuple[str, str],
    tmp_path: Path,
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = json.loads((CONFIGS / "policy-full.json").read_text(encoding="utf-8"))
    document["extenders"][0]["managedResources"] = [{"name": name} for name in pair]
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    words = ["--scheduler-config", str(file), "--kubeconfig", cluster.kubeconfig(tmp_path)]
    assert main(["serve", *words]) == 2
    errors = capsys.readouterr().err
    assert all(name in errors for name in pair)
    assert errors.count("\n") == 1
