"""`gpushare demo`: the composition root. A whole cluster on this machine, and scenarios on it.

Starts the API server, the kubelet, the real extender process and the scheduler, all speaking HTTP;
runs scenarios; and ends everything, whatever happens. YAML is read and written here.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import yaml

from gpushare.commandline import Parser
from gpushare.errors import ApiError, GpuShareError
from gpushare.localcluster.api.apiserver import ApiServer
from gpushare.localcluster.api.store import Store
from gpushare.localcluster.client import ApiClient
from gpushare.localcluster.controllers.manager import ControllerManager
from gpushare.localcluster.demo import device_plugins
from gpushare.localcluster.demo.board import Board, told_of
from gpushare.localcluster.demo.kept import kept_lines
from gpushare.localcluster.demo.manifests import free_lease_document
from gpushare.localcluster.demo.placed import ScenarioError
from gpushare.localcluster.demo.plan import Scenario
from gpushare.localcluster.demo.processes import DemoProcess, ExtenderProcess, free_port
from gpushare.localcluster.demo.report import Report, natural
from gpushare.localcluster.demo.runner import Runner
from gpushare.localcluster.demo.scenario import Program
from gpushare.localcluster.demo.shipped import Part, complaint, find, load, shipped
from gpushare.localcluster.devices.admission import Devices
from gpushare.localcluster.heartbeat import Heartbeat
from gpushare.localcluster.http_client import HttpClient
from gpushare.localcluster.kubelet import Kubelet
from gpushare.localcluster.scheduler.config import options_from
from gpushare.localcluster.scheduler.scheduler import Scheduler
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import decode_scheduler_config

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
_SEED = 7


@dataclass(frozen=True)
class _Cluster:
    """A running cluster, as far as scenarios need it."""

    runner: Runner
    board: Board
    report: Report
    extender: ExtenderProcess
    processes: Sequence[DemoProcess]
    kubeconfig: Path
    settings: Path

    def check(self) -> None:
        """Raise GpuShareError if a process has died."""
        for process in self.processes:
            process.check()


def main(argv: Sequence[str]) -> int:
    """Run the demo, and return the exit code: 0 when all expectations held, 1 when one did not, 2
    for bad input.
    """
    arguments = _arguments(argv)
    if arguments.list:
        for file in shipped():
            print(f"{file.stem:24} {load(file).title}")
        return 0
    try:
        parts = [load(file) for file in arguments.scenario]
    except ScenarioError as error:
        print(f"gpushare demo: {error}", file=sys.stderr)
        return 2
    previous = _end_by_signal()
    try:
        return _run(parts, keep=arguments.keep)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except GpuShareError as error:
        print(f"gpushare demo: {error}", file=sys.stderr)
        return 1
    finally:
        previous()


def scheduler_config(port: int) -> dict[str, object]:
    """Return the file that scheduler and extender both read, as for a real kube-scheduler."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}/gpushare-scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                # Above the sum of all in-tree scores: the extender's order decides.
                "weight": 150,
                "bindVerb": "bind",
                "preemptVerb": "preempt",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": [{"name": ALIYUN.resource, "ignoredByScheduler": False}],
            }
        ],
    }


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="gpushare demo",
        description="Run scenarios on a cluster of its own, started on this machine for it.",
    )
    parser.add_argument(
        "scenario",
        nargs="*",
        metavar="SCENARIO",
        help="name or number of a shipped scenario, or a YAML or Python file; several run one after"
        " another (default: all shipped ones, with --keep the first one)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the cluster running after the last one, for kubectl",
    )
    parser.add_argument("--list", action="store_true", help="list the shipped scenarios")
    found = parser.parse_args(argv)
    try:
        named = [find(word) for word in found.scenario]
    except ScenarioError as error:
        parser.error(str(error))
    found.scenario = named or (shipped()[:1] if found.keep else shipped())
    return found


def _run(parts: Sequence[Part], *, keep: bool) -> int:
    report = Report(sys.stdout, colours=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    report.line("starting API server, kubelet, device plug-ins, extender and scheduler ...")
    good = True
    with _cluster(report) as cluster:
        for number, part in enumerate(parts):
            if number:
                with report.muted():
                    cluster.runner.clean()
            report.title(part.title)
            good = _run_part(cluster, part) and good
            report.devices(cluster.runner.books())
            cluster.runner.told()
        report.line(f"\n{'all expectations held' if good else 'NOT all expectations held'}")
        if keep:
            _keep(cluster)
    return 0 if good else 1


def _run_part(cluster: _Cluster, part: Part) -> bool:
    """Run a scenario; return whether its expectations held."""
    try:
        if isinstance(part.content, Scenario):
            return cluster.runner.run(part.content)
        return _run_program(cluster, part, part.content)
    except ApiError:
        # If the extender died, its log says more than a call that found nobody there.
        cluster.check()
        raise


def _run_program(cluster: _Cluster, part: Part, program: Program) -> bool:
    """Run a program; return whether it ended without an exception.

    An assertion is its expectation.
    """
    from kubernetes import client, config  # noqa: PLC0415 -- a second, which only programs need

    configuration = client.Configuration()
    load = config.load_kube_config
    load(str(cluster.kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]  # it has no annotations
    with client.ApiClient(configuration) as api:
        try:
            program(api)
        except KeyboardInterrupt:
            raise
        except Exception as error:
            waiting = told_of(cluster.board.pods().values())
            cluster.report.expectation(
                "the program ends well", f"{complaint(part, error)}{waiting}"
            )
            return False
    cluster.report.expectation("the program ends well", None)
    return True


@contextlib.contextmanager
def _cluster(report: Report) -> Iterator[_Cluster]:
    """Yield a cluster that runs while the context is open; everything is ended in reverse order."""
    with contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-demo-")))
        server = ApiServer(Store())
        server.start()
        ends.callback(server.stop)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig(), encoding="utf-8")
        api = ApiClient(server.url, user_agent="gpushare-demo")
        ends.callback(api.close)
        api.create(_LEASES, free_lease_document())
        port = free_port()
        settings = folder / "scheduler.yaml"
        settings.write_text(yaml.safe_dump(scheduler_config(port)), encoding="utf-8")
        devices, processes = _device_plugins(folder, kubeconfig, report, ends)
        extender = ExtenderProcess(folder, kubeconfig, settings, port)
        ends.callback(extender.stop)
        extender.start()
        client = ApiClient(server.url, user_agent="gpushare-local-kubelet")
        kubelet = Kubelet(client, server.logs, devices)
        ends.callback(kubelet.stop)
        kubelet.start()
        for part, name in ((Heartbeat, "heartbeat"), (ControllerManager, "controllers")):
            running = part(ApiClient(server.url, user_agent=f"gpushare-local-{name}"))
            ends.callback(running.stop)
            running.start()
        document = yaml.safe_load(settings.read_text(encoding="utf-8"))
        options = options_from(decode_scheduler_config(document), seed=_SEED)
        scheduler = Scheduler(server.url, options, observer=report.on_decision)
        ends.callback(scheduler.stop)
        scheduler.start()
        inspect = HttpClient(f"http://127.0.0.1:{port}/gpushare-scheduler")
        ends.callback(inspect.close)
        board = Board(api, report.on_pod)
        ends.callback(board.stop)
        board.start()
        runner = Runner(api, inspect, board, report, devices=devices)
        processes = [extender, *processes]
        yield _Cluster(runner, board, report, extender, processes, kubeconfig, settings)


def _device_plugins(
    folder: Path, kubeconfig: Path, report: Report, ends: contextlib.ExitStack
) -> tuple[Devices, list[DemoProcess]]:
    """Start them, and return what the kubelet knows of them; without them it takes their place."""
    missing = device_plugins.missing()
    if missing:
        install = "pip install 'gpushare[device-plugin]'"
        report.line(f"no device plug-ins, as there is no package {missing}: {install}")
        return Devices(), []
    devices, process = device_plugins.start(folder, kubeconfig, ends)
    return devices, [process]


def _keep(cluster: _Cluster) -> None:
    """Wait for Ctrl-C. Raises GpuShareError if the extender dies meanwhile."""
    pause = threading.Event()
    with contextlib.suppress(KeyboardInterrupt):
        # Who has read these lines may end the demo at once.
        doctor = f"--extender {cluster.extender.health_url} --scheduler-config {cluster.settings}"
        nodes = sorted((str(node["name"]) for node in cluster.runner.books()), key=natural)
        for line in kept_lines(cluster.kubeconfig, nodes[0] if nodes else "NODE", doctor):
            cluster.report.line(line)
        while not pause.wait(0.5):
            cluster.check()


def _end_by_signal() -> Callable[[], None]:
    """Make SIGTERM end the demo as Ctrl-C does; the function returned undoes that."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    return lambda: _restore(before)


def _restore(handler: Callable[[int, FrameType | None], object] | int | None) -> None:
    signal.signal(signal.SIGTERM, handler)
