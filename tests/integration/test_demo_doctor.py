"""The report of `gpushare doctor` on the cluster of `gpushare demo --keep`, and on pods there."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare_localcluster.client import ApiClient
from tests.integration.test_demo import COMMAND
from tests.support.waiting import poll

GPUSHARE = COMMAND[:-1]
PODS = "/api/v1/namespaces/default/pods"


class Kept:
    """A demo that keeps its cluster, and the lines that it prints for its user."""

    def __init__(self, lines: Iterator[str]) -> None:
        result = [next(lines)]
        while not result[-1].startswith("  gpushare doctor"):
            result.append(next(lines))
        config = next(line for line in result if line.startswith("export KUBECONFIG="))
        self.kubeconfig = config.removeprefix("export KUBECONFIG=").strip()
        self._doctor = result[-1].partition("#")[0].split()[1:]
        server = re.search(r"server: (\S+)", Path(self.kubeconfig).read_text())
        assert server
        self.api = ApiClient(server[1], user_agent="test")

    def doctor(self) -> tuple[int, list[dict[str, str]]]:
        """(exit code, findings)."""
        environment = {**os.environ, "KUBECONFIG": self.kubeconfig}
        command = [*GPUSHARE, *self._doctor, "-o", "json"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
        return ran.returncode, json.loads(ran.stdout)["findings"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("kept")
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    command = [*COMMAND, "1-binpack", "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None
        try:
            kept_object = Kept(iter(demo.stdout))
            yield kept_object
            kept_object.api.close()
        finally:
            demo.send_signal(signal.SIGINT)
            assert demo.wait(90) == 0


def test_the_demos_own_cluster_passes_every_check(kept: Kept) -> None:
    code, findings = kept.doctor()
    assert code == 0
    assert [finding for finding in findings if finding["level"] != "ok"] == []
    assert {"leadership", "extender", "scheduler-file"} <= {
        finding["check"] for finding in findings
    }
    # The check itself looks at pods that were bound minutes ago.
    pods = kept.api.get(PODS)["items"]
    assert [pod["metadata"]["annotations"][ALIYUN.assigned] for pod in pods] == ["true"] * 3


def pod(name: str, units: str, scheduler: str = "default-scheduler", **notes: str) -> Any:
    resources = {"limits": {ALIYUN.resource: units}}
    return {
        "metadata": {"name": name, "annotations": notes},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "x", "resources": resources}],
        },
    }


ILL = [
    (pod("gi", "5Gi"), "pods", "fail", "write 5"),
    (pod("mib", "8192"), "pods", "fail", "if MiB are meant, write 8"),
    (pod("split", "10", **{ALIYUN.count: "3"}), "pods", "fail", "write 9 or 12, or another count"),
    (pod("policy", "2", **{ALIYUN.policy: "x"}), "pending-pods", "warn", "no policy is called 'x'"),
    (pod("large", "17"), "pending-pods", "warn", "refused by the extender: 0/2"),
    (pod("alone", "2", "gpu-scheduler"), "scheduler-names", "fail", "gpu-scheduler"),
]


def test_each_pod_that_waits_there_is_judged_by_itself(kept: Kept) -> None:
    for body, *_ in ILL:
        kept.api.create(PODS, body)

    def looked_at() -> bool:
        pods = {pod["metadata"]["name"]: pod for pod in kept.api.get(PODS)["items"]}
        result = [pods[body["metadata"]["name"]]["status"].get("conditions") for body, *_ in ILL]
        return all(result[:-1])

    poll(looked_at, "the scheduler has looked at them")
    code, findings = kept.doctor()
    assert code == 1
    for body, check, level, words in ILL:
        name = f"default/{body['metadata']['name']}"
        results = [
            finding
            for finding in findings
            if finding["check"] == check and name in finding["what"].split(":")[0]
        ]
        assert [item["level"] for item in results] == [level], (name, findings)
        assert words in results[0]["what"]
        assert results[0]["todo"]
