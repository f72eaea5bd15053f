"""`gpushare doctor` against an API server and the real extender process: well and ill."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cli.main import main
from gpushare_localcluster.api.resources import find
from gpushare_localcluster.demo.manifests import scheduler_config
from tests.integration.cluster import LEASES, MAPS, NODES, PODS, Cluster, Json, inventory
from tests.integration.conftest import StartExtender, World
from tests.integration.process import Extender, free_port
from tests.support.faults import status
from tests.support.waiting import poll

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def scheduler_file(folder: Path, port: int, **changes: object) -> str:
    """The file of a kube-scheduler that calls the extender at that port."""
    document: Json = scheduler_config(port)
    document["extenders"][0] |= {"httpTimeout": "10s"} | changes
    file = folder / f"doctor-{port}.json"
    file.write_text(json.dumps(document))
    return str(file)


def health_of(extender: Extender) -> str:
    """The URL of the health listener."""
    return f"http://127.0.0.1:{extender.health_port}"


class Doctor:
    """Runs the command on a cluster, and reads its document."""

    def __init__(
        self, folder: Path, cluster: Cluster, extender: Extender, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.cluster, self.extender = folder, cluster, extender
        self._capsys = capsys
        self.entry: Json = {}

    def run(self, *flags: str) -> tuple[int, dict[str, Json], Json]:
        """(exit code, finding by check, document)."""
        file = scheduler_file(self.folder, self.extender.port, **self.entry)
        words = ["--kubeconfig", self.cluster.kubeconfig(self.folder), "--scheduler-config", file]
        words += ["--extender", health_of(self.extender), "-o", "json", *flags]
        self._capsys.readouterr()
        code = main(["doctor", *words])
        output = self._capsys.readouterr()
        assert output.err == ""
        document = json.loads(output.out)
        return code, {finding["check"]: finding for finding in document["findings"]}, document


@pytest.fixture
def doctor(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(tmp_path, world.cluster, world.extender, capsys)


def stored(cluster: Cluster) -> list[Json]:
    return [body for kind in (NODES, PODS, MAPS) for body in cluster.all(kind)]


def test_a_healthy_cluster_ends_with_0_and_nothing_in_it_has_changed(
    cluster: Cluster,
    start_extender: StartExtender,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.release_lease()
    extender = start_extender(leadership="lease")
    node, pod = cluster.node(), cluster.pod(4)
    extender.wait_ready()
    extender.agrees(cluster)
    assert extender.fit(pod, [node]) == [node]
    assert extender.bind(pod, node) == ""
    before = stored(cluster)

    code, findings, document = Doctor(tmp_path, cluster, extender, capsys).run()

    levels = {check: finding["level"] for check, finding in findings.items()}
    assert (code, set(levels.values())) == (0, {"ok"}), document
    assert document["kind"] == "DoctorReport"
    assert document["counts"]["ok"] == len(findings)
    assert stored(cluster) == before
    assert cluster.all(LEASES)[0]["spec"]["holderIdentity"] in findings["leadership"]["what"]
    assert {"filter-calls", "two-binders", "extender-address"} <= levels.keys()


def test_it_reads_and_asks_for_rights_and_does_nothing_else(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.node()
    cluster.pod(4)
    assert main(["doctor", "--kubeconfig", cluster.kubeconfig(tmp_path), "--as-extender"]) == 0
    assert "fail" not in capsys.readouterr().out.replace("0 fail", "")
    calls = set(cluster.server.requests)
    assert {path for method, path in calls if method != "GET"} == {REVIEWS}
    assert {method for method, _ in calls} == {"GET", "POST"}


def test_an_extender_that_does_not_lead_is_not_ill(
    cluster: Cluster,
    start_extender: StartExtender,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.node()
    extender = start_extender(leadership="lease")

    def waits_to_lead() -> bool:
        lines = extender.probe("/readyz?verbose").body.decode().splitlines()
        return [line for line in lines if line.startswith("[-]")] == [
            "[-]leadership another process leads, or nobody does yet"
        ]

    poll(waits_to_lead, lambda: extender.log)
    code, findings, document = Doctor(tmp_path, cluster, extender, capsys).run()
    assert (code, findings["extender"]["level"]) == (0, "warn"), document
    assert "does not lead" in findings["extender"]["what"]
    assert findings["filter-calls"]["level"] == "skip"


def test_a_version_that_is_not_for_this_account_leaves_the_other_checks_alone(
    doctor: Doctor,
) -> None:
    doctor.cluster.node()
    doctor.cluster.faults.on("GET", "^/version$", status(403, "Forbidden"))
    _, findings, document = doctor.run()
    assert findings["api-version"]["level"] == "skip", document
    assert findings["gpu-nodes"]["level"] == "ok", document


def test_what_is_left_over_of_claims_is_found_or_said_to_be_forbidden(doctor: Doctor) -> None:
    cluster, classes = doctor.cluster, find("resource.k8s.io", "v1", "deviceclasses")
    assert classes is not None
    cluster.node()
    for name in ("gpushare.io", "settings.gpushare.io"):
        body = {"metadata": {"name": name}, "spec": {}}
        cluster.create(classes, "", body)
    _, findings, document = doctor.run()
    assert findings["claims-left-over"]["todo"] == (
        "kubectl delete deviceclasses/settings.gpushare.io"
    ), document
    cluster.delete(classes, "", "settings.gpushare.io")
    cluster.faults.on("GET", "admissionpolicies$", status(403, "Forbidden"))
    _, findings, document = doctor.run()
    assert findings["claims-left-over"]["level"] == "skip", document
    assert findings["claims-class"]["level"] == "ok", document


def test_a_new_pod_is_not_old_by_a_clock_that_is_ahead(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor.cluster.node()
    doctor.cluster.pod(4)
    ahead = SimpleNamespace(time=lambda: time.time() + 300)
    for module in ("main", "collect"):
        monkeypatch.setattr(f"gpushare.doctor.{module}.time", ahead)
    _, findings, _ = doctor.run()
    assert findings["clock"]["level"] == "warn"
    assert findings["pending-pods"]["level"] == "ok", findings


def no_gpus(doctor: Doctor) -> None:
    doctor.cluster.node(total=0)


def uneven(doctor: Doctor) -> None:
    doctor.cluster.node(total=33)


def broken_inventory(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.cluster.node(annotations={"gpushare.io/devices": '{"v":1'})


def unreadable_list(doctor: Doctor) -> None:
    doctor.cluster.unhealthy(doctor.cluster.node(), "0;2")


def other_unit(doctor: Doctor) -> None:
    doctor.cluster.node(annotations=inventory(16384, 16384, unit="MiB"))


def wrong_path(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.entry["urlPrefix"] = f"http://127.0.0.1:{doctor.extender.port}/somewhere-else"


def wrong_resource(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.entry["managedResources"] = [{"name": "example.com/other"}]


def short_timeout(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.entry["httpTimeout"] = "1s"


def refused_file(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.entry["weight"] = 0


def call_fails(doctor: Doctor) -> None:
    doctor.cluster.node()
    pod = doctor.cluster.pod(4)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulerError",
        "message": "failed filter with extender at URL http://127.0.0.1:32766/x, code 404",
    }

    def told(body: Json) -> Json:
        return {**body, "status": {**body["status"], "conditions": [condition]}}

    doctor.cluster.change(PODS, "default", pod["metadata"]["name"], told)


def other_scheduler(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.cluster.pod(4, spec={"schedulerName": "gpu-scheduler"})


def original_runs(doctor: Doctor) -> None:
    doctor.cluster.node()
    pod = doctor.cluster.create(
        PODS,
        "kube-system",
        {
            "metadata": {"name": "gpushare-schd-extender-5d8f"},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        },
    )
    running = {"status": {**pod["status"], "phase": "Running"}}
    doctor.cluster.change(
        PODS, "kube-system", pod["metadata"]["name"], lambda body: {**body, **running}
    )


def pods_forbidden(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.cluster.faults.on("GET", "^/api/v1/pods$", status(403, "Forbidden"))


def no_rights_told(doctor: Doctor) -> None:
    doctor.cluster.node()
    doctor.cluster.faults.on("POST", REVIEWS, status(403, "Forbidden"))


ILL: list[tuple[Callable[[Doctor], Any], str, str]] = [
    (no_gpus, "gpu-nodes", "no node offers aliyun.com/gpu-mem"),
    (uneven, "node-capacity", "no multiple"),
    (broken_inventory, "node-inventory", "not JSON"),
    (unreadable_list, "closed-devices", "'0;2' is not a device index"),
    (other_unit, "node-unit", "counted in MiB"),
    (wrong_path, "extender-address", "not to that path"),
    (wrong_resource, "managed-resources", "never come"),
    (short_timeout, "http-timeout", "1 s is not more"),
    (refused_file, "scheduler-file", "weight: must be positive"),
    (call_fails, "pending-pods", "failed filter with extender"),
    (other_scheduler, "scheduler-names", "schedulerName gpu-scheduler"),
    (original_runs, "two-binders", "kube-system/gpushare-schd-extender-5d8f"),
    (pods_forbidden, "pods", "403"),
    (no_rights_told, "rights", "403"),
]


def test_a_tenants_pod_that_is_called_like_the_original_is_a_doubt_alone(doctor: Doctor) -> None:
    doctor.cluster.node()
    pod = doctor.cluster.pod(name="gpushare-schd-extender-5d8f")
    doctor.cluster.set_phase(pod, "Running")
    _, findings, document = doctor.run()
    assert findings["two-binders"]["level"] == "warn", document
    assert "default/gpushare-schd-extender-5d8f" in findings["two-binders"]["what"]


@pytest.mark.parametrize(("ail", "check", "words"), ILL, ids=[row[0].__name__ for row in ILL])
def test_an_ill_cluster_ends_with_1_and_the_line_of_its_illness(
    ail: Callable[[Doctor], Any], check: str, words: str, doctor: Doctor
) -> None:
    ail(doctor)
    code, findings, document = doctor.run()
    assert code == 1, document
    assert findings[check]["level"] == "fail", document
    assert words in findings[check]["what"]
    assert findings[check]["todo"]
    assert findings["api-server"]["level"] == "ok"
    assert findings["extender"]["level"] == "ok"


def test_an_extender_that_is_away_fails_and_the_rest_goes_on(
    doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor.cluster.node()
    code, findings, _ = doctor.run("--extender", f"http://127.0.0.1:{free_port()}")
    assert code == 1
    assert findings["extender"]["level"] == "fail"
    assert findings["gpu-nodes"]["level"] == "ok"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--kubeconfig", "/nowhere/config"], "does not exist"),
        (["--context", "elsewhere"], "elsewhere"),
    ],
)
def test_a_cluster_that_cannot_be_named_fails_in_one_line(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    file.write_text("apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\nusers: []\n")
    assert main(["doctor", "--kubeconfig", str(file), *flags]) == 1
    output = capsys.readouterr()
    assert output.err == ""
    failing = [line for line in output.out.splitlines() if line.startswith("fail")]
    assert len(failing) == 1
    assert words in failing[0]
    assert "\033" not in output.out


def test_an_api_server_that_is_away_fails_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster()
    kubeconfig = cluster.kubeconfig(tmp_path)
    cluster.stop()
    assert main(["doctor", "--kubeconfig", kubeconfig]) == 1
    failing = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail")]
    assert len(failing) == 1
    assert "the API server cannot be read" in failing[0]


@pytest.mark.parametrize(
    "flags",
    [
        ["--unit", "TiB"],
        ["--resource", "gpu"],
        ["--extender", "127.0.0.1:32767"],
        ["--extender-namespace", "../x"],
        ["--request-timeout=soon"],
        ["--as-group=ops"],
        ["--fly"],
        ["-o", "xml"],
    ],
)
def test_wrong_usage_ends_with_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(["doctor", *flags])
    except SystemExit as end:
        code = end.code
    assert code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "gpushare doctor" in output.err
