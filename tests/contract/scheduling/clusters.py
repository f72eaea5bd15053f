"""The clusters of the scheduling suite: combinations of API servers and schedulers.

Knows how each is put together, with our extender and our kubelet; nothing of scenarios. The tests
of one module share a cluster.
"""

import contextlib
import io
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.reading import PodLogs
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient, HttpClient
from gpushare_localcluster.demo.board import Board
from gpushare_localcluster.demo.report import Report
from gpushare_localcluster.demo.runner import Runner
from gpushare_localcluster.kubelet import Kubelet
from gpushare_localcluster.scheduler.profiles import options_from
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.extender import RealExtender
from tests.e2e.pair import Access, Pair, port_of, printed
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.versions import LOCAL
from tests.e2e.world import World

_PATIENT = 4.0
"""Times as long as on the demo's own cluster: real processes on a busy machine."""
_ALONE = ("--leadership", "off")


class Cluster:
    """A running cluster: `runner` runs scenarios, `shown` returns their new output."""

    def __init__(self, runner: Runner, output: io.StringIO) -> None:
        self.runner = runner
        self._output = output

    @property
    def shown(self) -> str:
        text = self._output.getvalue()
        self._output.seek(0)
        self._output.truncate()
        return text


@contextlib.contextmanager
def small(folder: Path) -> Iterator[Cluster]:
    """Our API server and our small scheduler, on the file that is printed for the newest."""
    server = ApiServer(Store())
    with contextlib.ExitStack() as ends:
        server.start()
        ends.callback(server.stop)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        text = printed(RELEASE)
        file = folder / "scheduler-file"
        file.write_text(text)
        config = decode_scheduler_config(yaml.safe_load(text))
        flags = ("--scheduler-config", str(file), *_ALONE)
        extender = RealExtender(folder, port_of(text), kubeconfig, *flags)
        ends.callback(extender.stop)
        extender.start()
        # As up to 1.37: extenders see only candidates that kube-scheduler has victims for.
        options = replace(options_from(config, seed=7), empty_candidates=False)
        scheduler = Scheduler(server.url, options)
        ends.callback(scheduler.stop)
        scheduler.start()
        yield ends.enter_context(_cluster(lambda name: _local(server, name), extender.url, 1.0))


@contextlib.contextmanager
def real(folder: Path) -> Iterator[Cluster]:
    """A real kube-apiserver and a real kube-scheduler, as in an installation."""
    with contextlib.ExitStack() as ends:
        plane = Plane(folder, needed("etcd"), needed("kube-apiserver"))
        ends.callback(plane.stop)
        plane.start()
        world = World(plane, folder / "world", flags=_ALONE)
        ends.callback(world.stop)
        world.start()
        token, tls = plane.token(ADMIN), ssl.create_default_context(cafile=str(plane.ca))

        def connect(name: str) -> ApiClient:
            return ApiClient(plane.url, user_agent=name, token=token, tls=tls)

        yield ends.enter_context(_cluster(connect, world.extender.url, _PATIENT))


@contextlib.contextmanager
def mixed(folder: Path) -> Iterator[Cluster]:
    """A real kube-scheduler on our API server."""
    server = ApiServer(Store())
    with contextlib.ExitStack() as ends:
        server.start()
        ends.callback(server.stop)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        text = printed(RELEASE)
        # Our API server reads no Binding in protobuf.
        text = text.replace(
            "clientConnection:", "clientConnection:\n  contentType: application/json", 1
        )
        access = Access(LOCAL, kubeconfig, kubeconfig)
        pair = Pair(folder / "pair", text, access, flags=_ALONE)
        ends.callback(pair.stop)
        pair.start()
        connected = _cluster(lambda name: _local(server, name), pair.extender.url, _PATIENT)
        yield ends.enter_context(connected)


KINDS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Cluster]]] = {
    "small": small,
    "real": real,
    "mixed": mixed,
}


def _local(server: ApiServer, name: str) -> ApiClient:
    return ApiClient(server.url, user_agent=name)


@contextlib.contextmanager
def _cluster(
    connect: Callable[[str], ApiClient], extender: str, stretch: float
) -> Iterator[Cluster]:
    """The parts of all clusters: our kubelet, and a runner of scenarios."""
    with contextlib.ExitStack() as ends:
        kubelet = Kubelet(connect("kubelet"), PodLogs())
        ends.callback(kubelet.stop)
        kubelet.start()
        api = connect("scenario")
        ends.callback(api.close)
        inspect = HttpClient(extender)
        ends.callback(inspect.close)
        output = io.StringIO()
        report = Report(output, colours=False)
        board = Board(api, report.on_pod)
        ends.callback(board.stop)
        board.start()
        yield Cluster(Runner(api, inspect, board, report, stretch=stretch), output)
