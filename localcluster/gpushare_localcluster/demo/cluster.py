"""The demo's cluster: starts all parts, and always ends them in reverse order.

The API server, kubelet, controllers and scheduler run in this process; the extender and the device
plug-ins are other processes. Tested in `tests/integration/test_demo.py`, which runs the demo.
"""

import contextlib
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient, HttpClient
from gpushare_localcluster.controllers.manager import ControllerManager
from gpushare_localcluster.demo.autoscaling import Autoscaling
from gpushare_localcluster.demo.board import Board
from gpushare_localcluster.demo.manifests import (
    DRIVER,
    claims_scheduler_config,
    free_lease_document,
    metrics_endpoints_document,
)
from gpushare_localcluster.demo.processes import (
    DemoProcess,
    ExtenderProcess,
    free_port,
    start_device_plugins,
)
from gpushare_localcluster.demo.report import Report
from gpushare_localcluster.demo.runner import Runner
from gpushare_localcluster.demo.scheduler_file import with_extender
from gpushare_localcluster.kubelet import Heartbeat, Kubelet
from gpushare_localcluster.scheduler.profiles import options_from
from gpushare_localcluster.scheduler.scheduler import Scheduler
from gpushare_localcluster.scheduler.trace import CycleTrace, Tracer

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
_ENDPOINTS = "/api/v1/namespaces/kube-system/endpoints"
_SEED = 7
_MOST_CYCLES = 1000
"""Upper bound on the scheduling cycles kept for expectations."""


@dataclass(frozen=True)
class DemoCluster:
    """A running cluster, as far as scenarios need it.

    remarks: lines about the user's file for the scheduler.
    """

    runner: Runner
    board: Board
    report: Report
    autoscaling: Autoscaling
    extender: ExtenderProcess
    processes: Sequence[DemoProcess]
    kubeconfig: Path
    settings: Path
    remarks: Sequence[str]

    def check(self) -> None:
        """Raise GpuShareError if a process has died."""
        for process in self.processes:
            process.check()


@contextlib.contextmanager
def running(
    report: Report,
    tracer: Tracer,
    configuration: Mapping[str, object],
    *,
    ui: bool,
    claims: bool = False,
    autoscaler: bool = False,
) -> Iterator[DemoCluster]:
    """Yield a cluster that runs while the context is open; all parts end in reverse order.

    tracer: called with each scheduling cycle. configuration: of the user for the scheduler, or {}.
    ui: with the page of the cluster. claims: the extender ranks nodes for pods with claims, and a
    second scheduler calls it. autoscaler: the cluster starts with one.
    """
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
        whole, remarks = with_extender(configuration, port)
        settings.write_text(yaml.safe_dump(whole), encoding="utf-8")
        devices, device_plugins = start_device_plugins(folder, kubeconfig, ends)
        driver = DRIVER if claims else ""
        extender = ExtenderProcess(folder, kubeconfig, settings, port, ui=ui, driver=driver)
        ends.callback(extender.stop)
        api.create(_ENDPOINTS, metrics_endpoints_document(extender.health_url))
        autoscaling = Autoscaling(api, server.url, extender, report.on_autoscaler)
        ends.callback(autoscaling.stop)
        (autoscaling.on if autoscaler else extender.start)()
        client = ApiClient(server.url, user_agent="gpushare-local-kubelet")
        kubelet = Kubelet(client, server.logs, devices)
        ends.callback(kubelet.stop)
        kubelet.start()
        for part, name in ((Heartbeat, "heartbeat"), (ControllerManager, "controllers")):
            running = part(ApiClient(server.url, user_agent=f"gpushare-local-{name}"))
            ends.callback(running.stop)
            running.start()
        config = decode_scheduler_config(whole)
        remarks += config.warnings
        files = [config]
        if claims:
            files.append(decode_scheduler_config(claims_scheduler_config(port)))
        cycles = deque[CycleTrace](maxlen=_MOST_CYCLES)

        def trace(cycle: CycleTrace) -> None:
            tracer(cycle)
            cycles.append(cycle)

        schedulers = [
            Scheduler(
                server.url,
                options_from(file, seed=_SEED),
                observer=report.on_decision,
                tracer=trace,
            )
            for file in files
        ]
        for scheduler in schedulers:
            ends.callback(scheduler.stop)
            scheduler.start()
        inspect = HttpClient(f"http://127.0.0.1:{port}/gpushare-scheduler")
        ends.callback(inspect.close)
        board = Board(api, report.on_pod)
        ends.callback(board.stop)
        board.start()
        runner = Runner(
            *(api, inspect, board, report),
            devices=devices,
            cycles=cycles,
            sees=lambda node: all(scheduler.sees(node) for scheduler in schedulers),
        )
        yield DemoCluster(
            runner=runner,
            board=board,
            report=report,
            autoscaling=autoscaling,
            extender=extender,
            processes=[extender, device_plugins],
            kubeconfig=kubeconfig,
            settings=settings,
            remarks=remarks,
        )
