"""`kubectl inspect gpushare` through a real kubectl, on the local API server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.cli.commands import OF_PLUGIN
from gpushare_localcluster.api.resources import RESOURCES
from tests.integration.cluster import NODES, PODS, Cluster
from tests.support.faults import Fault, Refusal

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH"),
]

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "aliyun" / "one-node"
NAMESPACES = next(row for row in RESOURCES if row.plural == "namespaces")
PROGRAMS = {"kubectl-inspect-gpushare": "main", "kubectl_complete-inspect-gpushare": "complete"}


class Inspect:
    """A kubectl with our plug-in on PATH, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for program, function in PROGRAMS.items():
            path = folder / program
            path.write_text(
                f"#!{sys.executable}\nimport sys\n"
                f"from gpushare.cli.inspect import {function}\nsys.exit({function}())\n"
            )
            path.chmod(0o755)
        self.env = {
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(folder / "config"),
        }

    def config(self, cluster: Cluster, name: str) -> Path:
        """A kubeconfig file with one context of this name."""
        path = self.folder / name
        path.write_text(cluster.server.kubeconfig().replace("local", name))
        return path

    def __call__(self, *words: str, code: int = 0) -> str:
        """The command's output, stderr on failure; the first words are `inspect gpushare`."""
        completed = subprocess.run(
            ["kubectl", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert completed.returncode == code, completed.stdout + completed.stderr
        return completed.stderr if code else completed.stdout

    def inspect(self, *words: str, code: int = 0) -> str:
        return self("inspect", "gpushare", *words, code=code)


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path) -> Inspect:
    kubectl = Inspect(tmp_path)
    kubectl.config(cluster, "config")
    cluster.create(NAMESPACES, "", {"metadata": {"name": "team-b"}})
    for kind, resource in (("nodes", NODES), ("pods", PODS)):
        for item in json.loads((GOLDEN / "cluster.json").read_text())[kind]["items"]:
            for key in ("uid", "resourceVersion", "creationTimestamp"):
                del item["metadata"][key]
            cluster.create(resource, item["metadata"].get("namespace", ""), item)
    return kubectl


def test_the_plug_in_prints_what_the_originals_prints(kubectl: Inspect) -> None:
    for words, file in (((), "summary"), (("-d",), "details"), (("gpu-node-a",), "node")):
        assert kubectl.inspect(*words) == (GOLDEN / f"{file}.txt").read_text()
    assert kubectl.inspect("-d", "gpu-node-a") == (GOLDEN / "node-details.txt").read_text()


def test_documents_and_selectors_work(kubectl: Inspect) -> None:
    document = json.loads(kubectl.inspect("-o", "json"))
    assert document["kind"] == "GPUShareReport"
    assert (document["allocated"], document["total"]) == (12, 32)
    kubectl("label", "node", "gpu-node-a", "pool=x")
    assert kubectl.inspect("-l", "pool in (x, y)", "-o", "name") == "node/gpu-node-a\n"
    assert kubectl.inspect("-l", "pool!=x") == ""
    assert "beta" not in kubectl.inspect("-d", "-n", "default")


def test_contexts_of_several_files_are_found(kubectl: Inspect, cluster: Cluster) -> None:
    cluster_object = Cluster()
    try:
        cluster_object.node(devices=4, total=64)
        files = [kubectl.config(cluster, "one"), kubectl.config(cluster_object, "two")]
        listing = os.pathsep.join([str(kubectl.folder / "missing"), *map(str, files)])
        assert "12/32" in kubectl.inspect("--kubeconfig", listing)
        assert "0/64" in kubectl.inspect("--kubeconfig", listing, "--context", "two")
        assert "0/64" in kubectl.inspect("--kubeconfig", str(files[1]))
    finally:
        cluster_object.stop()


def test_preferences_of_kubectl_get_are_of_no_effect(kubectl: Inspect) -> None:
    """kubectl from 1.34 on reads these files; `get --raw` refuses an output."""
    preferences = kubectl.folder / ".kube" / "kuberc"
    preferences.parent.mkdir()
    preferences.write_text(
        "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n"
        "defaults: [{command: get, options: [{name: output, default: wide}]}]\n"
    )
    assert "12/32" in kubectl.inspect()


def test_what_goes_wrong_is_one_line(kubectl: Inspect, cluster: Cluster) -> None:
    (kubectl.folder / "bad").write_text("clusters: [")
    cases: list[tuple[tuple[str, ...], str]] = [
        (("--context", "nope"), 'error: context "nope" does not exist'),
        (("--kubeconfig", str(kubectl.folder / "bad")), "error loading config file"),
        (("nosuch",), 'Error from server (NotFound): nodes "nosuch" not found'),
        (("-l", "=="), "Error from server (BadRequest): unable to parse requirement"),
        (
            ("--server", "http://127.0.0.1:1"),
            "The connection to the server 127.0.0.1:1 was refused",
        ),
    ]
    for words, entry in cases:
        inspect_result = kubectl.inspect(*words, code=1)
        assert entry in inspect_result
        assert inspect_result.count("\n") == 1
    cluster.hook = lambda request: Fault(refuse=Refusal(403, "Forbidden"))
    assert "Error from server (Forbidden)" in kubectl.inspect(code=1)


def test_a_tenant_gets_an_answer_about_one_namespace(kubectl: Inspect, cluster: Cluster) -> None:
    kubectl("create", "deployment", "web", "--image=x", "--namespace=team-b")
    kubectl("label", "pod", "beta", "--namespace=team-b", "app=web")
    refusal = Fault(refuse=Refusal(403, "Forbidden"))
    cluster.hook = lambda request: None if "/namespaces/" in request.path else refusal
    rows = kubectl.inspect("-n", "team-b").splitlines()
    assert [row.split()[:4] for row in rows[1:]] == [["beta", "team-b", "gpu-node-a", "8"]]
    first, *_, last = kubectl.inspect("explain", "deploy/web", "-n", "team-b").splitlines()
    assert first.endswith(
        "team-b/beta is bound to gpu-node-a: 8 units on device 1 (aliyun.com/gpu-mem)"
    )
    assert last.startswith(
        "Judged:     by the pod, its condition PodScheduled and gpushare's events"
    )


def test_kubectl_completes_nodes_and_formats(kubectl: Inspect) -> None:
    first, *commands, last = kubectl("__complete", "inspect", "gpushare", "").splitlines()
    assert (first, last) == ("gpu-node-a", ":4")
    assert [line.partition("\t")[0] for line in commands] == [*OF_PLUGIN]
    assert kubectl("__complete", "inspect", "gpushare", "-o", "j").splitlines() == ["json", ":4"]


def read_until(lines: Iterator[str], expected: str) -> list[str]:
    result = []
    for line in lines:
        result.append(line)
        if expected in line:
            return result
    raise AssertionError("".join(result))


def test_a_watch_shows_changes_until_it_is_interrupted(kubectl: Inspect, cluster: Cluster) -> None:
    process = subprocess.Popen(
        ["kubectl", "inspect", "gpushare", "-w"],
        env=kubectl.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    overdue = threading.Timer(60, process.kill)
    overdue.start()
    try:
        assert process.stdout is not None
        assert "".join(read_until(process.stdout, "%)")) == (GOLDEN / "summary.txt").read_text()
        cluster.delete(PODS, "default", "alpha")
        until = read_until(process.stdout, "%)")
        assert until[0] == "\n"
        assert until[-1] == "8/32 (25%)  \n"
        cluster.create(NODES, "", {"metadata": {"name": "later"}})
        cluster.delete(PODS, "team-b", "beta")
        assert read_until(process.stdout, "%)")[-1] == "0/32 (0%)  \n"
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=90)
        assert (process.returncode, message) == (130, "")
    finally:
        overdue.cancel()
        process.kill()
        process.communicate()
