"""The verbs of the real extender process, end to end over HTTP, on objects of a true API server."""

import http.client
import json
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpushare import __version__
from gpushare.cli.main import main
from gpushare.wire.annotations import ALIYUN
from gpushare_localcluster.client import ApiClient
from tests.integration.certificates import call, make_pki, shown
from tests.integration.cluster import COUNT, MARK, PODS, Cluster, Json, inventory
from tests.integration.conftest import StartExtender, World
from tests.integration.verbs import bind_args, filter_args, never_over
from tests.support.waiting import poll
from tests.unit.kube.test_client_tls import make_certificate

ALLOCATION = "scheduler.framework.gpushare.allocation"


def bound(world: World, pod: Json, node: str) -> Json:
    """Bind the pod, and return the pod as it is then."""
    assert world.extender.bind(pod, node) == ""
    assert world.cluster.node_of(pod) == node
    return world.cluster.get(pod)


def test_a_pod_goes_through_filter_prioritize_and_bind(world: World) -> None:
    roomy, tight, plain = world.cluster.node(), world.cluster.node(), world.cluster.node(total=0)
    world.extender.knows(roomy, tight)
    bound(world, world.cluster.pod(10), tight)
    pod = world.cluster.pod(6)
    answer = world.extender.filter(pod, [roomy, tight, plain, "nosuch"])
    assert answer == {
        "Nodes": None,
        "NodeNames": [roomy, tight],
        "FailedNodes": {"nosuch": 'node "nosuch" not found'},
        "FailedAndUnresolvableNodes": {plain: "no shared GPU"},
        "Error": "",
    }
    scores = world.extender.prioritize(pod, [roomy, tight])
    assert scores[tight] == 10
    assert scores[roomy] < 10
    notes = bound(world, pod, tight)["metadata"]["annotations"]
    assert notes.pop(f"{MARK}ASSUME_TIME").isdigit()
    assert notes == {
        f"{MARK}IDX": "0",
        f"{MARK}DEV": "16",
        f"{MARK}POD": "6",
        f"{MARK}ASSIGNED": "false",
        ALLOCATION: '{"0":{"0":6}}',
        ALIYUN.uuids: "",
    }
    assert world.extender.used(tight) == [16, 0]


def test_node_and_annotations_arrive_in_one_event(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod = world.cluster.pod(4)
    since = world.cluster.store.version
    bound(world, pod, node)
    client = ApiClient(world.cluster.server.url, user_agent="test")
    query = {"resourceVersion": str(since), "timeoutSeconds": "1"}
    events = list(client.watch("/api/v1/pods", query, read_timeout=60.0))
    client.close()
    assert [kind for kind, _ in events] == ["MODIFIED"]
    observed = events[0][1]
    assert observed["spec"]["nodeName"] == node
    assert observed["metadata"]["annotations"][f"{MARK}IDX"] == "0"


def test_the_same_bind_again_gets_the_same_answer_and_writes_nothing(world: World) -> None:
    node, other_node = world.cluster.node(), world.cluster.node()
    world.extender.knows(node, other_node)
    pod = world.cluster.pod(4)
    bound(world, pod, node)
    version = world.cluster.store.version
    assert world.extender.bind(pod, node) == ""
    assert "already bound to node" in world.extender.bind(pod, other_node)
    assert world.cluster.changes(PODS, version) == []
    assert world.extender.used(node) == [4, 0]


def test_a_pod_of_another_uid_is_not_touched(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod = world.cluster.pod(4)
    stranger = {**pod, "metadata": {**pod["metadata"], "uid": "of-an-older-one"}}
    assert "does not exist" in world.extender.bind(stranger, node)
    world.extender.fit(stranger, [node])  # remembered: now the API server itself must refuse
    assert world.extender.bind(stranger, node) != ""
    assert world.cluster.node_of(pod) == ""
    assert world.extender.used(node) == [0, 0]


def test_a_pod_that_is_gone_is_charged_nothing(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod, remembered = world.cluster.pod(4), world.cluster.pod(4)
    world.extender.fit(remembered, [node])
    for item in (pod, remembered):
        world.cluster.delete_pod(item)
        assert world.extender.bind(item, node) != ""
    assert world.extender.used(node) == [0, 0]


@pytest.mark.parametrize("remembered", [True, False])
def test_gated_and_terminating_pods_are_refused_and_charged_nothing(
    world: World, remembered: bool
) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    gated = world.cluster.pod(4, spec={"schedulingGates": [{"name": "example.com/wait"}]})
    terminating = world.cluster.pod(4)
    world.cluster.mark_deleted(terminating)
    for pod, reason in ((gated, "schedulingGates"), (terminating, "is being deleted")):
        if remembered:
            world.extender.fit(pod, [node])
        assert reason in world.extender.bind(pod, node)
        assert world.cluster.node_of(pod) == ""
    assert world.extender.used(node) == [0, 0]
    world.cluster.release(terminating)


def test_a_pod_without_gpu_is_bound_plainly(world: World) -> None:
    plain, node = world.cluster.node(total=0), world.cluster.node()  # who knows the last knows both
    world.extender.knows(node)
    for target in (node, plain):
        pod = world.cluster.pod(0)  # the pod names the resource, and kube-scheduler looks at that
        assert world.extender.fit(pod, [node, plain]) == [node, plain]
        assert world.extender.prioritize(pod, [node, plain]) == {node: 0, plain: 0}
        assert bound(world, pod, target)["metadata"].get("annotations", {}) == {}
        assert world.extender.bind(pod, target) == ""
    unknown = world.cluster.pod(0)
    bound(world, unknown, plain)


def test_what_kube_scheduler_does_not_send_is_not_bound_whoever_asks(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    remaining_items = {"schedulerName": "another"}
    for pod, target, text in (
        (world.cluster.pod(), node, "names none of the managedResources"),
        (world.cluster.pod(4, spec=remaining_items), node, "its schedulerName is 'another'"),
        (world.cluster.pod(0), "nosuch", "node 'nosuch' is not known"),
        (world.cluster.pod(4), "nosuch", "node 'nosuch' is not known"),
        (world.cluster.pod(99), node, "larger than any healthy device"),
    ):
        assert text in world.extender.bind(pod, target)
        world.extender.filter(pod, [node, target] if target != node else [node])
        assert text in world.extender.bind(pod, target)
        assert world.cluster.node_of(pod) == ""


def test_a_total_is_split_evenly_over_devices(world: World) -> None:
    node = world.cluster.node(devices=4, total=64)
    world.extender.knows(node)
    pod = world.cluster.pod(8, 16, annotations={COUNT: "3"})
    notes = bound(world, pod, node)["metadata"]["annotations"]
    assert notes[f"{MARK}IDX"] == "0,1,2"
    assert notes[f"{MARK}POD"] == "24"
    assert json.loads(notes[ALLOCATION]) == {"0": {"0": 8}, "1": {"1": 8, "2": 8}}
    assert world.extender.used(node) == [8, 8, 8, 0]


@pytest.mark.parametrize(
    ("annotations", "units", "reason"),
    [
        ({COUNT: "3"}, 16, "16 cannot be split evenly over 3 devices"),
        ({COUNT: "0"}, 16, "'0' is not a number of devices"),
        ({COUNT: "3"}, 48, "fewer healthy devices of that size than requested"),
        ({}, 17, "GPU Memory request is larger than any healthy device"),
        ({"gpushare.io/policy": "roulette"}, 4, "no policy is called 'roulette'"),
        ({"gpushare.io/policy": "../x y"}, 4, "is not the name of a policy"),
    ],
)
def test_what_never_fits_is_refused_for_good_with_the_reason(
    world: World, annotations: dict[str, str], units: int, reason: str
) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod = world.cluster.pod(units, annotations=annotations)
    assert reason in world.extender.refusal(pod, node)
    assert world.extender.bind(pod, node) != ""
    assert world.cluster.bindings().count(pod["metadata"]["name"]) == 0


def test_a_pod_chooses_its_policy(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    bound(world, world.cluster.pod(4), node)
    spread = world.cluster.pod(4, annotations={"gpushare.io/policy": "spread"})
    bound(world, spread, node)
    assert world.extender.used(node) == [4, 4]


def test_of_many_binds_at_once_exactly_those_that_fit_succeed(world: World) -> None:
    node = world.cluster.node(devices=4, total=64)
    world.extender.knows(node)
    pods = [world.cluster.pod(3) for _ in range(64)]
    together = threading.Barrier(64)

    def bind(pod: Json) -> str:
        together.wait(20)
        return world.extender.bind(pod, node)

    with ThreadPoolExecutor(64) as pool:
        errors = list(pool.map(bind, pods))
    fitting = 4 * (16 // 3)
    assert errors.count("") == fitting
    assert {error for error in errors if "Insufficient GPU Memory" not in error} == {""}
    assert sum(world.cluster.node_of(pod) == node for pod in pods) == fitting
    assert world.extender.used(node) == [15] * 4
    never_over(world.extender)
    times = [world.cluster.annotations(pod).get(f"{MARK}ASSUME_TIME") for pod in pods]
    assert len(set(times)) == fitting + 1  # each its own, and None


def test_the_answer_mirrors_whole_nodes_where_they_were_sent(world: World) -> None:
    node, full = world.cluster.node(), world.cluster.node(devices=1, total=2)
    world.extender.knows(node, full)
    items = [
        {"metadata": {"name": name, "labels": {"odd": "Ω"}}, "unknown": [1.5, None]}
        for name in (node, full)
    ]
    args = {"pod": world.cluster.pod(4), "nodes": {"items": items}}
    answer = world.extender.post("filter", json.dumps(args).encode()).json()
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == items[:1]


def test_keys_are_matched_in_any_case(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod = world.cluster.pod(4)
    args = {key.upper(): value for key, value in filter_args(pod, [node]).items()}
    answer = world.extender.post("filter", json.dumps(args).encode()).json()
    assert answer["NodeNames"] == [node]
    args = {key.lower(): value for key, value in bind_args(pod, node).items()}
    assert world.extender.post("bind", json.dumps(args).encode()).json() == {"Error": ""}
    assert world.cluster.node_of(pod) == node


def test_inspect_shows_all_one_or_none(world: World) -> None:
    plain, node = world.cluster.node(total=0), world.cluster.node()  # who knows the last knows both
    world.extender.knows(node, plain)
    assert [node["name"] for node in world.extender.inspect()["nodes"]] == [node]
    assert world.extender.inspect(node) == world.extender.inspect()
    assert world.extender.inspect(plain) == {"nodes": []}
    unknown = world.extender.inspect_reply("nosuch")
    assert (unknown.status, unknown.json()) == (404, {"error": "node 'nosuch' is not known"})
    assert world.extender.inspect_reply(resource="nosuch.io/x").status == 404


def test_version_probes_and_metrics_are_answered(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    bound(world, world.cluster.pod(4), node)
    version = world.extender.call("GET", "/version")
    assert (version.status, version.json()) == (200, {"version": __version__})
    ready = world.extender.probe("/readyz?verbose")
    assert ready.body.decode().split("\n") == [
        "[+]nodes ok",
        "[+]pods ok",
        "[+]configmaps ok",
        # The local cluster has no PodGroups.
        "[+]leaderworkersets ok",
        "[+]jobsets ok",
        "[+]leadership ok",
        "",
    ]
    metrics = world.extender.probe("/metrics").body.decode()
    of_device = f'device="0",node="{node}",resource="aliyun.com/gpu-mem"'
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    assert float(values[f"gpushare_device_memory_allocated_bytes{{{of_device}}}"]) == 4 * 2**30
    assert float(values['gpushare_requests_total{outcome="bound",verb="bind"}']) >= 1
    assert float(values["gpushare_ready"]) == 1
    poll(lambda: world.extender.figure("bound_unassigned_seconds") > 0, "nobody has served it")
    assert world.extender.probe("/nosuch").status == 404


def test_a_cluster_without_kueue_keeps_nobody_waiting(start_extender: StartExtender) -> None:
    extender = start_extender("--kueue")
    extender.wait_ready()
    metrics = extender.probe("/metrics").body.decode()
    assert "gpushare_kueue_ready_total 0.0" in metrics


def test_a_running_extender_is_alive(world: World) -> None:
    assert world.extender.probe("/livez").body == b"ok\n"
    assert world.extender.probe("/healthz").status == 200


def test_a_connection_that_was_idle_for_seconds_is_still_open(world: World) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", world.extender.port)
    connection.connect()
    first = connection.sock
    for pause in (0.0, 3.0):  # gunicorn by itself closes it after 2 s, while Go may send a bind
        time.sleep(pause)
        connection.request("GET", "/version")
        assert connection.getresponse().read()
    assert connection.sock is first
    connection.close()


def test_nobody_on_the_host_can_manage_gunicorn_over_a_socket(world: World) -> None:
    own_result = {
        fd.readlink().name
        for pid in (world.extender.pid, *world.extender.children())
        for fd in Path(f"/proc/{pid}/fd").iterdir()
    }
    table = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
    names = [line for line in table if len(line.split()) > 7]  # a pair of the process has no path
    assert not [line for line in names if f"socket:[{line.split()[6]}]" in own_result]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
@pytest.mark.parametrize(
    ("wrong", "file"),
    [
        *((wrong, file) for wrong in ("tls-cert", "tls-key") for file in ("nowhere", "none")),
        *(("tls-client-ca", file) for file in ("nowhere", "none")),
        ("tls-cert", "other/ca.crt"),
        ("tls-key", "other/key"),
    ],
)
def test_certificates_to_listen_with_that_are_none_end_serve_with_2_and_one_line(
    wrong: str, file: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_certificate(tmp_path / "pki")
    make_certificate(tmp_path / "other")
    (tmp_path / "none").write_text("no certificate")
    files = {"tls-cert": "pki/ca.crt", "tls-key": "pki/key", "tls-client-ca": "pki/ca.crt"}
    files[wrong] = file
    flags = [f"--{name}={tmp_path / path}" for name, path in files.items()]
    assert main(["serve", "--leadership", "off", "--tls-client-names=x", *flags]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("gpushare serve: tls-")
    assert str(tmp_path / file) in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("namespace", ["", "kube system", "kube-system/", "Kube-System", "../x"])
def test_a_namespace_that_is_none_ends_serve_with_2_and_one_line(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--leadership", "off", "--namespace", namespace]) == 2
    errors = capsys.readouterr().err
    assert errors == f"gpushare serve: namespace: {namespace!r} is no name of a namespace\n"


def test_where_no_temporary_file_can_be_written_serve_ends_with_2_and_one_line(
    cluster: Cluster, tmp_path: Path
) -> None:
    """As with a read-only root and no volume at /tmp; here no file may have any content."""
    start = (
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    serve = ("-P", "-m", "gpushare.cli.main", "serve", "--leadership", "off")
    flags = ("--listen", "127.0.0.1:0", "--kubeconfig", cluster.kubeconfig(tmp_path))
    completed = subprocess.run(
        [sys.executable, "-c", start, *serve, *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (2, "", 1), (
        completed.stderr
    )
    assert completed.stderr.startswith("gpushare serve: temporary files cannot be written: ")


def test_unit_and_pairing_are_those_of_the_settings(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    extender = start_extender("--unit", "MiB", "--pairing", "on")
    extender.wait_ready()
    node = cluster.node(total=32, annotations=inventory(16, 16, unit="MiB"))
    extender.knows(node)
    assert extender.bind(cluster.pod(10), node) == ""
    assert "until an equal pod has been given" in extender.bind(cluster.pod(10), node)
    assert extender.bind(cluster.pod(9), node) == ""


def test_a_page_in_a_browser_gets_no_pod_bound(world: World) -> None:
    node, pod = world.cluster.node(), world.cluster.pod(1)
    world.extender.knows(node)
    body = json.dumps(bind_args(pod, node)).encode()
    typed = {"Content-Type": "application/json"}
    path = "/gpushare-scheduler/bind"
    assert "Content-Type" in world.extender.call("POST", path, body).json()["Error"]
    for odd in ({"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example:1"}):
        assert world.extender.call("POST", path, body, typed | odd).status == 403
    assert world.extender.call("GET", "/version", None, {"Host": "evil.example"}).status == 403
    assert world.cluster.bindings().count(pod["metadata"]["name"]) == 0


def test_with_certificates_only_a_caller_of_the_names_given_is_answered(
    start_extender: StartExtender, cluster: Cluster, tmp_path: Path
) -> None:
    make_pki(tmp_path)
    extender = start_extender(
        *("--tls-cert", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")),
        *("--tls-client-ca", str(tmp_path / "scheduler-ca.crt")),
        *("--tls-client-names", "kube-scheduler"),
    )
    extender.wait_ready()
    node, pod = cluster.node(), cluster.pod(1)
    address = f"127.0.0.1:{extender.port}/gpushare-scheduler"
    body = json.dumps(bind_args(pod, node)).encode()
    for name in ("", "forged"):
        with pytest.raises((OSError, http.client.HTTPException)):
            call(f"https://{address}", shown(tmp_path, name), body)
    for _ in range(2):
        assert call(f"https://{address}", shown(tmp_path, "other"), body) == 403
    poll(lambda: "caller refused certificate=" in extender.log, lambda: extender.log)
    assert cluster.bindings() == []
    assert call(f"https://{address}", shown(tmp_path, "client"), body) == 200
    poll(lambda: " bind " in extender.log, lambda: extender.log)
    assert extender.log.count("caller refused certificate=") == 1
    assert cluster.bindings() == [pod["metadata"]["name"]]
