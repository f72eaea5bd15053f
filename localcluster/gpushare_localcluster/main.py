"""`gpushare demo`: the composition root. A whole cluster on this machine, and scenarios on it.

Starts the API server, the kubelet, the real extender process and the scheduler, all speaking HTTP;
runs scenarios; and always ends all parts. YAML is read and written here.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from gpushare.commandline import Parser
from gpushare.errors import ApiError, GpuShareError
from gpushare_localcluster.demo.board import told_of
from gpushare_localcluster.demo.cluster import DemoCluster, running
from gpushare_localcluster.demo.plan import Scenario, ScenarioError
from gpushare_localcluster.demo.report import Report, kept_lines, natural, next_lines
from gpushare_localcluster.demo.scenario import (
    Part,
    Program,
    complaint,
    find,
    find_stage,
    load,
    shipped,
    stages,
)
from gpushare_localcluster.demo.scheduler_file import read_file
from gpushare_localcluster.scheduler.trace import CycleTrace, Tracer, cycle_log


def main(argv: Sequence[str]) -> int:
    """Run the demo; return 0 if all expectations held, 1 if one failed, 2 for bad input."""
    arguments = _arguments(argv)
    if arguments.list:
        for file in shipped():
            print(f"{file.stem:24} {load(file).title}")
        for stage in stages():
            print(f"{f'--stage {stage.name}':24} {load(stage.scenario).title}")
        return 0
    try:
        parts = [load(file) for file in arguments.scenario]
        configuration = read_file(arguments.scheduler_config)
    except ScenarioError as error:
        print(f"gpushare demo: {error}", file=sys.stderr)
        return 2
    previous = _end_by_signal()
    try:
        with cycle_log(arguments.trace_file) as write:
            return _run(parts, arguments, write, configuration)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except GpuShareError as error:
        print(f"gpushare demo: {error}", file=sys.stderr)
        return 1
    finally:
        previous()


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
        "-v",
        "--verbose",
        action="store_true",
        help="print what happens in all shipped scenarios, not a line for each",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the cluster running after the last one, for kubectl",
    )
    parser.add_argument(
        "--ui", action="store_true", help="as --keep, and show the cluster on a page for a browser"
    )
    parser.add_argument(
        "--stage",
        metavar="STAGE",
        help="run a stage of docs/scheduler-tour.md with its scheduler, and trace it; a number or a"
        f" name: {', '.join(stage.name for stage in stages())}",
    )
    parser.add_argument(
        "--scheduler-config",
        type=Path,
        metavar="FILE",
        help="a KubeSchedulerConfiguration for the scheduler; the extender is added to it, unless"
        " it has an entry for aliyun.com/gpu-mem",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="print each stage of each pod's scheduling: who rejected which node and why, scores,"
        " binding",
    )
    parser.add_argument(
        "--trace-file",
        type=Path,
        metavar="FILE",
        help="write the same there, as a JSON object a line",
    )
    parser.add_argument(
        "--autoscaler",
        action="store_true",
        help="run an autoscaler, and the extender with --placeholders and --scale-down-guard; its"
        " groups of nodes are in the ConfigMap node-groups of kube-system (docs/local-cluster.md)",
    )
    parser.add_argument("--list", action="store_true", help="list the shipped scenarios and stages")
    options = parser.parse_args(argv)
    if options.stage and (options.scenario or options.scheduler_config):
        parser.error("--stage brings its own scenario and scheduler file: leave yours out")
    try:
        files = [find(word) for word in options.scenario]
        if options.stage:
            stage = find_stage(options.stage)
            files, options.scheduler_config = [stage.scenario], stage.scheduler
            options.trace = True
    except ScenarioError as error:
        parser.error(str(error))
    options.keep = options.keep or options.ui
    options.verbose = options.verbose or options.keep or options.trace or bool(files)
    options.scenario = files or (shipped()[:1] if options.keep else shipped())
    return options


def _run(
    parts: Sequence[Part],
    arguments: argparse.Namespace,
    write: Tracer,
    configuration: dict[str, object],
) -> int:
    """Run the parts.

    write: called with each scheduling cycle. configuration: of the scheduler, {} for the default of
    the demo.
    """
    report = Report(
        sys.stdout,
        colours=sys.stdout.isatty() and "NO_COLOR" not in os.environ,
        brief=not arguments.verbose,
    )
    report.line("starting API server, kubelet, device plug-ins, extender and scheduler ...")
    good = True

    def tracer(cycle: CycleTrace) -> None:
        write(cycle)
        if arguments.trace:
            report.on_cycle(cycle)

    claims = any(isinstance(part.content, Scenario) and part.content.has_claims for part in parts)
    autoscaler = arguments.autoscaler or parts[0].autoscaler
    with running(
        *(report, tracer, configuration), ui=arguments.ui, claims=claims, autoscaler=autoscaler
    ) as cluster:
        if arguments.scheduler_config:
            report.line(f"the scheduler's file: {arguments.scheduler_config}")
            for text in cluster.remarks:
                report.line(f"  {text}")
        if arguments.ui:
            report.line(f"the cluster on a page: {cluster.extender.ui_url}")
        for number, part in enumerate(parts):
            if number:
                with report.muted():
                    cluster.runner.clean()
            if part.autoscaler:
                cluster.autoscaling.on()
            stays = arguments.autoscaler or arguments.keep
            good = _run_part(cluster, part, autoscaler_stays=stays) and good
        verdict = f"\n{'all expectations held' if good else 'NOT all expectations held'}"
        if arguments.keep:
            report.line(verdict)
            _keep(cluster)
    if not arguments.keep:
        report.line(verdict)  # the cluster has ended: no line about pods can follow
        for line in () if arguments.verbose else next_lines():
            report.line(line)
    return 0 if good else 1


def _run_part(cluster: DemoCluster, part: Part, *, autoscaler_stays: bool) -> bool:
    """Run and print a scenario; return whether its expectations held."""
    report, held = cluster.report, False
    report.title(part.title)
    try:
        if isinstance(part.content, Scenario):
            held = cluster.runner.run(part.content)
        else:
            held = _run_program(cluster, part, part.content)
        report.devices(cluster.runner.books())
        cluster.runner.told()
        if part.autoscaler and not autoscaler_stays:
            leftovers = cluster.autoscaling.off()
            report.expectation("switched off, nothing is left of what it needs", leftovers)
            held = held and leftovers is None
    except ApiError:
        # If the extender died, its log says more than a failed call.
        cluster.check()
        raise
    finally:
        report.end(part.title, held=held)
    return held


def _run_program(cluster: DemoCluster, part: Part, program: Program) -> bool:
    """Run a program; return whether it ended without an exception."""
    from kubernetes import client, config  # noqa: PLC0415 -- a second, which only programs need

    configuration = client.Configuration()
    load = config.load_kube_config
    load(str(cluster.kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]  # it has no annotations
    with client.ApiClient(configuration) as api:
        try:
            with contextlib.redirect_stdout(cluster.report):
                program(api)
        except KeyboardInterrupt:
            raise
        except Exception as error:
            pending = told_of(cluster.board.pods().values())
            cluster.report.expectation(
                "the program ends well", f"{complaint(part, error)}{pending}"
            )
            return False
    cluster.report.expectation("the program ends well", None)
    return True


def _keep(cluster: DemoCluster) -> None:
    """Wait for Ctrl-C. Raises GpuShareError if the extender dies."""
    pause = threading.Event()
    with contextlib.suppress(KeyboardInterrupt):
        # A reader of these lines may end the demo at once.
        doctor = f"--extender {cluster.extender.health_url} --scheduler-config {cluster.settings}"
        nodes = sorted((str(node["name"]) for node in cluster.runner.books()), key=natural)
        for line in kept_lines(cluster.kubeconfig, nodes[0] if nodes else "NODE", doctor):
            cluster.report.line(line)
        if cluster.autoscaling.is_on:
            words = "create configmap node-groups --from-literal=more=2x16GiB,max=3"
            cluster.report.line(f"nodes for the autoscaler: kubectl -n kube-system {words}")
        if cluster.extender.ui_url:  # the line before the scenarios may be far above
            cluster.report.line(f"the cluster on a page: {cluster.extender.ui_url}")
        while not pause.wait(0.5):
            cluster.check()


def _end_by_signal() -> Callable[[], None]:
    """Make SIGTERM, and a terminal that is closed, end the demo as Ctrl-C does.

    The returned function undoes this. Under nohup a closed terminal ends nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, interrupt)

    def restore() -> None:
        for number in heard:
            signal.signal(number, before[number])

    return restore
